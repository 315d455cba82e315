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
  std::uint32_t state_tiles;  // tiles that the state has entries for
  int rank;
  bool send_vector;  // send and recv are 16-byte aligned
  bool recv_vector;
  bool both_vector;
};

/// fused_slot_offset() as numbers: offsets in a window are small, and the device adds them up often.
struct FusedWindow {
  std::uint32_t slots;         // begin of the first lane's
  std::uint32_t lane_bytes;    // from a lane to the next
  std::uint32_t leg_bytes;     // from a leg to the next
  std::uint32_t slot_bytes;    // from a slot to the next
  std::uint32_t source_bytes;  // from a source to the next
};

/// A launch: all ranks of a loopback, else one.
struct FusedLaunch {
  FusedRank ranks[kFusedMaxRanks];
  std::int64_t count;
  std::uint64_t deadline_ns;
  FusedWindow window;
  int rank_count;
  std::uint32_t chunks;
  std::uint32_t lanes;       // of a rank, over all CTAs
  std::uint32_t tiles;       // of the message, the last possibly partial
  std::uint32_t full_tiles;  // whole ones
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
__device__ __forceinline__ std::uint32_t thread_of_cta() {
  std::uint32_t value;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
  return value;
}
__device__ __forceinline__ std::uint32_t cta_of_rank() {
  std::uint32_t value;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(value));
  return value;
}
__device__ __forceinline__ std::uint32_t rank_of_launch() {
  std::uint32_t value;
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

inline constexpr int kFusedCtaWarps = kFusedCtaLanes * kFusedLaneThreads / kWarpThreads;

/// What the lanes of a CTA keep in shared memory.
struct FusedCta {
  std::uint8_t* windows[kFusedMaxRanks];
  std::uint8_t* peers[kFusedMaxRanks - 1];  // the others' windows, from the next rank's on
  int rank;
  std::uint32_t base[kFusedCtaLanes];    // a lane's chunks before this call
  std::uint32_t chunks[kFusedCtaLanes];  // a lane's chunks of this call
  std::uint32_t stop[kFusedCtaLanes];    // number of the barrier after which a lane has to stop
  std::uint32_t turn[kFusedCtaWarps];    // of a warp
};

/// A reduced tile on its way into the windows of all peers.
struct PushedTile {
  const FusedCta& cta;
  std::uint32_t offset;  // of the tile in a window
  int ranks;

  template <class Store>
  __device__ __forceinline__ void to_all(int at, const Store& store) const {
    const std::uint32_t to = offset + static_cast<std::uint32_t>(at);
    int peer = 0;
#pragma unroll 1
    do {
      store(cta.peers[peer] + to);
    } while (++peer < ranks - 1);
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

  static __device__ __forceinline__ int thread() { return static_cast<int>(thread_of_cta() % kWarpThreads); }
  static __device__ __forceinline__ std::uint32_t warp() { return thread_of_cta() / kWarpThreads % kWarps; }
  static __device__ __forceinline__ std::uint32_t cta_lane() { return thread_of_cta() / kFusedLaneThreads; }
  static __device__ __forceinline__ std::uint32_t lane() { return cta_lane() * gridDim.x + cta_of_rank(); }
  __device__ __forceinline__ const FusedRank& self() const { return launch.ranks[rank_of_launch()]; }

  /// The chunk that this warp's phase works on: that of this turn or one of the turns before.
  __device__ __forceinline__ std::uint32_t chunk_of(Phase phase) const {
    const std::uint32_t turn = reload(cta.turn[thread_of_cta() / kWarpThreads]);
    return turn - (phase == Phase::kQuantise ? 0 : phase == Phase::kReduce ? 1 : 2);
  }

  /// What an item's addresses follow from, found out anew for every item.
  struct Here {
    std::uint32_t thread;  // of the CTA
    std::uint32_t lane;
    std::uint32_t chunk;
    std::uint32_t rank;

    __device__ __forceinline__ int thread_of_warp() const { return static_cast<int>(thread % kWarpThreads); }
    __device__ __forceinline__ std::uint32_t warp() const { return thread / kWarpThreads % kWarps; }
  };
  __device__ __forceinline__ Here here(Phase phase) const {
    Here here;
    here.thread = thread_of_cta();
    here.lane = here.thread / kFusedLaneThreads * gridDim.x + cta_of_rank();
    here.chunk = reload(cta.turn[here.thread / kWarpThreads]) - (phase == Phase::kQuantise ? 0
                                                                 : phase == Phase::kReduce ? 1
                                                                                           : 2);
    here.rank = reload(cta.rank);
    return here;
  }
  __device__ __forceinline__ std::uint8_t* warp_shared(const Here& here) const {
    return reinterpret_cast<std::uint8_t*>(shared) + here.thread / kWarpThreads * launch.warp_bytes;
  }
  __device__ __forceinline__ std::uint32_t tile_of(const Here& here, std::uint32_t row,
                                                   std::uint32_t owner) const {
    return ((here.chunk * launch.lanes + here.lane) * launch.chunk_rows + row) * launch.rank_count + owner;
  }
  /// Where a source's tiles lie in a window.
  __device__ __forceinline__ std::uint32_t slot(const Here& here, Leg leg, std::uint32_t source) const {
    const FusedWindow& window = launch.window;
    return window.slots + here.lane * window.lane_bytes + (leg == Leg::kSecond ? window.leg_bytes : 0) +
           here.chunk % Hooks::kSlots * window.slot_bytes + source * window.source_bytes;
  }
  /// Half a tile of the message.
  __device__ __forceinline__ Item item_of(std::uint32_t tile, std::uint32_t half, bool vector) const {
    Item item;
    item.begin_slice = static_cast<int>(half * kItemSlices);
    item.first = static_cast<std::int64_t>(tile) * kTileElements + half * kItemSlices * kSliceElements;
    item.entry = item.first;
    item.full = vector && tile < launch.full_tiles;
    item.left = item.full ? kItemSlices * kSliceElements : bounded_left(launch.count - item.first);
    item.has_state = tile < self().state_tiles;
    return item;
  }

  /// One of the half tiles of other owners that a lane has in a chunk.
  struct Other {
    std::uint32_t row;  // within the chunk
    std::uint32_t owner;
    std::uint32_t half;
  };
  __device__ __forceinline__ std::uint32_t others() const {
    return launch.chunk_rows * (launch.rank_count - 1) * kTileItems;
  }
  __device__ __forceinline__ Other other(const Here& here, std::uint32_t i) const {
    static_assert(kFusedChunkRows == 2);
    const std::uint32_t ranks = launch.rank_count;
    const std::uint32_t step = i / kTileItems + 1;  // every rank begins at another peer
    Other other;
    other.row = step >= ranks ? 1 : 0;
    other.owner = here.rank + step + other.row - (other.row != 0 ? ranks : 0);
    if (other.owner >= ranks) other.owner -= ranks;
    other.half = i % kTileItems;
    return other;
  }

  /// Rounds one item with the sender's state, or without.
  template <Memory SM, StateFormat SF>
  __device__ __forceinline__ void quantise_with(const Here& here, const Item& item,
                                                std::uint8_t* wire) const {
    const FusedRank& rank = self();
    const int thread = here.thread_of_warp();
    const Stage<D, SM, SF> stage(warp_shared(here), thread);
    stage.fetch(launch.first, item, rank.send, rank.state, launch.pass_start, thread);
    quantise_item<D, SM, SF, Four>(launch.first, item, stage, rank.state, launch.pass_start, wire, thread);
  }

  __device__ __forceinline__ void quantise() const {
    Hooks::at(FusedPoint::kQuantise, self().rank, lane(), chunk_of(Phase::kQuantise));
#pragma unroll 1
    for (std::uint32_t i = warp(); i < others(); i += kWarps) {
      const Here now = here(Phase::kQuantise);
      const Other to = other(now, i);
      const std::uint32_t tile = tile_of(now, to.row, to.owner);
      if (tile >= launch.tiles) continue;
      const Item item = item_of(tile, to.half, self().send_vector);
      std::uint8_t* wire =
          cta.windows[to.owner] + slot(now, Leg::kFirst, now.rank) + to.row * launch.first.out.tile_bytes;
      if (M != Memory::kNone && launch.sender_state) {
        quantise_with<M, F>(now, item, wire);
      } else {
        quantise_with<Memory::kNone, StateFormat::kFp32>(now, item, wire);
      }
    }
  }

  /// The owner's part: a half tile for every warp, at most.
  __device__ __forceinline__ void reduce() const {
    const Here now = here(Phase::kReduce);
    Hooks::at(FusedPoint::kReduce, now.rank, now.lane, now.chunk);
    const std::uint32_t row = now.warp() / kTileItems;
    const std::uint32_t tile = tile_of(now, row, now.rank);
    if (row >= static_cast<std::uint32_t>(launch.chunk_rows) || tile >= launch.tiles) return;
    const FusedRank& rank = self();
    const Item item = item_of(tile, now.warp() % kTileItems, rank.both_vector);
    const auto peers_at = [&](const Here& at) {
      return cta.windows[at.rank] + slot(at, Leg::kFirst, 0) +
             at.warp() / kTileItems * launch.second.in.tile_bytes;
    };
    const PushedTile wire{cta, slot(now, Leg::kSecond, now.rank) + row * launch.second.out.tile_bytes,
                          launch.rank_count};
    const int thread = now.thread_of_warp();
    const Stage<D, M, F> stage(warp_shared(now), thread);
    stage.fetch(launch.second, item, rank.send, rank.state, launch.pass_start, thread);
    const int nonfinite = reduce_item<D, M, F, Four>(
        launch.second, item, stage, rank.recv, static_cast<int>(now.rank), launch.rank_count,
        launch.post_scale, rank.state, launch.pass_start, peers_at(now),
        [&] { return peers_at(here(Phase::kReduce)); }, wire, thread);
    count_nonfinite(nonfinite, self().counters, thread);
  }

  __device__ __forceinline__ void decode() const {
    Hooks::at(FusedPoint::kDecode, self().rank, lane(), chunk_of(Phase::kDecode));
#pragma unroll 1
    for (std::uint32_t i = warp(); i < others(); i += kWarps) {
      const Here now = here(Phase::kDecode);
      const Other from = other(now, i);
      const std::uint32_t tile = tile_of(now, from.row, from.owner);
      if (tile >= launch.tiles) continue;
      const FusedRank& rank = self();
      const Item item = item_of(tile, from.half, rank.recv_vector);
      const std::uint8_t* wire = cta.windows[now.rank] + slot(now, Leg::kSecond, from.owner) +
                                 from.row * launch.second.out.tile_bytes;
      if (Four || launch.second.out.bits == 4) {
        decode_item<D, 4>(launch.second, item, wire, rank.recv, now.thread_of_warp());
      } else {
        decode_item<D, 8>(launch.second, item, wire, rank.recv, now.thread_of_warp());
      }
    }
  }

  /// Tells all peers that `chunks` chunks of this lane have arrived. One thread, after the lane's barrier.
  __device__ __forceinline__ void publish(Leg leg, std::uint32_t chunks) const {
    if (thread() != 0) return;
    if constexpr (Hooks::kFence) fence_system();
    const std::int64_t offset = fused_flag_offset(static_cast<int>(lane()), leg, reload(cta.rank));
#pragma unroll 1
    for (int peer = 0; peer < launch.rank_count - 1; ++peer)
      store_relaxed(reinterpret_cast<std::uint32_t*>(cta.peers[peer] + offset), chunks);
  }

  /// Waits until `chunks` chunks of every peer have arrived, one thread a peer; if any gives up, the lane
  /// stops after barrier `number`.
  __device__ __forceinline__ void wait(Leg leg, std::uint32_t chunks, std::uint32_t number) const {
    const FusedRank& rank = self();
    const int peer = thread();
    bool arrived = true;
    if (peer < launch.rank_count && peer != rank.rank) {
      const auto* flag = reinterpret_cast<const std::uint32_t*>(
          cta.windows[rank.rank] + fused_flag_offset(static_cast<int>(lane()), leg, peer));
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
  if (threadIdx.x == 0) cta.rank = lane.self().rank;
  const auto peers = static_cast<std::uint32_t>(launch.rank_count) - 1;
  if (threadIdx.x < peers)
    cta.peers[threadIdx.x] = lane.self().windows[(lane.self().rank + threadIdx.x + 1) % (peers + 1)];
  __syncthreads();
  if (Lane::lane() < launch.lanes) lane.run();
}

}  // namespace echotp::device
