// SPDX-License-Identifier: Apache-2.0
// The table after `echo-tp profile`.
#include <algorithm>

#include "cli/report_text.hpp"
#include "cli/text.hpp"

namespace echotp {
namespace {

constexpr std::size_t kMostRows = 16;

std::string size_text(const SummaryRow& row) {
  if (row.min_bytes >= 0 && row.min_bytes != row.bytes)
    return show_bytes(row.min_bytes) + " to " + show_bytes(row.bytes);
  return show_bytes(row.bytes);
}

std::string or_unknown(const std::string& text) {
  return text.empty() ? "-" : plain(text, 24);
}

}  // namespace

std::string summary_text(const ProfileSummary& summary) {
  std::string out;
  if (summary.step_us) {
    out += "  step " + show_time(*summary.step_us) + ", median of " + show_count(summary.steps_used) +
           " of " + show_count(summary.steps_found) + " steps (found by " + summary.step_source + ")\n";
  } else if (summary.window_us) {
    out += "  recorded window " + show_time(*summary.window_us) + "; no steps found in it\n";
  }
  if (!summary.rows.empty()) {
    Table table({"collective", "message", "type", "op", ">ranks", ">calls", ">total", ">waiting", ">transfer",
                 ">exposed", ">of step"});
    for (std::size_t i = 0; i < std::min(kMostRows, summary.rows.size()); ++i) {
      const SummaryRow& row = summary.rows[i];
      table.row({or_unknown(row.function), size_text(row), or_unknown(row.dtype), or_unknown(row.op),
                 row.ranks > 0 ? std::to_string(row.ranks) : "-", show_count(row.calls),
                 show_time(row.total_us), show_time(row.wait_us), show_time(row.transfer_us),
                 show_time(row.exposed_us), show_percent(row.share_of_step)});
    }
    out += table.text();
    if (summary.rows.size() > kMostRows)
      out +=
          "  and " + std::to_string(summary.rows.size() - kMostRows) + " more: echo-tp show PROFILE --json\n";
    out +=
        "  total = waiting for the slowest rank + transfer; exposed: no compute ran beside it; - is not "
        "known\n";
  }
  for (const SummaryBypass& bypass : summary.bypass) {
    out += "  not through NCCL: " + show_count(bypass.calls) + " calls of " + plain(bypass.kernel, 80) +
           " (" + bypass.framework + "), " + show_time(bypass.total_us) +
           "; to send them through NCCL: " + bypass.how_to_switch_off + "\n";
  }
  for (const SummaryProcess& process : summary.processes) {
    for (const std::string& note : process.notes) {
      out += "  " +
             (process.rank >= 0 ? "rank " + std::to_string(process.rank)
                                : "process " + std::to_string(process.pid)) +
             ": " + plain(note, 300) + "\n";
    }
  }
  for (const std::string& note : summary.notes) out += "  " + plain(note, 300) + "\n";
  return out;
}

}  // namespace echotp
