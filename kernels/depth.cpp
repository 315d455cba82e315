// SPDX-License-Identifier: Apache-2.0
#include "kernels/depth.hpp"

#include <cmath>
#include <random>

#include "kernels/synthetic.hpp"

namespace echotp {

std::vector<double> accumulated_error(const DepthSetup& setup) {
  ReferenceSetup collective = setup.collective;
  collective.capacity = tile_count(setup.elements) * kTileElements;
  ReferenceAllReduce all(collective);
  const DataType type = collective.dtype;
  const bool heavy = setup.activations == Activations::kHeavyTailed;
  std::mt19937_64 random(setup.seed);
  std::vector<double> error(static_cast<std::size_t>(setup.elements), 0.0);
  std::vector<double> result;
  double power = 0;
  std::int64_t counted = 0;
  for (int call = 0; call < setup.calls; ++call) {
    const RankElements send = heavy ? heavy_tailed(random, type, collective.ranks, setup.elements)
                                    : gaussian(random, type, collective.ranks, setup.elements);
    all.call(send, call == 0);
    const std::vector<double> exact = exact_sum(type, send);
    double squares = 0;
    std::int64_t here = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error[i] += ReferenceAllReduce::value_of(type, all.output(0)[i]) - exact[i];
      if (heavy && synthetic_outlier(static_cast<int>(i % kSyntheticChannels))) continue;
      squares += error[i] * error[i];
      power += exact[i] * exact[i];
      ++here;
    }
    counted += here;
    result.push_back(std::sqrt(squares / static_cast<double>(here)));
  }
  const double unit = std::sqrt(power / static_cast<double>(counted));
  for (double& value : result) value /= unit;
  return result;
}

}  // namespace echotp
