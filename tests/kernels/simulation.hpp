// SPDX-License-Identifier: Apache-2.0
// Inputs and bookkeeping for tests that follow the reference over many calls.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/reference.hpp"

namespace echotp::test {

using Bits = std::vector<std::vector<std::uint32_t>>;

/// A large pool of samples, drawn from at random: far cheaper than the distribution itself.
template <class Distribution>
const std::vector<double>& pool(const Distribution& distribution) {
  static const std::vector<double> samples = [distribution] {
    std::mt19937_64 random(99);
    Distribution draw = distribution;
    std::vector<double> result(1 << 16);
    for (double& sample : result) sample = draw(random);
    return result;
  }();
  return samples;
}

/// Gaussian partials of variance 1/ranks, so that the sum has variance `scale`^2.
inline Bits gaussian(std::mt19937_64& random, DataType type, int ranks, std::int64_t count,
                     double scale = 1) {
  const std::vector<double>& normal = pool(std::normal_distribution<double>());
  const double factor = scale / std::sqrt(static_cast<double>(ranks));
  std::minstd_rand draw(static_cast<unsigned>(random()));
  Bits bits(ranks, std::vector<std::uint32_t>(static_cast<std::size_t>(count)));
  for (auto& rank : bits) {
    for (auto& element : rank) {
      element = ReferenceAllReduce::bits_of(type, static_cast<float>(factor * normal[draw() >> 8 & 0xFFFF]));
    }
  }
  return bits;
}

/// Student-t(4) partials with log-normal channel scales, a persistent mean a channel and a few outlier
/// channels, as activations of a language model have them. Channels repeat every 1024 elements; outliers are
/// channels 100, 300, ...
inline Bits heavy_tailed(std::mt19937_64& random, DataType type, int ranks, std::int64_t count) {
  std::mt19937_64 fixed(7);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> scale(1024), mean(1024);
  for (int c = 0; c < 1024; ++c) {
    scale[c] = std::exp(0.5 * normal(fixed)) * (c % 200 == 100 ? 20 : 1);
    mean[c] = (normal(fixed) > 0 ? 0.4 : -0.4);
  }
  const std::vector<double>& student = pool(std::student_t_distribution<double>(4));
  std::minstd_rand draw(static_cast<unsigned>(random()));
  Bits bits(ranks, std::vector<std::uint32_t>(static_cast<std::size_t>(count)));
  for (auto& rank : bits) {
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const std::size_t channel = i % 1024;
      const double value =
          (student[draw() >> 8 & 0xFFFF] / std::sqrt(2.0 * ranks) + mean[channel] / ranks) * scale[channel];
      rank[i] = ReferenceAllReduce::bits_of(type, static_cast<float>(value));
    }
  }
  return bits;
}

/// Exact sums of the partials, in double.
inline std::vector<double> exact_sum(DataType type, const Bits& send) {
  std::vector<double> sum(send[0].size(), 0);
  for (const auto& rank : send) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += ReferenceAllReduce::value_of(type, rank[i]);
  }
  return sum;
}

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
