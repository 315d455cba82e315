// SPDX-License-Identifier: Apache-2.0
// The reader: nlohmann's parser feeds a small tree of our own that remembers where each token began.
#include "shim/json_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace echotp {
namespace detail {

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
std::string tame(std::string_view text, std::size_t limit = 160) {
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
}  // namespace detail

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
    detail::TreeBuilder builder(text, taken, limits.max_depth, *held);
    const bool parsed =
        nlohmann::json::sax_parse(detail::CountingIterator(text.data(), &taken),
                                  detail::CountingIterator(text.data() + text.size(), &taken), &builder);
    if (builder.failure()) return *builder.failure();
    if (!parsed) return Error{ErrorCode::kBadInput, "not valid JSON", label};
    return JsonDocument(std::move(held));
  } catch (const std::exception& failure) {
    return Error{ErrorCode::kSystem, std::string("cannot be parsed: ") + failure.what(), label};
  }
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

Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  const auto refused = [&](int code) {
    return Error{code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kSystem,
                 std::strerror(code), path};
  };
  if (path.find('\0') != std::string::npos)
    return Error{ErrorCode::kBadInput, "the path holds a NUL character", ""};
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return refused(errno);
  struct stat info {};
  if (::fstat(file, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(file);
    return Error{ErrorCode::kBadInput, "is a directory; expected a file", path};
  }
  std::string text;
  char buffer[1 << 16];
  int failed = 0;
  while (text.size() <= max_bytes) {
    const ssize_t got = ::read(file, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failed = errno;
    if (got <= 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(file);
  if (failed != 0) return refused(failed);
  if (text.size() > max_bytes) {
    return Error{ErrorCode::kBadInput, "larger than " + format_bytes(static_cast<std::int64_t>(max_bytes)),
                 path};
  }
  return text;
}

Status write_text_file(const std::string& path, std::string_view text) {
  static std::atomic<unsigned> serial{0};
  const std::string part = path + "." + std::to_string(::getpid()) + "." + std::to_string(serial++) + ".part";
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0)
    return Error{ErrorCode::kSystem, std::string("cannot be written: ") + std::strerror(errno), path};
  int failed = 0;
  while (!text.empty() && failed == 0) {
    const ssize_t put = ::write(file, text.data(), text.size());
    if (put < 0 && errno != EINTR) failed = errno;
    if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::close(file) != 0 && failed == 0) failed = errno;
  if (failed == 0 && ::rename(part.c_str(), path.c_str()) != 0) failed = errno;
  if (failed == 0) return Unit{};
  ::unlink(part.c_str());
  return Error{ErrorCode::kSystem, std::string("cannot be written: ") + std::strerror(failed), path};
}

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
