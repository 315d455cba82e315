// SPDX-License-Identifier: Apache-2.0
// Phase 3: decodes the reduced tiles of the other owners into the user's buffer.
#include <type_traits>

#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

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

template <DataType D, int Bits>
__global__ void __launch_bounds__(kBlockThreads, 12)
    decode_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  const std::uint32_t item = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item >= geometry.items) return;
  const int lane = threadIdx.x % kWarpThreads;
  const int lane_shift = geometry.group_shift - 3;
  const std::uint32_t others = args.ranks - 1;
  const std::uint32_t index = item / kTileItems;
  const std::uint32_t row = index / others;
  std::uint32_t owner = index - row * others;
  if (owner >= static_cast<std::uint32_t>(args.rank)) ++owner;
  const int begin_slice = item % kTileItems * kItemSlices;
  const std::int64_t first =
      (static_cast<std::int64_t>(row) * args.ranks + owner) * kTileElements + begin_slice * kSliceElements;
  const int left = bounded_left(args.count - first);
  const bool full = geometry.vector && left == kItemSlices * kSliceElements;
  const std::uint8_t* wire = args.gathered + owner * geometry.out.segment_bytes +
                             static_cast<std::int64_t>(row) * geometry.out.tile_bytes;
  using Codes = std::conditional_t<Bits == 4, std::uint32_t, uint2>;
  const auto* codes = reinterpret_cast<const Codes*>(wire);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(wire + tile_code_bytes(Bits));
  char* recv = static_cast<char*>(args.recv) + (first + lane * kLaneElements) * element_bytes(D);

  Codes loaded[kItemSlices];
  std::uint16_t scale[kItemSlices];
#pragma unroll
  for (int s = 0; s < kItemSlices; ++s) {
    const int at = (begin_slice + s) * kWarpThreads + lane;
    loaded[s] = __ldcs(codes + at);
    scale[s] = __ldg(scales + (at >> lane_shift));
  }
#pragma unroll
  for (int s = 0; s < kItemSlices; ++s) {
    std::uint32_t out[kElementWords<D>];
    if constexpr (Bits == 4) {
      decode_lane<D>(loaded[s], scale[s], geometry, out);
    } else {
      decode_bytes<D>(loaded[s], scale[s], out);
    }
    store_elements<D>(recv + s * kSliceElements * element_bytes(D), full, left - s * kSliceElements, lane,
                      out);
  }
}

constexpr Kernel kKernels[] = {decode_kernel<DataType::kBf16, 4>, decode_kernel<DataType::kFp16, 4>,
                               decode_kernel<DataType::kFp32, 4>, decode_kernel<DataType::kBf16, 8>,
                               decode_kernel<DataType::kFp16, 8>, decode_kernel<DataType::kFp32, 8>};

}  // namespace

cudaError_t load_decode_kernels() noexcept {
  return load(kKernels);
}

}  // namespace device

cudaError_t launch_decode(const StagedArgs& args, cudaStream_t stream) noexcept {
  constexpr auto kPhase = device::Phase::kDecode;
  const cudaError_t status = device::check_arguments(args, kPhase);
  if (status != cudaSuccess || args.count == 0) return status;
  const int variant = static_cast<int>(args.dtype) + (args.codec.bits == 8 ? device::kTypes : 0);
  return device::launch(device::kKernels[variant], args, device::make_geometry(args, kPhase), 1, stream);
}

}  // namespace echotp
