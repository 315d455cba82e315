// SPDX-License-Identifier: Apache-2.0
// What a warp fetches for its item before it computes: elements, estimates and the peers' codes go to shared
// memory with asynchronous copies, all of them in flight at once and none of them in registers. Without that
// a warp waits for memory once a slice, and neither the memory nor the arithmetic is ever busy.
//
// Every lane reads back only what it wrote itself, except the peers' codes, which are copied 16 bytes a lane
// and need the warp to meet once, and neighbours(). The memory serves one item after the other.
#pragma once

#include <cstdint>

#include "kernels/warp.cuh"

namespace echotp::device {

/// Peers whose codes are fetched ahead; those of further ones are read when they are added.
inline constexpr int kStagedPeers = 7;
/// Most shared memory of a block that needs no opt-in.
inline constexpr int kBlockSharedBytes = 48 << 10;

/// Shared bytes of a peer's codes, and of its codes and scales (at most: group 32), of one item.
constexpr int peer_code_bytes(int bits) {
  return kItemSlices * kSliceElements / 8 * bits;
}
constexpr int peer_bytes(int bits) {
  return peer_code_bytes(bits) + kItemSlices * kSliceElements / 32 * 2;
}

/// An item's elements lie in shared memory by their place among 32 neighbours, eight at a time: first all
/// that come first, then all that come second, and so on, each of the four rows with this pitch in bytes. So
/// a lane can have eight elements of every slice or 32 neighbours, and eight lanes that write or read 16
/// bytes each meet all banks either way: that is what the 32 bytes between rows are for.
inline constexpr int kNeighbourRows = 4;
inline constexpr int kNeighbourPitch = kWarpThreads * 16 + 32;

/// Shared bytes of an item's elements (fp32 twice as above, for the halves of eight elements), and of one
/// estimate of it. fp32 estimates are as many bytes as everything else together: they are read directly.
constexpr int staged_element_bytes(DataType type) {
  return kNeighbourRows * kNeighbourPitch * (type == DataType::kFp32 ? 2 : 1);
}
constexpr int staged_estimate_bytes(StateFormat format) {
  return format == StateFormat::kFp32   ? 0
         : format == StateFormat::kFp16 ? kItemSlices * kSliceElements * 2
                                        : kItemSlices * kSliceElements;
}
constexpr int estimates_of(Memory memory) {
  return memory == Memory::kDual ? 2 : memory == Memory::kFast ? 1 : 0;
}

/// Shared bytes of one warp, but for the peers.
constexpr int stage_bytes(DataType type, Memory memory, StateFormat format) {
  return staged_element_bytes(type) + estimates_of(memory) * staged_estimate_bytes(format);
}

/// Starts a copy of 16 or 8 bytes into shared memory; both addresses are aligned to as many.
template <int Bytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(global) : "memory");
  }
}

/// Waits for all copies that this lane started.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// The shared memory of a warp, seen from one of its lanes.
template <DataType D, Memory M, StateFormat F>
class Stage {
 public:
  static constexpr bool kHoldsState = M != Memory::kNone && F != StateFormat::kFp32;

  __device__ __forceinline__ Stage(std::uint8_t* warp, unsigned lane)
      : elements_(warp + lane % kNeighbourRows * kNeighbourPitch + lane / kNeighbourRows * 16),
        neighbours_(warp + lane * 16),
        state_(warp + staged_element_bytes(D) + lane * kStateLaneBytes),
        peers_(warp + staged_element_bytes(D) + estimates_of(M) * staged_estimate_bytes(F)) {}

  /// Begins an item and fetches the lane's elements of all slices; the arguments are those of
  /// load_elements().
  __device__ __forceinline__ void fetch_elements(const char* own, bool full, int left, int lane) {
    __syncwarp();  // no lane reads the item before this one any more
    if (full) {
#pragma unroll
      for (int v = 0; v < kItemSlices * kVectors; ++v) {
        copy_async<16>(elements_ + v % kVectors * kVectorPitch + v / kVectors * kSlicePitch,
                       own + v / kVectors * kSliceElements * element_bytes(D) + v % kVectors * 16);
      }
      return;
    }
#pragma unroll 1
    for (int s = 0; s < kItemSlices; ++s) {
      std::uint32_t raw[1][kElementWords<D>];
      load_elements<D, 1>(own + s * kSliceElements * element_bytes(D), false, left - s * kSliceElements, lane,
                          raw);
#pragma unroll
      for (int i = 0; i < kElementWords<D>; ++i) {
        *reinterpret_cast<std::uint32_t*>(elements_ + i / 4 * kVectorPitch + s * kSlicePitch + i % 4 * 4) =
            raw[0][i];
      }
    }
  }

  /// Fetches the lane's estimates of all slices, or sets them to zero.
  __device__ __forceinline__ void fetch_state(const StateCursor<F>& cursor) {
    if constexpr (kHoldsState) {
#pragma unroll
      for (int s = 0; s < kItemSlices; ++s) {
        fetch_estimate(state_ + s * kStatePitch,
                       cursor.in(cursor.view.fast) + s * StateCursor<F>::kSliceBytes, cursor.load);
        if constexpr (M == Memory::kDual) {
          fetch_estimate(state_ + staged_estimate_bytes(F) + s * kStatePitch,
                         cursor.in(cursor.view.slow) + s * StateCursor<F>::kSliceBytes, cursor.load);
        }
      }
    }
  }

  /// Fetches the codes and scales of the item from a peer to offset `at` of the peers' memory; `scale_bytes`
  /// are 16, 32 or 64.
  __device__ __forceinline__ void fetch_peer(int at, int bits, const std::uint8_t* codes,
                                             const std::uint8_t* scales, int scale_bytes, int lane) {
    std::uint8_t* to = peers_ + at + lane * 16;
    copy_async<16>(to, codes + lane * 16);
    if (bits == 8) copy_async<16>(to + peer_code_bytes(4), codes + peer_code_bytes(4) + lane * 16);
    if (lane * 16 < scale_bytes) copy_async<16>(to + peer_code_bytes(bits), scales + lane * 16);
  }

  /// The lane's elements of slice s.
  __device__ __forceinline__ void elements(int s, std::uint32_t (&raw)[kElementWords<D>]) const {
    load_vectors(elements_ + s * kSlicePitch, raw);
  }

  /// Elements 8 k to 8 k + 7 of the lane's 32 neighbours: a way to share out the item in which a group is all
  /// of a lane's elements or those of 2 or 4 lanes. The warp has to meet between this and a copy.
  __device__ __forceinline__ void neighbours(int k, std::uint32_t (&raw)[kElementWords<D>]) const {
    load_vectors(neighbours_ + k * kNeighbourPitch, raw);
  }

  /// The lane's estimates of slice s, from shared memory or, for fp32, through the cursor.
  __device__ __forceinline__ void state(int s, const StateCursor<F>& cursor,
                                        LaneState<M, F, 1>& state) const {
    if constexpr (kHoldsState) {
      load_words(state_ + s * kStatePitch, state.fast[0]);
      if constexpr (M == Memory::kDual)
        load_words(state_ + staged_estimate_bytes(F) + s * kStatePitch, state.slow[0]);
    } else {
      load_state(cursor, state);
    }
  }

  /// The peers' memory.
  __device__ __forceinline__ const std::uint8_t* peers() const {
    return peers_;
  }

 private:
  static __device__ __forceinline__ void load_vectors(const std::uint8_t* from,
                                                      std::uint32_t (&raw)[kElementWords<D>]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4 value = *reinterpret_cast<const uint4*>(from + v * kVectorPitch);
      raw[4 * v] = value.x;
      raw[4 * v + 1] = value.y;
      raw[4 * v + 2] = value.z;
      raw[4 * v + 3] = value.w;
    }
  }

  static constexpr int kVectors = kElementWords<D> / 4;
  static constexpr int kVectorPitch = kNeighbourRows * kNeighbourPitch;
  static constexpr int kSlicePitch = kWarpThreads / kNeighbourRows * 16;
  static constexpr int kStateLaneBytes = kStateWords<F> * 4;
  static constexpr int kStatePitch = kWarpThreads * kStateLaneBytes;

  static __device__ __forceinline__ void fetch_estimate(std::uint8_t* shared, const char* global, bool load) {
    if (load) {
      copy_async<kStateLaneBytes == 8 ? 8 : 16>(shared, global);
    } else {
      const std::uint32_t zero[kStateWords<F>] = {};
      store_words(shared, zero);
    }
  }

  std::uint8_t* elements_;
  std::uint8_t* neighbours_;
  std::uint8_t* state_;
  std::uint8_t* peers_;
};

}  // namespace echotp::device
