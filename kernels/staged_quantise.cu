// SPDX-License-Identifier: Apache-2.0
// Phase 1: rounds the tiles of the other owners for the wire, with the sender's compensation.
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"
#include "kernels/staged_stage.cuh"

namespace echotp {
namespace device {
namespace {

template <Memory M>
inline constexpr int kBlocksPerSm = M == Memory::kNone ? 10 : kCompensatedBlocksPerSm<M>;

/// Without estimates there is little to compute, and loads into registers keep the memory busy by themselves.
template <DataType D>
inline constexpr int kBatch = D == DataType::kFp32 ? 2 : 4;

/// Grid: blocks over the rows of the message, by the other owners.
template <DataType D, Memory M, StateFormat F, bool Four>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M>)
    quantise_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  const std::uint32_t item = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item >= geometry.items) return;
  const int lane = threadIdx.x % kWarpThreads;
  const int lane_shift = geometry.group_shift - 3;
  const int place = lane & (geometry.lanes - 1);

  const std::uint32_t row = item / kTileItems;
  const std::uint32_t owner = blockIdx.y + (blockIdx.y >= static_cast<std::uint32_t>(args.rank) ? 1 : 0);
  const int begin = item % kTileItems * (kItemSlices * kSliceElements);  // within the tile
  const std::int64_t tile_first = (static_cast<std::int64_t>(row) * args.ranks + owner) * kTileElements;
  if (tile_first >= args.count) return;
  const std::int64_t first = tile_first + begin;
  const int left = bounded_left(args.count - first);
  const bool full = geometry.vector && left == kItemSlices * kSliceElements;
  std::uint8_t* wire = args.outbox + owner * geometry.out.segment_bytes +
                       static_cast<std::int64_t>(row) * geometry.out.tile_bytes;
  const int bits = bits_of<Four>(geometry.out);
  std::uint8_t* codes = wire + (begin / kLaneElements + lane) * bits;
  const char* send = static_cast<const char*>(args.send) + (first + lane * kLaneElements) * element_bytes(D);
  GroupValues scales;

  if constexpr (M == Memory::kNone) {
    constexpr int kSlices = kBatch<D>;
#pragma unroll 1
    for (int batch = 0; batch < kItemSlices; batch += kSlices) {
      std::uint32_t raw[kSlices][kElementWords<D>];
      load_elements<D, kSlices>(send, full, left - batch * kSliceElements, lane, raw);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        float x[8];
        float encoded[8];
        Rounding rounding;
        unpack_elements<D>(raw[s], x);
        round_lane<false>(x, group_key(x, geometry.lanes), width_of<Four>(geometry), rounding, encoded);
        store_codes(codes, bits, rounding.codes);
        codes += kWarpThreads * bits;
        scales.keep(batch + s, place, rounding.scale.bits);
      }
      send += kSlices * kSliceElements * element_bytes(D);
    }
  } else {
    extern __shared__ uint4 shared[];
    Stage<D, M, F> stage(
        reinterpret_cast<std::uint8_t*>(shared) + threadIdx.x / kWarpThreads * stage_bytes(D, M, F), lane);
    const bool has_state = args.first + tile_first + kTileElements <= args.state.capacity;
    StateCursor<F> cursor(args, args.first + first, has_state, lane);
    std::uint16_t* const unit_address = GroupValues::address(
        args.state.unit + ((args.first + first) >> geometry.group_shift), place, lane, lane_shift);
    if constexpr (F != StateFormat::kFp32) {
      if (cursor.load && place < kItemSlices) cursor.units.held = *unit_address;
    }
    stage.fetch_elements(send, full, left, lane);
    stage.fetch_state(cursor);
    wait_for_copies();
#pragma unroll 1
    for (int s = 0; s < kItemSlices; ++s) {
      std::uint32_t raw[kElementWords<D>];
      LaneState<M, F, 1> state;
      stage.elements(s, raw);
      stage.state(s, cursor, state);
      float x[8];
      unpack_elements<D>(raw, x);
      Rounding rounding;
      std::uint32_t unused[kElementWords<D>];
      round_compensated<D, M, F, Four, false>(x, state, s, geometry, lane, place, cursor, rounding, unused);
      store_codes(codes, bits, rounding.codes);
      scales.keep(s, place, rounding.scale.bits);
      codes += kWarpThreads * bits;
      cursor.advance(1);
    }
    if constexpr (F != StateFormat::kFp32) {
      if (cursor.store && place < kItemSlices) *unit_address = static_cast<std::uint16_t>(cursor.units.held);
    }
  }
  if (place < kItemSlices) {
    auto* base =
        reinterpret_cast<std::uint16_t*>(wire + geometry.out.code_bytes) + (begin >> geometry.group_shift);
    *GroupValues::address(base, place, lane, lane_shift) = static_cast<std::uint16_t>(scales.held);
  }
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
