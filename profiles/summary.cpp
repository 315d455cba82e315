// SPDX-License-Identifier: Apache-2.0
// The table of `echo-tp profile`.
#include "profiles/summary.hpp"

#include <algorithm>
#include <limits>

#include "profiles/bypass.hpp"
#include "profiles/proposal.hpp"
#include "profiles/size_classes.hpp"
#include "profiles/study.hpp"

namespace echotp {
namespace {

constexpr std::size_t kShownName = 120;
constexpr int kMostReplays = 8;
constexpr double kTrustedReplay = 0.10;  // identity error up to which the replay says anything

double us(double ns) {
  return ns / 1000.0;
}

SummaryRow row_of(const Trace& trace, const CollectiveSet& set, const MessageClass& it) {
  SummaryRow row;
  row.function = it.function;
  row.dtype = it.dtype;
  row.op = it.op;
  row.bytes = it.bytes;
  row.min_bytes = it.min_bytes;
  row.ranks = ranks_of(trace, set, set.collectives[it.collectives.front()]);
  row.calls = static_cast<std::int64_t>(it.collectives.size());
  row.unseen = row.calls - it.timed;
  return row;
}

void fill_processes(const Trace& trace, ProfileSummary& out) {
  for (const Process& process : trace.processes) {
    SummaryProcess row;
    row.rank = process.rank;
    row.pid = process.pid;
    row.host = process.host;
    row.gpu = process.gpu;
    row.notes = process.notes;
    if (process.dropped_records > 0)
      row.notes.push_back("dropped " + std::to_string(process.dropped_records) + " records");
    if (!process.complete) row.notes.push_back("did not end in order: recorded up to there");
    out.processes.push_back(std::move(row));
  }
  for (const CollectiveCall& call : trace.calls) {
    if (call.process >= 0) ++out.processes[call.process].calls;
  }
  for (const DeviceOp& op : trace.device_ops) {
    if (op.process >= 0) ++out.processes[op.process].device_ops;
  }
}

void fill_bypass(const Trace& trace, const DeviceTimes& times, const CollectiveSet& set,
                 ProfileSummary& out) {
  for (const BypassUse& use : find_bypass(trace, times, set)) {
    SummaryBypass row;
    row.kernel = trace.names[use.name].substr(0, kShownName);
    row.framework = use.kind->framework;
    row.how_to_switch_off = use.kind->how_to_switch_off;
    row.calls = use.calls;
    row.total_us = us(use.total_ns);
    out.notes.push_back(std::to_string(row.calls) + " kernels " + row.kernel + " (" + row.framework +
                        ") bypass NCCL; to let Echo see them: " + row.how_to_switch_off);
    out.bypass.push_back(std::move(row));
  }
}

void fill_notes(const Trace& trace, const CollectiveSet& set, ProfileSummary& out) {
  if (trace.processes.empty()) {
    out.notes.push_back("no process was recorded");
    return;
  }
  if (trace.mixed_commands)
    out.notes.push_back("the profile holds recordings of different commands: they are taken as one job");
  if (trace.excerpt)
    out.notes.push_back("the profile is an excerpt of a recording of " +
                        std::to_string(trace.excerpt->of_steps) + " steps");
  if (trace.calls.empty())
    out.notes.push_back("no collective went through NCCL");
  else if (set.calls_without_kernel > 0)
    out.notes.push_back(std::to_string(set.calls_without_kernel) +
                        " collective calls have no recorded kernel: counted, but not in the times");
  if (trace.truncated_frames > 0) out.notes.push_back("the profile was cut by a crash: readable up to there");
  if (set.contradictory > 0)
    out.notes.push_back(std::to_string(set.contradictory) +
                        " calls disagree with other ranks on the size of the same collective");
  for (const Communicator& communicator : trace.communicators) {
    const auto seen = std::count_if(communicator.rank_of_process.begin(), communicator.rank_of_process.end(),
                                    [](std::int32_t rank) { return rank >= 0; });
    if (communicator.ranks > 0 && seen < communicator.ranks)
      out.notes.push_back("recorded " + std::to_string(seen) + " of " + std::to_string(communicator.ranks) +
                          " ranks of a communicator: waiting is not told from transfer there");
  }
}

}  // namespace

ProfileSummary summarise(const Trace& trace) {
  ProfileSummary out;
  if (const Status whole = check_trace(trace); !whole) {
    out.notes.push_back(whole.error().text());
    return out;
  }
  fill_processes(trace, out);
  const auto study = study_trace(trace, "");
  if (!study) {
    DeviceTimes times = recorded_times(trace, nullptr);
    const CollectiveSet set = match_collectives(trace, times);
    out.collectives = static_cast<std::int64_t>(set.collectives.size());
    for (const MessageClass& it : size_classes_without_times(trace, set)) {
      SummaryRow row = row_of(trace, set, it);
      row.unseen = row.calls;
      out.rows.push_back(std::move(row));
    }
    fill_bypass(trace, times, set, out);
    fill_notes(trace, set, out);
    if (!trace.processes.empty()) out.notes.push_back(study.error().text());
    return out;
  }
  const Steps& steps = study->steps;
  out.step_source = step_source_name(steps.source);
  out.steps_found = steps.found;
  out.steps_used = steps.used();
  if (steps.source != StepSource::kWindow) out.step_us = us(steps.median_ns);
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  for (std::size_t i = 0; i < study->times.start_ns.size(); ++i) {
    if (study->times.start_ns[i] < 0) continue;
    begin = std::min(begin, study->times.start_ns[i]);
    end = std::max(end, study->times.end_ns[i]);
  }
  out.window_us = us(static_cast<double>(end - begin));
  out.collectives = static_cast<std::int64_t>(study->set.collectives.size());
  for (const Rendezvous& rendezvous : study->set.rendezvous) out.partial_collectives += rendezvous.partial;
  int replays = study->identity_error <= kTrustedReplay ? kMostReplays : 0;
  for (const MessageClass& it : size_classes(trace, *study, false)) {
    SummaryRow row = row_of(trace, study->set, it);
    if (it.timed > 0) {
      row.total_us = us(it.in_all.total);
      if (!it.partial) row.wait_us = us(it.in_all.wait);
      row.transfer_us = us(it.in_all.transfer);
      row.exposed_us = us(it.in_all.exposed);
      row.share_of_step = it.in_steps.total / (steps.median_ns * steps.used());
    }
    if (it.used > 0 && replays-- > 0) {
      const double saved = study->replayed_ns - simulated_step_ns(trace, study->timeline, steps,
                                                                  free_transfer(*study, it.collectives));
      row.exposed_critical_us = us(saved) * steps.used();
    }
    out.rows.push_back(std::move(row));
  }
  fill_bypass(trace, study->times, study->set, out);
  fill_notes(trace, study->set, out);
  for (const std::string& text : study->clocks.warnings) out.notes.push_back(text);
  if (steps.source == StepSource::kWindow)
    out.notes.push_back("no steps were found: shares are of the whole recording");
  if (study->identity_error > kTrustedReplay)
    out.notes.push_back("the unchanged replay misses the measured step by more than 10%: no critical times");
  return out;
}

}  // namespace echotp
