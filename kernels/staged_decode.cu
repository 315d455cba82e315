// SPDX-License-Identifier: Apache-2.0
// Phase 3: decodes the reduced tiles of the other owners into the user's buffer.
#include "kernels/item_decode.cuh"
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

template <DataType D, int Bits>
__global__ void __launch_bounds__(kBlockThreads, 12)
    decode_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  const std::uint32_t item_index = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item_index >= geometry.items) return;
  const std::uint32_t others = args.ranks - 1;
  const std::uint32_t index = item_index / kTileItems;
  const std::uint32_t row = index / others;
  std::uint32_t owner = index - row * others;
  if (owner >= static_cast<std::uint32_t>(args.rank)) ++owner;
  const std::int64_t tile_first = (static_cast<std::int64_t>(row) * args.ranks + owner) * kTileElements;
  const Item item =
      make_item(tile_first, static_cast<int>(item_index % kTileItems), args.count, geometry.vector, 0, 0);
  const std::uint8_t* tile = args.gathered + owner * geometry.out.segment_bytes +
                             static_cast<std::int64_t>(row) * geometry.out.tile_bytes;
  decode_item<D, Bits>(geometry, item, tile, args.recv, static_cast<int>(threadIdx.x % kWarpThreads));
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
