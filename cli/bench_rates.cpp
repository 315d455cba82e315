// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_rates.hpp"

#include <algorithm>

namespace echotp {

std::optional<double> background_gbs(const std::vector<BackgroundChunk>& chunks,
                                     const std::vector<BenchSpan>& spans) {
  double bytes = 0, milliseconds = 0;
  for (const BenchSpan& span : spans) milliseconds += std::max(0.0, span.stop_ms - span.start_ms);
  if (!(milliseconds > 0)) return std::nullopt;
  for (const BackgroundChunk& chunk : chunks) {
    const double length = chunk.span.stop_ms - chunk.span.start_ms;
    if (!(length > 0)) continue;
    for (const BenchSpan& span : spans) {
      const double common =
          std::min(span.stop_ms, chunk.span.stop_ms) - std::max(span.start_ms, chunk.span.start_ms);
      if (common > 0) bytes += chunk.bytes * common / length;
    }
  }
  return bytes / (milliseconds * 1e6);
}

}  // namespace echotp
