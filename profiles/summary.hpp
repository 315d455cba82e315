// SPDX-License-Identifier: Apache-2.0
// SUMMARY: what `echo-tp profile` prints: collectives by message size, what they cost the step, and what
// could not be recorded. Works on any trace; what the data can't carry is unset. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiles/trace.hpp"

namespace echotp {

/// One function, data type and size on communicators of one number of ranks. Times are microseconds over the
/// whole recording, means over the recorded ranks.
struct SummaryRow {
  std::string function;
  std::string dtype;        // empty: unknown
  std::string op;           // empty: unknown
  std::int64_t bytes = -1;  // of a call, the largest of the row; -1: unknown
  std::int64_t min_bytes = -1;
  int ranks = 0;                   // 0: unknown
  std::int64_t calls = 0;          // collectives, each counted once for all its ranks
  std::int64_t unseen = 0;         // calls without a kernel: not in the times
  std::optional<double> total_us;  // unset: no device times
  std::optional<double> wait_us;   // unset: ranks are missing
  std::optional<double> transfer_us;
  std::optional<double> exposed_us;           // no compute kernel of that rank ran beside it
  std::optional<double> exposed_critical_us;  // from the replay: what the steps would lose without it
  std::optional<double> share_of_step;        // total time in the used steps / their length
};

struct SummaryProcess {
  int rank = -1;
  std::int32_t pid = -1;
  std::string host;
  std::string gpu;
  std::int64_t calls = 0;  // collectives that this process issued
  std::int64_t device_ops = 0;
  std::vector<std::string> notes;  // dropped records, missing tiers, crash
};

struct SummaryBypass {
  std::string kernel;
  std::string framework;
  std::string how_to_switch_off;
  std::int64_t calls = 0;
  double total_us = 0;
};

struct ProfileSummary {
  std::string step_source;  // "ranges", "period", "window"; empty: no device times
  std::int64_t steps_found = 0;
  std::int64_t steps_used = 0;
  std::optional<double> step_us;    // median of the slowest rank's step
  std::optional<double> window_us;  // first start to last end on the devices
  std::int64_t collectives = 0;
  std::int64_t partial_collectives = 0;
  std::vector<SummaryRow> rows;  // largest total first
  std::vector<SummaryProcess> processes;
  std::vector<SummaryBypass> bypass;
  std::vector<std::string> notes;  // one line each
};

/// Never fails: an empty trace gives an empty summary with a note.
ProfileSummary summarise(const Trace& trace);

/// Document of schema echo-tp/summary/1, keys in a fixed order; ends with a newline.
std::string summary_json(const ProfileSummary& summary);

}  // namespace echotp
