// SPDX-License-Identifier: Apache-2.0
// Host side of the staged kernels: argument checks, geometry, launch.
#include <algorithm>

#include "kernels/launch.hpp"
#include "kernels/stage.cuh"
#include "kernels/staged_plan.hpp"

namespace echotp {

cudaError_t load_staged_kernels() noexcept {
  cudaError_t status = device::load_quantise_kernels();
  if (status == cudaSuccess) status = device::load_reduce_kernels();
  if (status == cudaSuccess) status = device::load_decode_kernels();
  if (status == cudaSuccess) status = device::load_drift_kernel();
  return status;
}

namespace device {
namespace {

std::int64_t own_tiles(const StagedArgs& args) {
  const std::int64_t tiles = tile_count(args.count);
  return tiles > args.rank ? (tiles - args.rank + args.ranks - 1) / args.ranks : 0;
}

cudaError_t check_drift(const StagedArgs& args) {
  const DriftView& drift = args.state.drift;
  if (drift.channels <= 0 || drift.channels % args.codec.group != 0 || args.message % drift.channels != 0 ||
      args.first + args.count > args.message) {
    return cudaErrorInvalidValue;
  }
  if (drift.sum == nullptr || drift.tokens == nullptr || drift.error == nullptr) return cudaErrorInvalidValue;
  return aligned16(drift.estimate) && aligned16(drift.error) ? cudaSuccess : cudaErrorMisalignedAddress;
}

}  // namespace

Memory memory_of(const StagedArgs& args, Phase phase) noexcept {
  if (args.compensation.mode == CompensationMode::kDrift) {
    return args.state.drift.estimate == nullptr || phase == Phase::kDecode ? Memory::kNone : Memory::kDrift;
  }
  if (args.state.fast == nullptr || phase == Phase::kDecode) return Memory::kNone;
  if (args.compensation.mode == CompensationMode::kNone) return Memory::kNone;
  if (args.compensation.mode == CompensationMode::kOwner && phase == Phase::kQuantise) return Memory::kNone;
  return args.compensation.b != 0.0f ? Memory::kDual : Memory::kFast;
}

cudaError_t check_arguments(const StagedArgs& args, Phase phase) noexcept {
  if (args.ranks < 1 || args.ranks > kMaxRanks || args.rank < 0 || args.rank >= args.ranks ||
      args.count < 0) {
    return cudaErrorInvalidValue;
  }
  for (const int bits : {args.codec.bits, args.codec.first_leg_bits}) {
    if (bits != 4 && bits != 8) return cudaErrorInvalidValue;
  }
  if (args.codec.group != 32 && args.codec.group != 64 && args.codec.group != 128)
    return cudaErrorInvalidValue;
  if (args.first < 0 || args.first % (static_cast<std::int64_t>(args.ranks) * kTileElements) != 0) {
    return cudaErrorInvalidValue;
  }
  if (args.count == 0) return cudaSuccess;
  if (tile_count(args.count) > (std::int64_t{1} << 29)) return cudaErrorInvalidValue;
  const bool others = args.ranks > 1;
  const auto element = static_cast<std::uintptr_t>(element_bytes(args.dtype));
  if (phase != Phase::kDecode) {
    if (args.send == nullptr) return cudaErrorInvalidValue;
    if (reinterpret_cast<std::uintptr_t>(args.send) % element != 0) return cudaErrorMisalignedAddress;
  }
  if (phase != Phase::kQuantise) {
    if (args.recv == nullptr || args.gathered == nullptr) return cudaErrorInvalidValue;
    if (reinterpret_cast<std::uintptr_t>(args.recv) % element != 0 || !aligned16(args.gathered)) {
      return cudaErrorMisalignedAddress;
    }
  }
  if (phase == Phase::kQuantise && others) {
    if (args.outbox == nullptr) return cudaErrorInvalidValue;
    if (!aligned16(args.outbox)) return cudaErrorMisalignedAddress;
  }
  if (phase == Phase::kReduce && others) {
    if (args.inbox == nullptr) return cudaErrorInvalidValue;
    if (!aligned16(args.inbox)) return cudaErrorMisalignedAddress;
  }
  const Memory memory = memory_of(args, phase);
  if (memory == Memory::kDrift) return check_drift(args);
  if (memory != Memory::kNone) {
    if (args.state.capacity < 0 || args.state.capacity % kTileElements != 0) return cudaErrorInvalidValue;
    if (memory == Memory::kDual && args.state.slow == nullptr) return cudaErrorInvalidValue;
    if (args.compensation.state != StateFormat::kFp32 && args.state.unit == nullptr)
      return cudaErrorInvalidValue;
    if (!aligned16(args.state.fast) || (memory == Memory::kDual && !aligned16(args.state.slow)) ||
        !aligned16(args.state.unit)) {
      return cudaErrorMisalignedAddress;
    }
  }
  return cudaSuccess;
}

Geometry make_geometry(const StagedArgs& args, Phase phase) noexcept {
  Geometry geometry{};
  const std::int64_t own = own_tiles(args);
  // The grid of quantise has a row for every other owner, whose segments are equally long but for a last
  // tile.
  const std::int64_t tiles = phase == Phase::kReduce     ? own
                             : phase == Phase::kQuantise ? segment_tiles(args.count, args.ranks)
                                                         : tile_count(args.count) - own;
  geometry.items = static_cast<std::uint32_t>(tiles * kTileItems);
  const auto leg = [&](Leg which) {
    LegGeometry result{};
    result.segment_bytes = segment_bytes(args.count, args.ranks, args.codec, which);
    result.tile_bytes = tile_bytes(args.codec, which);
    result.bits = leg_bits(args.codec, which);
    result.code_bytes = tile_code_bytes(result.bits);
    return result;
  };
  geometry.in = leg(Leg::kFirst);
  geometry.out = leg(phase == Phase::kQuantise ? Leg::kFirst : Leg::kSecond);
  geometry.width = code_width(geometry.out.bits);
  geometry.group_shift = std::countr_zero(static_cast<unsigned>(args.codec.group));
  geometry.lanes = args.codec.group / kLaneElements;
  geometry.scale_step = kSliceElements / args.codec.group;
  geometry.nibble_magic = kNibbleMagic;
  geometry.pair_magic = kPairMagic;
  geometry.vector = (phase == Phase::kDecode || aligned16(args.send)) &&
                    (phase == Phase::kQuantise || aligned16(args.recv));
  geometry.coefficients = coefficients(args.compensation);
  const Memory memory = memory_of(args, phase);
  if (phase != Phase::kDecode) {
    geometry.stage_bytes = stage_bytes(args.dtype, memory, args.compensation.state);
  }
  if (phase == Phase::kReduce) {
    geometry.peer_bytes = peer_bytes(geometry.in.bits);
    const int fitting = (kBlockSharedBytes / kBlockWarps - geometry.stage_bytes) / geometry.peer_bytes;
    geometry.staged_peers = std::min({args.ranks - 1, kStagedPeers, fitting});
    geometry.stage_bytes += geometry.staged_peers * geometry.peer_bytes;
  }
  return geometry;
}

cudaError_t launch(Kernel kernel, const StagedArgs& args, const Geometry& geometry, unsigned grid_rows,
                   cudaStream_t stream) noexcept {
  if (geometry.items == 0 || grid_rows == 0) return cudaSuccess;
  void* parameters[] = {const_cast<StagedArgs*>(&args), const_cast<Geometry*>(&geometry)};
  const dim3 grid((geometry.items + kBlockWarps - 1) / kBlockWarps, grid_rows);
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(kBlockThreads), parameters,
                          static_cast<std::size_t>(geometry.stage_bytes) * kBlockWarps, stream);
}

cudaError_t launch(VariantTable& kernels, const StagedArgs& args, Phase phase, cudaStream_t stream) noexcept {
  const cudaError_t status = check_arguments(args, phase);
  if (status != cudaSuccess || args.count == 0) return status;
  const Kernel kernel =
      kernels[variant_of(args.codec, args.dtype, memory_of(args, phase), args.compensation.state)];
  const unsigned rows = phase == Phase::kQuantise ? static_cast<unsigned>(args.ranks - 1) : 1u;
  const cudaError_t launched = launch(kernel, args, make_geometry(args, phase), rows, stream);
  if (launched != cudaSuccess || memory_of(args, phase) != Memory::kDrift) return launched;
  return launch_drift(args, phase == Phase::kQuantise ? Role::kSender : Role::kOwner, stream);
}

}  // namespace device
}  // namespace echotp
