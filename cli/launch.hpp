// SPDX-License-Identifier: Apache-2.0
// LAUNCH: runs the job with a given environment and waits for it. Input, output and exit code pass through;
// each signal that reaches us reaches the job exactly once.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/result.hpp"

namespace echotp {

enum class JobStream { kStdout, kStderr };

struct JobPlan {
  std::vector<std::string> command;      // not empty
  std::vector<std::string> environment;  // NAME=value
  /// If set, both output streams of the job come here instead of our own: called with each piece, from two
  /// threads, never at the same time. Input passes through all the same.
  std::function<void(JobStream, std::string_view)> on_output;
};

struct JobEnd {
  bool started = false;
  int exit_code =
      0;  // the job's own, 128 + signal; 126 or 127 if it could not be started, 125 for our own failure
  int killed_by = 0;    // signal that ended the job; 0: none
  int interrupted = 0;  // last signal of INT, TERM, HUP and QUIT that reached us meanwhile; 0: none
  double wall_s = 0;    // how long it ran
  Error error;          // when not started
};

/// Runs the job to its end. Afterwards waits at most `linger_s` for processes that it left behind, where they
/// can be told apart from ours (no terminal): they may still write their part of a recording.
JobEnd run_job(const JobPlan& plan, double linger_s = 2.0);

/// "signal 15 (SIGTERM)".
std::string signal_text(int number);

}  // namespace echotp
