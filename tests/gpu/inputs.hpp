// SPDX-License-Identifier: Apache-2.0
// What the GPU tests feed to the collective: random and hostile elements, and a name for a set-up.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec.hpp"
#include "kernels/reference.hpp"

namespace echotp::test {

inline std::uint32_t sign_bit(DataType type) {
  return type == DataType::kFp32 ? 0x80000000u : 0x8000u;
}
inline std::uint32_t sign_changed(DataType type, std::uint32_t bits, bool change) {
  return change ? bits ^ sign_bit(type) : bits;
}
inline std::uint32_t with_sign(DataType type, std::uint32_t bits, bool negative) {
  return negative ? bits | sign_bit(type) : bits & ~sign_bit(type);
}
/// A NaN whose sign and payload come from `random`.
inline std::uint32_t any_nan(DataType type, std::uint32_t random) {
  const std::uint32_t infinity = ReferenceAllReduce::bits_of(type, std::numeric_limits<float>::infinity());
  const std::uint32_t lowest_exponent_bit = infinity & (0u - infinity);
  const std::uint32_t payload = random & (lowest_exponent_bit - 1);
  return infinity | (payload != 0 ? payload : 1u) | (random & 0x80000000u ? sign_bit(type) : 0u);
}

/// Draws inputs from a pool, groups of 32 of many kinds if `hostile`.
class Inputs {
 public:
  Inputs() {
    std::normal_distribution<float> normal;
    for (float& sample : pool_) sample = normal(random_);
  }

  std::vector<std::vector<std::uint32_t>> make(const ReferenceSetup& setup, std::int64_t count,
                                               bool hostile) {
    std::vector<std::vector<std::uint32_t>> bits(setup.ranks,
                                                 std::vector<std::uint32_t>(static_cast<std::size_t>(count)));
    for (auto& rank : bits) {
      std::size_t at = random_();
      for (std::size_t start = 0; start < rank.size(); start += 32) {
        const std::uint64_t kind = hostile ? random_() % 40 : 40;
        const float scale = kind < std::size(kScales) ? kScales[kind] : 1.0f;
        const std::size_t end = std::min(rank.size(), start + 32);
        for (std::size_t i = start; i < end; ++i) {
          rank[i] = ReferenceAllReduce::bits_of(setup.dtype, pool_[at++ % std::size(pool_)] * scale);
        }
        const std::size_t one = start + random_() % (end - start);
        const auto put = [&](float value) { rank[one] = ReferenceAllReduce::bits_of(setup.dtype, value); };
        switch (kind) {
          case 20:
            put(std::numeric_limits<float>::quiet_NaN());
            break;
          case 21:
            put(std::numeric_limits<float>::infinity());
            break;
          case 22:
            put(-std::numeric_limits<float>::infinity());
            break;
          case 23:
            put(3000.0f);
            break;
          case 24:
            put(-1e30f);
            break;
          case 25:
            rank[start] = sign_changed(setup.dtype, rank[one], true);
            break;
          case 26:
            std::fill(rank.begin() + start, rank.begin() + end, rank[one]);
            break;
          case 27:
            put(0x1.FEp127f);
            break;
          case 28:
            put(-kFloatMax);
            break;
          case 29:
            rank[start] = ReferenceAllReduce::bits_of(setup.dtype, kFloatMax);
            break;
          case 30:
            put(65504.0f);
            break;
          case 31:  // equal magnitudes of both signs everywhere: the negative one is the extremum
            for (std::size_t i = start; i < end; ++i)
              rank[i] = sign_changed(setup.dtype, rank[one], random_() % 2 != 0);
            break;
          case 32:  // one sign only, so that one of the two extrema is the smallest in magnitude
          case 33:
            for (std::size_t i = start; i < end; ++i) rank[i] = with_sign(setup.dtype, rank[i], kind == 32);
            break;
          case 34:  // NaN of either sign with any payload
            rank[one] = any_nan(setup.dtype, static_cast<std::uint32_t>(random_()));
            break;
          case 35:  // NaN and Inf of both signs
            put(std::numeric_limits<float>::infinity());
            rank[start] = ReferenceAllReduce::bits_of(setup.dtype, -std::numeric_limits<float>::infinity());
            rank[end - 1] = any_nan(setup.dtype, static_cast<std::uint32_t>(random_()));
            break;
          case 36:  // multiples of half a step of a power of two: ties everywhere, and the clipped end
            for (std::size_t i = start; i < end; ++i) {
              rank[i] = ReferenceAllReduce::bits_of(
                  setup.dtype, static_cast<float>(static_cast<int>(random_() % 33) - 16) * 0.5f);
            }
            break;
          case 37:  // zeros of both signs around one value
            for (std::size_t i = start; i < end; ++i) {
              if (i != one)
                rank[i] = ReferenceAllReduce::bits_of(setup.dtype, random_() % 2 != 0 ? -0.0f : 0.0f);
            }
            break;
          default:
            break;
        }
      }
    }
    return bits;
  }

  std::uint64_t random() { return random_(); }

 private:
  static constexpr float kScales[] = {0.0f, 1e-38f, 1e-41f, 1e38f,  3e38f, 1e-30f, 1e-29f, 7e-31f, 1e-7f,
                                      1e4f, 6e4f,   -0.0f,  1e-20f, 1e20f, 3e4f,   1e-5f,  6e-8f,  1e-33f};
  std::mt19937_64 random_{1};
  float pool_[1 << 16];
};

inline const char* name_of(DataType type) {
  return type == DataType::kBf16 ? "bf16" : type == DataType::kFp16 ? "fp16" : "fp32";
}

inline std::string describe(const ReferenceSetup& setup) {
  const char* modes[] = {"none", "owner", "both", "drift"};
  const char* formats[] = {"fp32", "fp16", "int8"};
  return std::string(name_of(setup.dtype)) + " group " + std::to_string(setup.codec.group) + " ranks " +
         std::to_string(setup.ranks) + " bits " + std::to_string(setup.codec.first_leg_bits) + "+" +
         std::to_string(setup.codec.bits) + " " + modes[static_cast<int>(setup.compensation.mode)] +
         (setup.compensation.b != 0 ? " dual " : " fast ") +
         formats[static_cast<int>(setup.compensation.state)];
}

}  // namespace echotp::test
