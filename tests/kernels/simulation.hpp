// SPDX-License-Identifier: Apache-2.0
// Measures for tests that follow the reference over many calls.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/synthetic.hpp"

namespace echotp::test {

using Bits = RankElements;
using echotp::exact_sum;
using echotp::gaussian;
using echotp::heavy_tailed;

inline std::vector<double> values(DataType type, const std::vector<std::uint32_t>& bits) {
  std::vector<double> result;
  for (std::uint32_t element : bits) result.push_back(ReferenceAllReduce::value_of(type, element));
  return result;
}

/// Signal to error ratio in dB.
inline double sqnr_db(const std::vector<double>& exact, const std::vector<double>& got) {
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    signal += exact[i] * exact[i];
    noise += (got[i] - exact[i]) * (got[i] - exact[i]);
  }
  return 10 * std::log10(signal / noise);
}

inline double rms(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

}  // namespace echotp::test
