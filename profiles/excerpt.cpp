// SPDX-License-Identifier: Apache-2.0
// Cutting at the borders of steps.
#include "profiles/excerpt.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "profiles/study.hpp"

namespace echotp {
namespace {

// An absolute path becomes its last part.
std::string without_folder(const std::string& word) {
  return word.starts_with('/') ? word.substr(word.rfind('/') + 1) : word;
}

struct Window {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = std::numeric_limits<std::int64_t>::max();
  bool holds(std::int64_t time_ns) const { return time_ns >= begin_ns && time_ns < end_ns; }
};

}  // namespace

Result<Trace> excerpt_of_steps(const Trace& trace, std::int32_t first, std::int32_t count) {
  const auto study = study_trace(trace, "");
  if (!study) return study.error();
  const Steps& steps = study->steps;
  if (steps.source != StepSource::kRanges)
    return Error{ErrorCode::kBadInput, "the job did not name its steps by NVTX ranges", ""};
  if (first < 0 || count < 1 || first > steps.found - count)
    return Error{ErrorCode::kBadInput, "the recording has " + std::to_string(steps.found) + " steps", ""};
  std::vector<Window> windows(trace.processes.size());
  for (std::size_t process = 0; process < windows.size(); ++process) {
    const std::vector<std::int64_t>& begins = steps.begin_ns[process];
    windows[process].begin_ns = begins[static_cast<std::size_t>(first)];
    const auto next = static_cast<std::size_t>(first + count);
    if (next < begins.size()) windows[process].end_ns = begins[next];
  }
  const auto inside = [&](std::int32_t process, std::int64_t time_ns) {
    return windows[process].holds(aligned_ns(study->clocks, process, time_ns));
  };
  Trace out;
  out.processes = trace.processes;
  out.names = trace.names;
  out.communicators = trace.communicators;
  out.command = trace.command;
  out.mixed_commands = trace.mixed_commands;
  out.truncated_frames = trace.truncated_frames;
  out.excerpt = trace.excerpt ? trace.excerpt : Excerpt{steps.found};
  std::vector<std::int32_t> new_op(trace.device_ops.size(), -1);
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    const std::int32_t step = steps.step_of_op[i];
    if (step < first || step >= first + count) continue;
    new_op[i] = static_cast<std::int32_t>(out.device_ops.size());
    out.device_ops.push_back(trace.device_ops[i]);
    out.device_ops.back().call = -1;
  }
  for (const CollectiveCall& call : trace.calls) {
    CollectiveCall kept = call;
    kept.ops.clear();
    for (const std::int32_t op : call.ops) {
      if (new_op[op] >= 0) kept.ops.push_back(new_op[op]);
    }
    const bool unseen = call.ops.empty() && inside(call.process, call.host_start_ns);
    if (kept.ops.empty() && !unseen) continue;
    for (const std::int32_t op : kept.ops) {
      std::int32_t& owner = out.device_ops[op].call;
      if (owner < 0) owner = static_cast<std::int32_t>(out.calls.size());
    }
    out.calls.push_back(std::move(kept));
  }
  for (const HostApi& api : trace.host_apis) {
    if (inside(api.process, api.start_ns)) out.host_apis.push_back(api);
  }
  for (const Range& range : trace.ranges) {
    if (inside(range.process, range.start_ns)) out.ranges.push_back(range);
  }
  return out;
}

void strip_folders(Trace& trace) {
  for (std::string& word : trace.command) word = without_folder(word);
  for (Process& process : trace.processes) {
    std::string program;
    for (std::size_t at = 0; at <= process.program.size();) {
      const std::size_t end = std::min(process.program.find(' ', at), process.program.size());
      if (at > 0) program += ' ';
      program += without_folder(process.program.substr(at, end - at));
      at = end + 1;
    }
    process.program = std::move(program);
  }
}

}  // namespace echotp
