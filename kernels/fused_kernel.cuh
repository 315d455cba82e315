// SPDX-License-Identifier: Apache-2.0
// The fused kernel. A CTA is a few lanes of four warps that share nothing; a lane works through its chunks in
// a software pipeline, three chunks deep:
//
//   turn k:  quantise chunk k, push to the owners | reduce chunk k-1, push to all | decode chunk k-2
//
// so that the other ranks' part of a chunk travels while this rank computes on its neighbours. All pushes of
// a phase are followed by one fence and one flag a peer. fused_plan.hpp says why slots need no
// acknowledgement.
#pragma once

#include <cstdint>

#include "kernels/fused_sync.cuh"
#include "kernels/item_decode.cuh"
#include "kernels/item_quantise.cuh"
#include "kernels/item_reduce.cuh"

namespace echotp::device {

/// What belongs to one rank.
struct FusedRank {
  const void* send;
  void* recv;
  StateView state;
  DeviceCounters* counters;
  std::uint8_t* windows[kFusedMaxRanks];
  std::uint32_t* progress;
  FusedStatus* status;
  int rank;
  bool send_vector;  // send and recv are 16-byte aligned
  bool recv_vector;
};

/// A launch: all ranks of a loopback, else one.
struct FusedLaunch {
  FusedRank ranks[kFusedMaxRanks];
  std::int64_t count;
  std::uint64_t deadline_ns;
  FusedLayout layout;
  std::uint32_t chunks;
  std::uint32_t lanes;  // of a rank, over all CTAs
  std::uint32_t rows;   // of the message
  int chunk_rows;
  float post_scale;
  bool pass_start;
  bool sender_state;  // senders compensate too
  int cta_lanes;      // most lanes of a CTA
  int warp_bytes;     // shared memory of a warp
  Geometry first;     // quantise: out is the first leg
  Geometry second;    // reduce and decode: in is the first leg, out the second
};

/// Points at which a test may interfere.
enum class FusedPoint { kQuantise, kFirstFlag, kReduce, kSecondFlag, kDecode };

/// Nothing interferes.
struct NoHooks {
  static constexpr int kSlots = kFusedSlots;
  static constexpr bool kFence = true;    // before flags are stored
  static constexpr bool kBarrier = true;  // between a phase's stores and its flags
  static __device__ __forceinline__ void at(FusedPoint, int /*rank*/, int /*lane*/, std::uint32_t /*chunk*/) {
  }
};

/// In FusedCta::stop: a call before this one failed.
inline constexpr std::uint32_t kStopAtOnce = 0xFFFFFFFFu;

/// Special registers, read anew each time: what is this cheap to find out must not occupy a register of the
/// loop.
__device__ __forceinline__ int thread_of_cta() {
  int value;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
  return value;
}
__device__ __forceinline__ int cta_of_rank() {
  int value;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(value));
  return value;
}
__device__ __forceinline__ int rank_of_launch() {
  int value;
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(value));
  return value;
}

/// A word of shared memory, for the same reason.
template <class Word>
__device__ __forceinline__ Word reload(const Word& word) {
  static_assert(sizeof(Word) == 4);
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];"
               : "=r"(value)
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(&word))));
  return static_cast<Word>(value);
}

/// What the lanes of a CTA keep in shared memory.
struct FusedCta {
  std::uint8_t* windows[kFusedMaxRanks];
  std::uint32_t rank;
  std::uint32_t base[kFusedCtaLanes];    // a lane's chunks before this call
  std::uint32_t chunks[kFusedCtaLanes];  // a lane's chunks of this call
  std::uint32_t stop[kFusedCtaLanes];    // number of the barrier after which a lane has to stop
  std::uint32_t turn[kFusedCtaLanes * kFusedLaneThreads / kWarpThreads];  // of a warp
};

/// A reduced tile on its way into the windows of all peers.
struct PushedTile {
  const FusedCta& cta;
  std::uint32_t offset;  // of the tile in a window
  int ranks;

  template <class Store>
  __device__ __forceinline__ void to_all(int at, const Store& store) const {
    int peer = static_cast<int>(reload(cta.rank));
#pragma unroll 1
    for (int step = 1; step < ranks; ++step) {
      if (++peer == ranks) peer = 0;  // every rank begins at another peer
      store(cta.windows[peer] + offset + at);
    }
  }
  __device__ __forceinline__ void codes(int at, int bits, const std::uint32_t (&codes)[2]) const {
    to_all(at, [&](std::uint8_t* to) { store_codes(to, bits, codes); });
  }
  __device__ __forceinline__ void scale(int at, std::uint16_t scale) const {
    to_all(at, [&](std::uint8_t* to) { *reinterpret_cast<std::uint16_t*>(to) = scale; });
  }
};

/// One warp of a lane. `chunk` below is a lane's own count of its chunks in this call, from 0.
template <DataType D, Memory M, StateFormat F, bool Four, class Hooks>
struct FusedLane {
  const FusedLaunch& launch;
  FusedCta& cta;
  uint4* shared;

  static constexpr int kWarps = kFusedLaneThreads / kWarpThreads;
  static_assert(kFusedChunkRows * kTileItems <= kWarps, "a warp reduces one item of a chunk");

  static __device__ __forceinline__ int thread() { return thread_of_cta() % kWarpThreads; }
  static __device__ __forceinline__ int warp() { return thread_of_cta() / kWarpThreads % kWarps; }
  static __device__ __forceinline__ int cta_lane() { return thread_of_cta() / kFusedLaneThreads; }
  static __device__ __forceinline__ int lane() {
    return cta_lane() * static_cast<int>(gridDim.x) + cta_of_rank();
  }
  __device__ __forceinline__ const FusedRank& self() const { return launch.ranks[rank_of_launch()]; }
  __device__ __forceinline__ std::uint8_t* warp_shared() const {
    return reinterpret_cast<std::uint8_t*>(shared) + thread_of_cta() / kWarpThreads * launch.warp_bytes;
  }
  __device__ __forceinline__ std::uint32_t first_row(std::uint32_t chunk) const {
    return (chunk * launch.lanes + lane()) * launch.chunk_rows;
  }
  __device__ __forceinline__ int rows_of(std::uint32_t first) const {
    return min(launch.chunk_rows, static_cast<int>(launch.rows - first));
  }
  __device__ __forceinline__ std::uint32_t slot(std::uint32_t chunk, Leg leg, int source) const {
    return static_cast<std::uint32_t>(
        fused_slot_offset(launch.layout, lane(), leg, static_cast<int>(chunk % Hooks::kSlots), source));
  }
  __device__ __forceinline__ std::int64_t tile_begin(std::uint32_t row, int owner) const {
    return (static_cast<std::int64_t>(row) * launch.layout.ranks + owner) * kTileElements;
  }

  /// The chunk that this warp's phase works on: that of this turn or one of the turns before.
  __device__ __forceinline__ std::uint32_t chunk_of(Phase phase) const {
    const std::uint32_t turn = reload(cta.turn[thread_of_cta() / kWarpThreads]);
    return turn - (phase == Phase::kQuantise ? 0 : phase == Phase::kReduce ? 1 : 2);
  }

  /// Calls visit(chunk, row within the chunk, owner, half) for this warp's share of the others' half tiles.
  template <class Visit>
  __device__ __forceinline__ void others(Phase phase, const Visit& visit) const {
    const int ranks = launch.layout.ranks;
#pragma unroll 1
    for (int i = warp();; i += kWarps) {
      const std::uint32_t chunk = chunk_of(phase);
      if (i >= rows_of(first_row(chunk)) * (ranks - 1) * kTileItems) break;
      const int tile = i / kTileItems;
      const int row = tile / (ranks - 1);
      int owner = self().rank + 1 + tile - row * (ranks - 1);  // every rank begins at another peer
      if (owner >= ranks) owner -= ranks;
      visit(chunk, row, owner, i % kTileItems);
    }
  }

  __device__ __forceinline__ void quantise() const {
    Hooks::at(FusedPoint::kQuantise, self().rank, lane(), chunk_of(Phase::kQuantise));
    others(Phase::kQuantise, [&](std::uint32_t chunk, int row, int owner, int half) {
      const std::int64_t begin = tile_begin(first_row(chunk) + row, owner);
      if (begin >= launch.count) return;
      const FusedRank& rank = self();
      const Item item = make_item(begin, half, launch.count, rank.send_vector, 0, rank.state.capacity);
      std::uint8_t* wire =
          cta.windows[owner] + slot(chunk, Leg::kFirst, rank.rank) + row * launch.first.out.tile_bytes;
      if (M != Memory::kNone && launch.sender_state) {
        quantise_item<D, M, F, Four>(launch.first, item, rank.send, rank.state, launch.pass_start, wire,
                                     warp_shared(), thread());
      } else {
        quantise_item<D, Memory::kNone, StateFormat::kFp32, Four>(launch.first, item, rank.send, rank.state,
                                                                  launch.pass_start, wire, nullptr, thread());
      }
    });
  }

  __device__ __forceinline__ void reduce() const {
    const FusedRank& rank = self();
    const std::uint32_t chunk = chunk_of(Phase::kReduce);
    Hooks::at(FusedPoint::kReduce, rank.rank, lane(), chunk);
    const int row = warp() / kTileItems;
    const std::uint32_t first = first_row(chunk);
    if (row >= rows_of(first)) return;
    const std::int64_t begin = tile_begin(first + row, rank.rank);
    if (begin >= launch.count) return;
    const Item item = make_item(begin, warp() % kTileItems, launch.count,
                                rank.send_vector && rank.recv_vector, 0, rank.state.capacity);
    const std::uint8_t* peers =
        cta.windows[rank.rank] + slot(chunk, Leg::kFirst, 0) + row * launch.second.in.tile_bytes;
    const PushedTile wire{cta, slot(chunk, Leg::kSecond, rank.rank) + row * launch.second.out.tile_bytes,
                          launch.layout.ranks};
    const int nonfinite = reduce_item<D, M, F, Four>(launch.second, item, rank.send, rank.recv, rank.rank,
                                                     launch.layout.ranks, launch.post_scale, rank.state,
                                                     launch.pass_start, peers, wire, warp_shared(), thread());
    count_nonfinite(nonfinite, self().counters, thread());
  }

  __device__ __forceinline__ void decode() const {
    Hooks::at(FusedPoint::kDecode, self().rank, lane(), chunk_of(Phase::kDecode));
    others(Phase::kDecode, [&](std::uint32_t chunk, int row, int owner, int half) {
      const std::int64_t begin = tile_begin(first_row(chunk) + row, owner);
      if (begin >= launch.count) return;
      const FusedRank& rank = self();
      const Item item = make_item(begin, half, launch.count, rank.recv_vector, 0, 0);
      const std::uint8_t* wire =
          cta.windows[rank.rank] + slot(chunk, Leg::kSecond, owner) + row * launch.second.out.tile_bytes;
      if (Four || launch.second.out.bits == 4) {
        decode_item<D, 4>(launch.second, item, wire, rank.recv, thread());
      } else {
        decode_item<D, 8>(launch.second, item, wire, rank.recv, thread());
      }
    });
  }

  /// Tells all peers that `chunks` chunks of this lane have arrived. One thread, after the lane's barrier.
  __device__ __forceinline__ void publish(Leg leg, std::uint32_t chunks) const {
    if (thread() != 0) return;
    if constexpr (Hooks::kFence) fence_system();
    const int ranks = launch.layout.ranks;
    const int rank = self().rank;
    const std::int64_t offset = fused_flag_offset(lane(), leg, rank);
    int peer = rank;
#pragma unroll 1
    for (int step = 1; step < ranks; ++step) {
      if (++peer == ranks) peer = 0;
      store_relaxed(reinterpret_cast<std::uint32_t*>(cta.windows[peer] + offset), chunks);
    }
  }

  /// Waits until `chunks` chunks of every peer have arrived, one thread a peer; if any gives up, the lane
  /// stops after barrier `number`.
  __device__ __forceinline__ void wait(Leg leg, std::uint32_t chunks, std::uint32_t number) const {
    const FusedRank& rank = self();
    const int peer = thread();
    bool arrived = true;
    if (peer < launch.layout.ranks && peer != rank.rank) {
      const auto* flag = reinterpret_cast<const std::uint32_t*>(cta.windows[rank.rank] +
                                                                fused_flag_offset(lane(), leg, peer));
      arrived =
          poll(flag, rank.progress, rank.status, launch.deadline_ns, chunks, rank.rank, peer, lane(), leg);
    }
    if (!arrived) cta.stop[cta_lane()] = number;
    __syncwarp();
  }

  /// All warps of the lane meet; true if the lane has to stop. A warp may set the number of the next barrier
  /// while a slower one has yet to look after this one, hence numbers.
  __device__ __forceinline__ bool meet_and_stop(std::uint32_t number) const {
    lane_barrier(cta_lane() + 1);
    return cta.stop[cta_lane()] == number;
  }

  /// First half of a turn: quantises chunk `turn`, then reduces chunk turn - 1. True if the lane has to stop.
  __device__ __forceinline__ bool first_half() const {
    const auto turn = [&] { return chunk_of(Phase::kQuantise); };
    const auto begins = [&] { return turn() < reload(cta.chunks[cta_lane()]); };
    const auto base = [&] { return reload(cta.base[cta_lane()]); };
    if (begins()) quantise();
    if (turn() >= 1 && warp() == 2) wait(Leg::kFirst, base() + turn(), 2 * turn() + 1);
    if (Hooks::kBarrier && meet_and_stop(2 * turn() + 1)) return true;
    Hooks::at(FusedPoint::kFirstFlag, self().rank, lane(), turn());
    if (begins() && warp() == 0) publish(Leg::kFirst, base() + turn() + 1);
    if (turn() >= 1) reduce();
    return false;
  }

  /// Second half: sends what was reduced on its way, then decodes chunk turn - 2.
  __device__ __forceinline__ bool second_half() const {
    const auto turn = [&] { return chunk_of(Phase::kQuantise); };
    const auto base = [&] { return reload(cta.base[cta_lane()]); };
    if (turn() >= 2 && warp() == 3) wait(Leg::kSecond, base() + turn() - 1, 2 * turn() + 2);
    if (meet_and_stop(2 * turn() + 2)) return true;
    Hooks::at(FusedPoint::kSecondFlag, self().rank, lane(), turn() - 1);
    if (turn() <= reload(cta.chunks[cta_lane()]) && warp() == 1) publish(Leg::kSecond, base() + turn());
    if (turn() >= 2) decode();
    return false;
  }

  /// All chunks of the lane. Publishing and waiting are spread over the warps, so that no warp lags behind
  /// with all of it.
  __device__ __forceinline__ void run() const {
    if (warp() == 0 && thread() == 0) {
      const std::uint32_t* progress = self().progress;
      cta.base[cta_lane()] = progress[1 + lane()];
      cta.chunks[cta_lane()] = (launch.chunks - lane() + launch.lanes - 1) / launch.lanes;
      cta.stop[cta_lane()] = load_relaxed(progress) != 0 ? kStopAtOnce : 0u;
    }
    const auto turn = [&]() -> std::uint32_t& { return cta.turn[thread_of_cta() / kWarpThreads]; };
    if (thread() == 0) turn() = 0;
    if (meet_and_stop(kStopAtOnce)) return;
#pragma unroll 1
    while (reload(turn()) < reload(cta.chunks[cta_lane()]) + 2) {
      if (reload(turn()) <= reload(cta.chunks[cta_lane()]) && first_half()) return;
      if (reload(turn()) >= 1 && second_half()) return;
      __syncwarp();
      if (thread() == 0) turn() = reload(turn()) + 1;
      __syncwarp();
    }
    if (warp() == 0 && thread() == 0)
      self().progress[1 + lane()] = cta.base[cta_lane()] + cta.chunks[cta_lane()];
  }
};

/// Grid: CTAs, by the ranks of a loopback. Shared memory: launch.warp_bytes a warp.
template <DataType D, Memory M, StateFormat F, bool Four, class Hooks = NoHooks>
__global__ void __launch_bounds__(kFusedCtaLanes* kFusedLaneThreads, 1)
    fused_kernel(const __grid_constant__ FusedLaunch launch) {
  __shared__ FusedCta cta;
  extern __shared__ uint4 shared[];
  using Lane = FusedLane<D, M, F, Four, Hooks>;
  const Lane lane{launch, cta, shared};
  if (threadIdx.x < kFusedMaxRanks) cta.windows[threadIdx.x] = lane.self().windows[threadIdx.x];
  if (threadIdx.x == 0) cta.rank = static_cast<std::uint32_t>(lane.self().rank);
  __syncthreads();
  if (static_cast<std::uint32_t>(Lane::lane()) < launch.lanes) lane.run();
}

}  // namespace echotp::device
