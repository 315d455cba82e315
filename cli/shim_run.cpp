// SPDX-License-Identifier: Apache-2.0
// Preparing and reporting a run under the shim.
#include "cli/shim_run.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "shim/policy_json.hpp"

namespace echotp {
namespace {

bool splits_preload(const std::string& path) {
  return path.find_first_of(": ") != std::string::npos;
}

}  // namespace

std::optional<Policy> read_policy_or_tell(Terminal& terminal, const std::string& path) {
  auto policy = read_policy(path);
  if (policy) return *std::move(policy);
  const std::vector<Error> errors = check_policy(path);
  for (const Error& error : errors) terminal.error(error.text());
  if (errors.empty()) terminal.error(policy.error().text());
  return std::nullopt;
}

Result<ShimRun> ShimRun::prepare(const std::string& beside, const std::string& policy_path,
                                 const std::string& mode) {
  Installation installation = find_installation();
  if (const char* engine = std::getenv("ECHO_TP_ENGINE"); engine && *engine)
    installation.engine = absolute_path(engine);
  if (const Status status = need_file(installation.shim, "running jobs with Echo"); !status)
    return status.error();
  if (const Status status = need_file(installation.engine, "running jobs with Echo"); !status)
    return status.error();
  auto scratch = Scratch::make(beside);
  if (!scratch) return scratch.error();
  ShimPlan plan{installation.shim, installation.engine,
                policy_path,       mode,
                scratch->path(),   is_file(installation.witness) ? installation.witness : std::string()};
  if (splits_preload(plan.shim)) {
    // LD_PRELOAD can't hold such a path: a link that it can hold stands in for it.
    plan.shim = scratch->path() + "/libecho-tp-shim.so";
    if (splits_preload(plan.shim) || ::symlink(installation.shim.c_str(), plan.shim.c_str()) != 0) {
      return Error{ErrorCode::kSystem,
                   "LD_PRELOAD can't hold a path with spaces or colons; install echo-tp, or run it, in a "
                   "folder without them",
                   installation.shim};
    }
  }
  return ShimRun(*std::move(scratch), std::move(plan));
}

RunReport ShimRun::report(RunFacts facts) const {
  std::vector<std::string> problems;
  std::vector<Receipt> receipts = read_receipts(scratch_.path(), problems);
  const std::vector<ProcessCoverage> coverage = read_coverage(scratch_.path(), problems);
  RunReport report = merge_receipts(std::move(facts), std::move(receipts), std::move(problems));
  add_coverage(report, coverage);
  return report;
}

}  // namespace echotp
