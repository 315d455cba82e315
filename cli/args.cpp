// SPDX-License-Identifier: Apache-2.0
// Parsing with CLI11 behind our own wording. CLI11 sees only what is left of "--", and none of its exit codes
// get out.
#include "cli/args.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <deque>
#include <functional>
#include <utility>

#include "cli/text.hpp"
#include "shim/json_reader.hpp"
#include "shim/text_file.hpp"
#include "shim/units.hpp"

namespace echotp {
namespace {

std::string list_of(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return out;
}

// CLI11's complaints in our words: which option, and what is wrong with it.
Error parse_error(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string name = text.substr(0, text.find(": "));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && name.starts_with('-'))
    return {ErrorCode::kBadInput, text.ends_with("missing") ? "needs a value" : "is given twice", name};
  if (text.ends_with("disallowed flag override")) {
    const std::string option = text.substr(0, text.find(' '));
    return {ErrorCode::kBadInput, "takes no value", (option.size() == 1 ? "-" : "--") + option};
  }
  return {ErrorCode::kBadInput, text, ""};
}

// The longest of "-o,--output".
std::string long_name(const std::string& names) {
  return names.substr(names.rfind(',') == std::string::npos ? 0 : names.rfind(',') + 1);
}

}  // namespace

SplitWords split_words(const std::vector<std::string>& words) {
  SplitWords out;
  const auto at = std::find(words.begin(), words.end(), "--");
  out.left.assign(words.begin(), at);
  out.separator = at != words.end();
  if (out.separator) out.right.assign(at + 1, words.end());
  return out;
}

std::string unknown_word(std::string_view kind, std::string_view word,
                         const std::vector<std::string>& candidates) {
  const std::vector<std::string_view> views(candidates.begin(), candidates.end());
  const std::string nearest = nearest_word(word, views);
  return "unknown " + std::string(kind) + " '" + std::string(word) + "'" +
         (nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

struct OptionSet::Parts {
  explicit Parts(const Command& which)
      : command(which), app(which.summary, std::string("echo-tp ") + which.name) {
    app.set_help_flag();
    app.allow_extras();
    app.add_flag("-h,--help", help)->disable_flag_override();
    app.add_flag("-q,--quiet", quiet)->disable_flag_override();
    app.add_flag("--list-options", list)->disable_flag_override();
    app.add_option("--color", colour);
  }

  // CLI11 collects strings; what they mean is checked afterwards, in our words.
  std::string& held(const std::string& names) {
    strings.emplace_back();
    app.add_option(names, strings.back());
    words.emplace_back(names, [value = &strings.back()] { return std::vector<std::string>{*value}; });
    return strings.back();
  }
  bool given(const std::string& names) const { return app.count(long_name(names)) > 0; }

  std::vector<std::string> option_names() const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
    return names;
  }

  // "-p --mode observe": CLI11 takes "--mode" for the value of -p.
  std::optional<Error> swallowed_option() const {
    const std::vector<std::string> names = option_names();
    for (const auto& [name, values] : words) {
      for (const std::string& value : values()) {
        if (std::find(names.begin(), names.end(), value) != names.end())
          return Error{ErrorCode::kBadInput, "needs a value, but '" + value + "' follows it",
                       long_name(name)};
      }
    }
    return std::nullopt;
  }

  const Command& command;
  CLI::App app;
  std::deque<std::string> strings;
  std::vector<std::pair<std::string, std::function<std::vector<std::string>()>>> words;  // values as given
  std::vector<std::function<Status()>> checks;
  std::vector<std::pair<std::string, std::optional<std::string>*>> positionals;
  JsonTarget* json = nullptr;
  std::string json_path;
  bool help = false, quiet = false, list = false;
  std::string colour;
};

OptionSet::OptionSet(const Command& command) : parts_(std::make_unique<Parts>(command)) {}
OptionSet::~OptionSet() = default;

void OptionSet::flag(const std::string& names, bool& value) {
  parts_->app.add_flag(names, value)->disable_flag_override();
}

void OptionSet::text(const std::string& names, std::optional<std::string>& value) {
  const std::string& held = parts_->held(names);
  parts_->checks.push_back([this, names, &held, &value]() -> Status {
    if (parts_->given(names)) value = held;
    return Unit{};
  });
}

void OptionSet::texts(const std::string& names, std::vector<std::string>& values) {
  // One word each time: a list would swallow what follows.
  parts_->app.add_option(names, values)->expected(1)->allow_extra_args(false)->take_all();
  parts_->words.emplace_back(names, [&values] { return values; });
}

void OptionSet::integer(const std::string& names, std::optional<std::int64_t>& value, std::int64_t low,
                        std::int64_t high) {
  const std::string& held = parts_->held(names);
  parts_->checks.push_back([this, names, &held, &value, low, high]() -> Status {
    if (!parts_->given(names)) return Unit{};
    std::int64_t number = 0;
    const auto [end, rc] = std::from_chars(held.data(), held.data() + held.size(), number);
    if (rc != std::errc() || end != held.data() + held.size() || number < low || number > high) {
      return Error{
          ErrorCode::kBadInput,
          "'" + held + "' is not a whole number from " + std::to_string(low) + " to " + std::to_string(high),
          long_name(names)};
    }
    value = number;
    return Unit{};
  });
}

void OptionSet::choice(const std::string& names, std::optional<std::string>& value,
                       std::vector<std::string> choices) {
  const std::string& held = parts_->held(names);
  parts_->checks.push_back([this, names, &held, &value, choices = std::move(choices)]() -> Status {
    if (!parts_->given(names)) return Unit{};
    if (std::find(choices.begin(), choices.end(), held) == choices.end())
      return Error{ErrorCode::kBadInput, "'" + held + "' is not " + list_of(choices), long_name(names)};
    value = held;
    return Unit{};
  });
}

void OptionSet::bytes(const std::string& names, std::optional<std::int64_t>& value) {
  const std::string& held = parts_->held(names);
  parts_->checks.push_back([this, names, &held, &value]() -> Status {
    if (!parts_->given(names)) return Unit{};
    value = parse_bytes(held);
    if (!value)
      return Error{ErrorCode::kBadInput, "'" + held + "' is not a size; expected " + kSizeForm,
                   long_name(names)};
    return Unit{};
  });
}

void OptionSet::json(JsonTarget& target) {
  parts_->json = &target;
  // A flag, not an option: "estimate --json job.echoprof" must not take the profile for a file to write.
  parts_->app.add_flag("--json{-}", parts_->json_path);
}

void OptionSet::json_on_stdout(bool& value) {
  parts_->app.add_flag("--json", value)->disable_flag_override();
}

void OptionSet::positional(const std::string& what, std::optional<std::string>& value) {
  parts_->positionals.emplace_back(what, &value);
}

std::optional<int> OptionSet::parse(Session& session) {
  const Command& command = parts_->command;
  const auto refuse = [&](std::string what, std::string where = "") {
    return fail(session, command, Error{ErrorCode::kBadInput, std::move(what), std::move(where)});
  };

  std::vector<std::string> words(session.own.rbegin(), session.own.rend());
  try {
    parts_->app.parse(words);
  } catch (const CLI::ParseError& error) {
    return fail(session, command, parse_error(error));
  }
  if (const auto error = parts_->swallowed_option()) return fail(session, command, *error);

  if (parts_->help) {
    session.terminal->out(command.help);
    return kExitOk;
  }
  if (parts_->list) {
    std::string lines;
    for (const std::string& name : parts_->option_names()) {
      if (name != "--list-options") lines += name + "\n";
    }
    session.terminal->out(lines);
    return kExitOk;
  }
  session.terminal->set_quiet(parts_->quiet || session.terminal->quiet());
  if (parts_->app.count("--color") > 0) {
    if (parts_->colour != "auto" && parts_->colour != "always" && parts_->colour != "never")
      return refuse("'" + parts_->colour + "' is not auto, always or never", "--color");
    session.terminal->set_colour(parts_->colour == "always"  ? ColourChoice::kAlways
                                 : parts_->colour == "never" ? ColourChoice::kNever
                                                             : ColourChoice::kAuto);
  }

  std::vector<std::string> extras = parts_->app.remaining();
  for (const std::string& word : extras) {
    if (word.size() > 1 && word[0] == '-') {
      // A launcher without "--": the unknown option is probably the job's.
      if (command.launches && !session.separator && extras.front()[0] != '-') break;
      return refuse(unknown_word("option", word.substr(0, word.find('=')), parts_->option_names()),
                    command.name);
    }
  }
  if (command.launches && !session.separator && !extras.empty()) {
    std::vector<std::string> fixed = session.command_line;
    const auto at = std::find(fixed.begin() + 2, fixed.end(), extras.front());
    fixed.insert(at, "--");
    fixed.front() = "echo-tp";
    return refuse("put -- before the job's command: " + shell_line(fixed));
  }

  if (!command.launches) extras.insert(extras.end(), session.job.begin(), session.job.end());
  for (auto& [what, value] : parts_->positionals) {
    if (extras.empty()) break;
    *value = extras.front();
    extras.erase(extras.begin());
  }
  if (JsonTarget* json = parts_->json; json && parts_->app.count("--json") > 0) {
    json->to_stdout = parts_->json_path.empty() || parts_->json_path == "-";
    json->path = json->to_stdout ? "" : parts_->json_path;
  }
  if (!extras.empty()) {
    return refuse("one argument too many: '" + extras.front() + "'" +
                      (parts_->json && parts_->json->to_stdout
                           ? "; if --json is to write it: " + shell_word("--json=" + extras.front())
                           : ""),
                  command.name);
  }
  for (const auto& check : parts_->checks) {
    if (const Status status = check(); !status) return fail(session, command, status.error());
  }
  for (const auto& [what, value] : parts_->positionals) {
    if (!*value)
      return refuse("missing: " + what + "; see echo-tp " + command.name + " --help", command.name);
  }
  if (command.launches && session.job.empty()) {
    return refuse(session.separator ? "nothing follows the --; expected the job's command"
                                    : "no job; put its command after --, for example: echo-tp " +
                                          std::string(command.name) + " -- torchrun serve.py",
                  command.name);
  }
  return std::nullopt;
}

Status deliver_json(Terminal& terminal, const JsonTarget& target, const std::string& text) {
  if (target.to_stdout) terminal.out(text);
  if (target.path.empty()) return Unit{};
  return write_text_file(target.path, text);
}

int fail(Session& session, const Command& command, const Error& error) {
  session.terminal->error(error.text());
  return command.usage_code == kExitNotStarted ? static_cast<int>(kExitNotStarted) : exit_code_of(error);
}

}  // namespace echotp
