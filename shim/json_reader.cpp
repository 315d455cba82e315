// SPDX-License-Identifier: Apache-2.0
// Values of a document: navigation, typed reads and their errors.
#include "shim/json_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "shim/json_tree.hpp"

namespace echotp {

using detail::JsonNode;
using detail::JsonText;
using detail::Kind;

void JsonErrors::add(std::size_t offset, Error error) {
  held_.push_back({offset, std::move(error)});
}

std::vector<Error> JsonErrors::sorted() const {
  std::vector<Held> order = held_;
  std::stable_sort(order.begin(), order.end(),
                   [](const Held& l, const Held& r) { return l.offset < r.offset; });
  if (order.size() > kMaxJsonErrors) order.resize(kMaxJsonErrors);
  std::vector<Error> errors;
  errors.reserve(order.size());
  for (Held& held : order) errors.push_back(std::move(held.error));
  return errors;
}

Error JsonErrors::first() const {
  Error error = sorted().front();
  if (held_.size() > 1) error.what += " (and " + std::to_string(held_.size() - 1) + " more)";
  return error;
}

JsonValue::JsonValue(std::shared_ptr<const JsonText> text, const JsonNode* node, std::string pointer)
    : text_(std::move(text)), node_(node), pointer_(std::move(pointer)) {}

bool JsonValue::is_object() const {
  return node_->kind == Kind::kObject;
}
bool JsonValue::is_array() const {
  return node_->kind == Kind::kArray;
}
bool JsonValue::is_string() const {
  return node_->kind == Kind::kString;
}
bool JsonValue::is_null() const {
  return node_->kind == Kind::kNull;
}
std::size_t JsonValue::size() const {
  return node_->children.size();
}
std::string_view JsonValue::raw_string() const {
  return is_string() ? std::string_view(node_->string) : "";
}

std::string JsonValue::where() const {
  return text_->where(node_->offset, pointer_);
}

Error JsonValue::error(std::string what) const {
  return {ErrorCode::kBadInput, std::move(what), where()};
}

void JsonValue::complain(JsonErrors& errors, std::string what) const {
  errors.add(node_->offset, error(std::move(what)));
}

std::optional<JsonValue> JsonValue::get(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (const JsonNode& child : node_->children) {
    if (child.key == key) return JsonValue(text_, &child, pointer_ + "/" + detail::escape_pointer(key));
  }
  return std::nullopt;
}

std::vector<std::string> JsonValue::keys() const {
  std::vector<std::string> names;
  if (!is_object()) return names;
  for (const JsonNode& child : node_->children) names.push_back(child.key);
  return names;
}

JsonValue JsonValue::at(std::size_t index) const {
  return JsonValue(text_, &node_->children[index], pointer_ + "/" + std::to_string(index));
}

std::string JsonValue::shown() const {
  switch (node_->kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return node_->boolean ? "true" : "false";
    case Kind::kInteger:
      return std::to_string(node_->integer);
    case Kind::kNumber: {
      char text[32];
      const auto end = std::to_chars(text, text + sizeof text, node_->number).ptr;
      return std::string(text, end);
    }
    case Kind::kString:
      return "\"" + detail::tame(node_->string, 40) + "\"";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "a value";
}

bool JsonValue::expect_object(JsonErrors& errors) const {
  if (is_object()) return true;
  complain(errors, "is " + shown() + "; expected an object");
  return false;
}

bool JsonValue::expect_array(JsonErrors& errors, std::string_view what) const {
  if (is_array()) return true;
  complain(errors, "is " + shown() + "; expected " + std::string(what));
  return false;
}

void JsonValue::only_keys(JsonErrors& errors, std::initializer_list<std::string_view> known) const {
  if (!is_object()) return;
  for (const JsonNode& child : node_->children) {
    if (std::find(known.begin(), known.end(), child.key) != known.end()) continue;
    std::string what = "unknown key '" + detail::tame(child.key, 40) + "'";
    const std::string near = nearest_word(child.key, known);
    if (!near.empty()) {
      what += "; did you mean '" + near + "'?";
    } else {
      what += "; expected one of:";
      for (std::string_view key : known) what.append(key == *known.begin() ? " " : ", ").append(key);
    }
    errors.add(child.key_offset,
               {ErrorCode::kBadInput, std::move(what), text_->where(child.key_offset, pointer_)});
  }
}

std::optional<JsonValue> JsonValue::need(JsonErrors& errors, std::string_view key) const {
  auto value = get(key);
  if (!value && is_object()) complain(errors, "the key '" + std::string(key) + "' is missing");
  return value;
}

std::optional<std::int64_t> JsonValue::integer(JsonErrors& errors, std::int64_t low,
                                               std::int64_t high) const {
  std::optional<std::int64_t> value;
  if (node_->kind == Kind::kInteger) value = node_->integer;
  // 2^53: beyond it a double no longer names one integer.
  if (node_->kind == Kind::kNumber && std::abs(node_->number) <= 9007199254740992.0 &&
      node_->number == std::trunc(node_->number)) {
    value = static_cast<std::int64_t>(node_->number);
  }
  if (value && *value >= low && *value <= high) return value;
  std::string expected = "an integer";
  if (high == std::numeric_limits<std::int64_t>::max()) {
    if (low != std::numeric_limits<std::int64_t>::min()) expected += " of at least " + std::to_string(low);
  } else {
    expected += " from " + std::to_string(low) + " to " + std::to_string(high);
  }
  complain(errors, "is " + shown() + "; expected " + expected);
  return std::nullopt;
}

std::optional<double> JsonValue::number(JsonErrors& errors, double low, double high) const {
  const bool numeric = node_->kind == Kind::kInteger || node_->kind == Kind::kNumber;
  if (numeric && node_->number >= low && node_->number <= high) return node_->number;
  std::string expected = "a number";
  char text[32];
  const auto put = [&](double bound) {
    expected.append(text, std::to_chars(text, text + sizeof text, bound).ptr);
  };
  if (std::isfinite(low)) {
    expected += std::isfinite(high) ? " from " : " of at least ";
    put(low);
  }
  if (std::isfinite(high)) {
    expected += std::isfinite(low) ? " to " : " of at most ";
    put(high);
  }
  complain(errors, "is " + shown() + "; expected " + expected);
  return std::nullopt;
}

std::optional<bool> JsonValue::boolean(JsonErrors& errors) const {
  if (node_->kind == Kind::kBoolean) return node_->boolean;
  complain(errors, "is " + shown() + "; expected true or false");
  return std::nullopt;
}

std::optional<std::string> JsonValue::string(JsonErrors& errors) const {
  if (is_string() && node_->string.find('\0') == std::string::npos) return node_->string;
  complain(errors,
           is_string() ? "holds a NUL character; expected text" : "is " + shown() + "; expected a string");
  return std::nullopt;
}

std::optional<std::size_t> JsonValue::choice(JsonErrors& errors,
                                             std::initializer_list<std::string_view> choices) const {
  if (is_string()) {
    const auto found = std::find(choices.begin(), choices.end(), node_->string);
    if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  }
  std::string what = "is " + shown() + "; expected";
  std::size_t index = 0;
  for (std::string_view name : choices) {
    what.append(index == 0                    ? " \""
                : index + 1 == choices.size() ? " or \""
                                              : ", \"")
        .append(name)
        .append("\"");
    ++index;
  }
  complain(errors, std::move(what));
  return std::nullopt;
}

std::optional<std::int64_t> JsonValue::bytes(JsonErrors& errors) const {
  constexpr std::string_view kExpected = "expected bytes such as 1048576 or \"1MiB\"";
  if (is_string()) {
    if (auto parsed = parse_bytes(node_->string)) return parsed;
    complain(errors, "is " + shown() + "; " + std::string(kExpected));
    return std::nullopt;
  }
  if (node_->kind == Kind::kInteger && node_->integer >= 0) return node_->integer;
  if (node_->kind == Kind::kNumber && node_->number >= 0) {
    return integer(errors, 0, std::numeric_limits<std::int64_t>::max());
  }
  const bool negative = node_->kind == Kind::kInteger || node_->kind == Kind::kNumber;
  complain(errors, "is " + shown() + (negative ? ", negative; " : "; ") + std::string(kExpected));
  return std::nullopt;
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const std::string& label,
                                         const JsonLimits& limits) {
  auto tree = detail::parse_tree(text, label, limits);
  if (!tree) return tree.error();
  return JsonDocument(*std::move(tree));
}

Result<JsonDocument> JsonDocument::read(const std::string& path, const JsonLimits& limits) {
  auto text = read_text_file(path, limits.max_bytes);
  if (!text) return text.error();
  return parse(*text, path, limits);
}

JsonValue JsonDocument::root() const {
  return JsonValue(text_, &text_->root, "");
}

bool check_schema(const JsonValue& root, JsonErrors& errors, std::string_view kind) {
  const std::string expected = "echo-tp/" + std::string(kind) + "/1";
  if (!root.expect_object(errors)) return false;
  const auto schema = root.get("schema");
  if (!schema) {
    root.complain(errors, "the key 'schema' is missing; expected \"schema\": \"" + expected + "\"");
    return false;
  }
  return schema->choice(errors, {std::string_view(expected)}).has_value();
}

std::string nearest_word(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.size() > 64) return "";
  std::string best;
  std::size_t best_edits = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t change = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_edits) {
      best_edits = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace echotp
