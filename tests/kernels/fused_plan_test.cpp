// SPDX-License-Identifier: Apache-2.0
// The split of a fused call into lanes and chunks, and the layout of a window.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "kernels/fused_plan.hpp"

using namespace echotp;

namespace {

/// Bytes that a lane's tiles of one leg, slot and source take at most.
std::int64_t used_bytes(const FusedLayout& layout) {
  return kFusedChunkRows * (tile_code_bytes(layout.bits) + tile_scale_bytes(32));
}

}  // namespace

TEST_CASE("fused plan: every row belongs to one chunk of one lane") {
  for (int ranks = 2; ranks <= kFusedMaxRanks; ++ranks) {
    for (int ctas : {1, 3, 32}) {
      const FusedLayout layout{.ranks = ranks, .ctas = ctas, .bits = 4};
      for (std::int64_t count : {1, 2047, 2048, 2049, 100'000, 5'000'000}) {
        CAPTURE(ranks);
        CAPTURE(ctas);
        CAPTURE(count);
        const FusedPlan plan = fused_plan(count, layout);
        const std::int64_t rows = segment_tiles(count, ranks);
        CHECK(plan.ctas >= 1);
        CHECK(plan.ctas <= ctas);
        CHECK(plan.cta_lanes >= 1);
        CHECK(plan.cta_lanes <= kFusedCtaLanes);
        CHECK(plan.ctas * plan.cta_lanes <= fused_lanes(layout));
        CHECK(plan.rows >= 1);
        CHECK(plan.rows <= kFusedChunkRows);
        CHECK(static_cast<std::int64_t>(plan.chunks) * plan.rows >= rows);
        CHECK((static_cast<std::int64_t>(plan.chunks) - 1) * plan.rows < rows);
      }
    }
  }
}

TEST_CASE("fused plan: a small call spreads over CTAs before lanes share one, a large one fills all lanes") {
  const FusedLayout layout{.ranks = 2, .ctas = 8, .bits = 4};
  const std::int64_t row = 2 * kTileElements;
  CHECK(fused_plan(3 * row, layout).ctas == 3);
  CHECK(fused_plan(3 * row, layout).cta_lanes == 1);
  CHECK(fused_plan(9 * row, layout).ctas == 8);
  CHECK(fused_plan(9 * row, layout).cta_lanes == 2);
  CHECK(fused_plan(1000 * row, layout).cta_lanes == kFusedCtaLanes);
  CHECK(fused_plan(1000 * row, layout).rows == kFusedChunkRows);
  CHECK(fused_plan(0, layout).chunks == 0);
  CHECK(fused_plan(0, layout).ctas == 0);
}

TEST_CASE(
    "fused plan: flags and slots of a window do not overlap, and slots are aligned for 16-byte accesses") {
  for (int bits : {4, 8}) {
    const FusedLayout layout{.ranks = 3, .ctas = 2, .bits = bits};
    std::vector<bool> taken(static_cast<std::size_t>(fused_window_bytes(layout)), false);
    const auto take = [&](std::int64_t begin, std::int64_t bytes) {
      REQUIRE(begin >= 0);
      REQUIRE(begin + bytes <= fused_window_bytes(layout));
      for (std::int64_t at = begin; at < begin + bytes; ++at) {
        REQUIRE(!taken[static_cast<std::size_t>(at)]);
        taken[static_cast<std::size_t>(at)] = true;
      }
    };
    for (int lane = 0; lane < fused_lanes(layout); ++lane) {
      for (const Leg leg : {Leg::kFirst, Leg::kSecond}) {
        for (int peer = 0; peer < layout.ranks; ++peer) take(fused_flag_offset(lane, leg, peer), 4);
        for (int slot = 0; slot < kFusedSlots; ++slot) {
          for (int source = 0; source < layout.ranks; ++source) {
            const std::int64_t at = fused_slot_offset(layout, lane, leg, slot, source);
            CHECK(at % 128 == 0);
            take(at, used_bytes(layout));
          }
        }
      }
    }
  }
}

TEST_CASE("fused plan: the largest window is addressed with 32 bits") {
  CHECK(fused_window_bytes({.ranks = kFusedMaxRanks, .ctas = 256, .bits = 8}) < std::int64_t{1} << 32);
}
