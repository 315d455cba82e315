// SPDX-License-Identifier: Apache-2.0
// ARGS: from words to options. The command line is split at its first "--" here; only what is left of it is
// parsed, so the job's own words pass through whatever they are. Every mistake is one line that says what was
// expected.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.hpp"

namespace echotp {

struct SplitWords {
  std::vector<std::string> left;
  std::vector<std::string> right;
  bool separator = false;
};

/// At the first "--"; later ones belong to the right side.
SplitWords split_words(const std::vector<std::string>& words);

/// "unknown command 'prfile'; did you mean 'profile'?".
std::string unknown_word(std::string_view kind, std::string_view word,
                         const std::vector<std::string>& candidates);

/// Where a report goes: --json writes to stdout, --json=FILE to a file. A word after --json is never its
/// file.
struct JsonTarget {
  bool to_stdout = false;
  std::string path;  // empty: no file
};

/// Options of one subcommand: declared first, then parsed. -h, -q and --color are always there. References
/// must outlive it.
class OptionSet {
 public:
  explicit OptionSet(const Command& command);
  ~OptionSet();
  OptionSet(const OptionSet&) = delete;
  OptionSet& operator=(const OptionSet&) = delete;

  /// `names` such as "-o,--output".
  void flag(const std::string& names, bool& value);
  void text(const std::string& names, std::optional<std::string>& value);
  /// May be given several times.
  void texts(const std::string& names, std::vector<std::string>& values);
  /// A whole number; anything else, or one outside [low, high], is refused.
  void integer(const std::string& names, std::optional<std::int64_t>& value, std::int64_t low,
               std::int64_t high);
  /// One of `choices`.
  void choice(const std::string& names, std::optional<std::string>& value, std::vector<std::string> choices);
  /// Bytes such as "4MiB".
  void bytes(const std::string& names, std::optional<std::int64_t>& value);
  /// --json, and --json=FILE.
  void json(JsonTarget& target);
  /// --json alone, for commands that only print their document.
  void json_on_stdout(bool& value);
  /// An argument without a name; `what` stands in messages ("PROFILE"). At most two, in this order. What
  /// follows a "--" is such an argument, whatever it starts with.
  void positional(const std::string& what, std::optional<std::string>& value);

  /// Parses session.own. An exit code when there is nothing left to do: help was printed, or an error.
  std::optional<int> parse(Session& session);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Writes `text` where `target` says; `what` names it in messages. Overwrites a file only with `force`.
Status deliver_json(Terminal& terminal, const JsonTarget& target, const std::string& text);

/// Prints an error; the exit code for it. For launchers (usage_code 125) every error before the launch is
/// 125.
int fail(Session& session, const Command& command, const Error& error);

}  // namespace echotp
