// SPDX-License-Identifier: Apache-2.0
// Replay of a timeline and the way back along its critical path.
#include "profiles/simulate.hpp"

#include <algorithm>
#include <limits>

namespace echotp {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();

// Of the host, rather than of something that it waits for.
bool is_work(EdgeKind kind) {
  return kind == EdgeKind::kDuration || kind == EdgeKind::kHostOrder || kind == EdgeKind::kHandOff;
}

// What an edge demands of its point.
std::int64_t demand(const Timeline& timeline, const Scenario& scenario, const Edge& edge, std::uint32_t point,
                    const std::vector<std::int64_t>& at) {
  if (!scenario.host_factor.empty() && point >= timeline.host_base && point < timeline.meet_base &&
      is_work(edge.kind)) {
    const double factor = scenario.host_factor[(point - timeline.host_base) / 2];
    return at[edge.from] + static_cast<std::int64_t>(static_cast<double>(edge.lag_ns) * factor);
  }
  if (edge.kind != EdgeKind::kTransfer) return at[edge.from] + edge.lag_ns;
  const std::int64_t lag =
      std::max<std::int64_t>(0, scenario.transfer_ns[edge.from - timeline.meet_base] + edge.lag_ns);
  // The start of a kernel is the point before its end.
  return (scenario.no_wait ? at[point - 1] : at[edge.from]) + lag;
}

}  // namespace

Scenario recorded_scenario(const CollectiveSet& set) {
  Scenario scenario;
  scenario.transfer_ns.reserve(set.rendezvous.size());
  for (const Rendezvous& rendezvous : set.rendezvous) scenario.transfer_ns.push_back(rendezvous.transfer_ns);
  return scenario;
}

std::vector<std::int64_t> simulate(const Timeline& timeline, const Scenario& scenario) {
  std::vector<std::int64_t> at(timeline.observed_ns.size(), -1);
  for (const std::uint32_t point : timeline.order) {
    std::int64_t latest = kNever;
    for (std::uint32_t i = timeline.first_edge[point]; i < timeline.first_edge[point + 1]; ++i)
      latest = std::max(latest, demand(timeline, scenario, timeline.edges[i], point, at));
    at[point] = (latest == kNever ? 0 : latest) + timeline.residual_ns[point];
    if (scenario.pin_unexplained && timeline.pinnable[point] != 0)
      at[point] = std::max(at[point], timeline.observed_ns[point]);
  }
  return at;
}

namespace {

void split(const Timeline& timeline, const std::vector<std::int64_t>& at, std::vector<std::int64_t>& start,
           std::vector<std::int64_t>& end) {
  start.resize(timeline.ops);
  end.resize(timeline.ops);
  for (std::size_t i = 0; i < timeline.ops; ++i) {
    start[i] = at[2 * i];
    end[i] = at[2 * i + 1];
  }
}

}  // namespace

std::vector<std::int64_t> simulated_steps_ns(const Trace& trace, const Timeline& timeline, const Steps& steps,
                                             const Scenario& scenario) {
  std::vector<std::int64_t> start, end;
  split(timeline, simulate(timeline, scenario), start, end);
  return step_durations(trace, steps, start, end);
}

double simulated_step_ns(const Trace& trace, const Timeline& timeline, const Steps& steps,
                         const Scenario& scenario) {
  return median_step_ns(steps, simulated_steps_ns(trace, timeline, steps, scenario));
}

CriticalPath critical_path(const Trace& trace, const Timeline& timeline, const Steps& steps,
                           const CollectiveSet& set, const Scenario& scenario,
                           const std::vector<std::int64_t>& times_ns) {
  CriticalPath path;
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::uint32_t point = 0;
  bool any = false;
  for (std::size_t i = 0; i < steps.step_of_op.size(); ++i) {
    if (!steps.is_used(steps.step_of_op[i])) continue;
    begin = std::min(begin, times_ns[2 * i]);
    if (!any || times_ns[2 * i + 1] > times_ns[point]) point = static_cast<std::uint32_t>(2 * i + 1);
    any = true;
  }
  // Every hop goes to an earlier place in the order, so the walk ends.
  while (any && times_ns[point] > begin) {
    const Edge* tight = nullptr;
    std::int64_t latest = kNever;
    for (std::uint32_t i = timeline.first_edge[point]; i < timeline.first_edge[point + 1]; ++i) {
      const std::int64_t needs = demand(timeline, scenario, timeline.edges[i], point, times_ns);
      if (tight == nullptr || needs > latest) {
        latest = needs;
        tight = &timeline.edges[i];
      }
    }
    if (tight == nullptr) break;
    path.unexplained_ns +=
        static_cast<double>(std::max<std::int64_t>(0, times_ns[point] - std::max(latest, begin)));
    const std::uint32_t from =
        tight->kind == EdgeKind::kTransfer && scenario.no_wait ? point - 1 : tight->from;
    const auto spent = static_cast<double>(
        std::max<std::int64_t>(0, std::max(latest, begin) - std::max(times_ns[from], begin)));
    const bool device = point < timeline.host_base;
    switch (tight->kind) {
      case EdgeKind::kDuration:
        if (!device) {
          path.host_ns += spent;
        } else if (trace.device_ops[point / 2].kind != DeviceOpKind::kKernel) {
          path.copies_ns += spent;
        } else if (set.rendezvous_of_op[point / 2] >= 0) {
          path.transfer_ns += spent;
        } else {
          path.compute_ns += spent;
        }
        break;
      case EdgeKind::kTransfer:
        path.transfer_ns += spent;
        break;
      case EdgeKind::kHostOrder:
      case EdgeKind::kHandOff:
        path.host_ns += spent;
        break;
      case EdgeKind::kOverlap:
        path.compute_ns += spent;
        break;
      default:
        path.launch_ns += spent;
    }
    point = from;
  }
  return path;
}

}  // namespace echotp
