// SPDX-License-Identifier: Apache-2.0
// The parser: nlohmann's feeds a small tree of our own that remembers where each token began.
#include "shim/json_tree.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "shim/units.hpp"

namespace echotp::detail {
namespace {

// Counts what the lexer took, so that a callback knows where its token ended.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::size_t* taken) : at_(at), taken_(taken) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*taken_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  std::size_t* taken_;
};

class TreeBuilder : public nlohmann::json::json_sax_t {
 public:
  TreeBuilder(std::string_view text, const std::size_t& taken, int max_depth, JsonText& out)
      : text_(text), taken_(taken), max_depth_(max_depth), out_(out) {}

  const std::optional<Error>& failure() const { return failure_; }

  bool null() override { return put({}); }
  bool boolean(bool value) override {
    JsonNode node;
    node.kind = Kind::kBoolean;
    node.boolean = value;
    return put(std::move(node));
  }
  bool number_integer(number_integer_t value) override { return put_integer(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail(start(), "the number is larger than 9223372036854775807");
    }
    return put_integer(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& raw) override {
    if (raw.find_first_of(".eE") == std::string::npos) {
      return fail(start(), "the integer does not fit in 64 bits");
    }
    JsonNode node;
    node.kind = Kind::kNumber;
    node.number = value;
    return put(std::move(node));
  }
  bool string(string_t& value) override {
    JsonNode node;
    node.kind = Kind::kString;
    node.string = std::move(value);
    return put(std::move(node));
  }
  bool binary(binary_t&) override { return fail(start(), "binary value"); }
  bool start_object(std::size_t) override { return open(Kind::kObject); }
  bool start_array(std::size_t) override { return open(Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    Level& level = levels_.back();
    level.key_offset = start();
    level.key = value;
    last_end_ = taken_;
    if (value.find('\0') != std::string::npos) return fail(level.key_offset, "the key holds a NUL character");
    if (!level.seen.insert(value).second) {
      return fail(level.key_offset, "duplicate key '" + tame(value) + "'");
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) return fail(start(), "the number is too large");
    std::string_view message = error.what();
    if (const auto cut = message.find("] "); cut != std::string_view::npos) message.remove_prefix(cut + 2);
    if (message.starts_with("parse error at ")) {
      if (const auto cut = message.find(": "); cut != std::string_view::npos) message.remove_prefix(cut + 2);
    }
    const bool nothing = text_.find_first_not_of(" \t\r\n") == std::string_view::npos;
    const std::size_t offset =
        std::min(position == 0 ? 0 : position - 1, text_.empty() ? 0 : text_.size() - 1);
    failure_ =
        Error{ErrorCode::kBadInput,
              nothing ? "the file is empty; expected a JSON object" : "not valid JSON: " + tame(message),
              out_.where(offset, "")};
    return false;
  }

 private:
  struct Level {
    JsonNode* node;
    std::set<std::string> seen;
    std::string key;
    std::size_t key_offset = 0;
  };

  // First byte of the token that was just read: after the previous token there are only separators.
  std::size_t start() const {
    const std::size_t at = text_.find_first_not_of(" \t\r\n,:", last_end_);
    return at == std::string_view::npos ? last_end_ : at;
  }

  bool fail(std::size_t offset, std::string what) {
    failure_ = Error{ErrorCode::kBadInput, std::move(what), out_.where(offset, pointer())};
    return false;
  }

  // Of the value or key being read: in the innermost array it is not among the children yet.
  std::string pointer() const {
    std::string path;
    for (const Level& level : levels_) {
      const std::size_t open_child = &level == &levels_.back() ? 0 : 1;
      path += '/';
      path += level.node->kind == Kind::kObject ? tame(escape_pointer(level.key))
                                                : std::to_string(level.node->children.size() - open_child);
    }
    return path;
  }

  bool put_integer(std::int64_t value) {
    JsonNode node;
    node.kind = Kind::kInteger;
    node.integer = value;
    node.number = static_cast<double>(value);
    return put(std::move(node));
  }

  JsonNode& place(JsonNode node) {
    node.offset = start();
    last_end_ = taken_;
    if (levels_.empty()) return out_.root = std::move(node);
    Level& level = levels_.back();
    if (level.node->kind == Kind::kObject) {
      node.key = level.key;
      node.key_offset = level.key_offset;
    }
    level.node->children.push_back(std::move(node));
    return level.node->children.back();
  }

  bool put(JsonNode node) {
    place(std::move(node));
    return true;
  }

  bool open(Kind kind) {
    if (static_cast<int>(levels_.size()) >= max_depth_) {
      return fail(start(), "nested deeper than " + std::to_string(max_depth_) + " levels");
    }
    JsonNode node;
    node.kind = kind;
    levels_.push_back({&place(std::move(node)), {}, {}, 0});
    return true;
  }

  bool close() {
    levels_.pop_back();
    last_end_ = taken_;
    return true;
  }

  std::string_view text_;
  const std::size_t& taken_;
  int max_depth_;
  JsonText& out_;
  std::vector<Level> levels_;
  std::size_t last_end_ = 0;
  std::optional<Error> failure_;
};

}  // namespace

std::string escape_pointer(std::string_view key) {
  std::string out;
  for (char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

// A message may quote the document: keep it one line, printable and short.
std::string tame(std::string_view text, std::size_t limit) {
  std::string out;
  for (char c : text) {
    if (out.size() >= limit) {
      out += "...";
      break;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  // A cut inside a multi-byte character would leave invalid UTF-8 in the message.
  for (char& c : out) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return out;
}

Result<std::shared_ptr<const JsonText>> parse_tree(std::string_view text, const std::string& label,
                                                   const JsonLimits& limits) {
  try {
    auto held = std::make_shared<JsonText>();
    held->label = label;
    held->line_starts.push_back(0);
    if (text.size() > limits.max_bytes) {
      return Error{ErrorCode::kBadInput,
                   "larger than " + format_bytes(static_cast<std::int64_t>(limits.max_bytes)), label};
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') held->line_starts.push_back(i + 1);
    }
    // The parser takes a NUL byte for the end of the text and would accept what follows unread.
    if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
      return Error{ErrorCode::kBadInput, "not valid JSON: NUL byte", held->where(nul, "")};
    }
    std::size_t taken = 0;
    TreeBuilder builder(text, taken, limits.max_depth, *held);
    const bool parsed = nlohmann::json::sax_parse(
        CountingIterator(text.data(), &taken), CountingIterator(text.data() + text.size(), &taken), &builder);
    if (builder.failure()) return *builder.failure();
    if (!parsed) return Error{ErrorCode::kBadInput, "not valid JSON", label};
    return std::shared_ptr<const JsonText>(std::move(held));
  } catch (const std::exception& failure) {
    return Error{ErrorCode::kSystem, std::string("cannot be parsed: ") + failure.what(), label};
  }
}

}  // namespace echotp::detail
