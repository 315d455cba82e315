// SPDX-License-Identifier: Apache-2.0
// Reads JSON documents that people write: every value knows its line, column and JSON pointer, so an error
// can say where and what was expected. Strict: duplicate keys, NUL bytes, invalid UTF-8, integers beyond 64
// bits and deep nesting are refused. Typed reads collect their errors, so one pass reports all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/result.hpp"
#include "shim/text_file.hpp"
#include "shim/units.hpp"

namespace echotp {

/// Most errors that one document reports.
inline constexpr std::size_t kMaxJsonErrors = 20;

/// Limits that keep a hostile document from costing more than an error line.
struct JsonLimits {
  std::size_t max_bytes = 4u << 20;  // of the text
  int max_depth = 64;                // nested objects and arrays
};

/// Errors of one document, each with the place it belongs to. Sorted by position when taken.
class JsonErrors {
 public:
  void add(std::size_t offset, Error error);
  bool empty() const { return held_.empty(); }
  /// All errors in document order, at most kMaxJsonErrors.
  std::vector<Error> sorted() const;
  /// The first one in document order; when there are more, its text says how many. Only if not empty().
  Error first() const;

 private:
  struct Held {
    std::size_t offset;
    Error error;
  };
  std::vector<Held> held_;
};

namespace detail {
struct JsonNode;
struct JsonText;
}  // namespace detail

/// One value of a document, with its path. Cheap to copy; keeps the document alive.
class JsonValue {
 public:
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_null() const;

  /// JSON pointer, "" at the root.
  const std::string& pointer() const { return pointer_; }
  /// "policy.json:14:19: /rules/2/min_bytes".
  std::string where() const;
  /// Adds an error at this value.
  void complain(JsonErrors& errors, std::string what) const;
  Error error(std::string what) const;

  /// Member of an object; nothing if it is missing or this is no object.
  std::optional<JsonValue> get(std::string_view key) const;
  /// Keys of an object in document order.
  std::vector<std::string> keys() const;
  /// Elements of an array or members of an object.
  std::size_t size() const;
  /// Element of an array; index < size().
  JsonValue at(std::size_t index) const;

  /// True if this is an object; else an error that says so.
  bool expect_object(JsonErrors& errors) const;
  /// True if this is an array; else an error that says "expected " + what.
  bool expect_array(JsonErrors& errors, std::string_view what) const;
  /// An error for every key that is not in `known`, at the key, with the nearest known key.
  void only_keys(JsonErrors& errors, std::initializer_list<std::string_view> known) const;
  /// A required member; an error at this object if it is missing.
  std::optional<JsonValue> need(JsonErrors& errors, std::string_view key) const;

  /// Typed reads: nothing and an error if the type or range is wrong. An integral number such as 4.0 is an
  /// integer.
  std::optional<std::int64_t> integer(JsonErrors& errors, std::int64_t low, std::int64_t high) const;
  std::optional<double> number(JsonErrors& errors, double low, double high) const;
  std::optional<bool> boolean(JsonErrors& errors) const;
  std::optional<std::string> string(JsonErrors& errors) const;
  /// Index into `choices`; the error lists them.
  std::optional<std::size_t> choice(JsonErrors& errors,
                                    std::initializer_list<std::string_view> choices) const;
  /// Bytes >= 0: an integer, or a string such as "1MiB", "256KiB", "4MB".
  std::optional<std::int64_t> bytes(JsonErrors& errors) const;

  /// The string without any check; empty if this is no string.
  std::string_view raw_string() const;

 private:
  friend class JsonDocument;
  JsonValue(std::shared_ptr<const detail::JsonText> text, const detail::JsonNode* node, std::string pointer);
  std::string shown() const;  // the value in a few characters, for messages
  std::shared_ptr<const detail::JsonText> text_;
  const detail::JsonNode* node_;
  std::string pointer_;
};

/// A parsed document.
class JsonDocument {
 public:
  /// Parses `text`; `label` is the name that errors show. Fails with one error at the first fault.
  static Result<JsonDocument> parse(std::string_view text, const std::string& label,
                                    const JsonLimits& limits = {});
  /// Reads a file and parses it. A missing file is kNotFound.
  static Result<JsonDocument> read(const std::string& path, const JsonLimits& limits = {});
  /// The top value.
  JsonValue root() const;

 private:
  explicit JsonDocument(std::shared_ptr<const detail::JsonText> text) : text_(std::move(text)) {}
  std::shared_ptr<const detail::JsonText> text_;
};

/// True if the document says `"schema": "echo-tp/<kind>/1"`; else an error.
bool check_schema(const JsonValue& root, JsonErrors& errors, std::string_view kind);

/// The candidate with the fewest edits from `word`; empty if none is close.
std::string nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace echotp
