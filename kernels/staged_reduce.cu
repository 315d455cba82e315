// SPDX-License-Identifier: Apache-2.0
// Phase 2: the owner sums its tiles in fp32 in rank order, compensates, rounds once more for everybody, and
// writes what everybody decodes.
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

/// Slices that are worked on together. Their sums stay in registers while the peers' codes are added.
template <DataType D, Memory M>
inline constexpr int kBatch = M != Memory::kNone || D == DataType::kFp32 ? 1 : 2;
/// From sm_100 on the compiler needs a few registers more for the same code.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr int kFewerBlocks = 1;
#else
inline constexpr int kFewerBlocks = 0;
#endif
template <Memory M>
inline constexpr int kBlocksPerSm = M == Memory::kNone ? 8 : kCompensatedBlocksPerSm<M> - kFewerBlocks;

/// Codes and scales of a lane, of one peer.
template <int Slices>
struct PeerCodes {
  std::uint32_t codes[Slices];
  std::uint16_t scale[Slices];
};

/// `codes` and `scales` point at the lane's own of the first slice.
template <int Slices>
__device__ __forceinline__ PeerCodes<Slices> load_peer(const std::uint32_t* codes,
                                                       const std::uint16_t* scales, std::int64_t row_offset,
                                                       int scale_step) {
  PeerCodes<Slices> peer;
  codes = reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const char*>(codes) + row_offset);
  scales = reinterpret_cast<const std::uint16_t*>(reinterpret_cast<const char*>(scales) + row_offset);
#pragma unroll
  for (int s = 0; s < Slices; ++s) {
    peer.codes[s] = __ldcs(codes + s * kWarpThreads);
    peer.scale[s] = __ldg(scales + s * scale_step);
  }
  return peer;
}

/// sum += code * scale for a lane's eight codes; the product is exact, so the fused operation rounds as the
/// addition does.
__device__ __forceinline__ void accumulate(std::uint32_t codes, float scale, float (&sum)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // The nibble stays where it is, inside the mantissa of 2^23: that gives code * 16^n, which the scale
    // makes good.
    const int n = i % 4;
    const std::uint32_t word = i < 4 ? codes : codes >> 16;
    const float magic = __uint_as_float((word & (0xFu << (4 * n))) | 0x4B000000u);
    const float shifted = __fsub_rn(magic, static_cast<float>(8388608 + (8 << (4 * n))));
    sum[i] = __fmaf_rn(shifted, __fmul_rn(scale, 1.0f / static_cast<float>(1 << (4 * n))), sum[i]);
  }
}

template <DataType D, Memory M, StateFormat F>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M>)
    reduce_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  constexpr int kSlices = kBatch<D, M>;
  const std::uint32_t item = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item >= geometry.items) return;
  const int lane = threadIdx.x % kWarpThreads;
  const int lane_shift = geometry.group_shift - 3;
  const int lanes = 1 << lane_shift;
  const int place = lane & (lanes - 1);

  const std::uint32_t row = item / kTileItems;
  const int begin_slice = item % kTileItems * kItemSlices;
  const std::int64_t tile_first = (static_cast<std::int64_t>(row) * args.ranks + args.rank) * kTileElements;
  const std::int64_t first = tile_first + begin_slice * kSliceElements;
  const int left = bounded_left(args.count - first);
  const bool full = geometry.vector && left == kItemSlices * kSliceElements;
  const std::int64_t wire_offset = static_cast<std::int64_t>(row) * geometry.tile_bytes;
  const int scale_step = kWarpThreads >> lane_shift;
  std::uint8_t* wire = args.gathered + args.rank * geometry.segment_bytes + wire_offset;
  auto* codes = reinterpret_cast<std::uint32_t*>(wire) + begin_slice * kWarpThreads + lane;
  const std::uint8_t* inbox = args.inbox + wire_offset;
  const auto* inbox_codes = reinterpret_cast<const std::uint32_t*>(inbox) + begin_slice * kWarpThreads + lane;
  const auto* inbox_scales = reinterpret_cast<const std::uint16_t*>(inbox + kTileElements / 2) +
                             begin_slice * scale_step + (lane >> lane_shift);
  const std::int64_t own_offset = (first + lane * kLaneElements) * element_bytes(D);
  const char* send = static_cast<const char*>(args.send) + own_offset;
  char* recv = static_cast<char*>(args.recv) + own_offset;
  const bool has_state = args.first + tile_first + kTileElements <= args.state.capacity;
  StateCursor<F> cursor(args, args.first + first, has_state, lane);
  GroupValues scales;
  std::uint16_t* const unit_address = GroupValues::address(
      args.state.unit + ((args.first + first) >> geometry.group_shift), place, lane, lane_shift);
  if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
    if (cursor.load && place < kItemSlices) cursor.units.held = *unit_address;
  }
  int nonfinite = 0;

#pragma unroll 1
  for (int batch = 0; batch < kItemSlices; batch += kSlices) {
    std::uint32_t raw[kSlices][kElementWords<D>];
    LaneState<M, F, kSlices> state;
    load_elements<D, kSlices>(send, full, left - batch * kSliceElements, lane, raw);
    // The codes of the next peer are on their way while those of this one are added.
    int next = args.rank == 0 ? 1 : 0;
    PeerCodes<kSlices> ahead{};
    if (next < args.ranks) {
      ahead = load_peer<kSlices>(inbox_codes, inbox_scales, next * geometry.segment_bytes, scale_step);
    }
    if constexpr (M != Memory::kNone) load_state(cursor, state);
    float sum[kSlices][8];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[s][i] = -0.0f;  // the one value that leaves every first term as it is
    }
#pragma unroll 1
    for (int p = 0; p < args.ranks; ++p) {
      if (p == args.rank) {
#pragma unroll
        for (int s = 0; s < kSlices; ++s) {
          float x[8];
          unpack_elements<D>(raw[s], x);
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[s][i] = __fadd_rn(sum[s][i], x[i]);
        }
        continue;
      }
      const PeerCodes<kSlices> now = ahead;
      next = p + 1 == args.rank ? p + 2 : p + 1;
      if (next < args.ranks) {
        ahead = load_peer<kSlices>(inbox_codes, inbox_scales, next * geometry.segment_bytes, scale_step);
      }
#pragma unroll
      for (int s = 0; s < kSlices; ++s) accumulate(now.codes[s], bf16_to_float(now.scale[s]), sum[s]);
    }

#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[s][i] = __fmul_rn(sum[s][i], args.post_scale);
      Rounding rounding;
      std::uint32_t out[kElementWords<D>];
      if constexpr (M == Memory::kNone) {
        float encoded[8];
        round_lane<true>(sum[s], group_key(sum[s], lanes), rounding, encoded);
        pack_elements<D>(rounding.decoded, out);
      } else {
        round_compensated<D, M, F, kSlices, true>(sum[s], state, batch, s, geometry.coefficients, lanes, lane,
                                                  place, cursor, rounding, out);
      }
      codes[s * kWarpThreads] = rounding.codes;
      scales.keep(batch + s, place, rounding.scale.bits);
      store_elements<D>(recv + s * kSliceElements * element_bytes(D), full,
                        left - (batch + s) * kSliceElements, lane, out);
      if (!rounding.scale.finite && place == 0) ++nonfinite;
    }
    codes += kSlices * kWarpThreads;
    inbox_codes += kSlices * kWarpThreads;
    inbox_scales += kSlices * scale_step;
    send += kSlices * kSliceElements * element_bytes(D);
    recv += kSlices * kSliceElements * element_bytes(D);
    if constexpr (M != Memory::kNone) cursor.advance(kSlices);
  }
  if (place < kItemSlices) {
    auto* base = reinterpret_cast<std::uint16_t*>(wire + kTileElements / 2) + begin_slice * scale_step;
    *GroupValues::address(base, place, lane, lane_shift) = static_cast<std::uint16_t>(scales.held);
    if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
      if (cursor.store) *unit_address = static_cast<std::uint16_t>(cursor.units.held);
    }
  }
  // Counted here alone: what a sender could not round reaches its owner as NaN.
  if (args.counters != nullptr) {
    const int total = __reduce_add_sync(0xFFFFFFFFu, nonfinite);
    if (total != 0 && lane == 0) {
      atomicAdd_system(&args.counters->nonfinite_groups, static_cast<unsigned long long>(total));
    }
  }
}

constexpr Kernel kKernels[] = {ECHO_TP_VARIANTS(reduce_kernel, DataType::kBf16),
                               ECHO_TP_VARIANTS(reduce_kernel, DataType::kFp16),
                               ECHO_TP_VARIANTS(reduce_kernel, DataType::kFp32)};

}  // namespace

cudaError_t load_reduce_kernels() noexcept {
  return load(kKernels);
}

}  // namespace device

cudaError_t launch_reduce(const StagedArgs& args, cudaStream_t stream) noexcept {
  constexpr auto kPhase = device::Phase::kReduce;
  const cudaError_t status = device::check_arguments(args, kPhase);
  if (status != cudaSuccess || args.count == 0) return status;
  const int variant =
      device::variant_of(args.dtype, device::memory_of(args, kPhase), args.compensation.state);
  return device::launch(device::kKernels[variant], args, device::make_geometry(args, kPhase), stream);
}

}  // namespace echotp
