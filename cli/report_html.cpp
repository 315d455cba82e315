// SPDX-License-Identifier: Apache-2.0
// The page of `echo-tp estimate --html`.
#include "cli/report_html.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cli/report_text.hpp"
#include "cli/text.hpp"
#include "echo_tp_version.h"

namespace echotp {
namespace {

constexpr const char* kStyle = R"(
:root{--ink:#1b1f24;--soft:#5b6470;--paper:#fff;--line:#d9dee4;--now:#7a8694;--echo:#1a7f5a;--most:#9ecfbd;--wait:#c8a24a}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4b0;--paper:#14171b;--line:#343b44;--now:#8b96a3;--echo:#3fb98a;--most:#2d6650;--wait:#8a702f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:90rem;padding:2rem 1.5rem;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
p{margin:.3rem 0}.soft{color:var(--soft)}.big{font-size:2.4rem;font-weight:650;margin:.8rem 0 0}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.3rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--soft);white-space:normal;vertical-align:bottom}td.w,th.w{text-align:left}td.wrap{white-space:normal;min-width:14rem}
svg{width:100%;height:auto;display:block}svg text{fill:var(--ink);font:14px system-ui,sans-serif}svg .soft{fill:var(--soft)}
ul{margin:.3rem 0;padding-left:1.2rem}code{font-family:ui-monospace,monospace;font-size:.93em}
@media print{body{padding:0;max-width:none}}
)";

std::string number(double value) {
  std::array<char, 32> out;
  std::snprintf(out.data(), out.size(), "%.1f", std::isfinite(value) ? value : 0.0);
  return out.data();
}

struct StepBar {
  std::string name, colour, remark;
  double us = 0;
  double low = -1, high = -1;  // of the interval; below 0: none
};

std::string steps_svg(const Estimate& estimate) {
  std::vector<StepBar> bars = {{"now, measured", "now", "", estimate.before_us}};
  if (estimate.evidence) {
    bars.push_back({"with Echo", "echo", show_factor(estimate.gain.mid), estimate.after_us.mid,
                    estimate.after_us.low, estimate.after_us.high});
  }
  if (!estimate.classes.empty()) {
    bars.push_back({"transfer free", "most", free_transfer_text(estimate), estimate.zero_us});
    if (estimate.zero_low_us < estimate.zero_us)
      bars.back().low = estimate.zero_low_us, bars.back().high = estimate.zero_us;
  }
  if (estimate.nowait_us)
    bars.push_back({"nobody waits", "wait", "what slower ranks cost", *estimate.nowait_us});
  double longest = 1e-9;
  for (const StepBar& bar : bars) longest = std::max({longest, bar.us, bar.high});
  constexpr double kLeft = 130, kWidth = 480, kRow = 34;
  const auto at = [&](double us) { return kLeft + std::clamp(us / longest, 0.0, 1.0) * kWidth; };
  std::string out = "<svg viewBox=\"0 0 1000 " + number(kRow * static_cast<double>(bars.size()) + 6) +
                    "\" role=\"img\" aria-label=\"step times\">\n";
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const StepBar& bar = bars[i];
    const double y = kRow * static_cast<double>(i) + 4;
    out += "<text x=\"0\" y=\"" + number(y + 18) + "\">" + bar.name + "</text>";
    out += "<rect x=\"" + number(kLeft) + "\" y=\"" + number(y) + "\" width=\"" + number(at(bar.us) - kLeft) +
           "\" height=\"24\" rx=\"3\" fill=\"var(--" + bar.colour + ")\"/>";
    if (bar.low >= 0) {
      out += "<path d=\"M" + number(at(bar.low)) + " " + number(y + 12) + "H" + number(at(bar.high)) + "M" +
             number(at(bar.low)) + " " + number(y + 6) + "v12M" + number(at(bar.high)) + " " + number(y + 6) +
             "v12\" stroke=\"var(--ink)\" fill=\"none\"/>";
    }
    out += "<text x=\"" + number(std::max(at(bar.us), at(bar.high)) + 10) + "\" y=\"" + number(y + 18) +
           "\">" + show_time(bar.us) + " <tspan class=\"soft\">" + bar.remark + "</tspan></text>\n";
  }
  return out + "</svg>\n";
}

std::string size_text(const ClassEstimate& row) {
  if (row.min_bytes >= 0 && row.min_bytes != row.bytes)
    return show_bytes(row.min_bytes) + " to " + show_bytes(row.bytes);
  return show_bytes(row.bytes);
}

std::string cell(const std::string& text, const char* kind = "") {
  return std::string("<td") + (*kind ? std::string(" class=\"") + kind + "\"" : "") + ">" + text + "</td>";
}

std::string classes_table(const Estimate& estimate) {
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th class=\"w\">collective</th><th "
      "class=\"w\">message</th><th class=\"w\">type</th><th class=\"w\">op</th><th>ranks</th><th>calls a "
      "step</th>"
      "<th>total</th><th>waiting</th><th>transfer</th><th>exposed</th><th>of step</th><th>NCCL, one "
      "call</th><th>Echo, one call</th><th>evidence</th>"
      "<th>saves a step</th><th class=\"w\">decision</th></tr></thead><tbody>\n";
  for (const ClassEstimate& row : estimate.classes) {
    std::string echo = "-";
    if (row.echo_us)
      echo = show_time(row.echo_us->mid) + " <span class=\"soft\">(" + show_time(row.echo_us->low) + " to " +
             show_time(row.echo_us->high) + ")</span>";
    out += "<tr>" + cell(html_escaped(row.function, 60), "w") + cell(size_text(row), "w") +
           cell(row.dtype.empty() ? "-" : html_escaped(row.dtype, 20), "w") +
           cell(row.op.empty() ? "-" : html_escaped(row.op, 20), "w") +
           cell(row.ranks > 0 ? std::to_string(row.ranks) : "-") + cell(show_number(row.calls_per_step)) +
           cell(show_time(row.total_us)) + cell(show_time(row.wait_us)) + cell(show_time(row.transfer_us)) +
           cell(show_time(row.exposed_us)) + cell(show_percent(row.share_of_step)) +
           cell(show_time(row.nccl_us)) + cell(echo) +
           cell(row.evidence ? evidence_name(*row.evidence) : "-") + cell(show_time(row.contribution_us)) +
           cell(row.compressed ? "compress" : html_escaped(row.why_not, 160), "w wrap") + "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string path_table(const Estimate& estimate) {
  std::string out = "<div class=\"scroll\"><table><tbody>\n";
  for (const CriticalShare& share : estimate.critical_path) {
    out += "<tr>" + cell(html_escaped(share.what, 60), "w") + cell(show_percent(share.share)) +
           cell("<svg viewBox=\"0 0 500 14\" style=\"width:500px\"><rect width=\"" +
                    number(std::clamp(share.share, 0.0, 1.0) * 500) +
                    "\" height=\"14\" rx=\"2\" fill=\"var(--echo)\"/></svg>",
                "w") +
           "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string list(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string out = "<h2>" + title + "</h2><ul>\n";
  for (const std::string& line : lines) out += "<li>" + html_escaped(line, 600) + "</li>\n";
  return out + "</ul>\n";
}

std::string headline(const Estimate& estimate) {
  if (!estimate.evidence) return "<p class=\"big\">No gain</p>\n";
  return "<p class=\"big\">" + show_factor(estimate.gain.mid) + "</p><p>" + show_time(estimate.before_us) +
         " a step now, " + show_time(estimate.after_us.mid) + " with Echo. Between " +
         show_factor(estimate.gain.low) + " and " + show_factor(estimate.gain.high) + "; " +
         prediction_name(*estimate.evidence) + ".</p>\n";
}

std::vector<std::string> quality_lines(const Estimate& estimate) {
  const EstimateQuality& quality = estimate.quality;
  std::vector<std::string> lines = {
      "The replay without any change gives the recorded step within " + show_percent(quality.identity_error) +
          ", which it must and which proves nothing of the prediction.",
      "Recorded ranks: " + std::to_string(quality.recorded_ranks) +
          (quality.expected_ranks > 0 ? " of " + std::to_string(quality.expected_ranks) : "") + ".",
      "Steps used: " + std::to_string(estimate.steps.used) + " of " + std::to_string(estimate.steps.found) +
          ", found by " + estimate.steps.source + "; they vary by " + show_percent(estimate.steps.variation) +
          ".",
      "Device waits that the timeline does not explain: " + show_percent(quality.residual_share) +
          " of the window.",
      "Device operations whose launch was recorded: " + show_percent(quality.host_coverage) + ".",
      "Dropped records: " + show_count(quality.dropped_records) +
          ". Step time while recorded over step time without: " +
          (quality.traced_ratio ? show_number(*quality.traced_ratio) : "not measured") + ".",
  };
  return lines;
}

}  // namespace

std::string html_escaped(std::string_view text, std::size_t limit) {
  std::string out;
  for (const char c : plain(text, limit)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string estimate_html(const Estimate& estimate) {
  const std::string label = html_escaped(estimate.profile_label);
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>echo-tp estimate: " +
      label + "</title><style>" + kStyle + "</style></head><body>\n";
  out += "<h1>What would Echo give this job?</h1><p class=\"soft\"><code>" + label + "</code>";
  if (!estimate.classes.empty())
    out += ", costs: " + (estimate.costs_label.empty()
                              ? std::string("modelled, not measured")
                              : "<code>" + html_escaped(estimate.costs_label) + "</code>");
  out += "</p>\n" + headline(estimate) + "<h2>Step time</h2>\n" + steps_svg(estimate);
  std::vector<std::string> lines;
  for (const auto& reason : estimate.reasons) lines.push_back(reason.text);
  out += list(estimate.evidence ? "What limits the gain" : "Why there is no gain", lines);
  if (!estimate.classes.empty())
    out +=
        "<h2>Collectives</h2><p class=\"soft\">Times a step are means over the recorded ranks; - is not "
        "known.</p>\n" +
        classes_table(estimate);
  if (!estimate.critical_path.empty()) {
    out += "<h2>What the step waits for afterwards</h2>\n";
    if (!estimate.bound.empty()) out += "<p>" + html_escaped(estimate.bound) + "</p>\n";
    out += path_table(estimate);
  }
  lines.clear();
  for (const BypassEstimate& bypass : estimate.bypass) {
    lines.push_back(show_count(bypass.calls) + " calls of " + plain(bypass.kernel, 120) + " (" +
                    bypass.framework + "), " + show_time(bypass.total_us) +
                    " a step. To send them through NCCL: " + bypass.how_to_switch_off);
  }
  out += list("All-reduces that do not go through NCCL", lines);
  out += list("Warnings", estimate.warnings) + list("How far to trust this", quality_lines(estimate)) +
         list("Assumptions", estimate.assumptions);
  return out + "<p class=\"soft\">echo-tp " ECHO_TP_VERSION "</p></body></html>\n";
}

}  // namespace echotp
