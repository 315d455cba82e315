// SPDX-License-Identifier: Apache-2.0
// Host side of the fused kernel: argument checks, geometry, launch.
#include <algorithm>
#include <iterator>

#include "kernels/fused.hpp"
#include "kernels/fused_variants.hpp"

namespace echotp {
namespace device {
namespace {

const FusedKernels& kernels_of(DataType dtype) noexcept {
  return dtype == DataType::kBf16   ? fused_kernels_bf16()
         : dtype == DataType::kFp16 ? fused_kernels_fp16()
                                    : fused_kernels_fp32();
}

/// What the phases share with the staged kernels.
StagedArgs staged_of(const FusedArgs& args) noexcept {
  StagedArgs staged;
  staged.send = args.send;
  staged.recv = args.recv;
  staged.count = args.count;
  staged.rank = args.rank;
  staged.ranks = args.layout.ranks;
  staged.dtype = args.dtype;
  staged.codec = args.codec;
  staged.compensation = args.compensation;
  staged.post_scale = args.post_scale;
  staged.pass_start = args.pass_start;
  staged.state = args.state;
  staged.outbox = args.windows[args.rank];
  staged.inbox = args.windows[args.rank];
  staged.gathered = args.windows[args.rank];
  return staged;
}

cudaError_t check_fused(const FusedArgs& args) noexcept {
  const FusedLayout& layout = args.layout;
  if (layout.ranks < 2 || layout.ranks > kFusedMaxRanks || layout.ctas < 1) return cudaErrorInvalidValue;
  if (fused_window_bytes(layout) > std::int64_t{0xFFFFFFFF}) return cudaErrorInvalidValue;
  if (args.rank < 0 || args.rank >= layout.ranks) return cudaErrorInvalidValue;
  if (staged_only(args.compensation)) return cudaErrorInvalidValue;
  if (std::max(args.codec.bits, args.codec.first_leg_bits) > layout.bits) return cudaErrorInvalidValue;
  if (args.progress == nullptr || args.status == nullptr || args.deadline_ns == 0)
    return cudaErrorInvalidValue;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    if (args.windows[rank] == nullptr) return cudaErrorInvalidValue;
    if (!aligned16(args.windows[rank])) return cudaErrorMisalignedAddress;
  }
  const StagedArgs staged = staged_of(args);
  for (const Phase phase : {Phase::kQuantise, Phase::kReduce, Phase::kDecode}) {
    const cudaError_t status = check_arguments(staged, phase);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

/// Whether the loopback's ranks agree in all that they have to.
bool agree(const FusedArgs& a, const FusedArgs& b) noexcept {
  return a.count == b.count && a.dtype == b.dtype && a.codec == b.codec && a.compensation == b.compensation &&
         a.post_scale == b.post_scale && a.pass_start == b.pass_start && a.layout == b.layout &&
         a.deadline_ns == b.deadline_ns && (a.state.fast == nullptr) == (b.state.fast == nullptr);
}

/// Shared memory that a CTA may have beside the kernel's static variables.
cudaError_t shared_limit(int* bytes) noexcept {
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  *bytes -= static_cast<int>(sizeof(FusedCta)) + 128;
  return status;
}

/// Lanes that fit into a CTA by shared memory, of at most `most`.
int fitting_lanes(int limit, int warp_bytes, int most) noexcept {
  constexpr int kWarps = kFusedLaneThreads / kWarpThreads;
  return warp_bytes == 0 ? most : std::min(most, limit / (warp_bytes * kWarps));
}

FusedWindow window_of(const FusedLayout& layout) noexcept {
  const auto at = [&](int lane, Leg leg, int slot, int source) {
    return static_cast<std::uint32_t>(fused_slot_offset(layout, lane, leg, slot, source));
  };
  const std::uint32_t begin = at(0, Leg::kFirst, 0, 0);
  return {begin, at(1, Leg::kFirst, 0, 0) - begin, at(0, Leg::kSecond, 0, 0) - begin,
          at(0, Leg::kFirst, 1, 0) - begin, at(0, Leg::kFirst, 0, 1) - begin};
}

/// Shared memory of a warp without any peer's codes, for the variant that needs most.
constexpr int kWidestStage = stage_bytes(DataType::kFp32, Memory::kDual, StateFormat::kFp16);

Memory memory_of_call(const FusedArgs& args) noexcept {
  return memory_of(staged_of(args), Phase::kReduce);
}

cudaError_t launch_checked(const FusedArgs* args, int ranks, cudaStream_t stream) noexcept {
  if (args[0].count == 0) return cudaSuccess;
  FusedLaunch launch = make_fused_launch(args, ranks);
  const FusedKernel kernel =
      kernels_of(args[0].dtype)[width_variant_of(args[0].codec) * kVariants +
                                state_variant_of(memory_of_call(args[0]), args[0].compensation.state)];
  return launch_fused_kernel(kernel, launch, ranks, stream);
}

}  // namespace

cudaError_t prepare_fused_kernel(FusedKernel kernel) noexcept {
  int limit = 0;
  cudaError_t status = shared_limit(&limit);
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
  cudaFuncAttributes attributes{};
  if (status == cudaSuccess)
    status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  return status;
}

FusedLaunch make_fused_launch(const FusedArgs* args, int ranks) noexcept {
  FusedLaunch launch{};
  for (int r = 0; r < ranks; ++r) {
    FusedRank& rank = launch.ranks[r];
    rank.send = args[r].send;
    rank.recv = args[r].recv;
    rank.state = args[r].state;
    rank.counters = args[r].counters;
    std::copy(std::begin(args[r].windows), std::end(args[r].windows), std::begin(rank.windows));
    rank.progress = args[r].progress;
    rank.status = args[r].status;
    rank.state_tiles = static_cast<std::uint32_t>(args[r].state.capacity / kTileElements);
    rank.rank = args[r].rank;
    rank.send_vector = aligned16(args[r].send);
    rank.recv_vector = aligned16(args[r].recv);
    rank.both_vector = rank.send_vector && rank.recv_vector;
  }
  const FusedArgs& any = args[0];
  const FusedPlan plan = fused_plan(any.count, any.layout);
  launch.count = any.count;
  launch.deadline_ns = any.deadline_ns;
  launch.rank_count = any.layout.ranks;
  launch.window = window_of(any.layout);
  launch.tiles = static_cast<std::uint32_t>(tile_count(any.count));
  launch.full_tiles = static_cast<std::uint32_t>(any.count / kTileElements);
  launch.chunks = plan.chunks;
  launch.lanes = static_cast<std::uint32_t>(plan.ctas * plan.cta_lanes);
  launch.chunk_rows = plan.rows;
  launch.post_scale = any.post_scale;
  launch.pass_start = any.pass_start;
  const StagedArgs staged = staged_of(any);
  launch.sender_state = memory_of(staged, Phase::kQuantise) != Memory::kNone;
  launch.first = make_geometry(staged, Phase::kQuantise);
  launch.second = make_geometry(staged, Phase::kReduce);
  launch.second.in.segment_bytes = fused_source_bytes(any.layout);
  launch.second.staged_peers = 0;  // until the shared memory is known
  launch.second.stage_bytes = stage_bytes(any.dtype, memory_of_call(any), any.compensation.state);
  launch.cta_lanes = plan.cta_lanes;
  return launch;
}

cudaError_t launch_fused_kernel(FusedKernel kernel, FusedLaunch& launch, int ranks,
                                cudaStream_t stream) noexcept {
  int limit = 0;
  const cudaError_t status = shared_limit(&limit);
  if (status != cudaSuccess) return status;
  // The lanes of a call are agreed among the ranks; how many of them share a CTA is this GPU's own matter.
  const int own = launch.second.stage_bytes;
  const int cta_lanes = fitting_lanes(limit, own, launch.cta_lanes);
  if (cta_lanes == 0) return cudaErrorInvalidValue;
  const int warps = cta_lanes * kFusedLaneThreads / kWarpThreads;
  Geometry& second = launch.second;
  second.staged_peers =
      std::min({launch.rank_count - 1, kStagedPeers, (limit / warps - own) / second.peer_bytes});
  launch.warp_bytes = own + second.staged_peers * second.peer_bytes;
  cudaLaunchAttribute cooperative{};
  cooperative.id =
      cudaLaunchAttributeCooperative;  // all of it runs, or nothing: a rest could not be waited for
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3((launch.lanes + static_cast<unsigned>(cta_lanes) - 1) / static_cast<unsigned>(cta_lanes),
           static_cast<unsigned>(ranks));
  config.blockDim = dim3(static_cast<unsigned>(cta_lanes * kFusedLaneThreads));
  config.dynamicSmemBytes = static_cast<std::size_t>(launch.warp_bytes) * static_cast<std::size_t>(warps);
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  void* parameters[] = {&launch};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), parameters);
}

}  // namespace device

cudaError_t load_fused_kernels() noexcept {
  for (const DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    for (const device::FusedKernel kernel : device::kernels_of(dtype)) {
      const cudaError_t status = device::prepare_fused_kernel(kernel);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

int fused_resident_ctas() noexcept {
  int limit = 0;
  int device = 0;
  int sms = 0;
  int cooperative = 0;
  if (device::shared_limit(&limit) != cudaSuccess || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device) != cudaSuccess ||
      cooperative == 0) {
    return 0;
  }
  return sms * device::fitting_lanes(limit, device::kWidestStage, kFusedCtaLanes) / kFusedCtaLanes;
}

cudaError_t launch_fused(const FusedArgs& args, cudaStream_t stream) noexcept {
  const cudaError_t status = device::check_fused(args);
  return status != cudaSuccess ? status : device::launch_checked(&args, 1, stream);
}

cudaError_t launch_fused_loopback(const FusedArgs* args, cudaStream_t stream) noexcept {
  for (int rank = 0; rank < args[0].layout.ranks; ++rank) {
    const cudaError_t status = device::check_fused(args[rank]);
    if (status != cudaSuccess) return status;
    if (args[rank].rank != rank || !device::agree(args[rank], args[0])) return cudaErrorInvalidValue;
  }
  return device::launch_checked(args, args[0].layout.ranks, stream);
}

}  // namespace echotp
