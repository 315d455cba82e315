// SPDX-License-Identifier: Apache-2.0
// echo-tp run: the job with the shim preloaded; afterwards the receipts of its processes become one report.
#include <exception>
#include <string>
#include <utility>

#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/environment.hpp"
#include "cli/launch.hpp"
#include "cli/report_run.hpp"
#include "cli/shim_run.hpp"
#include "cli/text.hpp"
#include "shim/policy_json.hpp"
#include "shim/run_report.hpp"
#include "shim/text_file.hpp"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp run --policy FILE [OPTIONS] -- JOB...

Runs the job with Echo: all-reduces that the policy names travel as 4-bit integers, all others go to NCCL. The job is not
modified; its input, output, signals and exit code pass through. Afterwards a report says what was compressed, what was
not and why, and what that saved on the wire.

Options:
  -p, --policy FILE   which calls are compressed, and how; its keys are in share/doc/policy.md (installed:
                      share/echo-tp/doc/policy.md)
  -m, --mode MODE     compress (default), or observe: count and decide, but leave every call to NCCL; needs no policy
  -o, --report FILE   the report (default: echo-tp-run-<UTC time>.json here)
      --force         overwrite files
      --require       if the job ends with 0, but no call was compressed or all-reduces passed echo-tp by, end with 1
      --verbose       the job's processes tell which calls are compressed, and why others are not: a line for each
                      new reason or rule on each communicator
      --json[=FILE]   the report also on standard output, after the job's, or in FILE
  -q, --quiet         errors only
      --color WHEN    auto, always or never
  -h, --help          this text

Examples:
  echo-tp run --policy policy.json -- torchrun --nproc-per-node 2 serve.py --model qwen3
  echo-tp run --mode observe -- ./my-job

In the job, ECHO_TP=off switches Echo off for one process tree; ECHO_TP_LOG=1 is the same as --verbose.

Exit codes: the job's own, 128 + signal if one ended it; 1 with --require; 125 bad policy or not started, 126 not
executable, 127 not found.
)";

struct Options {
  std::optional<std::string> policy, mode, report;
  bool force = false, require = false, verbose = false;
  JsonTarget json;
};

void tell(Terminal& terminal, const RunReport& report, const JobEnd& end) {
  if (end.killed_by != 0)
    terminal.note("the job was ended by " + signal_text(end.killed_by) +
                  "; the report holds what its processes left");
  if (report.totals.calls == 0) {
    terminal.note(report.processes.empty()
                      ? "no NCCL communicator seen: the job made none, or reached NCCL in a way that echo-tp "
                        "can't see (echo-tp doctor)"
                      : "no all-reduce seen: the job made NCCL communicators but called none");
  } else {
    terminal.block(run_text(report));
  }
  for (const std::string& problem : report.problems) {
    if (!report.processes.empty()) terminal.warning(problem);
  }
}

int run(Session& session) {
  Options options;
  OptionSet set(kRunCommand);
  set.text("-p,--policy", options.policy);
  set.choice("-m,--mode", options.mode, {"compress", "observe"});
  set.text("-o,--report", options.report);
  set.flag("--force", options.force);
  set.flag("--require", options.require);
  set.flag("--verbose", options.verbose);
  set.json(options.json);
  if (const auto code = set.parse(session)) return *code;
  Terminal& terminal = *session.terminal;

  const std::string mode = options.mode.value_or("compress");
  if (!options.policy && mode == "compress")
    return fail(session, kRunCommand,
                {ErrorCode::kBadInput,
                 "missing: --policy FILE; echo-tp estimate PROFILE --policy-out FILE proposes one", "run"});
  RunFacts facts;
  facts.command = session.job;
  facts.mode = mode;
  std::string costs;
  if (options.policy) {
    const auto policy = read_policy_or_tell(terminal, *options.policy);
    if (!policy) return kExitNotStarted;
    facts.policy_path = absolute_path(*options.policy);
    facts.policy_hash = policy->hash;
    costs = policy->costs;
    terminal.note("policy " + *options.policy + ": " +
                  show_count(static_cast<std::int64_t>(policy->rules.size())) +
                  (policy->rules.size() == 1 ? " rule" : " rules") + ", mode " + mode);
  }
  const std::string path = options.report.value_or(default_name("echo-tp-run", ".json"));
  const Status claimed = claim_outputs(
      {{"--report", path}, {"--json", options.json.path}},
      {{"--policy", options.policy.value_or("")}, {"the policy's costs", costs}}, options.force);
  if (!claimed) return fail(session, kRunCommand, claimed.error());
  auto shim = ShimRun::prepare(folder_of(path), facts.policy_path, mode);
  if (!shim) return fail(session, kRunCommand, shim.error());
  JobPlan plan{session.job, {}, nullptr};
  Environment environment = Environment::current();
  for (const std::string& line : shim->inject(environment)) terminal.warning(line);
  if (options.verbose) environment.set("ECHO_TP_LOG", "1");
  plan.environment = environment.entries();

  const JobEnd end = run_job(plan);
  if (!end.started) {
    terminal.error(end.error.text());
    return end.exit_code;
  }
  facts.exit_code = end.exit_code;
  std::int64_t compressed = 0, missed = 0;
  try {
    const RunReport report = shim->report(std::move(facts));
    compressed = report.totals.compressed;
    if (report.coverage) missed = report.coverage->missed;
    const std::string json = run_report_json(report);
    tell(terminal, report, end);
    const auto told = [&](const Status& status) {
      if (!status) terminal.error("the report can't be written: " + status.error().text());
      return bool(status);
    };
    if (told(write_text_file(path, json))) terminal.note("report: " + path);
    told(deliver_json(terminal, options.json, json));
  } catch (const std::exception& error) {
    // The job has run: nothing of ours may change its exit code.
    terminal.error(std::string("the report can't be made: ") + error.what());
  }
  if (options.require && end.exit_code == 0 && compressed == 0) {
    terminal.error("--require: no call was compressed");
    return kExitNo;
  }
  if (options.require && end.exit_code == 0 && missed > 0) {
    terminal.error("--require: " + show_count(missed) + (missed == 1 ? " all-reduce" : " all-reduces") +
                   " did not pass echo-tp");
    return kExitNo;
  }
  return end.exit_code;
}

}  // namespace

const Command kRunCommand = {
    "run", "run a job with Echo and report what was compressed", kHelp, true, kExitNotStarted, run};

}  // namespace echotp
