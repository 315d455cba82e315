// SPDX-License-Identifier: Apache-2.0
// Checks of single lines and batches; see batch_columns.hpp.
#include "profiles/batch_columns.hpp"

#include <utility>

namespace echotp::reading {
namespace {

constexpr std::size_t kMaxLine = 16 << 20;
constexpr std::size_t kMaxBatch = 1 << 16;
constexpr int kMaxDepth = 8;

/// The common case without making a pointer text: most values are what they should be.
bool read_integer(const Json& value, std::int64_t low, std::int64_t high, std::int64_t& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxTime))
    return false;
  out = value.get<std::int64_t>();
  return out >= low && out <= high;
}

}  // namespace

void bad(std::string pointer, std::string what) {
  throw BadLine{std::move(pointer), std::move(what)};
}

void check_shape(std::string_view line) {
  if (line.size() > kMaxLine) bad("", "longer than any line that echo-tp writes");
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) bad("", "nested deeper than any line that echo-tp writes");
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

std::int64_t integer(const Json& value, const std::string& pointer, std::int64_t low, std::int64_t high) {
  std::int64_t out = 0;
  if (read_integer(value, low, high, out)) return out;
  if (!value.is_number_integer()) bad(pointer, "expected an integer");
  if (high < low) bad(pointer, "refers to a name that is not in the file");
  bad(pointer, "expected " + std::to_string(low) + " to " + std::to_string(high) + ", found " + value.dump());
}

std::string text_of(const Json& object, const char* key, const std::string& pointer) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return {};
  if (!it->is_string()) bad(pointer + "/" + key, "expected a string");
  return it->get<std::string>();
}

std::vector<std::string> texts_of(const Json& object, const char* key, const std::string& pointer) {
  std::vector<std::string> out;
  const auto it = object.find(key);
  if (it == object.end()) return out;
  if (!it->is_array()) bad(pointer + "/" + key, "expected an array of strings");
  for (const Json& item : *it) {
    if (!item.is_string()) bad(pointer + "/" + key, "expected an array of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::uint64_t hex_of(const std::string& text, const std::string& pointer) {
  if (text.size() < 3 || text.size() > 18 || text.compare(0, 2, "0x") != 0 ||
      text.find_first_not_of("0123456789abcdef", 2) != std::string::npos) {
    bad(pointer, "expected a hexadecimal number such as \"0x1f\"");
  }
  return std::stoull(text.substr(2), nullptr, 16);
}

Columns::Columns(const Json& object, std::string pointer, const char* length_key)
    : object_(object), pointer_(std::move(pointer)) {
  if (!object.is_object()) bad(pointer_, "expected an object of columns");
  const auto it = object.find(length_key);
  if (it == object.end()) bad(at(length_key), "column missing");
  rows_ = it->is_array() ? it->size() : 1;
  if (rows_ == 0 || rows_ > kMaxBatch) bad(at(length_key), "expected 1 to 65536 rows");
}

std::vector<std::int64_t> Columns::ints(const char* key, std::int64_t high, bool needed,
                                        std::int64_t low) const {
  std::vector<std::int64_t> out(rows_, kUnknown);
  const auto it = object_.find(key);
  if (it == object_.end()) {
    if (needed) bad(at(key), "column missing");
    return out;
  }
  if (!it->is_array()) {
    if (!it->is_null() || needed) out.assign(rows_, integer(*it, at(key), low, high));
    return out;
  }
  if (it->size() != rows_) bad(at(key), "columns of different length");
  for (std::size_t i = 0; i < rows_; ++i) {
    const Json& value = (*it)[i];
    if (value.is_null() && !needed) continue;
    if (!read_integer(value, low, high, out[i])) integer(value, at(key, i), low, high);
  }
  return out;
}

std::vector<std::int64_t> Columns::sums(const char* key, std::int64_t base, std::int64_t high) const {
  std::vector<std::int64_t> out(rows_, kUnknown);
  const auto it = object_.find(key);
  if (it == object_.end() || !it->is_array() || it->size() != rows_)
    bad(at(key), "expected an array of differences");
  for (std::size_t i = 0; i < rows_; ++i) {
    const Json& value = (*it)[i];
    if (value.is_null()) continue;
    std::int64_t difference = 0;
    if (!read_integer(value, -kMaxTime, kMaxTime - 1, difference))
      integer(value, at(key, i), -kMaxTime, kMaxTime - 1);
    base += difference;
    if (base < 0 || base > high) bad(at(key, i), base < 0 ? "negative value" : "value out of range");
    out[i] = base;
  }
  return out;
}

Columns::Times Columns::times(std::int64_t epoch_ns) const {
  const auto t = object_.find("t");
  if (t == object_.end()) bad(at("t"), "column missing");
  Times out;
  out.start = sums("start", epoch_ns + integer(*t, at("t"), -(kMaxTime >> 1), kMaxTime >> 1), kMaxTime);
  out.end = ints("dur", kMaxTime >> 1);
  for (std::size_t i = 0; i < rows_; ++i) {
    if (out.end[i] == kUnknown) continue;
    out.end[i] = out.start[i] == kUnknown ? kUnknown : out.end[i] + out.start[i];
  }
  return out;
}

}  // namespace echotp::reading
