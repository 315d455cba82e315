// SPDX-License-Identifier: Apache-2.0
// Builds the documents. The only file of the bench programs that knows JSON.
#include "cli/bench_costs.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/bench_candidates.hpp"
#include "cli/bench_reference.hpp"
#include "echo_tp_version.h"
#include "kernels/tile.hpp"

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json spread(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return Json{{"median", *quantile(values, 0.5)},
              {"p10", *quantile(values, 0.1)},
              {"p90", *quantile(values, 0.9)},
              {"samples", values.size()}};
}

// 0.9f as 0.9, not as the nearest double of the float.
double shortest(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double read = value;
  std::from_chars(text, end, read);
  return read;
}

Json codec_json(const Codec& codec) {
  return {{"bits", codec.bits}, {"group", codec.group}, {"first_leg_bits", codec.first_leg_bits}};
}

Json compensation_json(const Compensation& c) {
  Json out{{"mode", compensation_mode_name(c.mode)}};
  if (c.mode == CompensationMode::kNone) return out;
  if (c.mode == CompensationMode::kDrift) {
    out["channels"] = c.channels;
    out["gain"] = shortest(c.gain);
    return out;
  }
  out["a"] = shortest(c.a);
  out["bf"] = shortest(c.bf);
  out["b"] = shortest(c.b);
  out["bs"] = shortest(c.bs);
  out["state"] = state_format_name(c.state);
  return out;
}

Json environment_json(const BenchEnvironment& environment) {
  return {{"gpu", or_null(environment.gpu)},   {"driver", or_null(environment.driver)},
          {"cuda", or_null(environment.cuda)}, {"nccl", or_null(environment.nccl)},
          {"host", or_null(environment.host)}, {"link", or_null(environment.link)},
          {"nccl_env", environment.nccl_env}};
}

Json cost_entry(const BenchMeasurement& measured, const BenchSettings& settings, DataType dtype, int ranks) {
  const auto nccl = quantile(measured.nccl_us, 0.5);
  const auto echo = quantile(measured.echo_us, 0.5);
  const bool timed = measured.intercepted && nccl && echo;
  Json entry{{"ranks", ranks},
             {"dtype", data_type_name(dtype)},
             {"bytes", measured.bytes},
             {"candidate", candidate_name(measured.rule)},
             {"transport", transport_name(measured.rule.transport)},
             {"codec", codec_json(measured.rule.codec)},
             {"compensation", compensation_json(measured.rule.compensation)},
             {"background", settings.background}};
  entry["nccl_us"] = spread(measured.nccl_us);
  entry["echo_us"] = timed ? spread(measured.echo_us) : Json(nullptr);
  entry["ratio"] = timed ? Json(*nccl / *echo) : Json(nullptr);
  entry["wire_bytes"] =
      timed ? Json(wire_bytes(measured.bytes / element_bytes(dtype), ranks, measured.rule.codec))
            : Json(nullptr);
  entry["bytes_equal"] = measured.bytes_equal;
  entry["reference_equal"] = or_null(measured.reference_equal);
  entry["twin_equal"] = or_null(measured.twin_equal);
  entry["intercepted"] = measured.intercepted;
  entry["relative_error"] = measured.relative_error;
  if (!measured.intercepted) entry["why_not"] = "the result is NCCL's own, bit by bit";
  if (settings.background != "idle") {
    entry["background_nccl_gbs"] = or_null(measured.background_nccl_gbs);
    entry["background_echo_gbs"] = or_null(measured.background_echo_gbs);
  }
  return entry;
}

}  // namespace

std::optional<double> quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

std::string bench_document(const std::vector<BenchMeasurement>& measurements,
                           const BenchEnvironment& environment, const BenchSettings& settings,
                           const std::vector<std::string>& command, DataType dtype, int ranks) {
  Json entries = Json::array();
  for (const BenchMeasurement& measured : measurements)
    entries.push_back(cost_entry(measured, settings, dtype, ranks));
  const Json document{{"schema", "echo-tp/costs/1"},
                      {"generator", {{"name", "echo-tp"}, {"version", ECHO_TP_VERSION}}},
                      {"command", command},
                      {"environment", environment_json(environment)},
                      {"settings",
                       {{"graph", settings.graph},
                        {"background", settings.background},
                        {"background_path", or_null(settings.background_path)},
                        {"background_alone_gbs", or_null(settings.background_alone_gbs)},
                        {"reference_elements", kReferenceElements}}},
                      {"entries", std::move(entries)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string loopback_document(const std::vector<LoopbackMeasurement>& measurements,
                              const LoopbackFacts& facts, const BenchEnvironment& environment,
                              const std::vector<std::string>& command) {
  const auto copy = quantile(facts.copy_gbs, 0.5);
  Json entries = Json::array();
  for (const LoopbackMeasurement& measured : measurements) {
    const auto median = quantile(measured.us, 0.5);
    const double bytes = facts.ranks * measured.moved.total();
    Json entry{{"bytes", measured.bytes},
               {"codec", codec_json(measured.rule.codec)},
               {"compensation", compensation_json(measured.rule.compensation)},
               {"moved_bytes", bytes},
               {"moved_value_bytes", facts.ranks * measured.moved.values},
               {"moved_code_bytes", facts.ranks * measured.moved.codes},
               {"moved_state_bytes", facts.ranks * measured.moved.state}};
    entry["us"] = spread(measured.us);
    entry["bound_us"] = copy ? Json(bound_us(bytes, *copy)) : Json(nullptr);
    entry["ratio"] = copy && median ? Json(bound_us(bytes, *copy) / *median) : Json(nullptr);
    entry["reference_equal"] = or_null(measured.reference_equal);
    if (!measured.why_not.empty()) entry["why_not"] = measured.why_not;
    entries.push_back(std::move(entry));
  }
  const Json document{{"schema", "echo-tp/results/1"},
                      {"what",
                       "Time of the fused all-reduce with all ranks in one launch on one GPU, against the "
                       "time that a plain copy "
                       "takes for the bytes that the ranks' memory must move (bound_us over us: ratio)"},
                      {"generator", {{"name", "echo-tp"}, {"version", ECHO_TP_VERSION}}},
                      {"command", command},
                      {"environment", environment_json(environment)},
                      {"ranks", facts.ranks},
                      {"ctas_per_rank", facts.ctas},
                      {"dtype", data_type_name(facts.dtype)},
                      {"copy_gbs", spread(facts.copy_gbs)},
                      {"reference_elements", kReferenceElements},
                      {"entries", std::move(entries)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace echotp
