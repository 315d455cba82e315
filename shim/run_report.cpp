// SPDX-License-Identifier: Apache-2.0
// Adding up of receipts, and the run document.
#include "shim/run_report.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;

void add(RunTotals& totals, const CommunicatorReceipt& communicator) {
  totals.calls += communicator.calls;
  totals.compressed += communicator.compressed;
  totals.captured += communicator.captured;
  totals.uncompensated += communicator.uncompensated;
  totals.nonfinite_groups += communicator.nonfinite_groups;
  totals.payload_bytes += communicator.payload_bytes;
  totals.nccl_wire_bytes += communicator.nccl_wire_bytes;
  totals.echo_wire_bytes += communicator.echo_wire_bytes;
  for (std::size_t i = 0; i < totals.by_reason.size(); ++i) totals.by_reason[i] += communicator.by_reason[i];
  for (const auto& [bytes, size] : communicator.by_bytes) {
    totals.by_bytes[bytes].calls += size.calls;
    totals.by_bytes[bytes].compressed += size.compressed;
  }
}

bool holds_communicator(const Receipt& receipt) {
  return std::any_of(receipt.communicators.begin(), receipt.communicators.end(),
                     [](const CommunicatorReceipt& communicator) { return communicator.ranks > 0; });
}

std::string process_name(const Receipt& receipt) {
  return receipt.host + " pid " + std::to_string(receipt.pid);
}

// Every rank says the same, because they voted: one line a communicator name and reason.
void find_switched_off(RunReport& report) {
  std::set<std::string> lines;
  for (const Receipt& receipt : report.processes) {
    for (const CommunicatorReceipt& communicator : receipt.communicators) {
      if (communicator.off.empty() || communicator.off == reason_name(Reason::kObserveMode) ||
          communicator.off == reason_name(Reason::kOneRank)) {
        continue;
      }
      lines.insert("communicator" + (communicator.name.empty() ? "" : " \"" + communicator.name + "\"") +
                   " of " + std::to_string(communicator.ranks) + " ranks was not compressed: " +
                   (communicator.off_detail.empty() ? communicator.off : communicator.off_detail));
    }
  }
  report.problems.insert(report.problems.end(), lines.begin(), lines.end());
}

// A rule that names the transport counts on it.
void find_missing_p2p(RunReport& report) {
  std::set<std::string> lines;
  for (const Receipt& receipt : report.processes) {
    for (const CommunicatorReceipt& communicator : receipt.communicators) {
      if (communicator.p2p_asked_for && communicator.p2p_way.empty())
        lines.insert("communicator" + (communicator.name.empty() ? "" : " \"" + communicator.name + "\"") +
                     " of " + std::to_string(communicator.ranks) +
                     " ranks: the policy says transport \"p2p\", staged was used: " + communicator.p2p_off);
    }
  }
  report.problems.insert(report.problems.end(), lines.begin(), lines.end());
}

void find_problems(RunReport& report) {
  if (report.processes.empty()) {
    report.problems.push_back(
        "no process left a receipt: none created an NCCL communicator that echo-tp could see");
    return;
  }
  // Communicators have no identity across processes. Those of one name and size are looked at together: a
  // rank that no process claims in any of them is missing for sure.
  std::map<std::pair<std::string, int>, std::vector<bool>> claimed;
  for (const Receipt& receipt : report.processes) {
    for (const CommunicatorReceipt& communicator : receipt.communicators) {
      if (communicator.ranks <= 0 || communicator.rank < 0 || communicator.rank >= communicator.ranks)
        continue;
      auto& ranks = claimed[{communicator.name, communicator.ranks}];
      ranks.resize(static_cast<std::size_t>(communicator.ranks));
      ranks[static_cast<std::size_t>(communicator.rank)] = true;
    }
  }
  for (const auto& [which, ranks] : claimed) {
    const auto missing = std::count(ranks.begin(), ranks.end(), false);
    if (missing == 0) continue;
    report.problems.push_back("communicator" + (which.first.empty() ? "" : " \"" + which.first + "\"") +
                              " of " + std::to_string(which.second) + " ranks: no receipt of " +
                              std::to_string(missing) + " of them; the counts do not hold their calls");
  }
  find_switched_off(report);
  find_missing_p2p(report);
  for (const Receipt& receipt : report.processes) {
    if (report.facts.policy_hash != 0 && receipt.policy_hash != 0 &&
        receipt.policy_hash != report.facts.policy_hash) {
      report.problems.push_back(process_name(receipt) + ": read another policy than the one of this run");
    }
    for (const std::string& error : receipt.errors)
      report.problems.push_back(process_name(receipt) + ": " + error);
  }
}

Json write_totals(const RunTotals& totals) {
  Json out;
  out["calls"] = totals.calls;
  out["compressed"] = totals.compressed;
  out["forwarded"] = totals.forwarded;
  out["captured"] = totals.captured;
  out["uncompensated"] = totals.uncompensated;
  out["nonfinite_groups"] = totals.nonfinite_groups;
  out["by_reason"] = Json::object();
  for (std::size_t i = 0; i < totals.by_reason.size(); ++i) {
    const auto reason = static_cast<Reason>(i);
    if (reason != Reason::kCompressed && totals.by_reason[i] != 0) {
      out["by_reason"][reason_name(reason)] = totals.by_reason[i];
    }
  }
  out["by_bytes"] = Json::array();
  for (const auto& [bytes, size] : totals.by_bytes) {
    out["by_bytes"].push_back({{"bytes", bytes}, {"calls", size.calls}, {"compressed", size.compressed}});
  }
  out["payload_bytes"] = totals.payload_bytes;
  out["nccl_wire_bytes"] = totals.nccl_wire_bytes;
  out["echo_wire_bytes"] = totals.echo_wire_bytes;
  out["saved_wire_bytes"] = totals.saved_wire_bytes();
  return out;
}

}  // namespace

RunReport merge_receipts(RunFacts facts, std::vector<Receipt> receipts, std::vector<std::string> problems) {
  RunReport report;
  report.facts = std::move(facts);
  report.processes = std::move(receipts);
  report.problems = std::move(problems);
  for (const Receipt& receipt : report.processes) {
    report.ranks_seen += holds_communicator(receipt);
    for (const CommunicatorReceipt& communicator : receipt.communicators) add(report.totals, communicator);
  }
  report.totals.forwarded = report.totals.calls - report.totals.compressed;
  find_problems(report);
  return report;
}

void add_coverage(RunReport& report, const std::vector<ProcessCoverage>& processes) {
  RunCoverage sum;
  for (const ProcessCoverage& process : processes) {
    if (!process.listening) {
      sum.unwatched += process.forwarded + process.compressed > 0;
      continue;
    }
    ++sum.processes;
    sum.nccl_all_reduces += process.nccl;
    sum.missed += process.missed();
    if (process.missed() > 0)
      report.problems.push_back(process.name + ": " + std::to_string(process.missed()) + " of " +
                                std::to_string(process.nccl) +
                                " all-reduces that NCCL reported did not pass echo-tp: NCCL is static "
                                "without symbols, opened with RTLD_DEEPBIND, or LD_PRELOAD was lost");
  }
  if (sum.processes > 0 || sum.unwatched > 0) report.coverage = sum;
}

std::string run_report_json(const RunReport& report) {
  Json out;
  out["schema"] = "echo-tp/run/1";
  out["command"] = report.facts.command;
  out["exit_code"] = report.facts.exit_code ? Json(*report.facts.exit_code) : Json(nullptr);
  out["mode"] = report.facts.mode;
  if (report.facts.policy_path.empty()) {
    out["policy"] = nullptr;
  } else {
    char hash[19];
    std::snprintf(hash, sizeof hash, "0x%016llx", static_cast<unsigned long long>(report.facts.policy_hash));
    out["policy"] = {{"path", report.facts.policy_path}, {"hash", hash}};
  }
  out["ranks_seen"] = report.ranks_seen;
  out["totals"] = write_totals(report.totals);
  out["coverage"] = nullptr;
  if (const auto& coverage = report.coverage) {
    out["coverage"] = {{"nccl_all_reduces", coverage->nccl_all_reduces},
                       {"missed", coverage->missed},
                       {"processes", coverage->processes},
                       {"unwatched", coverage->unwatched}};
  }
  out["processes"] = Json::array();
  for (const Receipt& receipt : report.processes)
    out["processes"].push_back(Json::parse(receipt_json(receipt)));
  out["problems"] = report.problems;
  return out.dump(2, ' ', false, nlohmann::detail::error_handler_t::replace) + "\n";
}

}  // namespace echotp
