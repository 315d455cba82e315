// SPDX-License-Identifier: Apache-2.0
// echo-tp show: the table of a profile that was recorded before.
#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/report_text.hpp"
#include "cli/text.hpp"
#include "profiles/summary.hpp"
#include "profiles/trace_file.hpp"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp show PROFILE [OPTIONS]

Prints what a profile holds: collectives by message size, what they cost, and what could not be recorded.

Options:
      --json[=FILE]   the table as a document, on standard output or in FILE
      --force         overwrite FILE
  -q, --quiet         errors only
      --color WHEN    auto, always or never
  -h, --help          this text

Example:
  echo-tp show job.echoprof

Exit codes: 0; 2 no such file, not a profile, or bad usage; 3 the profile holds nothing.
)";

int run(Session& session) {
  std::optional<std::string> profile;
  JsonTarget json;
  bool force = false;
  OptionSet set(kShowCommand);
  set.positional("PROFILE", profile);
  set.json(json);
  set.flag("--force", force);
  if (const auto code = set.parse(session)) return *code;
  Terminal& terminal = *session.terminal;

  for (const Status& status :
       {claim_outputs({{"--json", json.path}}, {{"PROFILE", *profile}}, force), refuse_folder(*profile)}) {
    if (!status) return fail(session, kShowCommand, status.error());
  }
  const auto trace = read_profile(*profile);
  if (!trace) return fail(session, kShowCommand, trace.error());
  if (trace->truncated_frames > 0)
    terminal.warning(*profile + ": its end was cut off by a crash; the rest is shown");
  if (trace->processes.empty() || (trace->calls.empty() && trace->device_ops.empty())) {
    return fail(session, kShowCommand,
                {ErrorCode::kInsufficient, "holds no GPU work and no collective", *profile});
  }
  const ProfileSummary summary = summarise(*trace);
  if (const Status status = deliver_json(terminal, json, summary_json(summary)); !status)
    return fail(session, kShowCommand, status.error());
  if (json.to_stdout) return kExitOk;
  std::string text = plain(*profile) + ": " + std::to_string(trace->processes.size()) +
                     (trace->processes.size() == 1 ? " process" : " processes");
  if (!trace->command.empty()) text += ", recorded from: " + plain(shell_line(trace->command), 160);
  text += "\n";
  if (trace->calls.empty()) text += "  no collective seen\n";
  terminal.out(text + summary_text(summary));
  return kExitOk;
}

}  // namespace

const Command kShowCommand = {"show", "print the table of a profile", kHelp, false, kExitUsage, run};

}  // namespace echotp
