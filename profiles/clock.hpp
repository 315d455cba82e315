// SPDX-License-Identifier: Apache-2.0
// CLOCK: brings the processes of several hosts onto one clock, from the ends of collectives: nobody can leave
// a collective long before the others. Never from starts, which differ by real waiting. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiles/collectives.hpp"
#include "profiles/trace.hpp"

namespace echotp {

struct ClockAlignment {
  /// Offset of a process over some time, in nanoseconds ahead of the reference process.
  struct Piece {
    std::int64_t time_ns = 0;
    std::int64_t offset_ns = 0;
  };
  std::vector<std::vector<Piece>> pieces;  // by process, in time order; empty: the clock is left alone
  std::vector<std::int64_t> offset_ns;     // by process: median over all its collectives, corrected or not
  std::vector<std::string> warnings;
};

/// Estimates the offsets. Processes of other hosts are corrected; one of the reference's own host only if its
/// uncorrected times are impossible (it leaves most collectives before the others come), as both read the
/// same clock and a steady difference of ends is how the exchange works.
ClockAlignment align_clocks(const Trace& trace, const DeviceTimes& times, const CollectiveSet& set);

/// Time of a process brought to the reference clock.
std::int64_t aligned_ns(const ClockAlignment& alignment, std::int32_t process, std::int64_t time_ns);

/// Corrects all usable times in place.
void apply_alignment(const Trace& trace, const ClockAlignment& alignment, DeviceTimes& times);

}  // namespace echotp
