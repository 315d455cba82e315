// SPDX-License-Identifier: Apache-2.0
// Runs a small job under the preload library, with the fake engine, and returns everything it left behind:
// exit code, output, and the common log of the fakes.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace echotp::testing {

/// What a finished job left.
struct Outcome {
  int code = -1;  ///< exit code; 128 + signal
  std::string out;
  std::string err;
  std::vector<std::string> log;  ///< lines of the fakes and the job, in order

  /// Lines of the log that begin with `prefix`.
  std::vector<std::string> lines(const std::string& prefix) const;
  /// Index of the first line that begins with `prefix`, at or after `from`; -1: none.
  int index(const std::string& prefix, int from = 0) const;
  /// Everything in one text, for the message of a failed check.
  std::string text() const;
};

using Environment = std::map<std::string, std::string>;

/// Under the preload library with a policy and the fake engine; `changes` come on top, an empty value
/// removes.
Outcome run_watched(const std::vector<std::string>& command, const Environment& changes = {});

/// With exactly this environment (and PATH).
Outcome run_plain(const std::vector<std::string>& command, const Environment& environment);

/// A directory of this test process that is removed at its end.
const std::string& scratch_directory();

}  // namespace echotp::testing
