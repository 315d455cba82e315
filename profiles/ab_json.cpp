// SPDX-License-Identifier: Apache-2.0
// The A/B report as a document.
#include "profiles/ab_compare.hpp"
#include "profiles/json_values.hpp"

namespace echotp {
namespace {

// Metrics come in any unit: no rounding but for what is no number.
Json plain(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json side_json(const AbSide& side) {
  Json values = Json::array();
  for (const double value : side.values) values.push_back(plain(value));
  return Json{{"values", values}, {"median", plain(side.median)}, {"mean", plain(side.mean)}};
}

const char* direction_of(AbDirection direction) {
  switch (direction) {
    case AbDirection::kLowerIsBetter:
      return "lower_is_better";
    case AbDirection::kHigherIsBetter:
      return "higher_is_better";
    case AbDirection::kEither:
      return "either";
  }
  return "either";
}

Json result_json(const AbResult& result) {
  Json out;
  out["name"] = result.options.name;
  out["direction"] = direction_of(result.options.direction);
  out["tolerance"] = result.options.tolerance
                         ? Json{{"value", *result.options.tolerance},
                                {"kind", result.options.relative ? "relative" : "absolute"},
                                {"absolute", plain(result.tolerance_absolute.value_or(0))}}
                         : Json(nullptr);
  out["baseline"] = side_json(result.baseline);
  out["echo"] = side_json(result.echo);
  out["difference"] = Json{
      {"mean", plain(result.mean_difference)},
      {"relative", result.relative_difference ? plain(*result.relative_difference) : Json(nullptr)},
      {"interval", result.interval ? Json::array({plain(result.interval->low), plain(result.interval->high)})
                                   : Json(nullptr)},
      {"confidence", result.options.confidence}};
  out["verdict"] = ab_verdict_name(result.verdict);
  out["needed_repeats"] = result.needed_repeats ? Json(*result.needed_repeats) : Json(nullptr);
  out["reason"] = result.reason;
  return out;
}

}  // namespace

std::string ab_json(const AbReport& report) {
  Json out;
  out["schema"] = "echo-tp/ab/1";
  out["generator"] = generator();
  out["command"] = report.command;
  out["policy"] = Json{{"path", known(report.policy_path)}, {"hash", known(report.policy_hash)}};
  out["verdict"] = ab_verdict_name(overall_verdict(report));
  out["metrics"] = Json::array();
  for (const AbResult& metric : report.metrics) out["metrics"].push_back(result_json(metric));
  if (report.step_time) {
    Json step = result_json(*report.step_time);
    const double echo = report.step_time->echo.median;
    step["gain"] = echo > 0 ? plain(report.step_time->baseline.median / echo) : Json(nullptr);
    out["step_time"] = step;
  } else {
    out["step_time"] = nullptr;
  }
  out["notes"] = report.notes;
  return text_of(out);
}

}  // namespace echotp
