// SPDX-License-Identifier: Apache-2.0
// Phase 1: rounds the tiles of the other owners for the wire, with the sender's compensation.
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

/// Slices whose loads are in flight together: as many as the registers allow.
template <DataType D, Memory M, StateFormat F>
inline constexpr int kBatch = M == Memory::kNone ? (D == DataType::kFp32 ? 2 : 4)
                              : F == StateFormat::kFp32 || D == DataType::kFp32 ? 1
                                                                                : 2;
/// Resident blocks that bound the registers of a thread: 48, 64, or 72 where 64 would spill.
template <Memory M, StateFormat F>
inline constexpr int kBlocksPerSm = M == Memory::kNone                             ? 10
                                    : M == Memory::kDual&& F == StateFormat::kFp16 ? 7
                                                                                   : 8;

template <DataType D, Memory M, StateFormat F>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M, F>)
    quantise_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  constexpr int kSlices = kBatch<D, M, F>;
  const std::uint32_t item = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item >= geometry.items) return;
  const int lane = threadIdx.x % kWarpThreads;
  const int lane_shift = geometry.group_shift - 3;
  const int lanes = 1 << lane_shift;
  const int place = lane & (lanes - 1);

  const std::uint32_t others = args.ranks - 1;
  const std::uint32_t index = item / kTileItems;
  const std::uint32_t row = index / others;
  std::uint32_t owner = index - row * others;
  if (owner >= static_cast<std::uint32_t>(args.rank)) ++owner;
  const int begin = item % kTileItems * (kItemSlices * kSliceElements);  // within the tile
  const std::int64_t tile_first = (static_cast<std::int64_t>(row) * args.ranks + owner) * kTileElements;
  const std::int64_t first = tile_first + begin;
  const std::int64_t left = args.count - first;
  std::uint8_t* wire =
      args.outbox + owner * geometry.segment_bytes + static_cast<std::int64_t>(row) * geometry.tile_bytes;
  auto* codes = reinterpret_cast<std::uint32_t*>(wire + begin / 2);
  auto* scales = reinterpret_cast<std::uint16_t*>(wire + kTileElements / 2) + (begin >> geometry.group_shift);
  const char* send = static_cast<const char*>(args.send) + first * element_bytes(D);
  const bool has_state = args.first + tile_first + kTileElements <= args.state.capacity;

#pragma unroll 1
  for (int batch = 0; batch < kItemSlices; batch += kSlices) {
    const int offset = batch * kSliceElements;
    std::uint32_t raw[kSlices][kElementWords<D>];
    LaneState<M, F, kSlices> state;
    load_elements<D, kSlices>(send + offset * element_bytes(D), left - offset, geometry.vector, lane, raw);
    if constexpr (M != Memory::kNone) {
      load_state(args.state, args.first + first + offset, geometry.group_shift, args.pass_start || !has_state,
                 lane, state);
    }
    GroupValues scale_values;
    GroupValues unit_values;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      float x[8];
      unpack_elements<D>(raw[s], x);
      Rounding rounding;
      if constexpr (M == Memory::kNone) {
        float encoded[8];
        round_lane<false>(x, lanes, rounding, encoded);
      } else {
        const StateTarget target{args.state, args.first + first + offset + s * kSliceElements, has_state,
                                 args.pass_start};
        std::uint32_t unused[kElementWords<D>];
        unit_values.keep(s, place,
                         round_compensated<D, M, F, kSlices, false>(x, state, s, geometry.coefficients, lanes,
                                                                    lane, target, rounding, unused));
      }
      codes[(batch + s) * kWarpThreads + lane] = rounding.codes;
      scale_values.keep(s, place, rounding.scale.bits);
    }
    scale_values.store(scales + batch * (kWarpThreads >> lane_shift), kSlices, place, lane, lane_shift);
    if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
      if (has_state) {
        unit_values.store(args.state.unit + ((args.first + first + offset) >> geometry.group_shift), kSlices,
                          place, lane, lane_shift);
      }
    }
  }
}

constexpr Kernel kKernels[] = {ECHO_TP_VARIANTS(quantise_kernel, DataType::kBf16),
                               ECHO_TP_VARIANTS(quantise_kernel, DataType::kFp16),
                               ECHO_TP_VARIANTS(quantise_kernel, DataType::kFp32)};

}  // namespace

cudaError_t load_quantise_kernels() noexcept {
  return load(kKernels);
}

}  // namespace device

cudaError_t launch_quantise(const StagedArgs& args, cudaStream_t stream) noexcept {
  constexpr auto kPhase = device::Phase::kQuantise;
  const cudaError_t status = device::check_arguments(args, kPhase);
  if (status != cudaSuccess || args.count == 0) return status;
  const int variant =
      device::variant_of(args.dtype, device::memory_of(args, kPhase), args.compensation.state);
  return device::launch(device::kKernels[variant], args, device::make_geometry(args, kPhase), stream);
}

}  // namespace echotp
