// SPDX-License-Identifier: Apache-2.0
// Two 16-bit floats in a word: what rounds, decodes and sums 4-bit codes with less than one instruction an
// element and step. Each function gives the bits of its counterpart in codec.hpp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/codec.hpp"

namespace echotp::device {

/// Pairs whose low mantissa bits take a nibble each: 128 in bf16, 1024 in fp16. Kernels get them as
/// arguments: with an immediate for the mask as well, masking and merging would be two instructions.
inline constexpr std::uint32_t kPairMagic = 0x43004300u;
inline constexpr std::uint32_t kNibbleMagic = 0x64006400u;
/// Of a pair of nibbles in a word: the lower of the two in each half, and the upper.
inline constexpr std::uint32_t kLowNibbles = 0x000F000Fu;
inline constexpr std::uint32_t kHighNibbles = 0x00F000F0u;

/// The same bf16 twice.
__device__ __forceinline__ std::uint32_t pair_of(std::uint16_t bits) {
  return bits * 0x00010001u;
}

/// The same for a bf16 in fp32.
__device__ __forceinline__ std::uint32_t pair_of(float x) {
  return __byte_perm(__float_as_uint(x), 0, 0x3232);
}

/// bf16 pairs: a*b + c with one rounding to nearest even.
__device__ __forceinline__ std::uint32_t pair_fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

/// bf16 pairs: the smaller values, a number before a NaN.
__device__ __forceinline__ std::uint32_t pair_min(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

/// bf16 pairs: the larger or smaller values, a NaN before a number.
__device__ __forceinline__ std::uint32_t pair_max_nan(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ __forceinline__ std::uint32_t pair_min_nan(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

/// Largest and smallest of the bf16 elements seen so far, a NaN before all of them: those with even and odd
/// index apart.
class PairExtrema {
 public:
  explicit __device__ __forceinline__ PairExtrema(std::uint32_t first) : largest_(first), smallest_(first) {}
  __device__ __forceinline__ void add(std::uint32_t pair) {
    largest_ = pair_max_nan(largest_, pair);
    smallest_ = pair_min_nan(smallest_, pair);
  }
  /// Takes in what 2^lane_shift neighbouring lanes (1, 2 or 4) have seen. All lanes of the warp take part.
  __device__ __forceinline__ void add_lanes(int lane_shift) {
    if (lane_shift > 0) {
      add_lane(1);
      if (lane_shift > 1) add_lane(2);
    }
  }
  /// The element with the largest extremum_key(), or a NaN if there is one.
  __device__ __forceinline__ float extremum() const {
    const auto high = *reinterpret_cast<const __nv_bfloat162*>(&largest_);
    const auto low = *reinterpret_cast<const __nv_bfloat162*>(&smallest_);
    const float positive = __bfloat162float(__hmax_nan(__low2bfloat16(high), __high2bfloat16(high)));
    const float negative = __bfloat162float(__hmin_nan(__low2bfloat16(low), __high2bfloat16(low)));
    return -negative >= positive ? negative : positive;
  }

 private:
  __device__ __forceinline__ void add_lane(int distance) {
    largest_ = pair_max_nan(largest_, __shfl_xor_sync(0xFFFFFFFFu, largest_, distance));
    smallest_ = pair_min_nan(smallest_, __shfl_xor_sync(0xFFFFFFFFu, smallest_, distance));
  }

  std::uint32_t largest_;
  std::uint32_t smallest_;
};

/// Eight bf16 elements as codes of 4 bits. `inverse`: pair_of() the group's, which is a bf16. Equal to
/// encode() and pack_nibbles(): 128 to 143 have a unit of 1 in bf16, so that adding 136 rounds to a code as
/// adding encode()'s constant does, and code -8 takes all that is below.
__device__ __forceinline__ std::uint32_t encode_pairs(const std::uint32_t (&elements)[4],
                                                      std::uint32_t inverse) {
  constexpr std::uint32_t kBias = 0x43084308u;     // 136
  constexpr std::uint32_t kHighest = 0x430F430Fu;  // 143
  std::uint32_t word = 0u - kPairMagic * 0x1111u;
#pragma unroll
  for (int i = 3; i >= 0; --i) word += pair_min(pair_fma(elements[i], inverse, kBias), kHighest) << (4 * i);
  return word;
}

/// Eight codes of 4 bits as bf16 elements, scaled by the pair `scale`. `magic`: kPairMagic.
__device__ __forceinline__ void decode_pairs(std::uint32_t codes, std::uint32_t scale, std::uint32_t magic,
                                             std::uint32_t (&out)[4]) {
  constexpr std::uint32_t kOne = 0x3F803F80u;
  constexpr std::uint32_t kBias = 0xC308C308u;       // -136: the magic and the code's 8
  constexpr std::uint32_t kMinusZero = 0x80008000u;  // keeps the sign of a zero
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t code = pair_fma(((codes >> (4 * i)) & kLowNibbles) | magic, kOne, kBias);
    // Rounds once, as the fp32 product (exact) does when it is cast.
    out[i] = pair_fma(code, scale, kMinusZero);
  }
}

/// Eight codes of 4 bits in fp32. `magic`: kNibbleMagic.
__device__ __forceinline__ void nibble_codes(std::uint32_t codes, std::uint32_t magic, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t word = codes >> (4 * i);
    // 1024 + stored, and 1024 + 16 * stored, where the nibble is left in its place: fp16 holds both.
    const std::uint32_t low = (word & kLowNibbles) | magic;
    const std::uint32_t high = (word & kHighNibbles) | magic;
    const float2 first =
        __half22float2(__hadd2(*reinterpret_cast<const __half2*>(&low), __float2half2_rn(-1032.0f)));
    const float2 second = __half22float2(__hfma2(*reinterpret_cast<const __half2*>(&high),
                                                 __float2half2_rn(0.0625f), __float2half2_rn(-72.0f)));
    out[2 * i] = first.x;
    out[2 * i + 1] = first.y;
    out[2 * i + 2] = second.x;
    out[2 * i + 3] = second.y;
  }
}

}  // namespace echotp::device
