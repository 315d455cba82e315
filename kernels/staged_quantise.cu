// SPDX-License-Identifier: Apache-2.0
// Phase 1: rounds the tiles of the other owners for the wire, with the sender's compensation.
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

/// Slices whose loads are in flight together. Estimates take registers and bring loads of their own.
template <DataType D, Memory M>
inline constexpr int kBatch = M != Memory::kNone     ? 1
                              : D == DataType::kFp32 ? 2
                                                     : 4;

template <Memory M>
inline constexpr int kBlocksPerSm = M == Memory::kNone ? 10 : kCompensatedBlocksPerSm<M>;

template <DataType D, Memory M, StateFormat F>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M>)
    quantise_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  constexpr int kSlices = kBatch<D, M>;
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
  const int left = bounded_left(args.count - first);
  const bool full = geometry.vector && left == kItemSlices * kSliceElements;
  std::uint8_t* wire =
      args.outbox + owner * geometry.segment_bytes + static_cast<std::int64_t>(row) * geometry.tile_bytes;
  auto* codes = reinterpret_cast<std::uint32_t*>(wire + begin / 2) + lane;
  const char* send = static_cast<const char*>(args.send) + (first + lane * kLaneElements) * element_bytes(D);
  const bool has_state = args.first + tile_first + kTileElements <= args.state.capacity;
  StateCursor<F> cursor(args, args.first + first, has_state, lane);
  GroupValues scales;
  std::uint16_t* const unit_address = GroupValues::address(
      args.state.unit + ((args.first + first) >> geometry.group_shift), place, lane, lane_shift);
  if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
    if (cursor.load && place < kItemSlices) cursor.units.held = *unit_address;
  }

#pragma unroll 1
  for (int batch = 0; batch < kItemSlices; batch += kSlices) {
    std::uint32_t raw[kSlices][kElementWords<D>];
    LaneState<M, F, kSlices> state;
    load_elements<D, kSlices>(send, full, left - batch * kSliceElements, lane, raw);
    if constexpr (M != Memory::kNone) load_state(cursor, state);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      float x[8];
      unpack_elements<D>(raw[s], x);
      Rounding rounding;
      if constexpr (M == Memory::kNone) {
        float encoded[8];
        round_lane<false>(x, group_key(x, lanes), rounding, encoded);
      } else {
        std::uint32_t unused[kElementWords<D>];
        round_compensated<D, M, F, kSlices, false>(x, state, batch, s, geometry.coefficients, lanes, lane,
                                                   place, cursor, rounding, unused);
      }
      codes[s * kWarpThreads] = rounding.codes;
      scales.keep(batch + s, place, rounding.scale.bits);
    }
    codes += kSlices * kWarpThreads;
    send += kSlices * kSliceElements * element_bytes(D);
    if constexpr (M != Memory::kNone) cursor.advance(kSlices);
  }
  if (place < kItemSlices) {
    auto* base = reinterpret_cast<std::uint16_t*>(wire + kTileElements / 2) + (begin >> geometry.group_shift);
    *GroupValues::address(base, place, lane, lane_shift) = static_cast<std::uint16_t>(scales.held);
    if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
      if (cursor.store) *unit_address = static_cast<std::uint16_t>(cursor.units.held);
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
