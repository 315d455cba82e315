// SPDX-License-Identifier: Apache-2.0
// What a warp fetches for its item before it computes: elements, estimates and the peers' codes go to shared
// memory with asynchronous copies, all of them in flight at once and none of them in registers. Without that
// a warp waits for memory once a slice, and neither the memory nor the arithmetic is ever busy.
//
// A lane may read back what another one copied: the warp meets in between. The memory serves one item after
// the other.
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

/// Lanes' neighbours(): a lane may have eight elements of every slice, or 32 neighbours of the item, which
/// are this many times eight.
inline constexpr int kNeighbourParts = 4;

/// Shared bytes of an item's elements, and of one estimate of it. fp32 estimates are as many bytes as
/// everything else together: they are read directly.
constexpr int staged_element_bytes(DataType type) {
  return kItemSlices * kSliceElements * element_bytes(type);
}
constexpr int staged_estimate_bytes(StateFormat format) {
  return format == StateFormat::kFp32   ? 0
         : format == StateFormat::kFp16 ? kItemSlices * kSliceElements * 2
                                        : kItemSlices * kSliceElements;
}
constexpr int estimates_of(Memory memory) {
  return memory == Memory::kDual ? 2 : memory == Memory::kFast ? 1 : 0;
}

/// Shared bytes of an item's units, one for each group of 32; fp32 estimates have none.
constexpr int staged_unit_bytes(Memory memory, StateFormat format) {
  return !by_element(memory) || format == StateFormat::kFp32 ? 0 : kItemSlices * kSliceElements / 32 * 2;
}

/// Shared bytes of one warp, but for the peers.
constexpr int stage_bytes(DataType type, Memory memory, StateFormat format) {
  return staged_element_bytes(type) + estimates_of(memory) * staged_estimate_bytes(format) +
         staged_unit_bytes(memory, format);
}

/// Starts a copy of 16 bytes into shared memory; both addresses are aligned to as many.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}

/// Waits for all copies that this lane started.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// The shared memory of a warp, seen from one of its lanes.
template <DataType D, Memory M, StateFormat F>
class Stage {
 public:
  static constexpr bool kHoldsState = by_element(M) && F != StateFormat::kFp32;

  __device__ __forceinline__ Stage(std::uint8_t* warp, unsigned lane)
      : warp_(warp),
        elements_(warp_ + mixed(lane) * 16),
        lane_(lane),
        copies_(warp_ + staged_element_bytes(D) + lane * 16),
        estimates_(warp_ + staged_element_bytes(D) + lane * kStateWords<F> * 4),
        units_(warp_ + staged_element_bytes(D) + estimates_of(M) * staged_estimate_bytes(F)),
        peers_(units_ + kUnitBytes) {}

  /// Begins an item: fetches its elements, estimates and units, or zeros for a state that is not there or
  /// begins here. All lanes take part.
  __device__ __forceinline__ void fetch(const Geometry& geometry, const Item& item, const void* send,
                                        const StateView& state, bool pass_start, int lane) const {
    __syncwarp();  // no lane reads the item before this one any more
    const std::int64_t first = item.first + lane * kLaneElements;
    fetch_elements(static_cast<const char*>(send) + first * element_bytes(D), item, lane);
    if constexpr (kHoldsState) {
      const bool has_units = lane * 16 < kUnitBytes * 32 >> geometry.group_shift;
      if (item.has_state && !pass_start) {
        copy_estimate(0, state.fast, item.entry);
        if constexpr (M == Memory::kDual) copy_estimate(1, state.slow, item.entry);
        const auto* units =
            reinterpret_cast<const std::uint8_t*>(state.unit + (item.entry >> geometry.group_shift));
        if (has_units) copy_async(units_ + lane * 16, units + lane * 16);
      } else {
        const std::uint32_t zero[4] = {};
#pragma unroll
        for (int at = 0; at < estimates_of(M) * kEstimateBytes; at += kCopyBytes)
          store_words(copies_ + at, zero);
        if (has_units) store_words(units_ + lane * 16, zero);
      }
    }
  }

  /// Waits for everything that was fetched; all lanes take part.
  __device__ __forceinline__ void wait() const {
    wait_for_copies();
    __syncwarp();
  }

  /// Fetches the codes and scales of the item from a peer to offset `at` of the peers' memory; `scale_bytes`
  /// are 16, 32 or 64.
  __device__ __forceinline__ void fetch_peer(int at, int bits, const std::uint8_t* codes,
                                             const std::uint8_t* scales, int scale_bytes, int lane) const {
    std::uint8_t* to = peers_ + at + lane * 16;
    copy_async(to, codes + lane * 16);
    if (bits == 8) copy_async(to + peer_code_bytes(4), codes + peer_code_bytes(4) + lane * 16);
    if (lane * 16 < scale_bytes) copy_async(to + peer_code_bytes(bits), scales + lane * 16);
  }

  /// The same stage, with what every slice needs kept in registers. All lanes take part.
  __device__ __forceinline__ Stage kept() const {
    Stage result = *this;
    result.elements_ = device::kept(elements_, lane_);
    if constexpr (kHoldsState) result.estimates_ = device::kept(estimates_, lane_);
    return result;
  }

  /// The lane's elements of slice s.
  __device__ __forceinline__ void elements(int s, std::uint32_t (&raw)[kElementWords<D>]) const {
    load_vectors(elements_ + s * kSlicePitch, raw);
  }

  /// Elements 8 k to 8 k + 7 of the lane's 32 neighbours: a way to share out the item in which a group is all
  /// of a lane's elements or those of 2 or 4 lanes. The warp has to meet between this and a copy.
  __device__ __forceinline__ void neighbours(int k, std::uint32_t (&raw)[kElementWords<D>]) const {
    const unsigned eight = lane_ % (kWarpThreads / kNeighbourParts) * kNeighbourParts + k;
    load_vectors(warp_ + lane_ / (kWarpThreads / kNeighbourParts) * kSlicePitch + mixed(eight) * 16, raw);
  }

  /// The lane's estimates of slice s, from shared memory or, for fp32, through the cursor.
  __device__ __forceinline__ void state(int s, const StateCursor<F>& cursor,
                                        LaneState<M, F, 1>& state) const {
    if constexpr (kHoldsState) {
      const std::uint8_t* fast = estimates_ + s * kWarpThreads * kStateWords<F> * 4;
      load_words(fast, state.fast[0]);
      if constexpr (M == Memory::kDual) load_words(fast + kEstimateBytes, state.slow[0]);
    } else if constexpr (by_element(M)) {
      load_state(cursor, state);
    }
  }

  /// The item's units.
  __device__ __forceinline__ const std::uint16_t* units() const {
    return reinterpret_cast<const std::uint16_t*>(units_);
  }

  /// The peers' memory.
  __device__ __forceinline__ const std::uint8_t* peers() const {
    return peers_;
  }

 private:
  /// Where the i-th 16 bytes of a slice lie. A copy fills lines of 128 bytes whole, whatever their order, and
  /// that is what it is fast at; eight lanes that read every fourth 16 bytes, as neighbours() does, still
  /// meet all banks.
  static __device__ __forceinline__ unsigned mixed(unsigned i) {
    return i ^ (i >> 3);
  }

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

  static constexpr int kUnitBytes = staged_unit_bytes(M, F);
  static constexpr int kVectors = kElementWords<D> / 4;
  static constexpr int kSlicePitch = kWarpThreads * 16;
  static constexpr int kVectorPitch = kItemSlices * kSlicePitch;
  static constexpr int kEstimateBytes = staged_estimate_bytes(F);
  static constexpr int kCopyBytes = kWarpThreads * 16;  // of a warp at once

  __device__ __forceinline__ void fetch_elements(const char* own, const Item& item, int lane) const {
    if (item.full) {
#pragma unroll
      for (int v = 0; v < kItemSlices * kVectors; ++v) {
        copy_async(elements_ + v % kVectors * kVectorPitch + v / kVectors * kSlicePitch,
                   own + v / kVectors * kSliceElements * element_bytes(D) + v % kVectors * 16);
      }
      return;
    }
#pragma unroll 1
    for (int s = 0; s < kItemSlices; ++s) {
      std::uint32_t raw[1][kElementWords<D>];
      load_elements<D, 1>(own + s * kSliceElements * element_bytes(D), false, item.left - s * kSliceElements,
                          lane, raw);
#pragma unroll
      for (int i = 0; i < kElementWords<D>; ++i) {
        *reinterpret_cast<std::uint32_t*>(elements_ + i / 4 * kVectorPitch + s * kSlicePitch + i % 4 * 4) =
            raw[0][i];
      }
    }
  }

  /// Copies an estimate's entries from `entry` on, 16 bytes a lane at a time whatever the format.
  __device__ __forceinline__ void copy_estimate(int which, const void* estimate, std::int64_t entry) const {
    const auto* from = static_cast<const std::uint8_t*>(estimate) + entry * (kStateWords<F> / 2) + lane_ * 16;
#pragma unroll
    for (int at = 0; at < kEstimateBytes; at += kCopyBytes)
      copy_async(copies_ + which * kEstimateBytes + at, from + at);
  }

  std::uint8_t* warp_;
  std::uint8_t* elements_;
  unsigned lane_;
  std::uint8_t* copies_;     // of estimates: the lane's first 16 bytes
  std::uint8_t* estimates_;  // the lane's of the first slice
  std::uint8_t* units_;
  std::uint8_t* peers_;
};

}  // namespace echotp::device
