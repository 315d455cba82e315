// SPDX-License-Identifier: Apache-2.0
// ENVIRONMENT: the variables that a job gets, and the plans that put our libraries into it. What a user or
// another tool has set already is kept; what that costs is said in words. Pure but for reading the current
// environment.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace echotp {

/// Variables in their order, as execve takes them.
class Environment {
 public:
  explicit Environment(std::vector<std::string> entries) : entries_(std::move(entries)) {}
  /// Of this process.
  static Environment current();

  std::optional<std::string> get(std::string_view name) const;
  void set(std::string_view name, std::string_view value);
  void unset(std::string_view name);
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

/// What the recorder needs.
struct RecordPlan {
  std::string recorder;  // absolute path of libecho-tp-recorder.so
  std::string folder;    // for the parts
  std::string options;   // JSON; empty: none
};

/// Sets the recorder's ways into a job. One that is taken already is left alone: a line for each says what is
/// lost.
std::vector<std::string> inject_recorder(Environment& environment, const RecordPlan& plan);

/// What the shim needs. All paths absolute.
struct ShimPlan {
  std::string shim;  // without spaces and colons, at which LD_PRELOAD is split
  std::string engine;
  std::string policy;  // empty: none, for "observe"
  std::string mode;    // "observe" or "compress"
  std::string folder;
  std::string witness;  // that lets NCCL's own count be compared; empty: none
};

/// Puts the shim first into LD_PRELOAD, before what is there, and names policy, mode, engine and folder.
/// Lines: what the user should know, such as ECHO_TP=off.
std::vector<std::string> inject_shim(Environment& environment, const ShimPlan& plan);

/// Takes everything of ours out: the job then runs as if echo-tp did not exist.
void remove_ours(Environment& environment);

}  // namespace echotp
