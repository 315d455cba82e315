// SPDX-License-Identifier: Apache-2.0
// How a fused all-reduce is cut into lanes and chunks, and where everything lies in a rank's window. Pure:
// every rank works out the same from the same numbers.
//
// Row r of a message is its tiles r*P .. r*P + P-1, one of every owner. A chunk is a few neighbouring rows. A
// lane (four warps) takes every L-th chunk, L being the lanes of the call; it meets only the same lane of its
// peers, through flags and slots of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/tile.hpp"

namespace echotp {

inline constexpr int kFusedMaxRanks = 8;
inline constexpr int kFusedLaneThreads = 128;
inline constexpr int kFusedCtaLanes = 7;   // most lanes of a CTA: as many as its registers allow
inline constexpr int kFusedChunkRows = 2;  // most rows of a chunk
/// Chunks of a lane that may be under way: a rank fills a slot for the third chunk after it has drained that
/// of the first, which proves that its peers have drained theirs. So nobody has to acknowledge anything.
inline constexpr int kFusedSlots = 3;

/// What the ranks agree on when they set up; a window's layout follows from it.
struct FusedLayout {
  int ranks = 0;
  int ctas = 0;  // most CTAs of a call
  int bits = 4;  // widest code
  bool operator==(const FusedLayout&) const = default;
};

constexpr int fused_lanes(const FusedLayout& layout) {
  return layout.ctas * kFusedCtaLanes;
}

/// Bytes from one source's tiles to the next's within a slot: groups of 32 have the most scales.
constexpr std::int64_t fused_source_bytes(const FusedLayout& layout) {
  return kFusedChunkRows * (tile_code_bytes(layout.bits) + tile_scale_bytes(32));
}

/// Flags: one 32-bit word for each lane, leg and peer, that says how many chunks of that peer have arrived.
/// The words of a lane and leg share a 32-byte sector.
constexpr std::int64_t fused_flag_offset(int lane, Leg leg, int peer) {
  return ((static_cast<std::int64_t>(lane) * 2 + (leg == Leg::kSecond ? 1 : 0)) * kFusedMaxRanks + peer) * 4;
}
constexpr std::int64_t fused_flags_bytes(const FusedLayout& layout) {
  return (fused_flag_offset(fused_lanes(layout), Leg::kFirst, 0) + 127) / 128 * 128;
}

/// Where a source's tiles of one leg and slot begin.
constexpr std::int64_t fused_slot_offset(const FusedLayout& layout, int lane, Leg leg, int slot, int source) {
  const std::int64_t index =
      ((static_cast<std::int64_t>(lane) * 2 + (leg == Leg::kSecond ? 1 : 0)) * kFusedSlots + slot) *
          layout.ranks +
      source;
  return fused_flags_bytes(layout) + index * fused_source_bytes(layout);
}

constexpr std::int64_t fused_window_bytes(const FusedLayout& layout) {
  return fused_slot_offset(layout, fused_lanes(layout), Leg::kFirst, 0, 0);
}

/// The work of one call.
struct FusedPlan {
  int ctas = 0;
  int cta_lanes = 0;         // lanes of a CTA
  int rows = 0;              // of a chunk
  std::uint32_t chunks = 0;  // chunk c belongs to lane c mod (ctas * cta_lanes)
};

/// Spreads a call over as many CTAs as there are chunks before it puts a second lane into any; small calls
/// have chunks of one row.
constexpr FusedPlan fused_plan(std::int64_t count, const FusedLayout& layout) {
  const std::int64_t rows = segment_tiles(count, layout.ranks);
  FusedPlan plan;
  plan.rows = rows > fused_lanes(layout) ? kFusedChunkRows : 1;
  plan.chunks = static_cast<std::uint32_t>((rows + plan.rows - 1) / plan.rows);
  plan.ctas = static_cast<int>(std::min<std::int64_t>(plan.chunks, layout.ctas));
  if (plan.ctas != 0)
    plan.cta_lanes =
        static_cast<int>(std::min<std::int64_t>((plan.chunks + plan.ctas - 1) / plan.ctas, kFusedCtaLanes));
  return plan;
}

/// Default for FusedLayout::ctas: about as many as an NVLink of the H100's speed can feed, fewer with more
/// ranks because each of them has less of the message to move; the rest of the SMs are left to the job.
constexpr int fused_default_ctas(int ranks) {
  return ranks <= 2 ? 64 : ranks <= 4 ? 48 : 32;
}

}  // namespace echotp
