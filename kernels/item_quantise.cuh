// SPDX-License-Identifier: Apache-2.0
// Phase 1 on one item: a sender rounds half a tile of another owner for the wire, with its compensation.
#pragma once

#include <cstdint>

#include "kernels/stage.cuh"
#include "kernels/warp.cuh"

namespace echotp::device {

/// Without estimates there is little to compute, and loads into registers keep the memory busy by themselves.
template <DataType D>
inline constexpr int kQuantiseBatch = D == DataType::kFp32 ? 2 : 4;

/// Rounds the item of `send` into its tile on the wire at `tile` and updates the estimates. `shared`:
/// stage_bytes(D, M, F) of the warp. All lanes take part.
template <DataType D, Memory M, StateFormat F, bool Four>
__device__ __forceinline__ void quantise_item(const Geometry& geometry, const Item& item, const void* send,
                                              const StateView& state, bool pass_start, std::uint8_t* tile,
                                              std::uint8_t* shared, int lane) {
  const int lane_shift = geometry.group_shift - 3;
  const int place = lane & (geometry.lanes - 1);
  const int bits = bits_of<Four>(geometry.out);
  std::uint8_t* codes = tile + (item.begin_slice * kWarpThreads + lane) * bits;
  const char* own = static_cast<const char*>(send) + (item.first + lane * kLaneElements) * element_bytes(D);
  GroupValues scales;

  if constexpr (M == Memory::kNone) {
    constexpr int kSlices = kQuantiseBatch<D>;
#pragma unroll 1
    for (int batch = 0; batch < kItemSlices; batch += kSlices) {
      std::uint32_t raw[kSlices][kElementWords<D>];
      load_elements<D, kSlices>(own, item.full, item.left - batch * kSliceElements, lane, raw);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        float x[8];
        float encoded[8];
        Rounding rounding;
        unpack_elements<D>(raw[s], x);
        round_lane<false>(x, group_key(x, geometry.lanes), width_of<Four>(geometry), rounding, encoded);
        store_codes(codes, bits, rounding.codes);
        codes += kWarpThreads * bits;
        scales.keep(batch + s, place, rounding.scale.bits);
      }
      own += kSlices * kSliceElements * element_bytes(D);
    }
  } else {
    Stage<D, M, F> stage(shared, lane);
    StateCursor<F> cursor(state, item, pass_start, lane);
    if constexpr (F != StateFormat::kFp32) {
      if (cursor.load)
        cursor.units.load(state.unit + (item.entry >> geometry.group_shift), place, lane, lane_shift);
    }
    stage.fetch_elements(own, item.full, item.left, lane);
    stage.fetch_state(cursor);
    wait_for_copies();
#pragma unroll 1
    for (int s = 0; s < kItemSlices; ++s) {
      std::uint32_t raw[kElementWords<D>];
      LaneState<M, F, 1> estimates;
      stage.elements(s, raw);
      stage.state(s, cursor, estimates);
      float x[8];
      unpack_elements<D>(raw, x);
      Rounding rounding;
      std::uint32_t unused[kElementWords<D>];
      round_compensated<D, M, F, Four, false>(x, estimates, s, geometry, lane, place, cursor, rounding,
                                              unused);
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
  }
  scales.store(reinterpret_cast<std::uint16_t*>(tile + geometry.out.code_bytes) +
                   item.begin_slice * geometry.scale_step,
               place, lane, lane_shift);
}

}  // namespace echotp::device
