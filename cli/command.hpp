// SPDX-License-Identifier: Apache-2.0
// COMMAND: what a subcommand is, and what one invocation gives it. Also the exit codes, in one place.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal.hpp"
#include "shim/result.hpp"

namespace echotp {

/// Exit codes of everything that echo-tp itself answers; a launched job's own code passes through.
enum ExitCode : int {
  kExitOk = 0,
  kExitNo = 1,            // the answer is "no"
  kExitUsage = 2,         // bad input or usage
  kExitNoAnswer = 3,      // the data, or this machine, can't carry an answer
  kExitNotStarted = 125,  // profile and run: bad input or our own failure before the launch
  kExitNotExecutable = 126,
  kExitNotFound = 127,
  kExitSignal = 128,  // plus the number of the signal
};

/// Exit code of an error outside of the launchers.
int exit_code_of(const Error& error);

/// The words of one command line.
struct Session {
  std::vector<std::string> command_line;  // all, the program's name first
  std::vector<std::string> own;           // between the subcommand and the first "--"
  std::vector<std::string> job;           // after the first "--"
  bool separator = false;                 // there was a "--"
  Terminal* terminal = nullptr;
};

struct Command {
  const char* name;
  const char* summary;  // half a line
  const char* help;     // the whole text of --help
  bool launches;        // takes "-- COMMAND..."
  int usage_code;       // exit code of bad input: 2, or 125 for those that hand on the job's code
  int (*run)(Session&);
};

extern const Command kProfileCommand;
extern const Command kShowCommand;
extern const Command kEstimateCommand;
extern const Command kRunCommand;
extern const Command kAbCommand;
extern const Command kBenchCommand;
extern const Command kPolicyCommand;
extern const Command kSimulateCommand;
extern const Command kDoctorCommand;

/// All of them, in the order of --help.
const std::vector<const Command*>& all_commands();

/// The whole program but for main: `words` is argv. Never throws.
int run_program(const std::vector<std::string>& words);

}  // namespace echotp
