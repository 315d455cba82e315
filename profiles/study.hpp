// SPDX-License-Identifier: Apache-2.0
// STUDY: everything that estimate and summary need to know of a trace, computed once: matched collectives on
// one clock, steps, timeline, and how far the replay of the unchanged timeline is from what was recorded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiles/clock.hpp"
#include "profiles/collectives.hpp"
#include "profiles/launches.hpp"
#include "profiles/simulate.hpp"
#include "profiles/steps.hpp"
#include "profiles/timeline.hpp"
#include "profiles/trace.hpp"
#include "shim/result.hpp"

namespace echotp {

struct Study {
  DeviceTimes times;  // on one clock
  std::int64_t invalid_ops = 0;
  CollectiveSet set;
  ClockAlignment clocks;
  Launches launches;
  Steps steps;
  Timeline timeline;
  Scenario recorded;
  double replayed_ns = 0;                // step of the unchanged replay
  double identity_error = 0;             // |replayed - measured| / measured
  std::vector<std::int64_t> exposed_ns;  // by operation that carries a collective: no compute beside it
};

/// That all indices of a trace point into it; kBadInput names the first that does not.
Status check_trace(const Trace& trace);

/// Studies a trace. Fails with kInsufficient if it holds no usable device operation, or a step that takes no
/// time; with kBadInput as check_trace() and find_steps().
Result<Study> study_trace(const Trace& trace, const std::string& step_regex);

}  // namespace echotp
