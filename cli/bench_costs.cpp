// SPDX-License-Identifier: Apache-2.0
// Builds the cost table. The only file of the worker that knows JSON.
#include "cli/bench_costs.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "echo_tp_version.h"
#include "kernels/tile.hpp"
#include "shim/policy.hpp"

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<std::string>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json spread(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return Json{{"median", *quantile(values, 0.5)},
              {"p10", *quantile(values, 0.1)},
              {"p90", *quantile(values, 0.9)},
              {"samples", values.size()}};
}

// What Echo sends, if the label says how it encodes.
Json wire_bytes_of(const Json& label, std::int64_t bytes, DataType dtype, int ranks) {
  if (!label.contains("codec") || !label["codec"].is_object()) return nullptr;
  const Codec codec{.bits = label["codec"].value("bits", Codec{}.bits),
                    .group = label["codec"].value("group", Codec{}.group)};
  if (codec.bits <= 0 || codec.group <= 0) return nullptr;
  return wire_bytes(bytes / element_bytes(dtype), ranks, codec);
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

Result<std::string> bench_document(const std::vector<BenchMeasurement>& measurements,
                                   const BenchEnvironment& environment,
                                   const std::vector<std::string>& command, const std::string& label,
                                   DataType dtype, int ranks) {
  try {
    const Json labels = Json::parse(label);
    if (!labels.is_object()) return Error{ErrorCode::kBadInput, "expected a JSON object", "--label"};
    Json entries = Json::array();
    for (const BenchMeasurement& measured : measurements) {
      Json entry{{"ranks", ranks}, {"dtype", data_type_name(dtype)}, {"bytes", measured.bytes}};
      for (const char* key : {"transport", "codec", "compensation"})
        if (labels.contains(key)) entry[key] = labels[key];
      const auto nccl = quantile(measured.nccl_us, 0.5);
      const auto other = quantile(measured.other_us, 0.5);
      entry["nccl_us"] = spread(measured.nccl_us);
      entry["echo_us"] = measured.intercepted ? spread(measured.other_us) : Json(nullptr);
      entry["ratio"] = measured.intercepted && nccl && other ? Json(*nccl / *other) : Json(nullptr);
      entry["wire_bytes"] =
          measured.intercepted ? wire_bytes_of(labels, measured.bytes, dtype, ranks) : Json(nullptr);
      entry["bytes_equal"] = measured.bytes_equal;
      entry["intercepted"] = measured.intercepted;
      entry["relative_error"] = measured.relative_error;
      entries.push_back(std::move(entry));
    }
    const Json document{{"schema", "echo-tp/costs/1"},
                        {"generator", {{"name", "echo-tp"}, {"version", ECHO_TP_VERSION}}},
                        {"command", command},
                        {"environment",
                         {{"gpu", or_null(environment.gpu)},
                          {"driver", or_null(environment.driver)},
                          {"cuda", or_null(environment.cuda)},
                          {"nccl", or_null(environment.nccl)},
                          {"host", or_null(environment.host)},
                          {"link", or_null(environment.link)},
                          {"nccl_env", environment.nccl_env}}},
                        {"entries", std::move(entries)}};
    return document.dump(2) + "\n";
  } catch (const Json::exception& error) {
    return Error{ErrorCode::kBadInput, error.what(), "--label"};
  }
}

}  // namespace echotp
