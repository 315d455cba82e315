// SPDX-License-Identifier: Apache-2.0
// Phase 2: the owner sums its tiles in fp32 in rank order, compensates, rounds once more for everybody, and
// writes what everybody decodes.
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp {
namespace device {
namespace {

/// Slices that are worked on together. Their sums stay in registers while the peers' codes are added.
template <DataType D, Memory M, StateFormat F>
inline constexpr int kBatch = F == StateFormat::kFp32&& M != Memory::kNone ? 1
                              : D == DataType::kFp32                       ? 1
                                                                           : 2;
/// Resident blocks that bound the registers of a thread: 64, or 72 where 64 would spill.
template <Memory M, StateFormat F>
inline constexpr int kBlocksPerSm = M == Memory::kDual&& F == StateFormat::kFp16 ? 7 : 8;

/// Codes and scales of a lane, of one peer.
template <int Slices>
struct PeerCodes {
  std::uint32_t codes[Slices];
  std::uint16_t scale[Slices];
};

template <int Slices>
__device__ __forceinline__ PeerCodes<Slices> load_peer(const std::uint8_t* wire, int slice, int lane,
                                                       int lane_shift) {
  PeerCodes<Slices> peer;
  const auto* codes = reinterpret_cast<const std::uint32_t*>(wire);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(wire + kTileElements / 2);
#pragma unroll
  for (int s = 0; s < Slices; ++s) {
    peer.codes[s] = __ldcs(codes + (slice + s) * kWarpThreads + lane);
    peer.scale[s] = __ldg(scales + (((slice + s) * kWarpThreads + lane) >> lane_shift));
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
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M, F>)
    reduce_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  constexpr int kSlices = kBatch<D, M, F>;
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
  const std::int64_t left = args.count - first;
  const std::int64_t wire_offset = static_cast<std::int64_t>(row) * geometry.tile_bytes;
  std::uint8_t* wire = args.gathered + args.rank * geometry.segment_bytes + wire_offset;
  auto* codes = reinterpret_cast<std::uint32_t*>(wire) + begin_slice * kWarpThreads;
  auto* scales =
      reinterpret_cast<std::uint16_t*>(wire + kTileElements / 2) + (begin_slice * kWarpThreads >> lane_shift);
  const std::uint8_t* inbox = args.inbox + wire_offset;
  const char* send = static_cast<const char*>(args.send) + first * element_bytes(D);
  char* recv = static_cast<char*>(args.recv) + first * element_bytes(D);
  const bool has_state = args.first + tile_first + kTileElements <= args.state.capacity;
  int nonfinite = 0;

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
    float sum[kSlices][8];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[s][i] = -0.0f;  // the one value that leaves every first term as it is
    }
    // The codes of the next peer are on their way while those of this one are added.
    int next = args.rank == 0 ? 1 : 0;
    PeerCodes<kSlices> ahead{};
    if (next < args.ranks) {
      ahead =
          load_peer<kSlices>(inbox + next * geometry.segment_bytes, begin_slice + batch, lane, lane_shift);
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
        ahead =
            load_peer<kSlices>(inbox + next * geometry.segment_bytes, begin_slice + batch, lane, lane_shift);
      }
#pragma unroll
      for (int s = 0; s < kSlices; ++s) accumulate(now.codes[s], bf16_to_float(now.scale[s]), sum[s]);
    }

    GroupValues scale_values;
    GroupValues unit_values;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[s][i] = __fmul_rn(sum[s][i], args.post_scale);
      Rounding rounding;
      std::uint32_t out[kElementWords<D>];
      if constexpr (M == Memory::kNone) {
        float encoded[8];
        round_lane<true>(sum[s], lanes, rounding, encoded);
        pack_elements<D>(rounding.decoded, out);
      } else {
        const StateTarget target{args.state, args.first + first + offset + s * kSliceElements, has_state,
                                 args.pass_start};
        unit_values.keep(s, place,
                         round_compensated<D, M, F, kSlices, true>(sum[s], state, s, geometry.coefficients,
                                                                   lanes, lane, target, rounding, out));
      }
      codes[(batch + s) * kWarpThreads + lane] = rounding.codes;
      scale_values.keep(s, place, rounding.scale.bits);
      const std::int64_t slice_left = left - offset - s * kSliceElements;
      if (slice_left > 0) {
        store_elements<D>(recv + (offset + s * kSliceElements) * element_bytes(D), slice_left,
                          geometry.vector, lane, out);
      }
      if (!rounding.scale.finite && place == 0) ++nonfinite;
    }
    scale_values.store(scales + batch * (kWarpThreads >> lane_shift), kSlices, place, lane, lane_shift);
    if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
      if (has_state) {
        unit_values.store(args.state.unit + ((args.first + first + offset) >> geometry.group_shift), kSlices,
                          place, lane, lane_shift);
      }
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
