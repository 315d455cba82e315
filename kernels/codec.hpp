// SPDX-License-Identifier: Apache-2.0
// The codec, element by element and group by group, for CPU and GPU alike: symmetric codes of 4 bits (-8..7)
// or 8 bits (-128..127) whose scale is the group's signed extremum divided by the lowest code, so that the
// largest value always falls on the end that has one step more.
#pragma once

#include <cstdint>

#include "kernels/hd.hpp"
#include "kernels/types.hpp"

namespace echotp {

/// What the width of a code decides.
struct CodeWidth {
  int bits;         // 4 or 8
  float factor;     // the scale is the extremum times this: 1 / the lowest code
  float scale_max;  // largest |scale|: the lowest code times it is the largest finite bf16
  float limit;      // groups with an extremum of this magnitude or above count as non-finite
  float magic;      // 1.5 * 2^23 - lowest code: adding it leaves round(value) - lowest code in the low bits
  float top;        // magic + the highest code
};

/// With 8 bits the extremum of a group within 2^-15 of the largest float would need a code below -128.
constexpr CodeWidth code_width(int bits) {
  if (bits == 8) return {8, -0.0078125f, 0x1.FEp120f, 0x1.FFFCp127f, 12583040.0f, 12583167.0f};
  return {4, -0.125f, 0x1.FEp124f, INFINITY, 12582920.0f, 12582927.0f};
}

/// A group whose |scale| is smaller travels as zero.
inline constexpr float kScaleTiny = 1e-30f;
/// Scale of a group that held a NaN or Inf: all of it decodes to NaN.
inline constexpr std::uint16_t kScaleNan = 0x7FC0;

/// What one group is divided by.
struct GroupScale {
  std::uint16_t bits;  // bf16, as it travels
  float scale;         // the same value in fp32
  float inverse;       // 1/scale to nearest, with 4 bits of the nearest bf16; 0 for zero groups, else NaN
  bool finite;         // false: the group held a NaN or Inf
};

/// Orders values by magnitude, a negative one above the positive one of equal magnitude, NaN and Inf above
/// all.
ECHO_TP_HD std::uint32_t extremum_key(float u) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_l(float_bits(u), float_bits(u), 1);
#else
  return std::rotl(float_bits(u), 1);
#endif
}

/// The value that has this key.
ECHO_TP_HD float extremum_of(std::uint32_t key) {
  return bits_float((key >> 1) | (key << 31));
}

/// The scale of a group from its extremum. The reciprocal of a 4-bit group's scale is rounded to bf16: with
/// it, bf16 elements can be rounded two at a time (encode_pairs() in pairs.cuh).
ECHO_TP_HD GroupScale group_scale(float extremum, const CodeWidth& width) {
  const float exact = clamp_symmetric(mul_rn(extremum, width.factor), width.scale_max);
  GroupScale result;
  result.finite = std::fabs(extremum) < width.limit;
  const float scale = result.finite ? round_to_bf16(exact) : bf16_to_float(kScaleNan);
  const bool zero = std::fabs(scale) < kScaleTiny;
  const float inverse = width.bits == 4 ? bf16_reciprocal_of_bf16(scale) : reciprocal_of_bf16(scale);
  result.scale = zero ? 0.0f : scale;
  result.inverse = zero ? 0.0f : inverse;
  result.bits = static_cast<std::uint16_t>(float_bits(result.scale) >> 16);
  return result;
}

/// width.magic + code, with code = min(round to nearest even of the exact product u * inverse, highest code).
/// The lower end needs no limit: |u * inverse| is below the lowest code's magnitude + 1/2. In a non-finite
/// group, whose inverse is NaN, every code is the highest.
///
/// |code - u / scale| is at most 1/2 + d * |u / scale|, where d, 1/257 with 4 bits and 2^-24 with 8, bounds
/// the relative error of the rounded reciprocal; or, if the highest code limits it, |u / scale| - highest
/// code. |u / scale| itself is at most 8.0314 or 128.51, because the scale is rounded and at most scale_max.
ECHO_TP_HD float encode(float u, float inverse, const CodeWidth& width) {
  return fminf(fma_rn(u, inverse, width.magic), width.top);
}

/// The code of encode()'s result.
ECHO_TP_HD float code_of(float encoded, const CodeWidth& width) {
  return sub_rn(encoded, width.magic);
}

/// Position of element i of eight in their word of 4-bit codes: even elements in the lower half, odd ones in
/// the upper, so that one shift and mask give a neighbouring pair in the two halves of a word.
constexpr int nibble_of(int i) {
  return i / 2 + i % 2 * 4;
}

/// Eight results of encode() with 4 bits as eight nibbles.
ECHO_TP_HD std::uint32_t pack_nibbles(const float (&encoded)[8]) {
  // The bits above the nibble are the same in all eight, so their shifted sum is a constant that one addition
  // removes.
  constexpr std::uint32_t kHigh = 0x4B400000u;
  constexpr std::uint32_t kBias = kHigh * 0x11111111u;
  std::uint32_t word = 0u - kBias;
  for (int i = 7; i >= 0; --i) word += float_bits(encoded[i]) << (4 * nibble_of(i));
  return word;
}

/// Results `first` to `first` + 3 of encode() with 8 bits as four bytes, the first lowest.
ECHO_TP_HD std::uint32_t pack_bytes(const float (&encoded)[8], int first) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= (float_bits(encoded[first + i]) & 0xFFu) << (8 * i);
  return word;
}

/// Value of a stored code (0..2^bits - 1), exact in fp32. A NaN scale gives the canonical NaN.
ECHO_TP_HD float decode(std::uint32_t stored, float scale, int bits) {
  const float value = mul_rn(static_cast<float>(static_cast<int>(stored) - (1 << (bits - 1))), scale);
#if defined(__CUDA_ARCH__)
  return value;
#else
  return is_finite(value) ? value : bits_float(0x7FFFFFFFu);
#endif
}

/// Encodes `group` values: codes get group/8*bits bytes, *scale the bf16 scale. Returns false for a
/// non-finite group.
inline bool encode_group(const float* u, int group, std::uint8_t* codes, std::uint16_t* scale, int bits = 4) {
  const CodeWidth width = code_width(bits);
  std::uint32_t key = 0;
  for (int i = 0; i < group; ++i) {
    const std::uint32_t candidate = extremum_key(u[i]);
    if (candidate > key) key = candidate;
  }
  const GroupScale chosen = group_scale(extremum_of(key), width);
  *scale = chosen.bits;
  for (int i = 0; i < group; i += 8) {
    float encoded[8];
    for (int j = 0; j < 8; ++j) encoded[j] = encode(u[i + j], chosen.inverse, width);
    const std::uint32_t words[2] = {bits == 8 ? pack_bytes(encoded, 0) : pack_nibbles(encoded),
                                    bits == 8 ? pack_bytes(encoded, 4) : 0u};
    for (int j = 0; j < bits; ++j) {
      codes[i / 8 * bits + j] = static_cast<std::uint8_t>(words[j / 4] >> (8 * (j % 4)));
    }
  }
  return chosen.finite;
}

/// Decodes `group` values in fp32.
inline void decode_group(const std::uint8_t* codes, std::uint16_t scale, int group, float* out,
                         int bits = 4) {
  for (int i = 0; i < group; ++i) {
    const int nibble = nibble_of(i % 8);
    const std::uint32_t stored =
        bits == 8 ? codes[i] : (codes[i / 8 * 4 + nibble / 2] >> (4 * (nibble % 2))) & 0xFu;
    out[i] = decode(stored, bf16_to_float(scale), bits);
  }
}

/// Bits of an fp32 value as an element of `type` (to nearest even; the low bits for the 16-bit types), and
/// back.
ECHO_TP_HD std::uint32_t element_from_float(DataType type, float x) {
  if (type == DataType::kBf16) return float_to_bf16(x);
  if (type == DataType::kFp16) return float_to_fp16(x);
  return float_bits(x);
}
ECHO_TP_HD float element_to_float(DataType type, std::uint32_t bits) {
  if (type == DataType::kBf16) return bf16_to_float(static_cast<std::uint16_t>(bits));
  if (type == DataType::kFp16) return fp16_to_float(static_cast<std::uint16_t>(bits));
  return bits_float(bits);
}

}  // namespace echotp
