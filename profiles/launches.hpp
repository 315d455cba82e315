// SPDX-License-Identifier: Apache-2.0
// LAUNCHES: which host call launched a device operation. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "profiles/clock.hpp"
#include "profiles/trace.hpp"

namespace echotp {

struct Launches {
  std::vector<std::int32_t> api_of_op;    // index into Trace::host_apis; -1: not recorded
  std::vector<std::int64_t> launched_ns;  // by operation, aligned start of that call; -1: not recorded
  std::vector<double> coverage;           // by process: share of operations whose launch was recorded
  double total_coverage = 0;              // over all processes
  /// Host calls of a process are used only where most operations have theirs.
  bool host_known(std::int32_t process) const { return coverage[process] >= 0.5; }
};

/// Joins by (process, correlation).
Launches find_launches(const Trace& trace, const ClockAlignment& alignment);

}  // namespace echotp
