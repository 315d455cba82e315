// SPDX-License-Identifier: Apache-2.0
// TIMELINE: what had to happen before what, over all ranks. Every device operation and host call is a pair of
// points (its start and its end), every rendezvous one point (the last arrival). An edge from p to q with lag
// l says: q is not earlier than p + l. What the edges leave unexplained stays at a point as its residual, so
// the replay of an unchanged timeline gives the recorded times. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "profiles/clock.hpp"
#include "profiles/collectives.hpp"
#include "profiles/launches.hpp"
#include "profiles/trace.hpp"

namespace echotp {

enum class EdgeKind : std::uint8_t {
  kDuration,   // start to end of one operation or host call
  kStream,     // operations of one stream run in order
  kOverlap,    // neighbours of one stream that were seen to overlap: start to start, end to end
  kLaunch,     // host call to the operation that it launched
  kEvent,      // event record on one stream, wait on another
  kSync,       // operation to the end of the host call that waited for it
  kQueue,      // operation to the end of a launch that was blocked by a full queue
  kHostOrder,  // calls of one thread
  kHandOff,    // one thread goes on where another stopped
  kInferred,   // guessed: the operation began right when another stream became free
  kArrival,    // kernel start to its rendezvous
  kTransfer,  // rendezvous to kernel end; the lag is what this rank ended after the last arrival and transfer
};

struct Edge {
  std::uint32_t from = 0;
  EdgeKind kind = EdgeKind::kDuration;
  std::int64_t lag_ns = 0;  // >= 0, but for kTransfer
};

struct TimelineQuality {
  std::int64_t contradicted_edges = 0;  // the times say otherwise: left out
  std::int64_t inferred_edges = 0;      // kInferred and kHandOff
  std::int64_t broken_cycles = 0;       // edges that were left out to break a cycle
  double residual_share = 0;            // mean over processes: unexplained device waits, of the window
};

struct Timeline {
  std::size_t ops = 0;                    // point 2*i is the start of device operation i, 2*i+1 its end
  std::size_t host_base = 0;              // point host_base + 2*a is the start of host call a, + 1 its end
  std::size_t meet_base = 0;              // point meet_base + r is rendezvous r
  std::vector<std::int64_t> observed_ns;  // by point; -1: takes no part
  std::vector<std::int64_t> residual_ns;  // by point, >= 0; of a point without edges: its time
  std::vector<std::uint8_t> pinnable;     // by point: an unexplained wait that the host may have caused
  std::vector<std::uint32_t> first_edge;  // edges of point p: first_edge[p] .. first_edge[p+1]
  std::vector<Edge> edges;                // incoming, by point
  std::vector<std::uint32_t> order;       // points that take part, topologically
  TimelineQuality quality;
};

/// Builds the timeline. Cost is linear in operations, host calls and edges, but for sorting.
Timeline build_timeline(const Trace& trace, const DeviceTimes& times, const ClockAlignment& alignment,
                        const Launches& launches, const CollectiveSet& set);

}  // namespace echotp
