// SPDX-License-Identifier: Apache-2.0
// BENCH RATES: how fast the background moved bytes while certain calls ran. Pure.
#pragma once

#include <optional>
#include <vector>

namespace echotp {

/// A span of time on one clock, in milliseconds.
struct BenchSpan {
  double start_ms = 0;
  double stop_ms = 0;
};

/// One piece of background traffic that was under way during `span`.
struct BackgroundChunk {
  BenchSpan span;
  double bytes = 0;
};

/// Mean rate of the chunks during `spans`, in 1e9 bytes a second; a chunk moves evenly over its own span.
/// Nothing for spans of no length. Spans do not overlap each other; chunks may.
std::optional<double> background_gbs(const std::vector<BackgroundChunk>& chunks,
                                     const std::vector<BenchSpan>& spans);

}  // namespace echotp
