// SPDX-License-Identifier: Apache-2.0
// Arithmetic that must give the same bits on CPU and GPU: 16-bit float conversions and fp32 operations with
// their rounding spelled out. Host code is plain integer work and IEEE fp32; device code uses an intrinsic
// only where it is bit-equal. Every NaN that a conversion or a decode produces is the canonical one of the
// GPU (0x7FFF, 0x7FFFFFFF).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ECHO_TP_HD __host__ __device__ __forceinline__
#else
#define ECHO_TP_HD inline
#endif

namespace echotp {

inline constexpr float kFloatMax = 0x1.FFFFFEp127f;
inline constexpr std::uint32_t kFloatExponentMask = 0x7F800000u;

/// The bits of a float, and back.
ECHO_TP_HD std::uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<std::uint32_t>(x);
#endif
}
ECHO_TP_HD float bits_float(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

/// True for everything but NaN and Inf.
ECHO_TP_HD bool is_finite(float x) {
  return (float_bits(x) & kFloatExponentMask) != kFloatExponentMask;
}

/// bf16 to fp32, exact.
ECHO_TP_HD float bf16_to_float(std::uint16_t bits) {
  return bits_float(static_cast<std::uint32_t>(bits) << 16);
}

/// fp32 to bf16, to nearest even; overflow gives Inf, NaN gives 0x7FFF.
ECHO_TP_HD std::uint16_t float_to_bf16(float x) {
#if defined(__CUDA_ARCH__)
  // The conversion of two values is the fast one.
  return __bfloat16_as_ushort(__low2bfloat16(__floats2bfloat162_rn(x, 0.0f)));
#else
  const std::uint32_t bits = float_bits(x);
  if ((bits & 0x7FFFFFFFu) > kFloatExponentMask) return 0x7FFFu;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
#endif
}

/// The bf16 nearest to x, ties to even, in fp32; otherwise as float_to_bf16().
ECHO_TP_HD float round_to_bf16(float x) {
#if defined(__CUDA_ARCH__)
  // The upper half of a pair is where fp32 has those bits.
  const __nv_bfloat162 pair = __floats2bfloat162_rn(0.0f, x);
  return __uint_as_float(*reinterpret_cast<const std::uint32_t*>(&pair));
#else
  return bf16_to_float(float_to_bf16(x));
#endif
}

/// Smallest bf16 not below a non-negative finite x, but at most 2^126 (whose reciprocal is still a normal
/// number).
ECHO_TP_HD std::uint16_t float_to_bf16_up(float x) {
  const std::uint32_t bits = (float_bits(x) + 0xFFFFu) >> 16;
  return static_cast<std::uint16_t>(bits < 0x7E80u ? bits : 0x7E80u);
}

/// fp16 to fp32, exact; NaN gives a NaN.
ECHO_TP_HD float fp16_to_float(std::uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
  const std::uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) return bits_float(sign | (mantissa != 0 ? 0x7FFFFFFFu : kFloatExponentMask));
  if (exponent != 0) return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return bits_float(sign | float_bits(magnitude));
#endif
}

/// fp32 to fp16, to nearest even, denormals kept; overflow gives Inf, NaN gives 0x7FFF.
ECHO_TP_HD std::uint16_t float_to_fp16(float x) {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(x));
#else
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > kFloatExponentMask) return 0x7FFFu;
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {
    // Adding 0.5 leaves a denormal's bits at the bottom of the mantissa, rounded to nearest even by the
    // addition.
    const float shifted = bits_float(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (float_bits(shifted) - 0x3F000000u));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
#endif
}

/// a*b + c with one rounding to nearest even.
ECHO_TP_HD float fma_rn(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fmaf(a, b, c);
#endif
}

/// a*b, a+b and a-b rounded to nearest even and never contracted.
ECHO_TP_HD float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
ECHO_TP_HD float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
ECHO_TP_HD float sub_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

/// a/b rounded to nearest even.
ECHO_TP_HD float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// The nearest float of an integer, ties to even.
ECHO_TP_HD float uint_to_float(std::uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __uint2float_rn(x);
#else
  return static_cast<float>(x);
#endif
}

/// 1/x to nearest even, for x that is a bf16 value with 1e-33 <= |x| <= 2^126; anything else gives an
/// unspecified value.
ECHO_TP_HD float reciprocal_of_bf16(float x) {
#if defined(__CUDA_ARCH__)
  // One Newton step from the hardware's estimate (1 ulp) is off by 2^-46 before its rounding. The reciprocal
  // of an 8-bit mantissa is never nearer than 2^-33 to a rounding boundary, so the result is the IEEE one; no
  // range check is needed.
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
  return __fmaf_rn(__fmaf_rn(-x, estimate, 1.0f), estimate, estimate);
#else
  return 1.0f / x;
#endif
}

/// The bf16 nearest to 1/x, for x as above; NaN for NaN.
ECHO_TP_HD float bf16_reciprocal_of_bf16(float x) {
#if defined(__CUDA_ARCH__)
  // The reciprocal of an 8-bit mantissa is a bf16 or at least 2^-17 of itself away from the middle between
  // two of them, so that rounding the hardware's estimate (1 ulp) gives the same.
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
  return round_to_bf16(estimate);
#else
  return round_to_bf16(1.0f / x);
#endif
}

/// x limited to [-limit, limit], limit >= 0; NaN gives -limit, the sign of a zero is kept.
ECHO_TP_HD float clamp_symmetric(float x, float limit) {
#if defined(__CUDA_ARCH__)
  return fminf(fmaxf(x, -limit), limit);
#else
  const float raised = x >= -limit ? x : -limit;
  return raised <= limit ? raised : limit;
#endif
}

}  // namespace echotp
