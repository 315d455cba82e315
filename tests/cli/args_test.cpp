// SPDX-License-Identifier: Apache-2.0
// Splitting and parsing of command lines.
#include "cli/args.hpp"

#include <doctest/doctest.h>

using namespace echotp;

namespace {

int never(Session&) {
  return 99;
}
const Command kLauncher = {"launch", "", "", true, kExitNotStarted, never};
const Command kPlain = {"plain", "", "", false, kExitUsage, never};

struct Parsed {
  std::optional<int> code;
  std::optional<std::string> text, first, second, choice;
  std::vector<std::string> many;
  std::optional<std::int64_t> number, size;
  bool flag = false;
  JsonTarget json;
};

Parsed parse(const Command& command, std::vector<std::string> words) {
  Terminal terminal;
  const SplitWords split = split_words(words);
  Session session{{"echo-tp", command.name}, split.left, split.right, split.separator, &terminal};
  session.command_line.insert(session.command_line.end(), words.begin(), words.end());
  Parsed out;
  OptionSet set(command);
  set.text("-t,--text", out.text);
  set.texts("--many", out.many);
  set.flag("--flag", out.flag);
  set.integer("-n,--number", out.number, 1, 10);
  set.choice("--choice", out.choice, {"a", "b"});
  set.bytes("--size", out.size);
  set.json(out.json);
  if (!command.launches) set.positional("FIRST", out.first);
  out.code = set.parse(session);
  return out;
}

}  // namespace

TEST_CASE("the first -- splits; later ones are the job's") {
  const SplitWords split = split_words({"run", "-p", "x", "--", "python", "--", "-o"});
  CHECK(split.left == std::vector<std::string>{"run", "-p", "x"});
  CHECK(split.right == std::vector<std::string>{"python", "--", "-o"});
  CHECK(split.separator);
  CHECK_FALSE(split_words({"run"}).separator);
  CHECK(split_words({"--"}).left.empty());
}

TEST_CASE("the job's options are never ours") {
  const Parsed parsed = parse(kLauncher, {"--text", "x", "--", "job", "--text", "y", "--nonsense", "--json"});
  CHECK_FALSE(parsed.code);
  CHECK(parsed.text == "x");
  CHECK_FALSE(parsed.json.to_stdout);
}

TEST_CASE("values") {
  const Parsed parsed = parse(kPlain, {"--text=a=b", "file", "--number", "10", "--choice", "b", "--size",
                                       "4MiB", "--flag", "--many", "1", "--many", "2"});
  CHECK_FALSE(parsed.code);
  CHECK(parsed.text == "a=b");
  CHECK(parsed.first == "file");
  CHECK(parsed.number == 10);
  CHECK(parsed.choice == "b");
  CHECK(parsed.size == 4194304);
  CHECK(parsed.flag);
  CHECK(parsed.many == std::vector<std::string>{"1", "2"});
  CHECK_FALSE(parse(kPlain, {"file"}).number);
}

TEST_CASE("a repeatable option takes one word each time") {
  const Parsed parsed = parse(kPlain, {"--many", "1", "file"});
  CHECK_FALSE(parsed.code);
  CHECK(parsed.first == "file");
  CHECK(parsed.many == std::vector<std::string>{"1"});
}

TEST_CASE("an expression may start with a dash or hold brackets") {
  const Parsed parsed =
      parse(kPlain, {"--many", "[x](a|b)", "--many", "{1}", "--many", "[a,b]", "--text=-x", "file"});
  CHECK_FALSE(parsed.code);
  CHECK(parsed.many == std::vector<std::string>{"[x](a|b)", "{1}", "[a,b]"});
  CHECK(parsed.text == "-x");
}

TEST_CASE("every mistake is 2, or 125 before a job") {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--nonsense"},
                                             {"file", "--number", "11"},
                                             {"file", "--number", "1.5"},
                                             {"file", "--number"},
                                             {"file", "--choice", "c"},
                                             {"file", "--size", "-1"},
                                             {"file", "other"},
                                             {},
                                             {"file", "--", "other"},
                                             {"--text", "--flag", "file"},
                                             {"--many", "--flag", "file"},
                                             {"file", "--flag=perhaps"},
                                             {"file", "--text", "a", "--text", "b"}}) {
    CAPTURE(words.size());
    CHECK(parse(kPlain, words).code == kExitUsage);
  }
  CHECK(parse(kLauncher, {"--nonsense", "--", "x"}).code == kExitNotStarted);
  CHECK(parse(kLauncher, {}).code == kExitNotStarted);
  CHECK(parse(kLauncher, {"--"}).code == kExitNotStarted);
  CHECK(parse(kLauncher, {"x", "y"}).code == kExitNotStarted);
  CHECK(parse(kLauncher, {"x", "--", "y"}).code == kExitNotStarted);
}

TEST_CASE("--json: alone, with a file, and before the argument") {
  CHECK(parse(kPlain, {"file", "--json"}).json.to_stdout);
  // A word after it is an argument, never its file.
  CHECK(parse(kPlain, {"file", "--json", "out"}).code == kExitUsage);
  CHECK(parse(kPlain, {"file", "--json=-"}).json.to_stdout);
  Parsed parsed = parse(kPlain, {"file", "--json=true"});
  CHECK(parsed.json.path == "true");
  CHECK_FALSE(parsed.json.to_stdout);
  CHECK(parse(kPlain, {"--json=out", "file"}).json.path == "out");
  parsed = parse(kPlain, {"--json", "file"});
  CHECK_FALSE(parsed.code);
  CHECK(parsed.json.to_stdout);
  CHECK(parsed.first == "file");
  CHECK(parse(kPlain, {"file", "--json", "--flag"}).json.to_stdout);
}

TEST_CASE("what follows a -- is an argument of a command without a job") {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--", "--flag"}, {"--json", "--", "--flag"}}) {
    const Parsed parsed = parse(kPlain, words);
    CHECK_FALSE(parsed.code);
    CHECK(parsed.first == "--flag");
    CHECK_FALSE(parsed.flag);
  }
  CHECK_FALSE(parse(kPlain, {"file", "--"}).code);
}

TEST_CASE("help wins over mistakes that come with it") {
  CHECK(parse(kPlain, {"--help", "--number", "x"}).code == kExitOk);
}

TEST_CASE("unknown words name the nearest known one") {
  CHECK(unknown_word("command", "prfile", {"profile", "run"}) ==
        "unknown command 'prfile'; did you mean 'profile'?");
  CHECK(unknown_word("command", "zzzzzz", {"profile", "run"}) == "unknown command 'zzzzzz'");
}
