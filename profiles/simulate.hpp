// SPDX-License-Identifier: Apache-2.0
// SIMULATE: replays a timeline with other transfer times. One pass over its points. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "profiles/steps.hpp"
#include "profiles/timeline.hpp"

namespace echotp {

struct Scenario {
  std::vector<std::int64_t> transfer_ns;  // by rendezvous
  bool no_wait = false;                   // every rank transfers as soon as it arrives
  bool pin_unexplained = false;           // waits that the host may have caused keep their clock time
  std::vector<float> host_factor;         // by host call, of its work; empty: as recorded
};

/// The scenario that changes nothing.
Scenario recorded_scenario(const CollectiveSet& set);

/// Time of every point, in nanoseconds; points that take no part keep -1.
std::vector<std::int64_t> simulate(const Timeline& timeline, const Scenario& scenario);

/// By step, its duration in a replay, in nanoseconds.
std::vector<std::int64_t> simulated_steps_ns(const Trace& trace, const Timeline& timeline, const Steps& steps,
                                             const Scenario& scenario);

/// Median step of a replay, in nanoseconds.
double simulated_step_ns(const Trace& trace, const Timeline& timeline, const Steps& steps,
                         const Scenario& scenario);

/// Nanoseconds of the critical path through the used steps, by what it consists of.
struct CriticalPath {
  double compute_ns = 0;
  double transfer_ns = 0;  // inside collectives, after the last arrival
  double copies_ns = 0;
  double host_ns = 0;
  double launch_ns = 0;  // launch and return latencies
  double unexplained_ns = 0;
  double total_ns() const {
    return compute_ns + transfer_ns + copies_ns + host_ns + launch_ns + unexplained_ns;
  }
};

/// Walks back from the last operation of the used steps over whatever was latest.
CriticalPath critical_path(const Trace& trace, const Timeline& timeline, const Steps& steps,
                           const CollectiveSet& set, const Scenario& scenario,
                           const std::vector<std::int64_t>& times_ns);

}  // namespace echotp
