// SPDX-License-Identifier: Apache-2.0
// SHIM RUN: one run of a job under the shim: its folder for receipts, its variables, and the report
// afterwards. Shared by run, ab and bench.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/artifacts.hpp"
#include "cli/environment.hpp"
#include "cli/terminal.hpp"
#include "shim/policy.hpp"
#include "shim/result.hpp"
#include "shim/run_report.hpp"

namespace echotp {

/// The policy; or nothing after every error in it was printed.
std::optional<Policy> read_policy_or_tell(Terminal& terminal, const std::string& path);

class ShimRun {
 public:
  /// Finds shim and engine, makes a folder in `beside` (or a temporary one). `policy_path` absolute, or
  /// empty.
  static Result<ShimRun> prepare(const std::string& beside, const std::string& policy_path,
                                 const std::string& mode);

  /// Changes `environment` as the shim needs it; lines that the user should see.
  std::vector<std::string> inject(Environment& environment) const { return inject_shim(environment, plan_); }

  /// Reads the receipts that the job's processes have left.
  RunReport report(RunFacts facts) const;

 private:
  ShimRun(Scratch scratch, ShimPlan plan) : scratch_(std::move(scratch)), plan_(std::move(plan)) {}
  Scratch scratch_;
  ShimPlan plan_;
};

}  // namespace echotp
