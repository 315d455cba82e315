// SPDX-License-Identifier: Apache-2.0
// The program: global options, choice of the subcommand, last line of defence against exceptions.
#include <csignal>
#include <exception>
#include <nlohmann/json.hpp>

#include "cli/args.hpp"
#include "cli/command.hpp"
#include "cli/text.hpp"
#include "echo_tp_version.h"

namespace echotp {
namespace {

std::string general_help() {
  std::string out =
      "usage: echo-tp COMMAND [OPTIONS] [-- JOB...]\n"
      "\n"
      "Profiles tensor-parallel jobs on NVIDIA GPUs, says what 4-bit all-reduces would give them, and runs "
      "them with it.\n"
      "The job is not modified. Its output, its signals and its exit code pass through.\n"
      "\n"
      "Commands:\n";
  std::size_t widest = 0;
  for (const Command* command : all_commands()) widest = std::max(widest, std::string(command->name).size());
  for (const Command* command : all_commands()) {
    const std::string name = command->name;
    out += "  " + name + std::string(widest + 2 - name.size(), ' ') + command->summary + "\n";
  }
  out +=
      "\n"
      "Options:\n"
      "  -h, --help        this text; echo-tp COMMAND --help tells all about one\n"
      "      --version     one line; with --json a document\n"
      "  -q, --quiet       results and errors only\n"
      "      --color WHEN  auto, always or never (also: NO_COLOR, CLICOLOR_FORCE)\n"
      "\n"
      "The usual way:\n"
      "  echo-tp profile -o job.echoprof -- torchrun --nproc-per-node 2 serve.py\n"
      "  echo-tp estimate job.echoprof --policy-out policy.json\n"
      "  echo-tp run --policy policy.json -- torchrun --nproc-per-node 2 serve.py\n"
      "  echo-tp ab --policy policy.json --metric 'loss=([0-9.]+)' -- torchrun --nproc-per-node 2 train.py\n"
      "\n"
      "Exit codes: profile and run give the job's own (128 + signal); 125 not started, 126 not executable, "
      "127 not found.\n"
      "The others: 0 ok, 1 the answer is no, 2 bad input or usage, 3 no answer possible.\n";
  return out;
}

std::string version_text(bool json) {
  if (!json) return "echo-tp " ECHO_TP_VERSION "\n";
  nlohmann::ordered_json out;
  out["schema"] = "echo-tp/version/1";
  out["version"] = ECHO_TP_VERSION;
  return out.dump(2) + "\n";
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command* command : all_commands()) names.emplace_back(command->name);
  return names;
}

int usage_error(Terminal& terminal, const std::string& line) {
  terminal.error(line);
  return kExitUsage;
}

int dispatch(const std::vector<std::string>& words, Terminal& terminal) {
  SplitWords split = split_words(words);
  bool help = false, version = false, json = false;
  std::size_t at = 1;
  for (; at < split.left.size() && split.left[at].starts_with('-'); ++at) {
    const std::string& word = split.left[at];
    if (word == "-h" || word == "--help") {
      help = true;
    } else if (word == "--version") {
      version = true;
    } else if (word == "--json") {
      json = true;
    } else if (word == "-q" || word == "--quiet") {
      terminal.set_quiet(true);
    } else if (word == "--list-commands") {
      std::string lines;
      for (const std::string& name : command_names()) lines += name + "\n";
      terminal.out(lines);
      return kExitOk;
    } else if (word == "--color" || word.starts_with("--color=")) {
      const std::string when = word.size() > 7            ? word.substr(8)
                               : ++at < split.left.size() ? split.left[at]
                                                          : "";
      if (when != "auto" && when != "always" && when != "never")
        return usage_error(terminal, "--color: '" + when + "' is not auto, always or never");
      terminal.set_colour(when == "always"  ? ColourChoice::kAlways
                          : when == "never" ? ColourChoice::kNever
                                            : ColourChoice::kAuto);
    } else {
      return usage_error(
          terminal, unknown_word("option", word, {"--help", "--version", "--json", "--quiet", "--color"}) +
                        "; options of a command come after it");
    }
  }
  if (version) {
    terminal.out(version_text(json));
    return kExitOk;
  }
  if (at == split.left.size()) {
    if (!help)
      return usage_error(
          terminal, split.separator ? "no command before the --; expected for example: echo-tp profile -- ..."
                                    : "no command; echo-tp --help lists them");
    terminal.out(general_help());
    return kExitOk;
  }
  std::string name = split.left[at];
  std::vector<std::string> own(split.left.begin() + static_cast<std::ptrdiff_t>(at) + 1, split.left.end());
  if (name == "help") {
    if (own.empty()) {
      terminal.out(general_help());
      return kExitOk;
    }
    name = own.front();
    own = {"--help"};
  }
  if (help) own.insert(own.begin(), "--help");
  if (json) own.insert(own.begin(), "--json");
  for (const Command* command : all_commands()) {
    if (name != command->name) continue;
    Session session{words, std::move(own), std::move(split.right), split.separator, &terminal};
    return command->run(session);
  }
  return usage_error(terminal,
                     unknown_word("command", name, command_names()) + "; echo-tp --help lists them");
}

}  // namespace

const std::vector<const Command*>& all_commands() {
  static const std::vector<const Command*> commands = {&kProfileCommand, &kShowCommand,     &kEstimateCommand,
                                                       &kRunCommand,     &kAbCommand,       &kBenchCommand,
                                                       &kPolicyCommand,  &kSimulateCommand, &kDoctorCommand};
  return commands;
}

int exit_code_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kBadInput:
    case ErrorCode::kNotFound:
      return kExitUsage;
    case ErrorCode::kInsufficient:
    case ErrorCode::kSystem:
      break;
  }
  return kExitNoAnswer;
}

int run_program(const std::vector<std::string>& words) {
  Terminal terminal;
  try {
    const int code = dispatch(words, terminal);
    if (!terminal.out_failed()) return code;
    terminal.error("standard output can't be written to");
    return code == kExitOk ? static_cast<int>(kExitNoAnswer) : code;
  } catch (const std::exception& error) {
    // Nothing is thrown after a job was started: commands catch what they call then.
    terminal.error(std::string("internal error: ") + error.what());
    return kExitNoAnswer;
  }
}

}  // namespace echotp
