// SPDX-License-Identifier: Apache-2.0
// COLLECTIVES: joins the calls of all ranks into collectives, and splits a collective's time into waiting for
// the last rank and transfer. Only the transfer can shrink. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/trace.hpp"

namespace echotp {

/// Device start and end of every operation on one clock, in nanoseconds; -1: the record has no usable time.
struct DeviceTimes {
  std::vector<std::int64_t> start_ns;
  std::vector<std::int64_t> end_ns;
  bool usable(std::int32_t op) const { return start_ns[op] >= 0; }
};

/// The times as recorded, without those that are zero, negative or fall; `invalid` counts these.
DeviceTimes recorded_times(const Trace& trace, std::int64_t* invalid);

/// One rank's kernel in a rendezvous.
struct Arrival {
  std::int32_t process = -1;
  std::int32_t op = -1;  // index into Trace::device_ops
};

/// One collective, all ranks together.
struct Collective {
  std::int32_t communicator = -1;
  std::int32_t call = -1;  // index into Trace::calls: one of its ranks, for what is equal on all
  std::int64_t sequence = -1;
  std::int32_t replay = 0;       // ordinal of the graph launch, for captured calls
  std::int64_t bytes = -1;       // of the message; -1: unknown
  std::string dtype;             // of the call, else of the kernel's name; empty: unknown
  std::int32_t rendezvous = -1;  // index into CollectiveSet::rendezvous; -1: no kernel was seen
  double share = 1;              // of the rendezvous' time, by bytes, when several calls shared the launch
};

/// Kernels of several ranks that wait for each other: one collective, or several that shared a launch.
struct Rendezvous {
  std::vector<std::int32_t> collectives;
  std::vector<Arrival> arrivals;  // one a process, usable times only
  std::int32_t ranks = 0;         // expected; 0: unknown
  bool partial = false;           // ranks are missing
  bool barrier = true;            // nobody leaves before everyone came; false: send, broadcast and the like
  std::int64_t last_arrival_ns = -1;
  std::int64_t transfer_ns = 0;  // shortest duration over the recorded ranks
  std::int64_t credited_ns = 0;  // part of it that counts as transfer; the rest is a disturbance
  std::int64_t fast_ns = 0;      // transfer of the fast calls (10th percentile) of its class
};

struct CollectiveSet {
  std::vector<Collective> collectives;
  std::vector<Rendezvous> rendezvous;
  std::vector<std::int32_t> rendezvous_of_op;  // by device operation; -1: carries no collective
  std::int64_t calls_without_kernel = 0;
  std::int64_t contradictory = 0;  // same key, other size: matched ranks that disagree
  std::int64_t imputed = 0;        // ends that were filled in from the class
};

/// Joins calls by (communicator, function, sequence); captured calls also by graph launch. A call without a
/// sequence gets its ordinal in its process. A kernel whose end has no usable time gets its class' median
/// duration in `times`.
CollectiveSet match_collectives(const Trace& trace, DeviceTimes& times);

/// Fills last arrival, transfer and credited time from `times`, which are on one clock by now.
void measure_collectives(const Trace& trace, const DeviceTimes& times, CollectiveSet& set);

/// Time that an arrival spent waiting for the last rank, in nanoseconds, 0 or more.
std::int64_t wait_ns(const Rendezvous& rendezvous, const Arrival& arrival, const DeviceTimes& times);

/// True for "AllReduce", in any spelling that recorders use ("ncclAllReduce", "all_reduce").
bool is_all_reduce(std::string_view function);

/// "AllReduce" -> "all_reduce": as policies spell it.
std::string policy_function_name(std::string_view function);

/// Sorts `values` and returns the one at `quantile` (0 to 1), nearest rank; 0 if there is none.
std::int64_t quantile_of(std::vector<std::int64_t>& values, double quantile);

}  // namespace echotp
