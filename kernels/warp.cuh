// SPDX-License-Identifier: Apache-2.0
// Device building blocks of all kernels. A warp works on half a tile: four slices of 256 neighbouring
// elements, of which a lane holds eight. So every access of a warp is contiguous, a group is 4, 8 or 16
// neighbouring lanes, and a lane's codes are one 32-bit word (two with 8 bits).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/codec.hpp"
#include "kernels/compensator.hpp"
#include "kernels/pairs.cuh"
#include "kernels/params.hpp"

namespace echotp::device {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockThreads = 128;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
inline constexpr int kLaneElements = 8;
inline constexpr int kSliceElements = kWarpThreads * kLaneElements;
inline constexpr int kTileSlices = kTileElements / kSliceElements;
inline constexpr int kGroupLanes = 32 / kLaneElements;  // that share the smallest group in a slice
inline constexpr int kItemSlices = 4;                   // slices that a warp handles: its unit of work
inline constexpr int kTileItems = kTileSlices / kItemSlices;

/// The three phases of a call.
enum class Phase { kQuantise, kReduce, kDecode };

/// What is kept between calls, as far as it changes the inner loop.
enum class Memory { kNone, kFast, kDual, kDrift };

/// Whether there are estimates of single elements.
constexpr bool by_element(Memory memory) {
  return memory == Memory::kFast || memory == Memory::kDual;
}

/// Resident blocks for the kernels with state: as many as leave the registers (64 or 72 a thread) that it
/// takes not to spill.
template <Memory M>
inline constexpr int kCompensatedBlocksPerSm = M == Memory::kDual ? 7 : 8;

/// How the tiles of one leg lie in its buffer.
struct LegGeometry {
  std::int64_t segment_bytes;  // row pitch of the buffer
  int tile_bytes;
  int code_bytes;  // of a tile; its scales follow
  int bits;        // width of a code
};

/// What the host works out once a launch.
struct Geometry {
  LegGeometry in;       // what reduce reads: inbox
  LegGeometry out;      // what quantise (outbox) and reduce (gathered) write and decode reads
  CodeWidth width;      // of `out`
  std::uint32_t items;  // units of work of this launch; quantise: of every other owner
  int group_shift;      // log2 of the group
  int lanes;            // that share a group
  int scale_step;       // groups of a slice
  // Constants that are operands rather than immediates, so that masking and merging is one instruction.
  std::uint32_t nibble_magic;  // kNibbleMagic
  std::uint32_t pair_magic;    // kPairMagic
  bool vector;                 // send and recv are 16-byte aligned
  int stage_bytes;             // shared memory of a warp
  int peer_bytes;              // of it, for one peer
  int staged_peers;            // peers whose codes go through it
  Coefficients coefficients;
};

/// Width of the codes on the two legs: known to the compiler where both have 4 bits (`Four`), as almost
/// always.
template <bool Four>
__device__ __forceinline__ int bits_of(const LegGeometry& leg) {
  return Four ? 4 : leg.bits;
}
template <bool Four>
__device__ __forceinline__ CodeWidth width_of(const Geometry& geometry) {
  if constexpr (Four) {
    return code_width(4);
  } else {
    return geometry.width;
  }
}

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

/// Largest value over the `lanes` lanes that share a group: `Least`, twice or four times as many. All lanes
/// of the warp take part.
template <int Least>
__device__ __forceinline__ std::uint32_t group_max(std::uint32_t value, int lanes) {
#pragma unroll
  for (int step = 1; step < Least; step *= 2) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  if (lanes > Least) {
    value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, Least));
    if (lanes > 2 * Least) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2 * Least));
  }
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

/// Elements of a slice that exist, when `left` do from its first one on: 0 to kSliceElements.
__device__ __forceinline__ int bounded_left(std::int64_t left) {
  return static_cast<int>(min(max(left, std::int64_t{0}), std::int64_t{kItemSlices * kSliceElements}));
}

/// One unit of work of a warp: half a tile.
struct Item {
  std::int64_t first;  // index of its first element in send and recv
  std::int64_t entry;  // the same in the state
  int begin_slice;     // its place in the tile: 0 or kItemSlices
  int left;            // elements of it that exist
  bool full;           // all of them, and 16-byte aligned in send and recv
  bool has_state;      // the state has entries for its tile
};

/// Half `half` of the tile that begins at `tile_first` of `count` elements, which are the message's from
/// `chunk_first` on.
__device__ __forceinline__ Item make_item(std::int64_t tile_first, int half, std::int64_t count, bool vector,
                                          std::int64_t chunk_first, std::int64_t state_capacity) {
  Item item;
  item.begin_slice = half * kItemSlices;
  item.first = tile_first + item.begin_slice * kSliceElements;
  item.entry = chunk_first + item.first;
  item.left = bounded_left(count - item.first);
  item.full = vector && item.left == kItemSlices * kSliceElements;
  item.has_state = chunk_first + tile_first + kTileElements <= state_capacity;
  return item;
}

/// Loads a lane's elements of `Slices` neighbouring slices; `own` points at the lane's first one. `full`: all
/// of them exist and the address is 16-byte aligned; otherwise `left` exist from the first slice's start on,
/// and the rest reads as zero.
template <DataType D, int Slices>
__device__ __forceinline__ void load_elements(const char* own, bool full, int left, int lane,
                                              std::uint32_t (&raw)[Slices][kElementWords<D>]) {
  if (full) {
#pragma unroll
    for (int s = 0; s < Slices; ++s) load_words(own + s * kSliceElements * element_bytes(D), raw[s]);
    return;
  }
  const int own_left = left - lane * kLaneElements;
#pragma unroll
  for (int s = 0; s < Slices; ++s) {
#pragma unroll
    for (int i = 0; i < kElementWords<D>; ++i) {
      const int at = s * kSliceElements;
      if constexpr (D == DataType::kFp32) {
        raw[s][i] = at + i < own_left ? reinterpret_cast<const std::uint32_t*>(own)[at + i] : 0u;
      } else {
        const auto* elements = reinterpret_cast<const std::uint16_t*>(own) + at;
        const std::uint32_t low = at + 2 * i < own_left ? elements[2 * i] : 0u;
        const std::uint32_t high = at + 2 * i + 1 < own_left ? elements[2 * i + 1] : 0u;
        raw[s][i] = low | (high << 16);
      }
    }
  }
}

/// Stores a lane's elements of one slice at `own`; unless `full`, only `left` exist from the slice's start
/// on.
template <DataType D>
__device__ __forceinline__ void store_elements(char* own, bool full, int left, int lane,
                                               const std::uint32_t (&raw)[kElementWords<D>]) {
  if (full) {
    store_words(own, raw);
    return;
  }
  const int own_left = left - lane * kLaneElements;
#pragma unroll
  for (int i = 0; i < kElementWords<D>; ++i) {
    if constexpr (D == DataType::kFp32) {
      if (i < own_left) reinterpret_cast<std::uint32_t*>(own)[i] = raw[i];
    } else {
      auto* elements = reinterpret_cast<std::uint16_t*>(own);
      if (2 * i < own_left) elements[2 * i] = static_cast<std::uint16_t>(raw[i]);
      if (2 * i + 1 < own_left) elements[2 * i + 1] = static_cast<std::uint16_t>(raw[i] >> 16);
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

/// kInt8Bias + entry i of int8 entries: entry + 128 sits in the mantissa of 2^15, an exact conversion without
/// the slow integer one.
inline constexpr float kInt8Bias = 32768.0f + 128.0f;
__device__ __forceinline__ float byte_in_magic(std::uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word, 0x47000000u, 0x7404u + ((i & 3) << 4)));
}
__device__ __forceinline__ float biased_int8(const std::uint32_t (&raw)[2], int i) {
  return byte_in_magic(raw[i / 4] ^ 0x80808080u, i);
}

/// A lane's eight entries of one estimate, as stored, in fp32.
template <StateFormat F>
__device__ __forceinline__ void unpack_state(const std::uint32_t (&raw)[kStateWords<F>], float (&v)[8]) {
  if constexpr (F == StateFormat::kInt8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fsub_rn(biased_int8(raw, i), kInt8Bias);
  } else if constexpr (F == StateFormat::kFp16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = fp16_to_float(static_cast<std::uint16_t>(raw[i]));
      v[2 * i + 1] = fp16_to_float(static_cast<std::uint16_t>(raw[i] >> 16));
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
};

/// One 16-bit value a group and slice for all of an item, so that a warp loads or stores them with one
/// access: of four neighbouring lanes the s-th holds the value of their group in slice s.
struct GroupValues {
  std::uint32_t held = 0;

  /// Index of the lane's value among the item's.
  static __device__ __forceinline__ unsigned index(unsigned place, unsigned lane, int lane_shift) {
    return (place % kItemSlices << (5 - lane_shift)) + (lane >> lane_shift);
  }
  /// From and to the item's values at `base`. Loads see what another GPU wrote.
  __device__ __forceinline__ void load(const std::uint16_t* base, int place, int lane, int lane_shift) {
    held = __ldcg(base + index(place, lane, lane_shift));
  }
  __device__ __forceinline__ void store(std::uint16_t* base, int place, int lane, int lane_shift) const {
    if (place < kItemSlices) base[index(place, lane, lane_shift)] = static_cast<std::uint16_t>(held);
  }
  __device__ __forceinline__ void keep(int slice, int place, std::uint32_t value) {
    if (place % kItemSlices == slice) held = value;
  }
  /// The value of the lane's group in a slice; all lanes take part.
  __device__ __forceinline__ std::uint32_t of(int slice) const {
    return __shfl_sync(0xFFFFFFFFu, held, slice, kItemSlices);
  }
};

/// The same value, of which the compiler does not know it: what is computed from it anew need not be kept in
/// registers until then.
__device__ __forceinline__ std::int64_t forgotten(std::int64_t value) {
  asm volatile("" : "+l"(value));
  return value;
}

/// The same number, or address in shared memory, out of a shuffle: so it is kept in a register, where the
/// compiler would rather work it out anew for every slice. All lanes take part.
__device__ __forceinline__ int kept(int value, int lane) {
  return __shfl_sync(0xFFFFFFFFu, value, lane);
}
template <class T>
__device__ __forceinline__ T* kept(T* shared, int lane) {
  const auto address = static_cast<int>(__cvta_generic_to_shared(shared));
  return static_cast<T*>(__cvta_shared_to_generic(static_cast<std::uint32_t>(kept(address, lane))));
}

/// The same for a number that is the same in all lanes: branches by it then need no preparation for lanes
/// that part.
__device__ __forceinline__ int kept_uniform(int value) {
  return __reduce_max_sync(0xFFFFFFFFu, value);
}

/// Where a lane's estimates lie, and what may be done with them.
template <StateFormat F>
struct StateCursor {
  static constexpr int kSliceBytes = kSliceElements * kStateWords<F> / 2;

  const StateView& view;
  std::int64_t entry;  // the lane's first of the current slice
  bool load;           // false: the estimates read as zero (the pass starts here, or there are none)
  bool store;          // false: this tile has no state
  bool reset;          // the pass starts here: a group without a usable residual is set to zero
  GroupValues units;

  __device__ __forceinline__ StateCursor(const StateView& state, const Item& item, bool pass_start, int lane)
      : view(state),
        entry(item.entry + lane * kLaneElements),
        load(item.has_state && !pass_start),
        store(item.has_state),
        reset(pass_start) {}
  /// Address of the lane's entries in an estimate's array.
  __device__ __forceinline__ char* in(void* estimate) const {
    return static_cast<char*>(estimate) + entry * (kStateWords<F> / 2);
  }
  __device__ __forceinline__ void next_slice() { entry = forgotten(entry + kSliceElements); }
};

/// Loads the estimates of `Slices` slices, or zeros.
template <Memory M, StateFormat F, int Slices>
__device__ __forceinline__ void load_state(const StateCursor<F>& cursor, LaneState<M, F, Slices>& state) {
#pragma unroll
  for (int s = 0; s < Slices; ++s) {
    if (cursor.load) {
      load_words(cursor.in(cursor.view.fast) + s * StateCursor<F>::kSliceBytes, state.fast[s]);
      if constexpr (M == Memory::kDual)
        load_words(cursor.in(cursor.view.slow) + s * StateCursor<F>::kSliceBytes, state.slow[s]);
    } else {
#pragma unroll
      for (int i = 0; i < kStateWords<F>; ++i) {
        state.fast[s][i] = 0;
        if constexpr (M == Memory::kDual) state.slow[s][i] = 0;
      }
    }
  }
}

/// pack_bytes() in three instructions.
__device__ __forceinline__ std::uint32_t pack_low_bytes(const float (&encoded)[8], int first) {
  const auto low = [&](int i) { return __float_as_uint(encoded[first + i]); };
  return __byte_perm(__byte_perm(low(0), low(1), 0x0040), __byte_perm(low(2), low(3), 0x0040), 0x5410);
}

/// One rounding of a lane's eight values and what comes of it.
struct Rounding {
  std::uint32_t codes[2];  // the second word only with 8 bits
  GroupScale scale;
};

/// The largest extremum key of the lane's values.
__device__ __forceinline__ std::uint32_t lane_key(const float (&u)[8]) {
  std::uint32_t key = extremum_key(u[0]);
#pragma unroll
  for (int i = 1; i < 8; ++i) key = max(key, extremum_key(u[i]));
  return key;
}

/// The extremum key of the lane's group.
__device__ __forceinline__ std::uint32_t group_key(const float (&u)[8], int lanes) {
  return group_max<kGroupLanes>(lane_key(u), lanes);
}

/// Encodes u and packs the codes.
__device__ __forceinline__ void encode_lane(const float (&u)[8], float inverse, const CodeWidth& width,
                                            float (&encoded)[8], std::uint32_t (&codes)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) encoded[i] = encode(u[i], inverse, width);
  if (width.bits == 4) {
    codes[0] = pack_nibbles(encoded);
  } else {
    codes[0] = pack_low_bytes(encoded, 0);
    codes[1] = pack_low_bytes(encoded, 4);
  }
}

/// A lane's eight codes as elements of `D`; `scale` is pair_of() the group's.
template <DataType D>
__device__ __forceinline__ void decode_lane(std::uint32_t codes, std::uint32_t scale,
                                            const Geometry& geometry,
                                            std::uint32_t (&out)[kElementWords<D>]) {
  if constexpr (D == DataType::kBf16) {
    decode_pairs(codes, scale, geometry.pair_magic, out);
  } else {
    const float factor = bf16_to_float(static_cast<std::uint16_t>(scale));
    float decoded[8];
    nibble_codes(codes, geometry.nibble_magic, decoded);
#pragma unroll
    for (int i = 0; i < 8; ++i) decoded[i] = __fmul_rn(decoded[i], factor);
    pack_elements<D>(decoded, out);
  }
}

/// The same for codes of 8 bits.
template <DataType D>
__device__ __forceinline__ void decode_lane(uint2 codes, std::uint32_t scale, const Geometry&,
                                            std::uint32_t (&out)[kElementWords<D>]) {
  const float factor = bf16_to_float(static_cast<std::uint16_t>(scale));
  float decoded[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    decoded[i] = __fmul_rn(__fsub_rn(byte_in_magic(i < 4 ? codes.x : codes.y, i), kInt8Bias), factor);
  }
  pack_elements<D>(decoded, out);
}

/// What everybody will decode from a rounding for the second leg.
template <DataType D, bool Four>
__device__ __forceinline__ void decode_own(const Rounding& rounding, const Geometry& geometry,
                                           std::uint32_t (&out)[kElementWords<D>]) {
  const std::uint32_t scale = pair_of(rounding.scale.bits);
  if (bits_of<Four>(geometry.out) == 4) {
    decode_lane<D>(rounding.codes[0], scale, geometry, out);
  } else {
    decode_lane<D>(make_uint2(rounding.codes[0], rounding.codes[1]), scale, geometry, out);
  }
}

/// Writes a lane's codes of one slice.
__device__ __forceinline__ void store_codes(std::uint8_t* to, int bits, const std::uint32_t (&codes)[2]) {
  if (bits == 4) {
    *reinterpret_cast<std::uint32_t*>(to) = codes[0];
  } else {
    *reinterpret_cast<uint2*>(to) = make_uint2(codes[0], codes[1]);
  }
}

/// The corrections of a lane's eight values, not yet limited, by the coefficients k and the same scaled by
/// the group's unit. `Short`: a shorter way may be taken, which is exact unless it overflows.
template <Memory M, StateFormat F, bool Short>
__device__ __forceinline__ void corrections(const LaneState<M, F, 1>& state, const Coefficients& k,
                                            const Coefficients& scaled_k, float (&c)[8]) {
  if constexpr (Short && M == Memory::kFast && F == StateFormat::kInt8) {
    if (k.a == 1.0f) {
      // The unit has 8 significant bits, the bias 9: their product is exact, and so is what is left of it.
      const float bias = __fmul_rn(scaled_k.a, -kInt8Bias);
#pragma unroll
      for (int i = 0; i < 8; ++i) c[i] = __fmaf_rn(scaled_k.a, biased_int8(state.fast[0], i), bias);
      return;
    }
  }
  float fast[8];
  unpack_state<F>(state.fast[0], fast);
  if constexpr (M == Memory::kDual) {
    float slow[8];
    unpack_state<F>(state.slow[0], slow);
#pragma unroll
    for (int i = 0; i < 8; ++i) c[i] = correction(scaled_k, fast[i], slow[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) c[i] = correction(scaled_k, fast[i]);
  }
}

/// The same values, of which the compiler does not know it: what is computed from them anew need not be kept
/// in registers until then.
template <Memory M, StateFormat F>
__device__ __forceinline__ LaneState<M, F, 1> forgotten(LaneState<M, F, 1> state) {
#pragma unroll
  for (int i = 0; i < kStateWords<F>; ++i) {
    asm volatile("" : "+r"(state.fast[0][i]));
    if constexpr (M == Memory::kDual) asm volatile("" : "+r"(state.slow[0][i]));
  }
  return state;
}

/// Least extremum of a group that is certain not to travel as zero, whatever the width of its codes.
inline constexpr float kPlainLeast = 0x1p-90f;
/// Largest extremum for which nothing overflows and no scale has to be limited.
inline constexpr float kPlainMost = 0x1p126f;

/// group_scale() of an extremum between kPlainLeast and kPlainMost.
__device__ __forceinline__ GroupScale plain_group_scale(float extremum, const CodeWidth& width) {
  GroupScale result;
  result.finite = true;
  result.scale = round_to_bf16(__fmul_rn(extremum, width.factor));
  result.inverse = width.bits == 4 ? bf16_reciprocal_of_bf16(result.scale) : reciprocal_of_bf16(result.scale);
  result.bits = static_cast<std::uint16_t>(__float_as_uint(result.scale) >> 16);
  return result;
}

/// Second half of round_compensated(): rounds the corrected values u, whose group has this key, updates and
/// stores the estimates. `Plain`: all groups of the warp have extrema that plain_group_scale() takes.
template <DataType D, Memory M, StateFormat F, bool Four, bool Owner, bool Plain>
__device__ __forceinline__ void round_and_follow(const float (&u)[8], std::uint32_t key,
                                                 const LaneState<M, F, 1>& state,
                                                 const Coefficients& scaled_k, int s,
                                                 const Geometry& geometry, int place, StateCursor<F>& cursor,
                                                 Rounding& result, std::uint32_t (&out)[kElementWords<D>]) {
  const CodeWidth width = width_of<Four>(geometry);
  result.scale = Plain ? plain_group_scale(extremum_of(key), width) : group_scale(extremum_of(key), width);
  float encoded[8];
  encode_lane(u, result.scale.inverse, width, encoded, result.codes);
  float residual[8];
  if constexpr (Owner) {
    decode_own<D, Four>(result, geometry, out);
    unpack_elements<D>(out, residual);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      residual[i] = __fsub_rn(u[i], residual[i]);
      // fp16 alone can overflow where the code does not: the residual then counts as none.
      if (D == DataType::kFp16 && !is_finite(residual[i])) residual[i] = 0.0f;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      residual[i] = __fmaf_rn(-code_of(encoded[i], width), result.scale.scale, u[i]);
  }

  // The slow estimate first: then the fast one may take the residual's registers.
  float largest = 0.0f;
  float slow[8];
  if constexpr (M == Memory::kDual) {
    unpack_state<F>(state.slow[0], slow);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      slow[i] = follow_slow(scaled_k, slow[i], residual[i]);
      if constexpr (F != StateFormat::kFp32) largest = fmaxf(largest, fabsf(slow[i]));
    }
  }
  float fast[8];
  if (geometry.coefficients.bf == 0.0f) {
#pragma unroll
    for (int i = 0; i < 8; ++i) fast[i] = follow_fast(scaled_k, true, 0.0f, residual[i]);
  } else {
    unpack_state<F>(forgotten(state).fast[0], fast);
#pragma unroll
    for (int i = 0; i < 8; ++i) fast[i] = follow_fast(scaled_k, false, fast[i], residual[i]);
  }
  if constexpr (F != StateFormat::kFp32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(fast[i]));
  }
  // A group that could not be rounded keeps its estimates, unless the pass starts here: then they become
  // zero.
  const bool finite = Plain || result.scale.finite;
  float inverse = 0.0f;
  if constexpr (F != StateFormat::kFp32) {
    const std::uint16_t unit =
        state_unit(F, __uint_as_float(group_max<kGroupLanes>(__float_as_uint(largest), geometry.lanes)));
    inverse = state_inverse(unit);
    if (finite || cursor.reset) cursor.units.keep(s, place, finite ? unit : 0);
  }
  const auto store = [&](void* estimate, const float(&values)[8]) {
    std::uint32_t words[kStateWords<F>];
    pack_state<F>(values, inverse, words);
#pragma unroll
    for (int i = 0; i < kStateWords<F>; ++i) words[i] = finite ? words[i] : 0;
    if (cursor.store && (finite || cursor.reset)) store_words(cursor.in(estimate), words);
  };
  store(cursor.view.fast, fast);
  if constexpr (M == Memory::kDual) store(cursor.view.slow, slow);
}

/// Corrects x by the estimates of slice s of the item, rounds, updates and stores the estimates; the cursor
/// stands at that slice. `out` are the elements that go to the user (owner only).
template <DataType D, Memory M, StateFormat F, bool Four, bool Owner>
__device__ __forceinline__ void round_compensated(const float (&x)[8], const LaneState<M, F, 1>& state, int s,
                                                  const Geometry& geometry, int place, StateCursor<F>& cursor,
                                                  Rounding& result, std::uint32_t (&out)[kElementWords<D>]) {
  const Coefficients& k = geometry.coefficients;
  const int lanes = geometry.lanes;
  Coefficients scaled_k = k;
  if constexpr (F != StateFormat::kFp32)
    scaled_k = scaled(k, bf16_to_float(static_cast<std::uint16_t>(cursor.units.of(s))));

  float u[8];
  float bound =
      F == StateFormat::kInt8 ? __fmul_rn(128.01f, __fadd_rn(fabsf(scaled_k.a), fabsf(scaled_k.b))) : 0.0f;
  {
    float c[8];
    corrections<M, F, true>(state, k, scaled_k, c);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (F != StateFormat::kInt8) bound = fmaxf(bound, fabsf(c[i]));
      u[i] = __fadd_rn(x[i], c[i]);
    }
  }
  std::uint32_t key = group_key(u, lanes);
  // Where no correction exceeds half of the corrected extremum, none exceeds the uncompensated one either,
  // and where that is far from overflow no sum was an Inf: then nothing has to be limited. Otherwise (rare),
  // and where the short way overflowed, it is done as defined.
  const float extremum = __uint_as_float(key >> 1);
  const bool plain = __fmul_rn(2.01f, bound) <= extremum && extremum <= kPlainMost && extremum >= kPlainLeast;
  if (__all_sync(0xFFFFFFFFu, plain)) {
    round_and_follow<D, M, F, Four, Owner, true>(u, key, state, scaled_k, s, geometry, place, cursor, result,
                                                 out);
    return;
  }
  float top = fabsf(x[0]);
#pragma unroll
  for (int i = 1; i < 8; ++i) top = max_nan(top, fabsf(x[i]));
  const float limit = __uint_as_float(group_max<kGroupLanes>(__float_as_uint(top), lanes));
  float c[8];
  corrections<M, F, false>(forgotten(state), k, scaled_k, c);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    u[i] = __fadd_rn(x[i], clamp_symmetric(c[i], limit));
    if (is_finite(limit)) u[i] = clamp_symmetric(u[i], kFloatMax);
  }
  key = group_key(u, lanes);
  round_and_follow<D, M, F, Four, Owner, false>(u, key, state, scaled_k, s, geometry, place, cursor, result,
                                                out);
}

}  // namespace echotp::device
