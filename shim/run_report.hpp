// SPDX-License-Identifier: Apache-2.0
// RUN REPORT: the receipts of all processes of one run, added up: what was seen, compressed, forwarded and
// why, and what that saved on the wire.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shim/coverage_report.hpp"
#include "shim/decision.hpp"
#include "shim/receipt.hpp"

namespace echotp {

/// What the launcher knows of the run.
struct RunFacts {
  std::vector<std::string> command = {};
  std::optional<int> exit_code = {};  // of the job, 128 + signal; unset: not ended
  std::string mode = {};              // observe, compress
  std::string policy_path = {};       // may be empty
  std::uint64_t policy_hash = 0;
};

/// Sums over all processes: one all-reduce of P ranks counts P times.
struct RunTotals {
  std::int64_t calls = 0;
  std::int64_t compressed = 0;
  std::int64_t forwarded = 0;  // calls - compressed
  std::int64_t captured = 0;
  std::int64_t uncompensated = 0;
  std::int64_t nonfinite_groups = 0;
  std::array<std::int64_t, static_cast<std::size_t>(Reason::kCount)> by_reason{};
  std::map<std::int64_t, SizeClass> by_bytes;  // for the table by message size
  std::int64_t payload_bytes = 0;
  std::int64_t nccl_wire_bytes = 0;
  std::int64_t echo_wire_bytes = 0;
  /// Bytes that a ring would have sent for the compressed calls and Echo did not; negative if Echo sent more.
  std::int64_t saved_wire_bytes() const { return nccl_wire_bytes - echo_wire_bytes; }
};

/// NCCL's own count of all-reduces against ours, over the processes in which NCCL reported it.
struct RunCoverage {
  std::int64_t nccl_all_reduces = 0;
  std::int64_t missed = 0;  // of these, not seen by the shim
  int processes = 0;        // in which NCCL reported its calls
  int unwatched = 0;        // with all-reduces that we saw, where NCCL reported nothing
};

struct RunReport {
  RunFacts facts;
  int ranks_seen = 0;  // processes that held a communicator
  RunTotals totals;
  std::optional<RunCoverage> coverage;  // unset: no process was watched
  std::vector<Receipt> processes;
  std::vector<std::string> problems;  // one line each, for people
};

/// Adds receipts up and looks for what does not fit: no receipt at all, ranks without one, policies that
/// differ, errors. `problems` are those of reading; found ones are added.
RunReport merge_receipts(RunFacts facts, std::vector<Receipt> receipts, std::vector<std::string> problems);

/// Adds the coverage of all processes; all-reduces that were missed become a problem.
void add_coverage(RunReport& report, const std::vector<ProcessCoverage>& processes);

/// JSON of a report, schema echo-tp/run/1.
std::string run_report_json(const RunReport& report);

}  // namespace echotp
