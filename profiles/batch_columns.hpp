// SPDX-License-Identifier: Apache-2.0
// COLUMNS: one line of a profile while it is checked. Everything here throws BadLine, which read_profile()
// turns into an Error; internal to the reader.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/trace_encode.hpp"

namespace echotp::reading {

using Json = nlohmann::json;

inline constexpr std::int64_t kMaxTime = std::int64_t{1} << 62;
inline constexpr std::int64_t kMax32 = 0xffffffffLL;

/// What is wrong with a line, and the JSON pointer of the place.
struct BadLine {
  std::string pointer;
  std::string what;
};
[[noreturn]] void bad(std::string pointer, std::string what);

/// Refuses lines that are longer or nested deeper than any that echo-tp writes, before anything is built from
/// them.
void check_shape(std::string_view line);

/// `value` as an integer of [low, high].
std::int64_t integer(const Json& value, const std::string& pointer, std::int64_t low, std::int64_t high);
/// The string under `key`; empty when missing or null.
std::string text_of(const Json& object, const char* key, const std::string& pointer);
/// The strings under `key`; none when missing.
std::vector<std::string> texts_of(const Json& object, const char* key, const std::string& pointer);
/// The number in "0x1f".
std::uint64_t hex_of(const std::string& text, const std::string& pointer);

/// One batch: columns of equal length, each an array or one value for all rows. The object must outlive it.
class Columns {
 public:
  /// `length_key` is a column that is always an array.
  Columns(const Json& object, std::string pointer, const char* length_key);
  std::size_t rows() const { return rows_; }

  /// Values of [low, high]; null and a missing column are kUnknown, or refused where `needed`.
  std::vector<std::int64_t> ints(const char* key, std::int64_t high, bool needed = false,
                                 std::int64_t low = 0) const;
  /// Sums of differences, each sum in [0, high]; null leaves kUnknown and the sum alone.
  std::vector<std::int64_t> sums(const char* key, std::int64_t base, std::int64_t high) const;

  /// Start and end in nanoseconds of CLOCK_REALTIME; kUnknown where the file does not say.
  struct Times {
    std::vector<std::int64_t> start;
    std::vector<std::int64_t> end;
  };
  Times times(std::int64_t epoch_ns) const;

 private:
  std::string at(const char* key) const { return pointer_ + "/" + key; }
  std::string at(const char* key, std::size_t row) const { return at(key) + "/" + std::to_string(row); }

  const Json& object_;
  std::string pointer_;
  std::size_t rows_ = 0;
};

}  // namespace echotp::reading
