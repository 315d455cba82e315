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

/// The coefficients for entries in units of `unit` (1 for fp32 entries): what multiplies an entry carries the
/// unit, so that entries need not be scaled one by one.
ECHO_TP_HD Coefficients scaled(const Coefficients& k, float unit) {
  return {mul_rn(k.a, unit), mul_rn(k.bf, unit), k.gf, mul_rn(k.b, unit), mul_rn(k.bs, unit), k.gs};
}

/// fma(a, fast, b*slow) of two entries, by scaled coefficients. Still to be limited with clamp_symmetric() to
/// the largest magnitude of the uncompensated group.
ECHO_TP_HD float correction(const Coefficients& k, float fast, float slow) {
  return fma_rn(k.a, fast, mul_rn(k.b, slow));
}

/// a*fast of an entry: the same without a slow estimate (b == 0).
ECHO_TP_HD float correction(const Coefficients& k, float fast) {
  return mul_rn(k.a, fast);
}

/// x + c; a finite x never becomes Inf.
ECHO_TP_HD float corrected(float x, float c) {
  const float sum = add_rn(x, c);
  return is_finite(x) ? clamp_symmetric(sum, kFloatMax) : sum;
}

/// The fast estimate after a rounding left `residual`, from the entry before it and scaled coefficients:
/// fma(1-bf, residual, bf*entry), or the residual itself if `direct` (the unscaled bf is 0).
ECHO_TP_HD float follow_fast(const Coefficients& k, bool direct, float entry, float residual) {
  return direct ? residual : fma_rn(k.gf, residual, mul_rn(k.bf, entry));
}

/// The slow estimate likewise: fma(1-bs, residual, bs*entry).
ECHO_TP_HD float follow_slow(const Coefficients& k, float entry, float residual) {
  return fma_rn(k.gs, residual, mul_rn(k.bs, entry));
}

/// A residual that is not finite (the output overflowed its type) counts as none.
ECHO_TP_HD float usable_residual(float residual) {
  return is_finite(residual) ? residual : 0.0f;
}

/// Mode drift: the errors of a channel in a chunk are added up in this many runs of neighbouring tokens
/// (equally many rows of the message each, but for the last ones), each from zero and in the order of the
/// tokens; then the runs are added to the message's sum, in order. So the sum is the same on every machine,
/// and the runs can be summed side by side.
inline constexpr int kDriftRuns = 32;

/// Mode drift: what an element came out wrong by, its correction included: x - decoded. Not finite: counts as
/// none.
ECHO_TP_HD float drift_error(float x, float decoded) {
  return usable_residual(sub_rn(x, decoded));
}

/// Mode drift: a channel's estimate after a message whose `tokens` elements of it had errors with this sum:
/// fma(gain, sum / tokens, estimate). As it was, if there were none or the result is not finite.
ECHO_TP_HD float follow_drift(float estimate, float gain, float sum, std::uint32_t tokens) {
  if (tokens == 0) return estimate;
  const float next = fma_rn(gain, div_rn(sum, uint_to_float(tokens)), estimate);
  return is_finite(next) ? next : estimate;
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

}  // namespace echotp
