// SPDX-License-Identifier: Apache-2.0
// Phase 1: rounds the tiles of the other owners for the wire, with the sender's compensation.
#include "kernels/item_quantise.cuh"
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

template <Memory M>
inline constexpr int kBlocksPerSm = M == Memory::kNone ? 10 : kCompensatedBlocksPerSm<M>;

/// Grid: blocks over the rows of the message, by the other owners.
template <DataType D, Memory M, StateFormat F, bool Four>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M>)
    quantise_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  const std::uint32_t item_index = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item_index >= geometry.items) return;
  const std::uint32_t row = item_index / kTileItems;
  const std::uint32_t owner = blockIdx.y + (blockIdx.y >= static_cast<std::uint32_t>(args.rank) ? 1 : 0);
  const std::int64_t tile_first = (static_cast<std::int64_t>(row) * args.ranks + owner) * kTileElements;
  if (tile_first >= args.count) return;
  const Item item = make_item(tile_first, static_cast<int>(item_index % kTileItems), args.count,
                              geometry.vector, args.first, args.state.capacity);
  std::uint8_t* tile = args.outbox + owner * geometry.out.segment_bytes +
                       static_cast<std::int64_t>(row) * geometry.out.tile_bytes;
  extern __shared__ uint4 shared[];
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  const Stage<D, M, F> stage(
      reinterpret_cast<std::uint8_t*>(shared) + threadIdx.x / kWarpThreads * stage_bytes(D, M, F), lane);
  stage.fetch(geometry, item, args.send, args.state, args.pass_start, lane);
  quantise_item<D, M, F, Four>(geometry, item, stage, args.state, args.pass_start, tile, lane);
}

constexpr Kernel kKernels[] = {ECHO_TP_ALL_VARIANTS(quantise_kernel)};

}  // namespace

cudaError_t load_quantise_kernels() noexcept {
  return load(kKernels);
}

}  // namespace device

cudaError_t launch_quantise(const StagedArgs& args, cudaStream_t stream) noexcept {
  return device::launch(device::kKernels, args, device::Phase::kQuantise, stream);
}

}  // namespace echotp
