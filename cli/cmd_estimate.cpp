// SPDX-License-Identifier: Apache-2.0
// echo-tp estimate: what a recorded job would gain, as text, JSON and a page, and the policy that would do
// it.
#include <algorithm>
#include <utility>

#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/cost_choice.hpp"
#include "cli/report_html.hpp"
#include "cli/report_text.hpp"
#include "cli/text.hpp"
#include "profiles/estimate.hpp"
#include "profiles/trace_file.hpp"
#include "shim/policy_json.hpp"
#include "shim/text_file.hpp"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp estimate PROFILE [OPTIONS]

Says what step time a recorded job would have with Echo, from the recorded timeline of all ranks and a table of measured
costs. Needs no GPU. Without a table that fits the profile's machine the times are modelled, and labelled so.

Options:
      --costs FILE         cost table that echo-tp bench measured (default: a shipped one, if it was measured on such a machine)
      --policy FILE        estimate this policy instead of proposing one
      --policy-out FILE    write the proposed policy
      --step REGEX         names of the NVTX ranges that are steps (default: found by name or by period)
      --html FILE          write a page to read and share
      --json[=FILE]        the estimate as a document, on standard output or in FILE
      --force              overwrite files
  -q, --quiet              results and errors only
      --color WHEN         auto, always or never
  -h, --help               this text

Examples:
  echo-tp estimate job.echoprof --policy-out policy.json --html report.html
  echo-tp bench --ranks 2 -o costs.json && echo-tp estimate job.echoprof --costs costs.json

Exit codes: 0 an answer, "no gain" included; 2 no such file, not a profile, or bad usage; 3 the profile can't carry an answer.
)";

struct Options {
  std::optional<std::string> profile, costs, policy, policy_out, step, html;
  JsonTarget json;
  bool force = false;
};

// The user's table, else a shipped one that fits, else none; `said` is what to tell of the choice.
Status choose(const Options& options, const Trace& trace, EstimateOptions& out, std::string& said) {
  if (options.costs) {
    auto table = read_costs(*options.costs);
    if (!table) return table.error();
    if (table->entries.empty())
      return Error{ErrorCode::kInsufficient, "the cost table has no entry: echo-tp bench measures them",
                   *options.costs};
    out.costs_warnings = cost_mismatches(machine_of(trace), *table);
    out.costs = *std::move(table);
    out.costs_label = *options.costs;
    return Unit{};
  }
  if (trace.calls.empty()) return Unit{};
  const std::vector<NamedCosts> tables = load_cost_tables(find_installation().share + "/costs");
  const CostChoice choice = choose_costs(machine_of(trace), tables);
  if (choice.chosen) {
    out.costs = choice.chosen->table;
    out.costs_label = choice.chosen->path;
    said = "costs: " + choice.chosen->path + ", " + choice.why;
  } else {
    said = "costs are modelled, not measured: " + choice.why +
           "; echo-tp bench measures this machine, --costs takes the result";
  }
  return Unit{};
}

int run(Session& session) {
  Options options;
  OptionSet set(kEstimateCommand);
  set.positional("PROFILE", options.profile);
  set.text("--costs", options.costs);
  set.text("--policy", options.policy);
  set.text("--policy-out", options.policy_out);
  set.text("--step", options.step);
  set.text("--html", options.html);
  set.json(options.json);
  set.flag("--force", options.force);
  if (const auto code = set.parse(session)) return *code;
  Terminal& terminal = *session.terminal;
  const auto failed = [&](const Error& error) { return fail(session, kEstimateCommand, error); };

  if (options.policy && options.policy_out)
    return failed({ErrorCode::kBadInput, "only one of the two can be: with --policy nothing is proposed",
                   "--policy --policy-out"});
  EstimateOptions question;
  question.profile_label = *options.profile;
  question.step_regex = options.step.value_or("");
  if (options.policy) {
    auto policy = read_policy(*options.policy);
    if (!policy) return failed(policy.error());
    question.policy = *std::move(policy);
  }
  const Status claimed =
      claim_outputs({{"--policy-out", options.policy_out.value_or("")},
                     {"--html", options.html.value_or("")},
                     {"--json", options.json.path}},
                    {{"PROFILE", *options.profile},
                     {"--costs", options.costs.value_or("")},
                     {"--policy", options.policy.value_or("")},
                     {"the policy's costs", question.policy ? question.policy->costs : ""}},
                    options.force);
  if (!claimed) return failed(claimed.error());
  if (const Status status = refuse_folder(*options.profile); !status) return failed(status.error());
  const auto trace = read_profile(*options.profile);
  if (!trace) return failed(trace.error());
  if (trace->truncated_frames > 0)
    terminal.warning(*options.profile + ": its end was cut off by a crash; the rest is used");
  std::string said;
  if (const Status status = choose(options, *trace, question, said); !status) return failed(status.error());

  const auto answer = estimate(*trace, question);
  if (!answer) return failed(answer.error());
  if (!said.empty()) terminal.note(said);
  if (const Status status = deliver_json(terminal, options.json, estimate_json(*answer)); !status)
    return failed(status.error());
  if (!options.json.to_stdout) terminal.out(estimate_text(*answer, terminal.unicode()));
  if (options.html) {
    if (const Status status = write_text_file(*options.html, estimate_html(*answer)); !status)
      return failed(status.error());
    terminal.note("page: " + *options.html);
  }
  if (options.policy_out) {
    if (const Status status = write_text_file(*options.policy_out, policy_json(answer->policy)); !status)
      return failed(status.error());
    terminal.note("policy: " + *options.policy_out +
                  (answer->policy.rules.empty() ? " (no rule: it leaves the job alone)" : ""));
    if (!answer->policy.rules.empty()) {
      std::vector<std::string> next = {"echo-tp", "run", "--policy", *options.policy_out, "--"};
      next.insert(next.end(), trace->command.begin(), trace->command.end());
      terminal.note("next: " + shell_line(next));
    }
  }
  return kExitOk;
}

}  // namespace

const Command kEstimateCommand = {
    "estimate", "what would Echo give a recorded job?", kHelp, false, kExitUsage, run};

}  // namespace echotp
