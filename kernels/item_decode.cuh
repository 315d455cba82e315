// SPDX-License-Identifier: Apache-2.0
// Phase 3 on one item: half a reduced tile of another owner becomes elements of the user's buffer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/warp.cuh"

namespace echotp::device {

/// Decodes the item from its tile on the wire at `tile` into `recv`. All lanes take part. The tile may have
/// been written by another GPU while this kernel ran: nothing here reads it through a cache that would not
/// notice.
template <DataType D, int Bits>
__device__ __forceinline__ void decode_item(const Geometry& geometry, const Item& item,
                                            const std::uint8_t* tile, void* recv, int lane) {
  using Codes = std::conditional_t<Bits == 4, std::uint32_t, uint2>;
  const int lane_shift = geometry.group_shift - 3;
  const int place = lane & (geometry.lanes - 1);
  const auto* codes = reinterpret_cast<const Codes*>(tile) + item.begin_slice * kWarpThreads + lane;
  char* own = static_cast<char*>(recv) + (item.first + lane * kLaneElements) * element_bytes(D);
  GroupValues scales;
  scales.load(reinterpret_cast<const std::uint16_t*>(tile + tile_code_bytes(Bits)) +
                  item.begin_slice * geometry.scale_step,
              place, lane, lane_shift);
  Codes loaded[kItemSlices];
#pragma unroll
  for (int s = 0; s < kItemSlices; ++s) loaded[s] = __ldcg(codes + s * kWarpThreads);
  scales.held = pair_of(static_cast<std::uint16_t>(scales.held));
  std::uint32_t scale[kItemSlices];
#pragma unroll
  for (int s = 0; s < kItemSlices; ++s) scale[s] = scales.of(s);
  // Chosen once for all slices: else the rare way's addresses are worked out in the usual one too.
  if (item.full) {
#pragma unroll
    for (int s = 0; s < kItemSlices; ++s) {
      std::uint32_t out[kElementWords<D>];
      decode_lane<D>(loaded[s], scale[s], geometry, out);
      store_words(own + s * kSliceElements * element_bytes(D), out);
    }
    return;
  }
#pragma unroll
  for (int s = 0; s < kItemSlices; ++s) {
    std::uint32_t out[kElementWords<D>];
    decode_lane<D>(loaded[s], scale[s], geometry, out);
    store_elements<D>(own + s * kSliceElements * element_bytes(D), false, item.left - s * kSliceElements,
                      lane, out);
  }
}

}  // namespace echotp::device
