// SPDX-License-Identifier: Apache-2.0
// The JSON reader: positions, pointers, strictness, hostile input. Oracles: a generator that notes where it
// wrote each value, and nlohmann's own verdict on mutated texts.
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "shim/json_reader.hpp"
#include "tests/shim/temp_dir.hpp"

using namespace echotp;

namespace {

std::string parse_error(std::string_view text, const JsonLimits& limits = {}) {
  auto document = JsonDocument::parse(text, "f.json", limits);
  return document ? "" : document.error().text();
}

// One line, printable: what a terminal can take from a hostile file.
bool tame_line(const std::string& text) {
  for (unsigned char c : text) {
    if (c < 0x20 || c >= 0x7f) return false;
  }
  return text.size() < 400;
}

JsonValue root_of(std::string_view text) {
  auto document = JsonDocument::parse(text, "f.json");
  REQUIRE_MESSAGE(document, (document ? "" : document.error().text()));
  return document->root();
}

// Writes a random document and notes line:column of every value under its pointer.
class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}
  std::string text;
  std::map<std::string, std::string> places;

  void value(const std::string& pointer, int depth) {
    space();
    places[pointer] = std::to_string(line_) + ":" + std::to_string(column_);
    const int kind = pick(depth > 0 ? 7 : 5);
    if (kind == 0) put("null");
    if (kind == 1) put("true");
    if (kind == 2) put(std::to_string(pick(1000) - 500));
    if (kind == 3) put("1.5e3");
    if (kind == 4) put("\"a,b:]}\\\" [{ x\"");
    if (kind == 5) {
      put("[");
      const int count = pick(4);
      for (int i = 0; i < count; ++i) {
        if (i > 0) put(",");
        value(pointer + "/" + std::to_string(i), depth - 1);
        space();
      }
      space();
      put("]");
    }
    if (kind == 6) {
      put("{");
      const int count = pick(4);
      for (int i = 0; i < count; ++i) {
        if (i > 0) put(",");
        space();
        const std::string key = "k" + std::to_string(i);
        put("\"" + key + "\"");
        space();
        put(":");
        value(pointer + "/" + key, depth - 1);
        space();
      }
      space();
      put("}");
    }
  }
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

 private:
  void space() {
    for (int i = pick(3); i > 0; --i) put(std::string(1, " \t\n\r"[pick(4)]));
  }
  void put(const std::string& part) {
    for (char c : part) {
      text += c;
      ++column_;
      if (c == '\n') {
        ++line_;
        column_ = 1;
      }
    }
  }
  std::mt19937 random_;
  int line_ = 1;
  int column_ = 1;
};

void check_places(const JsonValue& value, const std::map<std::string, std::string>& places, int& seen) {
  const std::string expected =
      "f.json:" + places.at(value.pointer()) + (value.pointer().empty() ? "" : ": " + value.pointer());
  CHECK(value.where() == expected);
  ++seen;
  if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) check_places(value.at(i), places, seen);
  }
  for (const std::string& key : value.keys()) check_places(*value.get(key), places, seen);
}

}  // namespace

TEST_CASE("json: every value knows the line, column and pointer where it was written") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Generator generator(seed);
    generator.value("", 5);
    int seen = 0;
    check_places(root_of(generator.text), generator.places, seen);
    CHECK(seen == static_cast<int>(generator.places.size()));
  }
}

TEST_CASE("json: pointers escape ~ and /") {
  CHECK(root_of(R"({"a/b~c": 1})").get("a/b~c")->pointer() == "/a~1b~0c");
}

TEST_CASE("json: what JSON allows and a policy must not") {
  CHECK(parse_error("{\"a\":1,\n \"a\":2}") == "f.json:2:2: /a: duplicate key 'a'");
  CHECK(parse_error("{\"x\":[0,{\"a\":1,\"b\":2,\"a\":3}]}") == "f.json:1:22: /x/1/a: duplicate key 'a'");
  CHECK(parse_error(R"({"a":1,"\u0061":2})").find("duplicate key 'a'") != std::string::npos);
  CHECK(parse_error(R"([{"a":1},{"a":1}])").empty());
  CHECK(parse_error("[18446744073709551615]") ==
        "f.json:1:2: /0: the number is larger than 9223372036854775807");
  CHECK(parse_error("[18446744073709551616]") == "f.json:1:2: /0: the integer does not fit in 64 bits");
  CHECK(parse_error("[-9223372036854775809]") == "f.json:1:2: /0: the integer does not fit in 64 bits");
  CHECK(parse_error("[" + std::string(100, '9') + "]") ==
        "f.json:1:2: /0: the integer does not fit in 64 bits");
  CHECK(parse_error("[0,[" + std::string(5000, '9') + "]]") == "f.json:1:5: /1/0: the number is too large");
  CHECK(parse_error("[[0],1e400]") == "f.json:1:6: /1: the number is too large");
  CHECK(parse_error("[9223372036854775807,-9223372036854775808]").empty());
  CHECK(parse_error(R"({"a\u0000b":1})").find("NUL") != std::string::npos);
}

TEST_CASE("json: hostile texts give one clear line") {
  const std::pair<std::string, std::string> cases[] = {
      {"", "f.json:1:1: the file is empty; expected a JSON object"},
      {"  \n\t ", "the file is empty"},
      {"{\"a\":", "not valid JSON"},
      {"{\"a\":1}x", "not valid JSON"},
      {"{'a':1}", "f.json:1:2: not valid JSON"},
      {"{\"a\":01}", "not valid JSON"},
      {"[1,]", "not valid JSON"},
      {"// comment\n{}", "not valid JSON"},
      {"{} {}", "not valid JSON"},
      {"NaN", "not valid JSON"},
      {"[\"\xff\xfe\"]", "not valid JSON"},
      {"[\"\xc0\xaf\"]", "not valid JSON"},      // overlong
      {"[\"\xed\xa0\x80\"]", "not valid JSON"},  // surrogate
      {"[\"\\ud800\"]", "not valid JSON"},       // lone surrogate
      {"[\"\x01\"]", "not valid JSON"},          // raw control character
      {"[\"" + std::string(100000, 'a'), "not valid JSON"},
      {std::string("{}\0{", 4), "f.json:1:3: not valid JSON: NUL byte"},
      {std::string("\n[\0]", 4), "f.json:2:2: not valid JSON: NUL byte"},
      {std::string(100000, '['), "nested deeper than 64 levels"},
      {std::string(200, '{'), "not valid JSON"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string error = parse_error(text);
    CAPTURE(error);
    CHECK(error.find(expected) != std::string::npos);
    CHECK(tame_line(error));
  }
  CHECK(parse_error(std::string(64, '[') + std::string(64, ']')).empty());
  CHECK(parse_error(std::string(65, '[') + std::string(65, ']')).find("nested deeper than 64") !=
        std::string::npos);
  CHECK(parse_error("[1, 2, 3]", {.max_bytes = 5, .max_depth = 3}) == "f.json: larger than 5 B");
}

TEST_CASE("json: mutated documents are accepted only if they are JSON, and refused only for a named reason") {
  const std::string base =
      R"({"schema":"echo-tp/policy/1","rules":[{"match":{"min_bytes":"1MiB","ranks":[2,8]},"x":-1.5e3,"y":null,"z":"\u00e4"}]})";
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = base;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      const char byte =
          static_cast<char>(random() % 4 == 0 ? random() % 256 : "{}[]:,\"\\0e-"[random() % 11]);
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else if (random() % 2 == 0) {
        text[at] = byte;
      } else {
        text.insert(at, 1, byte);
      }
      if (text.empty()) text = "x";
    }
    const bool json = text.find('\0') == std::string::npos && nlohmann::json::accept(text);
    const std::string error = parse_error(text);
    CAPTURE(text);
    CAPTURE(error);
    if (error.empty()) {
      CHECK(json);
    } else {
      ++refused;
      CHECK(tame_line(error));
      const bool strict =
          error.find("duplicate key") != std::string::npos || error.find("64 bits") != std::string::npos ||
          error.find("larger than") != std::string::npos || error.find("too large") != std::string::npos ||
          error.find("NUL") != std::string::npos;
      CHECK((!json || strict));
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("json: typed reads name what they found and what they wanted") {
  const JsonValue root = root_of(
      R"({"i":7,"f":7.5,"whole":4.0,"s":"text","b":true,"n":null,"a":[1],"o":{},"big":1e300,"neg":-1,"nul":"a\u0000b"})");
  const auto complaint = [&](std::string_view key,
                             const std::function<void(const JsonValue&, JsonErrors&)>& read) {
    JsonErrors errors;
    read(*root.get(key), errors);
    return errors.empty() ? std::string() : errors.first().what;
  };
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  JsonErrors none;
  CHECK(root.get("i")->integer(none, 7, 7) == 7);
  CHECK(root.get("whole")->integer(none, 0, 9) == 4);
  CHECK(root.get("f")->number(none, 7.5, 7.5) == 7.5);
  CHECK(root.get("i")->number(none, 0, 10) == 7.0);
  CHECK(root.get("b")->boolean(none) == true);
  CHECK(root.get("s")->string(none) == "text");
  CHECK(root.get("s")->choice(none, {"other", "text"}) == 1);
  CHECK(none.empty());
  const auto integer = [&](const JsonValue& v, JsonErrors& e) { CHECK(!v.integer(e, 1, 6)); };
  CHECK(complaint("i", integer) == "is 7; expected an integer from 1 to 6");
  CHECK(complaint("f", integer) == "is 7.5; expected an integer from 1 to 6");
  CHECK(complaint("s", integer) == "is \"text\"; expected an integer from 1 to 6");
  CHECK(complaint("big", integer) == "is 1e+300; expected an integer from 1 to 6");
  CHECK(complaint("neg", [&](auto& v, auto& e) { v.integer(e, 0, kMax); }) ==
        "is -1; expected an integer of at least 0");
  CHECK(complaint("a", [](auto& v, auto& e) { v.number(e, 0, 1); }) ==
        "is an array; expected a number from 0 to 1");
  CHECK(complaint("i", [](auto& v, auto& e) { v.boolean(e); }) == "is 7; expected true or false");
  CHECK(complaint("n", [](auto& v, auto& e) { v.string(e); }) == "is null; expected a string");
  CHECK(complaint("nul", [](auto& v, auto& e) { v.string(e); }) == "holds a NUL character; expected text");
  CHECK(complaint("o", [](auto& v, auto& e) {
          v.choice(e, {"x", "y", "z"});
        }) == "is an object; expected \"x\", \"y\" or \"z\"");
  CHECK(complaint("neg", [](auto& v, auto& e) { v.bytes(e); }) ==
        "is -1, negative; expected bytes such as 1048576 or \"1MiB\"");
  CHECK(complaint("b", [](auto& v, auto& e) { v.bytes(e); }) ==
        "is true; expected bytes such as 1048576 or \"1MiB\"");
  CHECK(complaint("i", [](auto& v, auto& e) { v.expect_object(e); }) == "is 7; expected an object");
}

TEST_CASE("json: unknown keys point at the key and suggest the nearest") {
  const JsonValue root = root_of("{\n  \"min_byte\": 1,\n  \"zzzzzz\": 2, \"ranks\": 3}");
  JsonErrors errors;
  root.only_keys(errors, {"min_bytes", "ranks"});
  const auto all = errors.sorted();
  REQUIRE(all.size() == 2);
  CHECK(all[0].text() == "f.json:2:3: unknown key 'min_byte'; did you mean 'min_bytes'?");
  CHECK(all[1].text() == "f.json:3:3: unknown key 'zzzzzz'; expected one of: min_bytes, ranks");
}

TEST_CASE("json: errors come sorted by position, at most twenty, and the first says how many there are") {
  std::string text = "[0";
  for (int i = 1; i < 30; ++i) text += "," + std::to_string(i);
  const JsonValue root = root_of(text + "]");
  JsonErrors errors;
  for (std::size_t i = 30; i-- > 0;) root.at(i).complain(errors, "bad");
  const auto all = errors.sorted();
  REQUIRE(all.size() == kMaxJsonErrors);
  CHECK(all[0].where == "f.json:1:2: /0");
  CHECK(all[19].where.find(": /19") != std::string::npos);
  CHECK(errors.first().text() == "f.json:1:2: /0: bad (and 29 more)");
}

TEST_CASE("json: bytes with units") {
  CHECK(parse_bytes("512") == 512);
  CHECK(parse_bytes("512B") == 512);
  CHECK(parse_bytes("256KiB") == 262144);
  CHECK(parse_bytes("1MiB") == 1048576);
  CHECK(parse_bytes("1 MiB") == 1048576);
  CHECK(parse_bytes("2GiB") == 2147483648);
  CHECK(parse_bytes("4MB") == 4000000);
  CHECK(parse_bytes("4kB") == 4000);
  CHECK(parse_bytes("9223372036854775807") == std::numeric_limits<std::int64_t>::max());
  for (const char* bad :
       {"", " ", "-1", "-1MiB", "-0", "+1", "1.5MiB", "1 mib", "MiB", "1MiBs", "1  MiB", "0x10", "1e6",
        "9223372036854775808", "9223372036854775807KiB", "8589934592GiB", "1TiB"}) {
    CAPTURE(bad);
    CHECK(!parse_bytes(bad));
  }
  CHECK(format_bytes(1048576) == "1 MiB");
  CHECK(format_bytes(1536) == "1536 B");
  CHECK(format_bytes(0) == "0 B");
}

TEST_CASE("json: the nearest word") {
  CHECK(nearest_word("estimat", {"estimate", "profile"}) == "estimate");
  CHECK(nearest_word("groop", {"bits", "group"}) == "group");
  CHECK(nearest_word("banana", {"bits", "group"}).empty());
  CHECK(nearest_word(std::string(100000, 'a'), {"bits"}).empty());
}

TEST_CASE("json: files that cannot be read") {
  TempDir dir;
  const auto error = [](const std::string& path) {
    auto document = JsonDocument::read(path, {.max_bytes = 1u << 20, .max_depth = 16});
    REQUIRE(!document);
    return document.error();
  };
  CHECK(error(dir.path("none.json")).code == ErrorCode::kNotFound);
  CHECK(error(dir.path("none.json")).text() == dir.path("none.json") + ": No such file or directory");
  CHECK(error(dir.path("a") + "/b/c").code == ErrorCode::kNotFound);
  CHECK(error(dir.path("")).what == "is a folder; expected a file");
  CHECK(error(std::string("a\0b", 3)).code == ErrorCode::kBadInput);
  dir.write("empty.json", "");
  CHECK(error(dir.path("empty.json")).what == "the file is empty; expected a JSON object");
  dir.write("huge.json", "{");
  REQUIRE(::truncate(dir.path("huge.json").c_str(), 100'000'000) == 0);
  CHECK(error(dir.path("huge.json")).what == "larger than 1 MiB");
  CHECK(error("/dev/zero").what == "larger than 1 MiB");
  if (::geteuid() != 0) {
    dir.write("secret.json", "{}");
    ::chmod(dir.path("secret.json").c_str(), 0);
    CHECK(error(dir.path("secret.json")).what == "Permission denied");
  }
}

TEST_CASE("json: files are replaced whole") {
  TempDir dir;
  CHECK(write_text_file(dir.path("out.json"), "first"));
  CHECK(write_text_file(dir.path("out.json"), "second"));
  CHECK(*read_text_file(dir.path("out.json"), 100) == "second");
  CHECK(dir.names() == std::vector<std::string>{"out.json"});
  const auto failed = write_text_file(dir.path("no/such/out.json"), "x");
  REQUIRE(!failed);
  CHECK(failed.error().where == dir.path("no/such/out.json"));
  ::mkdir(dir.path("folder").c_str(), 0755);
  CHECK(!write_text_file(dir.path("folder"), "x"));
  CHECK(dir.names() == std::vector<std::string>{"folder", "out.json"});
}

TEST_CASE("json: the schema key") {
  const auto error = [](std::string_view text) {
    JsonErrors errors;
    check_schema(root_of(text), errors, "policy");
    return errors.empty() ? std::string() : errors.first().text();
  };
  CHECK(error(R"({"schema":"echo-tp/policy/1"})").empty());
  CHECK(error("{}") == "f.json:1:1: the key 'schema' is missing; expected \"schema\": \"echo-tp/policy/1\"");
  CHECK(error(R"({"schema":"echo-tp/costs/1"})") ==
        "f.json:1:11: /schema: is \"echo-tp/costs/1\"; expected \"echo-tp/policy/1\"");
  CHECK(error(R"({"schema":1})") == "f.json:1:11: /schema: is 1; expected \"echo-tp/policy/1\"");
  CHECK(error("[]") == "f.json:1:1: is an array; expected an object");
}
