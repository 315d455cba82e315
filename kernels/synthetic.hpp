// SPDX-License-Identifier: Apache-2.0
// SYNTHETIC ACTIVATIONS: inputs of all-reduces as a language model may have them, from a seed alone, and the
// exact sums that they should give. For simulations and tests; nothing here runs in a job.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/reference.hpp"

namespace echotp {

/// Elements of a token in heavy_tailed(); gaussian() has no channels.
inline constexpr int kSyntheticChannels = 1024;

/// Whether a channel of heavy_tailed() is an outlier: about 1 in 200.
constexpr bool synthetic_outlier(int channel) {
  return channel % 200 == 100;
}

/// The inputs of one all-reduce, [ranks][elements], as raw bits of a data type.
using RankElements = std::vector<std::vector<std::uint32_t>>;

/// 2^16 samples of a distribution, to draw from at random: far cheaper than the distribution itself.
template <class Distribution>
const std::vector<double>& sample_pool(const Distribution& distribution) {
  static const std::vector<double> samples = [distribution] {
    std::mt19937_64 random(99);
    Distribution draw = distribution;
    std::vector<double> result(1 << 16);
    for (double& sample : result) sample = draw(random);
    return result;
  }();
  return samples;
}

/// Gaussian partials of variance scale^2/ranks each, so that the sum has variance scale^2.
inline RankElements gaussian(std::mt19937_64& random, DataType type, int ranks, std::int64_t count,
                             double scale = 1) {
  const std::vector<double>& normal = sample_pool(std::normal_distribution<double>());
  const double factor = scale / std::sqrt(static_cast<double>(ranks));
  std::minstd_rand draw(static_cast<unsigned>(random()));
  RankElements bits(ranks, std::vector<std::uint32_t>(static_cast<std::size_t>(count)));
  for (auto& rank : bits) {
    for (auto& element : rank) {
      element = ReferenceAllReduce::bits_of(type, static_cast<float>(factor * normal[draw() >> 8 & 0xFFFF]));
    }
  }
  return bits;
}

/// Student-t(4) partials with log-normal channel scales (sigma 0.5), a mean of 0.4 scales that a channel
/// keeps over all calls, and outlier channels 20 times as large.
inline RankElements heavy_tailed(std::mt19937_64& random, DataType type, int ranks, std::int64_t count) {
  std::mt19937_64 fixed(7);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> scale(kSyntheticChannels), mean(kSyntheticChannels);
  for (int c = 0; c < kSyntheticChannels; ++c) {
    scale[c] = std::exp(0.5 * normal(fixed)) * (synthetic_outlier(c) ? 20 : 1);
    mean[c] = (normal(fixed) > 0 ? 0.4 : -0.4);
  }
  const std::vector<double>& student = sample_pool(std::student_t_distribution<double>(4));
  std::minstd_rand draw(static_cast<unsigned>(random()));
  RankElements bits(ranks, std::vector<std::uint32_t>(static_cast<std::size_t>(count)));
  for (auto& rank : bits) {
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const std::size_t channel = i % kSyntheticChannels;
      const double value =
          (student[draw() >> 8 & 0xFFFF] / std::sqrt(2.0 * ranks) + mean[channel] / ranks) * scale[channel];
      rank[i] = ReferenceAllReduce::bits_of(type, static_cast<float>(value));
    }
  }
  return bits;
}

/// Exact sums of the partials, in double.
inline std::vector<double> exact_sum(DataType type, const RankElements& send) {
  std::vector<double> sum(send[0].size(), 0);
  for (const auto& rank : send) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += ReferenceAllReduce::value_of(type, rank[i]);
  }
  return sum;
}

}  // namespace echotp
