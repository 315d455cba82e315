// SPDX-License-Identifier: Apache-2.0
// The text of `echo-tp ab`.
#include "cli/report_text.hpp"
#include "cli/text.hpp"

namespace echotp {
namespace {

std::string side(const AbSide& values, bool is_time) {
  if (values.values.empty()) return "-";
  return is_time ? show_time(values.median) : show_number(values.median);
}

std::string precise(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string difference(const AbResult& result) {
  std::string out = result.mean_difference > 0 ? "+" : "";
  if (result.relative_difference) return out + show_percent(*result.relative_difference);
  return out + show_number(result.mean_difference);
}

void add_row(Table& table, const AbResult& result, bool is_time) {
  std::string interval = "-";
  if (result.interval) {
    interval = is_time ? show_time(result.interval->low) + " to " + show_time(result.interval->high)
                       : precise(result.interval->low) + " to " + precise(result.interval->high);
  }
  table.row({plain(result.options.name, 40),
             is_time ? side(result.baseline, true) : precise(result.baseline.median),
             is_time ? side(result.echo, true) : precise(result.echo.median), difference(result), interval,
             result.verdict == AbVerdict::kNone         ? ""
             : result.verdict == AbVerdict::kCannotTell ? "cannot tell"
                                                        : ab_verdict_name(result.verdict)});
}

}  // namespace

std::string ab_text(const AbReport& report) {
  Table table({"", ">without Echo", ">with Echo", ">difference", ">interval", ""});
  for (const AbResult& metric : report.metrics) add_row(table, metric, false);
  if (report.step_time) add_row(table, *report.step_time, true);
  std::string out = table.text();
  for (const AbResult& metric : report.metrics) {
    if (!metric.reason.empty())
      out += "  " + plain(metric.options.name, 40) + ": " + plain(metric.reason, 300) + "\n";
  }
  if (report.step_time && report.step_time->echo.median > 0) {
    out += "  steps are " + show_factor(report.step_time->baseline.median / report.step_time->echo.median) +
           " as fast with Echo\n";
  }
  for (const std::string& note : report.notes) out += "  " + plain(note, 300) + "\n";
  return out;
}

}  // namespace echotp
