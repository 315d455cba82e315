// SPDX-License-Identifier: Apache-2.0
// The text of `echo-tp estimate`.
#include <algorithm>

#include "cli/report_text.hpp"
#include "cli/text.hpp"

namespace echotp {
namespace {

constexpr int kBarCells = 32;
constexpr std::size_t kMostRows = 16;

struct StepLine {
  std::string name;
  double us;
  std::string remark;
};

std::string range_text(const Interval3& interval, std::string (*show)(double)) {
  return show(interval.low) + " to " + show(interval.high);
}

std::string steps_text(const Estimate& estimate, bool unicode) {
  std::vector<StepLine> lines = {{"now, measured", estimate.before_us, ""}};
  if (estimate.evidence) {
    lines.push_back({"with Echo", estimate.after_us.mid,
                     show_factor(estimate.gain.mid) + " (" + range_text(estimate.gain, show_factor) + "), " +
                         prediction_name(*estimate.evidence)});
  }
  if (!estimate.classes.empty())
    lines.push_back({"transfer free", estimate.zero_us, free_transfer_text(estimate)});
  if (estimate.nowait_us) lines.push_back({"nobody waits", *estimate.nowait_us, "what slower ranks cost"});
  double longest = 0;
  for (const StepLine& line : lines) longest = std::max(longest, line.us);
  Table table({"step", ">time", "", ""});
  for (const StepLine& line : lines)
    table.row({line.name, show_time(line.us), bar(longest > 0 ? line.us / longest : 0, kBarCells, unicode),
               line.remark});
  return table.text();
}

std::string size_text(const ClassEstimate& row) {
  if (row.min_bytes >= 0 && row.min_bytes != row.bytes)
    return show_bytes(row.min_bytes) + " to " + show_bytes(row.bytes);
  return show_bytes(row.bytes);
}

std::string classes_text(const Estimate& estimate) {
  if (estimate.classes.empty()) return "";
  Table table({"collective", "message", "type", "op", ">ranks", ">a step", ">total", ">exposed", ">of step",
               ">NCCL", ">Echo", ">saves", ""});
  for (std::size_t i = 0; i < std::min(kMostRows, estimate.classes.size()); ++i) {
    const ClassEstimate& row = estimate.classes[i];
    table.row({plain(row.function, 24), size_text(row), row.dtype.empty() ? "-" : plain(row.dtype, 12),
               row.op.empty() ? "-" : plain(row.op, 12), row.ranks > 0 ? std::to_string(row.ranks) : "-",
               show_number(row.calls_per_step), show_time(row.total_us), show_time(row.exposed_us),
               show_percent(row.share_of_step), show_time(row.nccl_us),
               row.echo_us ? show_time(row.echo_us->mid) : "-", show_time(row.contribution_us),
               row.compressed ? "compress" : plain(row.why_not, 60)});
  }
  std::string out = "\n" + table.text();
  if (estimate.classes.size() > kMostRows)
    out += "  and " + std::to_string(estimate.classes.size() - kMostRows) + " more: --json\n";
  return out +
         "  total, exposed, saves: a step, mean over the ranks; NCCL, Echo: transfer of one call; - is not "
         "known\n";
}

std::string list_text(const char* title, const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "  - " + plain(line, 400) + "\n";
  return out.empty() ? "" : std::string("\n") + title + "\n" + out;
}

std::string ranks_text(const EstimateQuality& quality) {
  if (quality.collectives == 0) return "no collective recorded";
  std::string out = std::to_string(quality.recorded_ranks);
  if (quality.expected_ranks > quality.recorded_ranks) out += " of " + std::to_string(quality.expected_ranks);
  return out + (out == "1" ? " rank" : " ranks");
}

std::string replay_text(const Estimate& estimate) {
  return "the replay without any change gives the recorded step within " +
         show_percent(estimate.quality.identity_error) +
         ", which it must and which proves nothing of the prediction; " +
         show_percent(estimate.quality.residual_share) +
         " of the recorded time are waits on the devices that the recording does not explain";
}

}  // namespace

std::string prediction_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::kMeasured:
      return "predicted, from measured costs";
    case Evidence::kExtrapolated:
      return "predicted, from measured costs, extrapolated";
    case Evidence::kModelled:
      break;
  }
  return "predicted, from modelled costs";
}

std::string free_transfer_text(const Estimate& estimate) {
  constexpr double kSame = 0.99;
  std::string out = "the most, with the host as recorded";
  if (estimate.zero_low_us < kSame * estimate.zero_us)
    out += "; " + show_time(estimate.zero_low_us) + " with the host at its fastest";
  return out;
}

std::string estimate_text(const Estimate& estimate, bool unicode) {
  std::string out = plain(estimate.profile_label) + ": " + ranks_text(estimate.quality);
  out += ", " + show_count(estimate.steps.used) + " of " + show_count(estimate.steps.found) +
         " steps used (found by " + estimate.steps.source;
  out += (estimate.steps.name.empty() ? "" : " \"" + plain(estimate.steps.name, 60) + "\"") + ")\n";
  if (!estimate.classes.empty()) {
    out += "costs: " +
           (estimate.costs_label.empty() ? std::string("modelled, not measured: echo-tp bench measures them")
                                         : plain(estimate.costs_label)) +
           "\n";
  }
  out += "\n";
  out += steps_text(estimate, unicode);
  out += classes_text(estimate);
  std::vector<std::string> lines;
  for (const auto& reason : estimate.reasons) lines.push_back(reason.text);
  out += list_text(estimate.evidence ? "What limits the gain" : "No gain, because", lines);
  lines.clear();
  for (const BypassEstimate& bypass : estimate.bypass) {
    lines.push_back(show_count(bypass.calls) + " calls of " + plain(bypass.kernel, 80) + " (" +
                    bypass.framework + "), " + show_time(bypass.total_us) +
                    " a step; to send them through NCCL: " + bypass.how_to_switch_off);
  }
  out += list_text("All-reduces that do not go through NCCL", lines);
  if (!estimate.bound.empty()) out += "\n" + plain(estimate.bound, 300) + "\n";
  out += list_text("Warnings", estimate.warnings);
  out += list_text("Assumptions", estimate.assumptions);
  out += "\n" + replay_text(estimate) + "\n";
  return out;
}

}  // namespace echotp
