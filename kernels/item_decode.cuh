// SPDX-License-Identifier: Apache-2.0
// Phase 3 on one item: half a reduced tile of another owner becomes elements of the user's buffer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/warp.cuh"

namespace echotp::device {

/// A lane's eight codes as elements of `D`.
template <DataType D>
__device__ __forceinline__ void decode_lane(std::uint32_t codes, std::uint16_t scale,
                                            const Geometry& geometry,
                                            std::uint32_t (&out)[kElementWords<D>]) {
  if constexpr (D == DataType::kBf16) {
    // Two codes at a time: nibbles become 128..143 by sitting in the mantissa of bf16 128. code * scale
    // rounds once, as the fp32 product (exact) does when it is cast.
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = ((codes >> (4 * i)) & 0x000F000Fu) | geometry.pair_magic;  // elements i and i + 4
    const std::uint32_t ordered[4] = {
        __byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410),
        __byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[2], pairs[3], 0x7632)};
    const std::uint32_t one = 0x3F803F80u;
    const std::uint32_t bias = 0xC308C308u;  // -136
    const std::uint32_t minus_zero = 0x80008000u;
    const std::uint32_t twice = static_cast<std::uint32_t>(scale) * 0x00010001u;
    const auto as_pair = [](const std::uint32_t& bits) {
      return *reinterpret_cast<const __nv_bfloat162*>(&bits);
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 code = __hfma2(as_pair(ordered[i]), as_pair(one), as_pair(bias));
      const __nv_bfloat162 value = __hfma2(code, as_pair(twice), as_pair(minus_zero));
      out[i] = *reinterpret_cast<const std::uint32_t*>(&value);
    }
  } else {
    const float factor = bf16_to_float(scale);
    float decoded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float code =
          __fsub_rn(__uint_as_float(((codes >> (4 * i)) & 0xFu) | geometry.nibble_magic), 8388616.0f);
      decoded[i] = __fmul_rn(code, factor);
    }
    pack_elements<D>(decoded, out);
  }
}

/// A lane's eight codes of 8 bits as elements of `D`.
template <DataType D>
__device__ __forceinline__ void decode_bytes(uint2 codes, std::uint16_t scale,
                                             std::uint32_t (&out)[kElementWords<D>]) {
  const float factor = bf16_to_float(scale);
  float decoded[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    decoded[i] = __fmul_rn(__fsub_rn(byte_in_magic(i < 4 ? codes.x : codes.y, i), kInt8Bias), factor);
  }
  pack_elements<D>(decoded, out);
}

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
#pragma unroll
  for (int s = 0; s < kItemSlices; ++s) {
    std::uint32_t out[kElementWords<D>];
    const std::uint16_t scale = scales.of(s, lane, place);
    if constexpr (Bits == 4) {
      decode_lane<D>(loaded[s], scale, geometry, out);
    } else {
      decode_bytes<D>(loaded[s], scale, out);
    }
    store_elements<D>(own + s * kSliceElements * element_bytes(D), item.full, item.left - s * kSliceElements,
                      lane, out);
  }
}

}  // namespace echotp::device
