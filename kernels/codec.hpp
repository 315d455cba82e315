// SPDX-License-Identifier: Apache-2.0
// The 4-bit codec, element by element and group by group, for CPU and GPU alike: symmetric codes -8..7 whose
// scale is the group's signed extremum divided by -8, so that the largest value always falls on the end that
// has one step more.
#pragma once

#include <cstdint>

#include "kernels/hd.hpp"
#include "kernels/types.hpp"

namespace echotp {

/// Largest |scale|: -8 times it is the largest finite bf16.
inline constexpr float kScaleMax = 0x1.FEp124f;
/// A group whose |scale| is smaller travels as zero.
inline constexpr float kScaleTiny = 1e-30f;
/// Scale of a group that held a NaN or Inf: all of it decodes to NaN.
inline constexpr std::uint16_t kScaleNan = 0x7FC0;
/// Eight codes of value 0: what zero groups and non-finite groups carry.
inline constexpr std::uint32_t kZeroCodes = 0x88888888u;
/// 1.5 * 2^23 + 8: adding it to a small value leaves round(value) + 8 in the low bits of the float.
inline constexpr float kCodeMagic = 12582920.0f;

/// What one group is divided by.
struct GroupScale {
  std::uint16_t bits;  // bf16, as it travels
  float scale;         // the same value in fp32
  float inverse;       // 1/scale to nearest; 0 for zero groups and non-finite groups
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

/// The scale of a group from the largest extremum_key of its elements.
ECHO_TP_HD GroupScale group_scale(std::uint32_t key) {
  const float extremum = bits_float((key >> 1) | (key << 31));
  const float eighth = clamp_symmetric(mul_rn(extremum, -0.125f), kScaleMax);
  GroupScale result;
  result.finite = key < 0xFF000000u;
  result.bits = float_to_bf16(eighth);
  result.scale = bf16_to_float(result.bits);
  const bool zero = !(std::fabs(result.scale) >= kScaleTiny);
  result.inverse = zero || !result.finite ? 0.0f : reciprocal_of_bf16(result.scale);
  if (zero) result.bits = 0;
  if (!result.finite) result.bits = kScaleNan;
  result.scale = bf16_to_float(result.bits);
  return result;
}

/// kCodeMagic + code, with code = min(round to nearest even of the exact product u * inverse, 7). The lower
/// end needs no limit: |u * inverse| is at most 8 * (1 + 2^-7). Only meaningful in a finite group.
ECHO_TP_HD float encode(float u, float inverse) {
  return fminf(fma_rn(u, inverse, kCodeMagic), kCodeMagic + 7.0f);
}

/// The code, -8..7, of encode()'s result.
ECHO_TP_HD float code_of(float encoded) {
  return sub_rn(encoded, kCodeMagic);
}

/// The nibble, 0..15, of encode()'s result in the low 4 bits; bits above are not zero.
ECHO_TP_HD std::uint32_t nibble_of(float encoded) {
  return float_bits(encoded);
}

/// Eight results of encode() as eight nibbles, the first lowest. Pass the group's `finite` along.
ECHO_TP_HD std::uint32_t pack_nibbles(const float (&encoded)[8], bool finite) {
  // The bits above the nibble are the same in all eight, so their shifted sum is a constant that one addition
  // removes.
  constexpr std::uint32_t kHigh = 0x4B400000u;
  constexpr std::uint32_t kBias = kHigh * 0x11111111u;
  std::uint32_t word = 0u - kBias;
  for (int i = 7; i >= 0; --i) word += nibble_of(encoded[i]) << (4 * i);
  return finite ? word : kZeroCodes;
}

/// Value of a stored nibble (0..15), exact in fp32. A NaN scale gives the canonical NaN.
ECHO_TP_HD float decode(std::uint32_t nibble, float scale) {
  const float value = mul_rn(static_cast<float>(static_cast<int>(nibble) - 8), scale);
#if defined(__CUDA_ARCH__)
  return value;
#else
  return is_finite(value) ? value : bits_float(0x7FFFFFFFu);
#endif
}

/// Encodes `group` values: codes get group/2 bytes, *scale the bf16 scale. Returns false for a non-finite
/// group.
inline bool encode_group(const float* u, int group, std::uint8_t* codes, std::uint16_t* scale) {
  std::uint32_t key = 0;
  for (int i = 0; i < group; ++i) {
    const std::uint32_t candidate = extremum_key(u[i]);
    if (candidate > key) key = candidate;
  }
  const GroupScale chosen = group_scale(key);
  *scale = chosen.bits;
  for (int i = 0; i < group; i += 8) {
    float encoded[8];
    for (int j = 0; j < 8; ++j) encoded[j] = encode(u[i + j], chosen.inverse);
    const std::uint32_t word = pack_nibbles(encoded, chosen.finite);
    for (int j = 0; j < 4; ++j) codes[i / 2 + j] = static_cast<std::uint8_t>(word >> (8 * j));
  }
  return chosen.finite;
}

/// Decodes `group` values in fp32.
inline void decode_group(const std::uint8_t* codes, std::uint16_t scale, int group, float* out) {
  for (int i = 0; i < group; ++i) {
    const std::uint32_t byte = codes[i / 2];
    out[i] = decode((byte >> (4 * (i & 1))) & 0xFu, bf16_to_float(scale));
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
