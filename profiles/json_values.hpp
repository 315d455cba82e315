// SPDX-License-Identifier: Apache-2.0
// Helpers of this room's JSON writers: unknown is null, numbers are rounded so that documents compare well.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "echo_tp_version.h"

namespace echotp {

using Json = nlohmann::ordered_json;

/// A number rounded to `digits` decimals; null if it is not finite.
inline Json rounded(double value, int digits = 3) {
  if (!std::isfinite(value)) return nullptr;
  const double scale = std::pow(10.0, digits);
  const double scaled = std::round(value * scale) / scale;
  return scaled == 0 ? 0.0 : scaled;
}

inline Json rounded(const std::optional<double>& value, int digits = 3) {
  return value ? rounded(*value, digits) : Json(nullptr);
}

/// Null if empty.
inline Json known(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

/// Null below `least`.
inline Json known(std::int64_t value, std::int64_t least) {
  return value < least ? Json(nullptr) : Json(value);
}

inline Json generator() {
  return Json{{"name", "echo-tp"}, {"version", ECHO_TP_VERSION}};
}

/// Indented text with a newline at the end; bytes that are no UTF-8 are replaced.
inline std::string text_of(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace echotp
