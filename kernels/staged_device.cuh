// SPDX-License-Identifier: Apache-2.0
// Device building blocks of the staged kernels. A warp works on half a tile: four slices of 256 neighbouring
// elements, of which a lane holds eight. So every access of a warp is contiguous, a group is 4, 8 or 16
// neighbouring lanes, and a lane's codes are one 32-bit word.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/codec.hpp"
#include "kernels/compensator.hpp"
#include "kernels/params.hpp"

namespace echotp::device {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockThreads = 128;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
inline constexpr int kLaneElements = 8;
inline constexpr int kSliceElements = kWarpThreads * kLaneElements;
inline constexpr int kTileSlices = kTileElements / kSliceElements;
inline constexpr int kItemSlices = 4;  // slices that a warp handles: its unit of work
inline constexpr int kTileItems = kTileSlices / kItemSlices;

/// What is kept between calls, as far as it changes the inner loop.
enum class Memory { kNone, kFast, kDual };

/// What the host works out once a launch.
struct Geometry {
  std::int64_t segment_bytes;  // row pitch of outbox, inbox and gathered
  std::uint32_t items;         // units of work of this launch
  int tile_bytes;
  int group_shift;  // log2 of the group
  bool vector;      // send and recv are 16-byte aligned
  Coefficients coefficients;
};

/// 32-bit words that hold a lane's eight elements of `D`, or eight state entries of `F`.
template <DataType D>
inline constexpr int kElementWords = D == DataType::kFp32 ? 8 : 4;
template <StateFormat F>
inline constexpr int kStateWords = F == StateFormat::kFp32   ? 8
                                   : F == StateFormat::kFp16 ? 4
                                                             : 2;

__device__ __forceinline__ float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

/// Largest value over the lanes of a group (4, 8 or 16); all lanes of the warp take part.
__device__ __forceinline__ std::uint32_t group_max(std::uint32_t value, int lanes) {
  value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
  if (lanes > 4) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 4));
  if (lanes > 8) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 8));
  return value;
}

/// Copies `Words` 32-bit words with the widest accesses; the address is aligned to all of them, up to 16
/// bytes.
template <int Words>
__device__ __forceinline__ void load_words(const void* address, std::uint32_t (&words)[Words]) {
  if constexpr (Words == 2) {
    const uint2 value = *static_cast<const uint2*>(address);
    words[0] = value.x;
    words[1] = value.y;
  } else {
#pragma unroll
    for (int i = 0; i < Words; i += 4) {
      const uint4 value = static_cast<const uint4*>(address)[i / 4];
      words[i] = value.x;
      words[i + 1] = value.y;
      words[i + 2] = value.z;
      words[i + 3] = value.w;
    }
  }
}
template <int Words>
__device__ __forceinline__ void store_words(void* address, const std::uint32_t (&words)[Words]) {
  if constexpr (Words == 2) {
    *static_cast<uint2*>(address) = make_uint2(words[0], words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < Words; i += 4) {
      static_cast<uint4*>(address)[i / 4] = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
    }
  }
}

/// Loads a lane's elements of `Slices` neighbouring slices. `left` elements exist from `base` on; the rest
/// reads as zero.
template <DataType D, int Slices>
__device__ __forceinline__ void load_elements(const void* base, std::int64_t left, bool vector, int lane,
                                              std::uint32_t (&raw)[Slices][kElementWords<D>]) {
  if (vector && left >= Slices * kSliceElements) {
#pragma unroll
    for (int s = 0; s < Slices; ++s) {
      load_words(
          static_cast<const char*>(base) + (s * kSliceElements + lane * kLaneElements) * element_bytes(D),
          raw[s]);
    }
    return;
  }
#pragma unroll
  for (int s = 0; s < Slices; ++s) {
#pragma unroll
    for (int i = 0; i < kElementWords<D>; ++i) {
      const int at = s * kSliceElements + lane * kLaneElements;
      if constexpr (D == DataType::kFp32) {
        raw[s][i] = at + i < left ? static_cast<const std::uint32_t*>(base)[at + i] : 0u;
      } else {
        const auto* elements = static_cast<const std::uint16_t*>(base) + at;
        const std::uint32_t low = at + 2 * i < left ? elements[2 * i] : 0u;
        const std::uint32_t high = at + 2 * i + 1 < left ? elements[2 * i + 1] : 0u;
        raw[s][i] = low | (high << 16);
      }
    }
  }
}

/// Stores a lane's elements of one slice; only `left` elements exist from `base` on.
template <DataType D>
__device__ __forceinline__ void store_elements(void* base, std::int64_t left, bool vector, int lane,
                                               const std::uint32_t (&raw)[kElementWords<D>]) {
  const int at = lane * kLaneElements;
  if (vector && left >= kSliceElements) {
    store_words(static_cast<char*>(base) + at * element_bytes(D), raw);
    return;
  }
#pragma unroll
  for (int i = 0; i < kElementWords<D>; ++i) {
    if constexpr (D == DataType::kFp32) {
      if (at + i < left) static_cast<std::uint32_t*>(base)[at + i] = raw[i];
    } else {
      auto* elements = static_cast<std::uint16_t*>(base) + at;
      if (at + 2 * i < left) elements[2 * i] = static_cast<std::uint16_t>(raw[i]);
      if (at + 2 * i + 1 < left) elements[2 * i + 1] = static_cast<std::uint16_t>(raw[i] >> 16);
    }
  }
}

template <DataType D>
__device__ __forceinline__ void unpack_elements(const std::uint32_t (&raw)[kElementWords<D>], float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < kElementWords<D>; ++i) {
    if constexpr (D == DataType::kFp32) {
      x[i] = __uint_as_float(raw[i]);
    } else if constexpr (D == DataType::kBf16) {
      x[2 * i] = __uint_as_float(raw[i] << 16);
      x[2 * i + 1] = __uint_as_float(raw[i] & 0xFFFF0000u);
    } else {
      x[2 * i] = fp16_to_float(static_cast<std::uint16_t>(raw[i]));
      x[2 * i + 1] = fp16_to_float(static_cast<std::uint16_t>(raw[i] >> 16));
    }
  }
}

template <DataType D>
__device__ __forceinline__ void pack_elements(const float (&x)[8], std::uint32_t (&raw)[kElementWords<D>]) {
#pragma unroll
  for (int i = 0; i < kElementWords<D>; ++i) {
    if constexpr (D == DataType::kFp32) {
      raw[i] = __float_as_uint(x[i]);
    } else if constexpr (D == DataType::kBf16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      raw[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    } else {
      const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
      raw[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
}

template <StateFormat F>
__device__ __forceinline__ void unpack_state(const std::uint32_t (&raw)[kStateWords<F>], float unit,
                                             float (&v)[8]) {
  if constexpr (F == StateFormat::kInt8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // byte + 128 as the low mantissa bits of 2^23: an exact conversion without the slow integer one.
      const std::uint32_t biased = raw[i / 4] ^ 0x80808080u;
      const float q =
          __fsub_rn(__uint_as_float(__byte_perm(biased, 0x4B000000u, 0x7440u + (i & 3))), 8388736.0f);
      v[i] = __fmul_rn(q, unit);
    }
  } else if constexpr (F == StateFormat::kFp16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = state_from_fp16(static_cast<std::uint16_t>(raw[i]), unit);
      v[2 * i + 1] = state_from_fp16(static_cast<std::uint16_t>(raw[i] >> 16), unit);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(raw[i]);
  }
}

template <StateFormat F>
__device__ __forceinline__ void pack_state(const float (&v)[8], float inverse,
                                           std::uint32_t (&raw)[kStateWords<F>]) {
  if constexpr (F == StateFormat::kInt8) {
    std::uint32_t q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = state_to_int8(v[i], inverse);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw[i] = __byte_perm(__byte_perm(q[4 * i], q[4 * i + 1], 0x0040),
                           __byte_perm(q[4 * i + 2], q[4 * i + 3], 0x0040), 0x5410);
    }
  } else if constexpr (F == StateFormat::kFp16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 pair = __floats2half2_rn(__fmul_rn(v[2 * i], inverse), __fmul_rn(v[2 * i + 1], inverse));
      raw[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) raw[i] = __float_as_uint(v[i]);
  }
}

/// A lane's estimates of `Slices` slices, as stored.
template <Memory M, StateFormat F, int Slices>
struct LaneState {
  std::uint32_t fast[Slices][kStateWords<F>];
  std::uint32_t slow[M == Memory::kDual ? Slices : 1][kStateWords<F>];
  std::uint16_t unit[Slices];
};

/// Bytes of `n` state entries.
template <StateFormat F>
__device__ __forceinline__ std::int64_t state_bytes(std::int64_t n) {
  return n * (kStateWords<F> / 2);
}

/// Loads the estimates of `Slices` slices from entry `index` on, or zeros.
template <Memory M, StateFormat F, int Slices>
__device__ __forceinline__ void load_state(const StateView& view, std::int64_t index, int group_shift,
                                           bool zero, int lane, LaneState<M, F, Slices>& state) {
#pragma unroll
  for (int s = 0; s < Slices; ++s) {
    const std::int64_t at = index + s * kSliceElements + lane * kLaneElements;
    if (zero) {
#pragma unroll
      for (int i = 0; i < kStateWords<F>; ++i) {
        state.fast[s][i] = 0;
        if constexpr (M == Memory::kDual) state.slow[s][i] = 0;
      }
      state.unit[s] = 0;
    } else {
      load_words(static_cast<const char*>(view.fast) + state_bytes<F>(at), state.fast[s]);
      if constexpr (M == Memory::kDual) {
        load_words(static_cast<const char*>(view.slow) + state_bytes<F>(at), state.slow[s]);
      }
      if constexpr (F != StateFormat::kFp32) state.unit[s] = view.unit[at >> group_shift];
    }
  }
}

/// One rounding of a lane's eight values and what comes of it.
struct Rounding {
  std::uint32_t codes;
  GroupScale scale;
  float decoded[8];  // fp32 decode; only where asked for
};

/// Rounds u without touching any state.
template <bool Decode>
__device__ __forceinline__ void round_lane(const float (&u)[8], int lanes, Rounding& result,
                                           float (&encoded)[8]) {
  std::uint32_t key = extremum_key(u[0]);
#pragma unroll
  for (int i = 1; i < 8; ++i) key = max(key, extremum_key(u[i]));
  result.scale = group_scale(group_max(key, lanes));
#pragma unroll
  for (int i = 0; i < 8; ++i) encoded[i] = encode(u[i], result.scale.inverse);
  result.codes = pack_nibbles(encoded, result.scale.finite);
  if constexpr (Decode) {
#pragma unroll
    for (int i = 0; i < 8; ++i) result.decoded[i] = __fmul_rn(code_of(encoded[i]), result.scale.scale);
  }
}

/// What a compensated rounding needs to know besides the values.
struct StateTarget {
  StateView view;
  std::int64_t index;  // entry of the slice's first element
  bool store;          // false: this tile has no state
  bool pass_start;
};

/// Corrects x by the estimates of slice s, rounds, updates and stores the estimates. `out` are the elements
/// that go to the user (owner only). Returns the new unit of the lane's group.
template <DataType D, Memory M, StateFormat F, int Slices, bool Owner>
__device__ __forceinline__ std::uint16_t round_compensated(const float (&x)[8],
                                                           LaneState<M, F, Slices>& state, int s,
                                                           const Coefficients& k, int lanes, int lane,
                                                           const StateTarget& target, Rounding& result,
                                                           std::uint32_t (&out)[kElementWords<D>]) {
  float fast[8];
  float slow[8];
  const float old_unit = bf16_to_float(state.unit[s]);
  unpack_state<F>(state.fast[s], old_unit, fast);
  if constexpr (M == Memory::kDual) unpack_state<F>(state.slow[s], old_unit, slow);

  float top = fabsf(x[0]);
#pragma unroll
  for (int i = 1; i < 8; ++i) top = max_nan(top, fabsf(x[i]));
  const std::uint32_t top_bits = group_max(__float_as_uint(top), lanes);
  const float limit = __uint_as_float(top_bits);

  float u[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float c =
        M == Memory::kDual ? correction(k, fast[i], slow[i], limit) : correction(k, fast[i], limit);
    u[i] = __fadd_rn(x[i], c);
  }
  if (top_bits > 0x7E800000u && top_bits < kFloatExponentMask) {  // finite, but x + c may not be
#pragma unroll
    for (int i = 0; i < 8; ++i) u[i] = clamp_symmetric(u[i], kFloatMax);
  }

  float encoded[8];
  round_lane<Owner>(u, lanes, result, encoded);
  float residual[8];
  if constexpr (Owner) {
    pack_elements<D>(result.decoded, out);
    unpack_elements<D>(out, residual);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      residual[i] = __fsub_rn(u[i], residual[i]);
      // fp16 alone can overflow where the code does not: the residual then counts as none.
      if (D == DataType::kFp16 && !is_finite(residual[i])) residual[i] = 0.0f;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) residual[i] = __fmaf_rn(-code_of(encoded[i]), result.scale.scale, u[i]);
  }

  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    fast[i] = __fmaf_rn(k.gf, residual[i], __fmul_rn(k.bf, fast[i]));
    if constexpr (F != StateFormat::kFp32) largest = fmaxf(largest, fabsf(fast[i]));
    if constexpr (M == Memory::kDual) {
      slow[i] = __fmaf_rn(k.gs, residual[i], __fmul_rn(k.bs, slow[i]));
      if constexpr (F != StateFormat::kFp32) largest = fmaxf(largest, fabsf(slow[i]));
    }
  }
  std::uint16_t unit = 0;
  float inverse = 0.0f;
  if constexpr (F != StateFormat::kFp32) {
    unit = state_unit(F, __uint_as_float(group_max(__float_as_uint(largest), lanes)));
    inverse = state_inverse(unit);
  }
  if (target.store) {
    const std::int64_t at = state_bytes<F>(target.index + lane * kLaneElements);
    std::uint32_t words[kStateWords<F>];
    if (result.scale.finite) {
      pack_state<F>(fast, inverse, words);
      store_words(static_cast<char*>(target.view.fast) + at, words);
      if constexpr (M == Memory::kDual) {
        pack_state<F>(slow, inverse, words);
        store_words(static_cast<char*>(target.view.slow) + at, words);
      }
    } else if (target.pass_start) {
#pragma unroll
      for (int i = 0; i < kStateWords<F>; ++i) words[i] = 0;
      store_words(static_cast<char*>(target.view.fast) + at, words);
      if constexpr (M == Memory::kDual) store_words(static_cast<char*>(target.view.slow) + at, words);
    }
  }
  return result.scale.finite ? unit : state.unit[s];
}

/// Collects one 16-bit value a group and slice, so that a warp stores those of several slices with one
/// access: the lane whose place in its group is s keeps the value of slice s.
struct GroupValues {
  std::uint16_t kept = 0;
  __device__ __forceinline__ void keep(int s, int place, std::uint16_t value) {
    if (place == s) kept = value;
  }
  /// Stores what was kept over `slices` slices at `base`, the first value of slice 0.
  __device__ __forceinline__ void store(std::uint16_t* base, int slices, int place, int lane,
                                        int lane_shift) const {
    if (place < slices) base[place * (kWarpThreads >> lane_shift) + (lane >> lane_shift)] = kept;
  }
};

}  // namespace echotp::device
