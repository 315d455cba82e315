// SPDX-License-Identifier: Apache-2.0
// Phase 2 on one item: the owner sums half a tile in fp32 in rank order, compensates, rounds once more for
// everybody, and writes what everybody decodes.
#pragma once

#include <cstdint>

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

/// Reduces the item that `stage` has fetched: adds the peers' tiles (`peers` + r * geometry.in.segment_bytes
/// is what rank r sent of the tile; the owner's own place is unused) to the owner's elements, rounds, stores
/// the decoded elements to `recv` and passes what goes to the others to `wire`, which has
///   void codes(int offset, int bits, const std::uint32_t (&codes)[2]): a lane's codes of a slice,
///   void scale(int offset, std::uint16_t scale): one group's scale,
/// with offsets in bytes from the tile's begin. All lanes take part. Returns how many non-finite groups this
/// lane holds the scale of.
template <DataType D, Memory M, StateFormat F, bool Four, class Wire>
__device__ __forceinline__ int reduce_item(const Geometry& geometry, const Item& item,
                                           const Stage<D, M, F>& stage, void* recv, int rank, int ranks,
                                           float post_scale, const StateView& state, bool pass_start,
                                           const std::uint8_t* peers, const Wire& wire, int lane) {
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
      stage.fetch_peer(i * geometry.peer_bytes, in_bits, peer + code_offset, peer + scale_offset,
                       kItemSlices * geometry.scale_step * 2, lane);
      peer += geometry.in.segment_bytes;
    }
  }
  stage.wait();
  StateCursor<F> cursor(state, item, pass_start, lane);
  if constexpr (M != Memory::kNone && F != StateFormat::kFp32)
    cursor.units.held = stage.units()[GroupValues::index(place, lane, lane_shift)];
  GroupValues scales;
  const bool some_direct = ranks - 1 > geometry.staged_peers;
  const int staged_before = min(rank, geometry.staged_peers);

#pragma unroll 1
  for (int s = 0; s < kItemSlices; ++s) {
    std::uint32_t raw[kElementWords<D>];
    LaneState<M, F, 1> estimates;
    stage.elements(s, raw);
    if constexpr (M != Memory::kNone) stage.state(s, cursor, estimates);
    float sum[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = -0.0f;  // the one value that leaves every first term as it is
    const int lane_code = (s * kWarpThreads + lane) * in_bits;
    const int lane_scale = (s * geometry.scale_step + (lane >> lane_shift)) * 2;
    const std::uint8_t* peer_code = stage.peers() + lane_code;
    const std::uint8_t* peer_scale = stage.peers() + kWarpThreads * kItemSlices * in_bits + lane_scale;
    const auto add_staged = [&](int count) {
      if (in_bits == 4) {
#pragma unroll 2
        for (; count > 0; --count) {
          const auto word = *reinterpret_cast<const std::uint32_t*>(peer_code);
          const auto scale = *reinterpret_cast<const std::uint16_t*>(peer_scale);
          peer_code += peer_bytes(4);
          peer_scale += peer_bytes(4);
          accumulate(word, bf16_to_float(scale), geometry.nibble_magic, sum);
        }
        return;
      }
#pragma unroll 1
      for (; count > 0; --count) {
        const auto words = *reinterpret_cast<const uint2*>(peer_code);
        const auto scale = *reinterpret_cast<const std::uint16_t*>(peer_scale);
        peer_code += peer_bytes(8);
        peer_scale += peer_bytes(8);
        accumulate_bytes(words, bf16_to_float(scale), sum);
      }
    };
    const auto add_direct = [&](int from, int to) {
#pragma unroll 1
      for (int peer_rank = from; peer_rank < to; ++peer_rank) {
        const std::uint8_t* peer = peers + peer_rank * geometry.in.segment_bytes;
        const float scale =
            bf16_to_float(__ldcg(reinterpret_cast<const std::uint16_t*>(peer + scale_offset + lane_scale)));
        peer += code_offset + lane_code;
        if (in_bits == 4) {
          accumulate(__ldcg(reinterpret_cast<const std::uint32_t*>(peer)), scale, geometry.nibble_magic, sum);
        } else {
          accumulate_bytes(__ldcg(reinterpret_cast<const uint2*>(peer)), scale, sum);
        }
      }
    };
    add_staged(staged_before);
    if (some_direct) add_direct(geometry.staged_peers, rank);
    {
      float x[8];
      unpack_elements<D>(raw, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], x[i]);
    }
    add_staged(geometry.staged_peers - staged_before);
    if (some_direct) add_direct(max(rank, geometry.staged_peers) + 1, ranks);
    if (post_scale != 1.0f) {
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
    } else {
      round_compensated<D, M, F, Four, true>(sum, estimates, s, geometry, place, cursor, rounding, out);
    }
    wire.codes(((item.begin_slice + s) * kWarpThreads + lane) * out_bits, out_bits, rounding.codes);
    scales.keep(s, place, rounding.scale.bits);
    // The state's entries are those of the message, the buffers may begin further on.
    const std::int64_t at = cursor.entry - (item.entry - item.first);
    store_elements<D>(static_cast<char*>(recv) + at * element_bytes(D), item.full,
                      item.left - s * kSliceElements, lane, out);
    cursor.next_slice();
  }
  if (place < kItemSlices) {
    const int group = begin_group + GroupValues::index(place, lane, lane_shift);
    wire.scale(geometry.out.code_bytes + group * 2, static_cast<std::uint16_t>(scales.held));
  }
  if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
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
  if (total != 0 && lane == 0)
    atomicAdd(&counters->nonfinite_groups, static_cast<unsigned long long>(total));
}

}  // namespace echotp::device
