// SPDX-License-Identifier: Apache-2.0
// The tree behind the JSON reader: every node remembers where it began in the text. Internal to json_*.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shim/json_reader.hpp"
#include "shim/result.hpp"

namespace echotp::detail {

enum class Kind : std::uint8_t { kNull, kBoolean, kInteger, kNumber, kString, kArray, kObject };

struct JsonNode {
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::size_t offset = 0;      // of the value's first byte
  std::size_t key_offset = 0;  // of the key's first byte, for a member
  std::string key;
  std::string string;
  std::vector<JsonNode> children;
};

struct JsonText {
  std::string label;
  std::vector<std::size_t> line_starts;
  JsonNode root;

  std::string where(std::size_t offset, std::string_view pointer) const {
    const auto next = std::upper_bound(line_starts.begin(), line_starts.end(), offset);
    const auto line = next - line_starts.begin();
    const std::size_t column = offset - *(next - 1) + 1;
    std::string place = label + ":" + std::to_string(line) + ":" + std::to_string(column);
    if (!pointer.empty()) place.append(": ").append(pointer);
    return place;
  }
};

/// Parses `text` into a tree, or says what the first fault is.
Result<std::shared_ptr<const JsonText>> parse_tree(std::string_view text, const std::string& label,
                                                   const JsonLimits& limits);

/// A key as it stands in a JSON pointer.
std::string escape_pointer(std::string_view key);

/// Words of the document for a message: one line, printable ASCII, short.
std::string tame(std::string_view text, std::size_t limit = 160);

}  // namespace echotp::detail
