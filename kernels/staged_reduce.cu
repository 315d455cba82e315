// SPDX-License-Identifier: Apache-2.0
// Phase 2: the owner sums its tiles in fp32 in rank order, compensates, rounds once more for everybody, and
// writes what everybody decodes.
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"
#include "kernels/staged_stage.cuh"

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

/// sum += code * scale for a lane's eight codes; the product is exact, so the fused operation rounds as the
/// addition does.
__device__ __forceinline__ void accumulate(std::uint32_t codes, float scale, std::uint32_t magic,
                                           float (&sum)[8]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    // A nibble stays where it is, inside the mantissa of 2^23: that gives code * 16^n, which the scale makes
    // good.
    const float factor = n == 0 ? scale : __fmul_rn(scale, 1.0f / static_cast<float>(1 << (4 * n)));
    const float bias = static_cast<float>(8388608 + (8 << (4 * n)));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t word = codes >> (16 * half);
      const float shifted = __fsub_rn(__uint_as_float((word & (0xFu << (4 * n))) | magic), bias);
      sum[n + 4 * half] = __fmaf_rn(shifted, factor, sum[n + 4 * half]);
    }
  }
}

/// The same for codes of 8 bits.
__device__ __forceinline__ void accumulate_bytes(uint2 codes, float scale, float (&sum)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float code = __fsub_rn(byte_in_magic(i < 4 ? codes.x : codes.y, i), kInt8Bias);
    sum[i] = __fmaf_rn(code, scale, sum[i]);
  }
}

template <DataType D, Memory M, StateFormat F, bool Four>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<M>)
    reduce_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ Geometry geometry) {
  const std::uint32_t item = blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads;
  if (item >= geometry.items) return;
  const int lane = threadIdx.x % kWarpThreads;
  const int lane_shift = geometry.group_shift - 3;
  const int place = lane & (geometry.lanes - 1);

  const std::uint32_t row = item / kTileItems;
  const int begin_slice = item % kTileItems * kItemSlices;
  const std::int64_t tile_first = (static_cast<std::int64_t>(row) * args.ranks + args.rank) * kTileElements;
  const std::int64_t first = tile_first + begin_slice * kSliceElements;
  const int left = bounded_left(args.count - first);
  const bool full = geometry.vector && left == kItemSlices * kSliceElements;
  const int begin_group = begin_slice * geometry.scale_step;
  const int out_bits = bits_of<Four>(geometry.out);
  std::uint8_t* wire = args.gathered + args.rank * geometry.out.segment_bytes +
                       static_cast<std::int64_t>(row) * geometry.out.tile_bytes;
  std::uint8_t* codes = wire + (begin_slice * kWarpThreads + lane) * out_bits;
  const std::uint8_t* inbox = args.inbox + static_cast<std::int64_t>(row) * geometry.in.tile_bytes;
  const int in_bits = bits_of<Four>(geometry.in);
  const int code_offset = begin_slice * kWarpThreads * in_bits;
  const int scale_offset = geometry.in.code_bytes + begin_group * 2;
  const std::int64_t own_offset = (first + lane * kLaneElements) * element_bytes(D);
  char* recv = static_cast<char*>(args.recv) + own_offset;

  extern __shared__ uint4 shared[];
  Stage<D, M, F> stage(
      reinterpret_cast<std::uint8_t*>(shared) + threadIdx.x / kWarpThreads * geometry.stage_bytes, lane);
  const bool has_state = args.first + tile_first + kTileElements <= args.state.capacity;
  StateCursor<F> cursor(args, args.first + first, has_state, lane);
  GroupValues scales;
  std::uint16_t* const unit_address = GroupValues::address(
      args.state.unit + ((args.first + first) >> geometry.group_shift), place, lane, lane_shift);
  if constexpr (M != Memory::kNone && F != StateFormat::kFp32) {
    if (cursor.load && place < kItemSlices) cursor.units.held = *unit_address;
  }
  stage.fetch_elements(static_cast<const char*>(args.send) + own_offset, full, left, lane);
  stage.fetch_state(cursor);
  {
    const std::uint8_t* peer = inbox;
#pragma unroll 1
    for (int i = 0; i < geometry.staged_peers; ++i) {
      if (i == args.rank) peer += geometry.in.segment_bytes;
      stage.fetch_peer(i * geometry.peer_bytes, in_bits, peer + code_offset, peer + scale_offset,
                       kItemSlices * geometry.scale_step * 2, lane);
      peer += geometry.in.segment_bytes;
    }
  }
  wait_for_copies();
  __syncwarp();
  int nonfinite = 0;
  const bool some_direct = args.ranks - 1 > geometry.staged_peers;
  int lane_code = lane * in_bits;
  int lane_scale = (lane >> lane_shift) * 2;

#pragma unroll 1
  for (int s = 0; s < kItemSlices; ++s) {
    std::uint32_t raw[kElementWords<D>];
    LaneState<M, F, 1> state;
    stage.elements(s, raw);
    if constexpr (M != Memory::kNone) stage.state(s, cursor, state);
    float sum[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = -0.0f;  // the one value that leaves every first term as it is
    const std::uint8_t* peer_code = stage.peers() + lane_code;
    const std::uint8_t* peer_scale = stage.peers() + kWarpThreads * kItemSlices * in_bits + lane_scale;
    const auto add_staged = [&](int peers) {
      if (in_bits == 4) {
#pragma unroll 1
        for (; peers > 0; --peers) {
          const auto word = *reinterpret_cast<const std::uint32_t*>(peer_code);
          const auto scale = *reinterpret_cast<const std::uint16_t*>(peer_scale);
          peer_code += peer_bytes(4);
          peer_scale += peer_bytes(4);
          accumulate(word, bf16_to_float(scale), geometry.nibble_magic, sum);
        }
        return;
      }
#pragma unroll 1
      for (; peers > 0; --peers) {
        const auto words = *reinterpret_cast<const uint2*>(peer_code);
        const auto scale = *reinterpret_cast<const std::uint16_t*>(peer_scale);
        peer_code += peer_bytes(8);
        peer_scale += peer_bytes(8);
        accumulate_bytes(words, bf16_to_float(scale), sum);
      }
    };
    const auto add_direct = [&](int from, int to) {
#pragma unroll 1
      for (int rank = from; rank < to; ++rank) {
        const std::uint8_t* peer = inbox + rank * geometry.in.segment_bytes;
        const float scale =
            bf16_to_float(__ldg(reinterpret_cast<const std::uint16_t*>(peer + scale_offset + lane_scale)));
        peer += code_offset + lane_code;
        if (in_bits == 4) {
          accumulate(__ldcs(reinterpret_cast<const std::uint32_t*>(peer)), scale, geometry.nibble_magic, sum);
        } else {
          accumulate_bytes(__ldcs(reinterpret_cast<const uint2*>(peer)), scale, sum);
        }
      }
    };
    add_staged(geometry.staged_before);
    if (some_direct) add_direct(geometry.staged_peers, args.rank);
    {
      float x[8];
      unpack_elements<D>(raw, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], x[i]);
    }
    add_staged(geometry.staged_peers - geometry.staged_before);
    if (some_direct) add_direct(max(args.rank, geometry.staged_peers) + 1, args.ranks);
    lane_code += kWarpThreads * in_bits;
    lane_scale += 2 * geometry.scale_step;
    if (args.post_scale != 1.0f) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = __fmul_rn(sum[i], args.post_scale);
    }

    Rounding rounding;
    std::uint32_t out[kElementWords<D>];
    if constexpr (M == Memory::kNone) {
      float encoded[8];
      round_lane<true>(sum, group_key(sum, geometry.lanes), width_of<Four>(geometry), rounding, encoded);
      pack_elements<D>(rounding.decoded, out);
    } else {
      round_compensated<D, M, F, Four, true>(sum, state, s, geometry, lane, place, cursor, rounding, out);
      cursor.advance(1);
    }
    store_codes(codes, out_bits, rounding.codes);
    scales.keep(s, place, rounding.scale.bits);
    store_elements<D>(recv, full, left - s * kSliceElements, lane, out);
    if (!rounding.scale.finite && place == 0) ++nonfinite;
    codes += kWarpThreads * out_bits;
    recv += kSliceElements * element_bytes(D);
  }
  if (place < kItemSlices) {
    auto* base = reinterpret_cast<std::uint16_t*>(wire + geometry.out.code_bytes) + begin_group;
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
