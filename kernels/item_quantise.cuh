// SPDX-License-Identifier: Apache-2.0
// Phase 1 on one item: a sender rounds half a tile of another owner for the wire, with its compensation.
#pragma once

#include <cstdint>

#include "kernels/drift.cuh"
#include "kernels/stage.cuh"
#include "kernels/warp.cuh"

namespace echotp::device {

/// Rounds the item in the stage into `tile` without compensation. A lane has 32 neighbours, all of a group or
/// a half or quarter of it: so the group's extremum and scale cost little. `place`: which ones of the tile.
template <DataType D, bool Four>
__device__ __forceinline__ void quantise_neighbours(const Geometry& geometry,
                                                    const Stage<D, Memory::kNone, StateFormat::kFp32>& stage,
                                                    std::uint8_t* tile, unsigned place) {
  constexpr int kParts = kGroupLanes;  // of eight elements
  const CodeWidth width = width_of<Four>(geometry);
  const int lane_shift = geometry.group_shift - 5;  // log2 of the lanes that share a group
  std::uint32_t words[Four ? kParts : 2 * kParts];
  GroupScale scale;
  if constexpr (D == DataType::kBf16 && Four) {
    std::uint32_t raw[kParts][kElementWords<D>];
#pragma unroll
    for (int k = 0; k < kParts; ++k) stage.neighbours(k, raw[k]);
    PairExtrema extrema(raw[0][0]);
#pragma unroll
    for (int i = 1; i < 4 * kParts; ++i) extrema.add(raw[i / 4][i % 4]);
    extrema.add_lanes(lane_shift);
    scale = group_scale(extrema.extremum(), width);
    const std::uint32_t inverse = pair_of(scale.inverse);
#pragma unroll
    for (int k = 0; k < kParts; ++k) words[k] = encode_pairs(raw[k], inverse);
  } else {
    // Fetched from shared memory twice, not kept.
    float x[8];
    const auto fetch = [&](int k) {
      std::uint32_t raw[kElementWords<D>];
      stage.neighbours(k, raw);
      unpack_elements<D>(raw, x);
    };
    std::uint32_t key = 0;
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      fetch(k);
      key = max(key, lane_key(x));
    }
    scale = group_scale(extremum_of(group_max<1>(key, 1 << lane_shift)), width);
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      fetch(k);
      float encoded[8];
      std::uint32_t part[2];
      encode_lane(x, scale.inverse, width, encoded, part);
      if (width.bits == 4) {
        words[k] = part[0];
      } else if constexpr (!Four) {
        words[2 * k] = part[0];
        words[2 * k + 1] = part[1];
      }
    }
  }
  auto* codes = reinterpret_cast<uint4*>(tile) + place * (width.bits / 4);
  codes[0] = make_uint4(words[0], words[1], words[2], words[3]);
  if constexpr (!Four) {
    if (width.bits == 8) codes[1] = make_uint4(words[4], words[5], words[6], words[7]);
  }
  const unsigned group = place >> lane_shift;
  if (group << lane_shift == place) {
    reinterpret_cast<std::uint16_t*>(tile + tile_code_bytes(width.bits))[group] = scale.bits;
  }
}

/// Rounds the item that `fetched` holds into its tile on the wire at `tile` and updates the estimates.
/// All lanes take part.
template <DataType D, Memory M, StateFormat F, bool Four>
__device__ __forceinline__ void quantise_item(const Geometry& geometry, const Item& item,
                                              const Stage<D, M, F>& fetched, const StateView& state,
                                              bool pass_start, std::uint8_t* tile, int lane) {
  fetched.wait();
  if constexpr (M == Memory::kNone) {
    quantise_neighbours<D, Four>(geometry, fetched, tile,
                                 item.begin_slice * (kWarpThreads / kNeighbourParts) + lane);
  } else {
    const Stage<D, M, F> stage = fetched.kept();
    const int lane_shift = geometry.group_shift - 3;
    const int place = lane & (geometry.lanes - 1);
    const int bits = bits_of<Four>(geometry.out);
    std::uint8_t* codes = tile + (item.begin_slice * kWarpThreads + lane) * bits;
    GroupValues scales;
    StateCursor<F> cursor(state, item, pass_start, lane);
    DriftCursor<M> drift(state.drift, item, Role::kSender, lane);
    if constexpr (F != StateFormat::kFp32)
      cursor.units.held = stage.units()[GroupValues::index(place, lane, lane_shift)];
#pragma unroll 1
    for (int s = 0; s < kItemSlices; ++s) {
      std::uint32_t raw[kElementWords<D>];
      LaneState<M, F, 1> estimates;
      stage.elements(s, raw);
      if constexpr (by_element(M)) stage.state(s, cursor, estimates);
      float x[8];
      unpack_elements<D>(raw, x);
      Rounding rounding;
      std::uint32_t unused[kElementWords<D>];
      if constexpr (M == Memory::kDrift) {
        round_drifting<D, Four, false>(x, geometry, drift, rounding, unused);
      } else {
        round_compensated<D, M, F, Four, false>(x, estimates, s, geometry, place, cursor, rounding, unused);
      }
      store_codes(codes, bits, rounding.codes);
      scales.keep(s, place, rounding.scale.bits);
      codes += kWarpThreads * bits;
      cursor.next_slice();
    }
    if constexpr (F != StateFormat::kFp32) {
      const std::int64_t entry = cursor.entry - kItemSlices * kSliceElements - lane * kLaneElements;
      if (cursor.store)
        cursor.units.store(state.unit + (entry >> geometry.group_shift), place, lane, lane_shift);
    }
    scales.store(reinterpret_cast<std::uint16_t*>(tile + geometry.out.code_bytes) +
                     item.begin_slice * geometry.scale_step,
                 place, lane, lane_shift);
  }
}

}  // namespace echotp::device
