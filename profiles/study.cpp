// SPDX-License-Identifier: Apache-2.0
// The chain from a trace to its replay.
#include "profiles/study.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "profiles/bypass.hpp"

namespace echotp {
namespace {

// Time of each collective's kernel during which no compute kernel of its process ran.
std::vector<std::int64_t> exposed_times(const Trace& trace, const DeviceTimes& times,
                                        const CollectiveSet& set) {
  const std::vector<bool> bypasses = bypass_names(trace);
  struct Busy {
    std::int64_t start, end, before;  // busy time before this stretch
  };
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> compute(trace.processes.size());
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    const DeviceOp& op = trace.device_ops[i];
    if (times.start_ns[i] < 0 || op.kind != DeviceOpKind::kKernel || set.rendezvous_of_op[i] >= 0 ||
        op.call >= 0 || (op.name >= 0 && bypasses[op.name]))
      continue;
    compute[op.process].emplace_back(times.start_ns[i], times.end_ns[i]);
  }
  std::vector<std::vector<Busy>> busy(compute.size());
  for (std::size_t process = 0; process < compute.size(); ++process) {
    std::sort(compute[process].begin(), compute[process].end());
    auto& out = busy[process];
    for (const auto& [start, end] : compute[process]) {
      if (!out.empty() && start <= out.back().end) {
        out.back().end = std::max(out.back().end, end);
      } else {
        const std::int64_t before = out.empty() ? 0 : out.back().before + out.back().end - out.back().start;
        out.push_back({start, end, before});
      }
    }
  }
  // Busy time of a process until a moment.
  const auto until = [&](std::int32_t process, std::int64_t time) -> std::int64_t {
    const auto& mine = busy[process];
    const auto after = std::upper_bound(mine.begin(), mine.end(), time,
                                        [](std::int64_t at, const Busy& it) { return at < it.start; });
    if (after == mine.begin()) return 0;
    const Busy& last = *(after - 1);
    return last.before + std::min(time, last.end) - last.start;
  };
  std::vector<std::int64_t> exposed(trace.device_ops.size(), 0);
  for (std::size_t i = 0; i < exposed.size(); ++i) {
    if (set.rendezvous_of_op[i] < 0 || times.start_ns[i] < 0) continue;
    const std::int32_t process = trace.device_ops[i].process;
    exposed[i] = times.end_ns[i] - times.start_ns[i] -
                 (until(process, times.end_ns[i]) - until(process, times.start_ns[i]));
  }
  return exposed;
}

}  // namespace

Status check_trace(const Trace& trace) {
  const auto inside = [](std::int64_t index, std::size_t size) {
    return index >= 0 && index < static_cast<std::int64_t>(size);
  };
  const auto unset_or_inside = [&](std::int64_t index, std::size_t size) {
    return index == -1 || inside(index, size);
  };
  const auto bad = [](const std::string& list, std::size_t at) {
    return Error{ErrorCode::kBadInput, "the profile is inconsistent: an index points outside of it",
                 list + "[" + std::to_string(at) + "]"};
  };
  const std::size_t processes = trace.processes.size();
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    const DeviceOp& op = trace.device_ops[i];
    if (!inside(op.process, processes) || !unset_or_inside(op.name, trace.names.size()) ||
        !unset_or_inside(op.call, trace.calls.size()))
      return bad("device_ops", i);
  }
  for (std::size_t i = 0; i < trace.calls.size(); ++i) {
    const CollectiveCall& call = trace.calls[i];
    const bool ops = std::all_of(call.ops.begin(), call.ops.end(),
                                 [&](std::int32_t op) { return inside(op, trace.device_ops.size()); });
    if (!ops || !inside(call.process, processes) ||
        !unset_or_inside(call.communicator, trace.communicators.size()))
      return bad("calls", i);
  }
  for (std::size_t i = 0; i < trace.host_apis.size(); ++i) {
    if (!inside(trace.host_apis[i].process, processes)) return bad("host_apis", i);
  }
  for (std::size_t i = 0; i < trace.ranges.size(); ++i) {
    const Range& range = trace.ranges[i];
    if (!inside(range.process, processes) || !unset_or_inside(range.name, trace.names.size()))
      return bad("ranges", i);
  }
  return Unit{};
}

Result<Study> study_trace(const Trace& trace, const std::string& step_regex) {
  if (const Status whole = check_trace(trace); !whole) return whole.error();
  Study study;
  study.times = recorded_times(trace, &study.invalid_ops);
  study.set = match_collectives(trace, study.times);
  study.invalid_ops -= study.set.imputed;
  const bool any = std::any_of(study.times.start_ns.begin(), study.times.start_ns.end(),
                               [](std::int64_t start) { return start >= 0; });
  if (!any) {
    return Error{ErrorCode::kInsufficient,
                 "no GPU kernel was timed, only what the host called: most often another profiler held the "
                 "GPU's tracing (CUPTI); record again without it",
                 ""};
  }
  study.clocks = align_clocks(trace, study.times, study.set);
  apply_alignment(trace, study.clocks, study.times);
  measure_collectives(trace, study.times, study.set);
  study.launches = find_launches(trace, study.clocks);
  auto steps = find_steps(trace, study.times, study.clocks, study.launches, step_regex);
  if (!steps) return steps.error();
  study.steps = *std::move(steps);
  if (study.steps.used() < 1 || study.steps.median_ns <= 0) {
    return Error{ErrorCode::kInsufficient,
                 "no step with device work was found: name the job's steps with --step", ""};
  }
  study.timeline = build_timeline(trace, study.times, study.clocks, study.launches, study.set);
  study.recorded = recorded_scenario(study.set);
  study.replayed_ns = simulated_step_ns(trace, study.timeline, study.steps, study.recorded);
  study.identity_error = std::abs(study.replayed_ns - study.steps.median_ns) / study.steps.median_ns;
  study.exposed_ns = exposed_times(trace, study.times, study.set);
  return study;
}

}  // namespace echotp
