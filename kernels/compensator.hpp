// SPDX-License-Identifier: Apache-2.0
// The error compensator, element by element, for CPU and GPU alike: what is added before a rounding, how the
// two estimates follow its residual, and how they are stored between calls.
#pragma once

#include <cstdint>

#include "kernels/hd.hpp"
#include "kernels/types.hpp"

namespace echotp {

/// A group of estimates whose largest magnitude is smaller is stored as zero (fp16 and int8 formats).
inline constexpr float kStateTiny = 1e-30f;
/// 1.5 * 2^23: adding it to a small value leaves the rounded value in the low bits of the float.
inline constexpr float kStateMagic = 12582912.0f;

/// Compensation with the complements worked out once, so that every place uses the same fp32 values.
struct Coefficients {
  float a = 0, bf = 0, gf = 0;  // gf = 1 - bf
  float b = 0, bs = 0, gs = 0;  // gs = 1 - bs
};

inline Coefficients coefficients(const Compensation& c) {
  return {c.a, c.bf, 1.0f - c.bf, c.b, c.bs, 1.0f - c.bs};
}

/// fma(a, fast, b*slow), limited to +-limit: the largest magnitude of the uncompensated group.
ECHO_TP_HD float correction(const Coefficients& k, float fast, float slow, float limit) {
  return clamp_symmetric(fma_rn(k.a, fast, mul_rn(k.b, slow)), limit);
}

/// a*fast limited to +-limit: the same without a slow estimate (b == 0).
ECHO_TP_HD float correction(const Coefficients& k, float fast, float limit) {
  return clamp_symmetric(mul_rn(k.a, fast), limit);
}

/// x + c; a finite x never becomes Inf.
ECHO_TP_HD float corrected(float x, float c) {
  const float sum = add_rn(x, c);
  return is_finite(x) ? clamp_symmetric(sum, kFloatMax) : sum;
}

/// The estimate after a rounding left `residual`: fma(1-beta, residual, beta*estimate). A residual that is
/// not finite (the output overflowed its type) counts as none.
ECHO_TP_HD float follow(float beta, float complement, float estimate, float residual) {
  return fma_rn(complement, is_finite(residual) ? residual : 0.0f, mul_rn(beta, estimate));
}

/// The unit (bf16 bits) in which a group stores its estimates, from their largest magnitude: that over 127
/// for int8, that itself for fp16, rounded up. 0 for a zero group.
ECHO_TP_HD std::uint16_t state_unit(StateFormat format, float absmax) {
  if (!(absmax >= kStateTiny)) return 0;
  return float_to_bf16_up(format == StateFormat::kInt8 ? mul_rn(absmax, 1.0f / 127.0f) : absmax);
}

/// 1/unit, or 0 for unit 0.
ECHO_TP_HD float state_inverse(std::uint16_t unit) {
  return unit == 0 ? 0.0f : reciprocal_of_bf16(bf16_to_float(unit));
}

/// int8 entry in the low byte: round to nearest even of the exact product v * inverse, which is never beyond
/// +-127 because the unit was rounded up.
ECHO_TP_HD std::uint32_t state_to_int8(float v, float inverse) {
  return float_bits(fma_rn(v, inverse, kStateMagic));
}

/// fp16 entry of v.
ECHO_TP_HD std::uint16_t state_to_fp16(float v, float inverse) {
  return float_to_fp16(mul_rn(v, inverse));
}

/// The estimate that an entry stands for; exact.
ECHO_TP_HD float state_from_int8(std::int8_t q, float unit) {
  return mul_rn(static_cast<float>(q), unit);
}
ECHO_TP_HD float state_from_fp16(std::uint16_t q, float unit) {
  return mul_rn(fp16_to_float(q), unit);
}

}  // namespace echotp
