// SPDX-License-Identifier: Apache-2.0
// Phase 2 on one item: the owner sums half a tile in fp32 in rank order, compensates, rounds once more for
// everybody, and writes what everybody decodes.
#pragma once

#include <cstdint>

#include "kernels/drift.cuh"
#include "kernels/stage.cuh"
#include "kernels/warp.cuh"

namespace echotp::device {

/// sum += code * scale for a lane's eight codes; the product is exact, so the fused operation rounds as the
/// addition does.
__device__ __forceinline__ void accumulate(std::uint32_t codes, float scale, std::uint32_t magic,
                                           float (&sum)[8]) {
  float code[8];
  nibble_codes(codes, magic, code);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = __fmaf_rn(code[i], scale, sum[i]);
}

/// The same for codes of 8 bits.
__device__ __forceinline__ void accumulate_bytes(uint2 codes, float scale, float (&sum)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float code = __fsub_rn(byte_in_magic(i < 4 ? codes.x : codes.y, i), kInt8Bias);
    sum[i] = __fmaf_rn(code, scale, sum[i]);
  }
}

/// -0.0, out of sight of the compiler: else it sets eight registers to it before the branch that rarely needs
/// them.
__device__ __forceinline__ float late_minus_zero() {
  float value;
  asm volatile("mov.b32 %0, 0x80000000;" : "=f"(value));
  return value;
}

/// Reduces the item that `fetched` holds: adds the peers' tiles (`peers` + r * geometry.in.segment_bytes is
/// what rank r sent of the tile; the owner's own place is unused) to the owner's elements, rounds, stores the
/// decoded elements to `recv` and passes what goes to the others to `wire`, which has
///   void codes(int offset, int bits, const std::uint32_t (&codes)[2]): a lane's codes of a slice,
///   void scale(int offset, std::uint16_t scale): one group's scale,
/// with offsets in bytes from the tile's begin. `peers_again()` is `peers` worked out anew, for the rare way
/// that needs it late: else it would take registers from the usual one. All lanes take part. Returns how many
/// non-finite groups this lane holds the scale of.
template <DataType D, Memory M, StateFormat F, bool Four, class PeersAgain, class Wire>
__device__ __forceinline__ int reduce_item(const Geometry& geometry, const Item& item,
                                           const Stage<D, M, F>& fetched, void* recv, int rank, int ranks,
                                           float post_scale, const StateView& state, bool pass_start,
                                           const std::uint8_t* peers, const PeersAgain& peers_again,
                                           const Wire& wire, int lane) {
  const int lane_shift = geometry.group_shift - 3;
  const int place = lane & (geometry.lanes - 1);
  const int begin_group = item.begin_slice * geometry.scale_step;
  const int out_bits = bits_of<Four>(geometry.out);
  const int in_bits = bits_of<Four>(geometry.in);
  const int code_offset = item.begin_slice * kWarpThreads * in_bits;
  const int scale_offset = geometry.in.code_bytes + begin_group * 2;
  {
    const std::uint8_t* peer = peers;
#pragma unroll 1
    for (int i = 0; i < geometry.staged_peers; ++i) {
      if (i == rank) peer += geometry.in.segment_bytes;
      fetched.fetch_peer(i * geometry.peer_bytes, in_bits, peer + code_offset, peer + scale_offset,
                         kItemSlices * geometry.scale_step * 2, lane);
      peer += geometry.in.segment_bytes;
    }
  }
  fetched.wait();
  const Stage<D, M, F> stage = fetched.kept();
  StateCursor<F> cursor(state, item, pass_start, lane);
  DriftCursor<M> drift(state.drift, item, Role::kOwner, lane);
  if constexpr (by_element(M) && F != StateFormat::kFp32)
    cursor.units.held = stage.units()[GroupValues::index(place, lane, lane_shift)];
  GroupValues scales;
  const int staged_before = kept_uniform(min(rank, geometry.staged_peers));
  const int staged_after = kept_uniform(geometry.staged_peers - staged_before);
  // What is rare, in one: further peers' codes are not in the stage, or the sum is not the result yet.
  const bool some_direct = ranks - 1 > geometry.staged_peers;
  const int unusual = kept_uniform(some_direct || post_scale != 1.0f ? 1 : 0);
  int eight = kept(item.begin_slice * kWarpThreads + lane, lane);  // which eight of the tile's elements
  const std::uint8_t* lane_codes = kept(stage.peers() + lane * in_bits, lane);
  const std::uint8_t* lane_scales =
      kept(stage.peers() + peer_code_bytes(in_bits) + (lane >> lane_shift) * 2, lane);

#pragma unroll 1
  for (int s = 0; s < kItemSlices; ++s) {
    std::uint32_t raw[kElementWords<D>];
    LaneState<M, F, 1> estimates;
    stage.elements(s, raw);
    if constexpr (by_element(M)) stage.state(s, cursor, estimates);
    float sum[8];
    const std::uint8_t* peer_code = lane_codes;
    const std::uint8_t* peer_scale = lane_scales;
    const auto add_one = [&] {
      const float scale = bf16_to_float(*reinterpret_cast<const std::uint16_t*>(peer_scale));
      if (in_bits == 4) {
        accumulate(*reinterpret_cast<const std::uint32_t*>(peer_code), scale, geometry.nibble_magic, sum);
      } else {
        accumulate_bytes(*reinterpret_cast<const uint2*>(peer_code), scale, sum);
      }
      peer_code += peer_bytes(in_bits);
      peer_scale += peer_bytes(in_bits);
    };
    const auto add_staged = [&](int count) {
#pragma unroll 1
      for (; count > 1; count -= 2) {
        add_one();
        add_one();
      }
      if (count > 0) add_one();
    };
    const auto add_direct = [&](int from, int to) {
#pragma unroll 1
      for (int peer_rank = from; peer_rank < to; ++peer_rank) {
        const std::uint8_t* peer = peers_again() + peer_rank * geometry.in.segment_bytes;
        const auto* peer_scales = reinterpret_cast<const std::uint16_t*>(peer + geometry.in.code_bytes);
        const float scale = bf16_to_float(__ldcg(peer_scales + (eight >> lane_shift)));
        peer += eight * in_bits;
        if (in_bits == 4) {
          accumulate(__ldcg(reinterpret_cast<const std::uint32_t*>(peer)), scale, geometry.nibble_magic, sum);
        } else {
          accumulate_bytes(__ldcg(reinterpret_cast<const uint2*>(peer)), scale, sum);
        }
      }
    };
    if (staged_before > 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = -0.0f;  // leaves the first term as it is
      add_one();
      add_staged(staged_before - 1);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = late_minus_zero();
    }
    if (unusual) add_direct(geometry.staged_peers, rank);
    {
      float x[8];
      unpack_elements<D>(raw, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], x[i]);
    }
    add_staged(staged_after);
    if (unusual) {
      if (some_direct) add_direct(max(rank, geometry.staged_peers) + 1, ranks);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = __fmul_rn(sum[i], post_scale);
    }

    Rounding rounding;
    std::uint32_t out[kElementWords<D>];
    if constexpr (M == Memory::kNone) {
      const CodeWidth width = width_of<Four>(geometry);
      rounding.scale = group_scale(extremum_of(group_key(sum, geometry.lanes)), width);
      float encoded[8];
      encode_lane(sum, rounding.scale.inverse, width, encoded, rounding.codes);
      decode_own<D, Four>(rounding, geometry, out);
    } else if constexpr (M == Memory::kDrift) {
      round_drifting<D, Four, true>(sum, geometry, drift, rounding, out);
    } else {
      round_compensated<D, M, F, Four, true>(sum, estimates, s, geometry, place, cursor, rounding, out);
    }
    wire.codes(eight * out_bits, out_bits, rounding.codes);
    scales.keep(s, place, rounding.scale.bits);
    // The state's entries are those of the message, the buffers may begin further on.
    const std::int64_t at = cursor.entry - (item.entry - item.first);
    store_elements<D>(static_cast<char*>(recv) + at * element_bytes(D), item.full,
                      item.left - s * kSliceElements, lane, out);
    cursor.next_slice();
    eight += kWarpThreads;
    lane_codes += kWarpThreads * in_bits;
    lane_scales += geometry.scale_step * 2;
  }
  if (place < kItemSlices) {
    const int group = begin_group + GroupValues::index(place, lane, lane_shift);
    wire.scale(geometry.out.code_bytes + group * 2, static_cast<std::uint16_t>(scales.held));
  }
  if constexpr (by_element(M) && F != StateFormat::kFp32) {
    const std::int64_t entry = cursor.entry - kItemSlices * kSliceElements - lane * kLaneElements;
    if (cursor.store)
      cursor.units.store(state.unit + (entry >> geometry.group_shift), place, lane, lane_shift);
  }
  // No finite group has this scale.
  return place < kItemSlices && scales.held == kScaleNan ? 1 : 0;
}

/// Adds up a warp's non-finite groups and counts them. Owners alone count: what a sender could not round
/// reaches its owner as NaN.
__device__ __forceinline__ void count_nonfinite(int groups, DeviceCounters* counters, int lane) {
  if (counters == nullptr) return;
  const int total = __reduce_add_sync(0xFFFFFFFFu, groups);
  if (total != 0 && lane == 0) atomicAdd(&counters->nonfinite_groups, static_cast<unsigned long long>(total));
}

}  // namespace echotp::device
