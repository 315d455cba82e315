// SPDX-License-Identifier: Apache-2.0
// Phase 2: the owner sums its tiles, compensates, rounds once more for everybody, and writes what everybody
// decodes.
#include "kernels/item_reduce.cuh"
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

/// From sm_100 on the compiler needs a few registers more for the same code.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr int kFewerBlocks = 1;
#else
inline constexpr int kFewerBlocks = 0;
#endif
template <Memory M>
inline constexpr int kBlocksPerSm = M == Memory::kNone ? 8 : kCompensatedBlocksPerSm<M> - kFewerBlocks;

/// The one copy of a reduced tile that NCCL then gathers.
struct GatheredTile {
  std::uint8_t* tile;

  __device__ __forceinline__ void codes(int offset, int bits, const std::uint32_t (&codes)[2]) const {
    store_codes(tile + offset, bits, codes);
  }
  __device__ __forceinline__ void scale(int offset, std::uint16_t scale) const {
    *reinterpret_cast<std::uint16_t*>(tile + offset) = scale;
  }
};

template <DataType D, Memory M, StateFormat F, bool Four>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M>)
    reduce_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  const std::uint32_t item_index = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item_index >= geometry.items) return;
  const int lane = threadIdx.x % kWarpThreads;
  const std::uint32_t row = item_index / kTileItems;
  const std::int64_t tile_first = (static_cast<std::int64_t>(row) * args.ranks + args.rank) * kTileElements;
  const Item item = make_item(tile_first, static_cast<int>(item_index % kTileItems), args.count,
                              geometry.vector, args.first, args.state.capacity);
  const auto peers = [&] { return args.inbox + static_cast<std::int64_t>(row) * geometry.in.tile_bytes; };
  const GatheredTile wire{args.gathered + args.rank * geometry.out.segment_bytes +
                          static_cast<std::int64_t>(row) * geometry.out.tile_bytes};
  extern __shared__ uint4 shared[];
  const Stage<D, M, F> stage(
      reinterpret_cast<std::uint8_t*>(shared) + threadIdx.x / kWarpThreads * geometry.stage_bytes, lane);
  stage.fetch(geometry, item, args.send, args.state, args.pass_start, lane);
  const int nonfinite =
      reduce_item<D, M, F, Four>(geometry, item, stage, args.recv, args.rank, args.ranks, args.post_scale,
                                 args.state, args.pass_start, peers(), peers, wire, lane);
  count_nonfinite(nonfinite, args.counters, lane);
}

constexpr Kernel kKernels[] = {ECHO_TP_ALL_VARIANTS(reduce_kernel)};

}  // namespace

cudaError_t load_reduce_kernels() noexcept {
  return load(kKernels);
}

}  // namespace device

cudaError_t launch_reduce(const StagedArgs& args, cudaStream_t stream) noexcept {
  return device::launch(device::kKernels, args, device::Phase::kReduce, stream);
}

}  // namespace echotp
