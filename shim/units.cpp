// SPDX-License-Identifier: Apache-2.0
// Parsing and printing of sizes.
#include "shim/units.hpp"

#include <charconv>
#include <utility>

namespace echotp {

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  std::int64_t value = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || value < 0 || text.empty() || text.front() == '-') return std::nullopt;
  std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  static constexpr std::pair<std::string_view, std::int64_t> kUnits[] = {
      {"", 1},       {"B", 1},      {"KiB", 1LL << 10}, {"MiB", 1LL << 20},   {"GiB", 1LL << 30},
      {"KB", 1'000}, {"kB", 1'000}, {"MB", 1'000'000},  {"GB", 1'000'000'000}};
  for (const auto& [name, factor] : kUnits) {
    std::int64_t bytes = 0;
    if (unit == name && !__builtin_mul_overflow(value, factor, &bytes)) return bytes;
  }
  return std::nullopt;
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::pair<const char*, int> kUnits[] = {{" GiB", 30}, {" MiB", 20}, {" KiB", 10}};
  for (const auto& [name, shift] : kUnits) {
    const std::int64_t unit = std::int64_t{1} << shift;
    if (bytes != 0 && bytes % unit == 0) return std::to_string(bytes / unit) + name;
  }
  return std::to_string(bytes) + " B";
}

}  // namespace echotp
