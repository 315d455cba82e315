// SPDX-License-Identifier: Apache-2.0
// The table after `echo-tp run`.
#include "cli/report_run.hpp"

#include <string>

#include "cli/text.hpp"
#include "shim/run_report.hpp"

namespace echotp {
namespace {

std::string times(std::int64_t count, const char* what) {
  return show_count(count) + " " + what;
}

}  // namespace

std::string run_text(const RunReport& report) {
  const RunTotals& totals = report.totals;
  if (totals.calls == 0) return "";
  Table sizes({"all-reduce of", ">calls", ">compressed"});
  constexpr std::size_t kMostRows = 12;
  const std::size_t skipped = totals.by_bytes.size() > kMostRows ? totals.by_bytes.size() - kMostRows : 0;
  std::size_t at = 0;
  // The largest sizes: the small ones are many and rarely compressed.
  for (const auto& [bytes, size] : totals.by_bytes) {
    if (at++ >= skipped) sizes.row({show_bytes(bytes), show_count(size.calls), show_count(size.compressed)});
  }
  std::string out = sizes.text();
  if (skipped > 0) out += "  and " + std::to_string(skipped) + " smaller sizes: in the report\n";

  out += "\n  " + times(totals.calls, "all-reduces, counted on each of ") +
         std::to_string(report.ranks_seen) + (report.ranks_seen == 1 ? " rank: " : " ranks: ") +
         show_count(totals.compressed) + " compressed, " + show_count(totals.forwarded) + " left to NCCL\n";
  Table reasons({">", "", ""});
  for (std::size_t i = 0; i < totals.by_reason.size(); ++i) {
    const auto reason = static_cast<Reason>(i);
    if (reason == Reason::kCompressed || totals.by_reason[i] == 0) continue;
    reasons.row({show_count(totals.by_reason[i]), reason_name(reason), reason_text(reason)});
  }
  if (!reasons.empty()) {
    const std::string text = reasons.text(4);
    out += text.substr(text.find('\n') + 1);
  }
  if (totals.compressed > 0) {
    out +=
        "  wire: " + show_bytes(totals.echo_wire_bytes) + " instead of " + show_bytes(totals.nccl_wire_bytes);
    if (totals.echo_wire_bytes > 0 && totals.nccl_wire_bytes >= totals.echo_wire_bytes) {
      out += ", " + show_bytes(totals.saved_wire_bytes()) + " saved (" +
             show_number(static_cast<double>(totals.nccl_wire_bytes) /
                         static_cast<double>(totals.echo_wire_bytes)) +
             " times less)";
    }
    out += "\n";
  }
  if (const auto& coverage = report.coverage) {
    if (coverage->processes > 0)
      out += "  coverage: NCCL reported " + times(coverage->nccl_all_reduces, "all-reduces") +
             (coverage->missed > 0 ? ", of which " + times(coverage->missed, "did not pass echo-tp\n")
                                   : std::string(", and echo-tp had handed over every one\n"));
    if (coverage->unwatched > 0)
      out += "  coverage: not known in " + std::to_string(coverage->unwatched) +
             (coverage->unwatched == 1 ? " process" : " processes") + ", where NCCL reported nothing\n";
  }
  if (totals.captured > 0)
    out += "  " +
           times(totals.captured,
                 "of the compressed calls were recorded into CUDA graphs; their replays are not counted\n");
  if (totals.uncompensated > 0)
    out +=
        "  " +
        times(totals.uncompensated,
              "calls ran without error compensation: no memory for its state, max_state_bytes, or with mode "
              "drift a count that is no multiple of its channels\n");
  if (totals.nonfinite_groups > 0)
    out += "  " + times(totals.nonfinite_groups, "groups held NaN or Inf; they arrived as NaN\n");
  return out;
}

}  // namespace echotp
