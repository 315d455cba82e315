// SPDX-License-Identifier: Apache-2.0
// echo-tp profile: the job with the recorder injected; afterwards its parts become one profile.
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/environment.hpp"
#include "cli/launch.hpp"
#include "cli/report_text.hpp"
#include "cli/text.hpp"
#include "profiles/summary.hpp"
#include "profiles/trace_file.hpp"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp profile [-o FILE] [OPTIONS] -- JOB...

Records the job: every collective with its size, communicator and times on the GPU, and all else that runs there. The job
is not modified; its input, output, signals and exit code pass through. Afterwards a table says what the collectives cost,
and the profile is one file that echo-tp estimate reads.

Options:
  -o, --output FILE        the profile (default: profile-<UTC time>.echoprof here)
      --force              overwrite files
      --max-records N      rows that one process may record (default 4000000); later ones are counted and dropped
      --flush-ms N         how often rows are written (default 500): what a killed process may lose
      --cupti FILE         the libcupti.so to use (default: chosen to fit the driver)
      --json[=FILE]        the table as a document, on standard output after the job's own, or in FILE
  -q, --quiet              errors only
      --color WHEN         auto, always or never
  -h, --help               this text

Examples:
  echo-tp profile -o job.echoprof -- torchrun --nproc-per-node 2 serve.py
  echo-tp estimate job.echoprof

CUDA_INJECTION64_PATH, NVTX_INJECTION64_PATH and NCCL_PROFILER_PLUGIN carry the recorder. One that is set already is kept,
and a line says what the profile will lack. CUPTI serves one tool in a process: while the job is recorded, torch.profiler
and nsys in it get no GPU records.

Exit codes: the job's own, 128 + signal if one ended it; trouble with recording never changes it. 125 not started, 126 not
executable, 127 not found.
)";

struct Options {
  std::optional<std::string> output, cupti;
  std::optional<std::int64_t> max_records, flush_ms;
  bool force = false;
  JsonTarget json;
};

std::string recorder_options(const Options& options) {
  nlohmann::json out = nlohmann::json::object();
  if (options.max_records) out["max_records"] = *options.max_records;
  if (options.flush_ms) out["flush_ms"] = *options.flush_ms;
  if (options.cupti) out["cupti"] = absolute_path(*options.cupti);
  return out.empty() ? "" : out.dump();
}

void tell_end(Terminal& terminal, const JobEnd& end, const MergeSummary& merged) {
  if (end.killed_by != 0) {
    terminal.warning("the profile is partial: it holds what was recorded until the job was ended");
  } else if (end.exit_code != 0) {
    terminal.warning("the job failed with exit code " + std::to_string(end.exit_code) +
                     ": the profile is partial, it holds what was recorded until then");
  }
  if (merged.incomplete > 0 || merged.truncated_frames > 0) {
    terminal.warning(std::to_string(merged.incomplete) + " of " + std::to_string(merged.processes) +
                     " processes did not end in order: their part ends where they did");
  }
  for (const std::string& problem : merged.problems) terminal.warning(problem);
}

// Everything after the job. Its own failures are told, never handed on.
void finish(Session& session, const Options& options, const JobEnd& end, Scratch& scratch,
            const std::string& path) {
  Terminal& terminal = *session.terminal;
  if (end.killed_by != 0) terminal.warning("the job was ended by " + signal_text(end.killed_by));
  const std::vector<std::string> parts = scratch.files(".part");
  if (parts.empty()) {
    terminal.note("no collective seen: no process of the job used CUDA or NCCL, so there is no profile");
    return;
  }
  const auto merged = merge_profile(parts, session.job, path);
  if (!merged) {
    scratch.keep();
    terminal.error("the profile can't be made: " + merged.error().text() + "; its parts are kept in " +
                   scratch.path());
    return;
  }
  tell_end(terminal, end, *merged);
  const auto trace = read_profile(path);
  if (!trace) {
    terminal.error("the profile was written but can't be read: " + trace.error().text());
    return;
  }
  const ProfileSummary summary = summarise(*trace);
  if (trace->calls.empty())
    terminal.note("no collective seen: the job made no NCCL call; the profile holds its other GPU work");
  terminal.block(summary_text(summary));
  if (const Status status = deliver_json(terminal, options.json, summary_json(summary)); !status)
    terminal.error(status.error().text());
  terminal.note("profile: " + path + " (" + show_bytes(merged->bytes) + ", " +
                std::to_string(merged->processes) + (merged->processes == 1 ? " process)" : " processes)"));
  if (!trace->calls.empty())
    terminal.note("next: " + shell_line({"echo-tp", "estimate", path, "--policy-out", "policy.json"}));
}

int run(Session& session) {
  Options options;
  OptionSet set(kProfileCommand);
  set.text("-o,--output", options.output);
  set.flag("--force", options.force);
  set.integer("--max-records", options.max_records, 1000, 1'000'000'000);
  set.integer("--flush-ms", options.flush_ms, 10, 60'000);
  set.text("--cupti", options.cupti);
  set.json(options.json);
  if (const auto code = set.parse(session)) return *code;
  Terminal& terminal = *session.terminal;

  const Installation installation = find_installation();
  if (const Status status = need_file(installation.recorder, "recording"); !status)
    return fail(session, kProfileCommand, status.error());
  if (options.cupti && !is_file(*options.cupti))
    return fail(session, kProfileCommand, {ErrorCode::kNotFound, "no such file", *options.cupti});
  const std::string path = options.output.value_or(default_name("profile", ".echoprof"));
  const Status claimed = claim_outputs({{"--output", path}, {"--json", options.json.path}},
                                       {{"--cupti", options.cupti.value_or("")}}, options.force);
  if (!claimed) return fail(session, kProfileCommand, claimed.error());
  auto scratch = Scratch::make(folder_of(path));
  if (!scratch) return fail(session, kProfileCommand, scratch.error());

  Environment environment = Environment::current();
  for (const std::string& line :
       inject_recorder(environment, {installation.recorder, scratch->path(), recorder_options(options)}))
    terminal.warning(line);
  terminal.note("recording to " + path);
  const JobEnd end = run_job({session.job, environment.entries(), nullptr});
  if (!end.started) {
    terminal.error(end.error.text());
    return end.exit_code;
  }
  try {
    finish(session, options, end, *scratch, path);
  } catch (const std::exception& error) {
    scratch->keep();
    terminal.error(std::string("the profile can't be made: ") + error.what() + "; its parts are kept in " +
                   scratch->path());
  }
  return end.exit_code;
}

}  // namespace

const Command kProfileCommand = {
    "profile", "record a job: what do its collectives cost?", kHelp, true, kExitNotStarted, run};

}  // namespace echotp
