// SPDX-License-Identifier: Apache-2.0
// echo-tp bench: starts one bench worker a rank under the shim and shows the cost table that rank 0 writes.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/bench_options.hpp"
#include "cli/doctor_probe.hpp"
#include "cli/launch.hpp"
#include "cli/report_text.hpp"
#include "cli/shim_run.hpp"
#include "cli/text.hpp"
#include "echo_tp_version.h"
#include "shim/costs.hpp"
#include "shim/policy_json.hpp"
#include "shim/text_file.hpp"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp bench [OPTIONS]

Times NCCL's all-reduce against Echo's by message size, in turns and on the same data, and writes the cost table that echo-tp
estimate reads. Starts the ranks itself; with fewer GPUs than ranks they share them. Started once a rank by a launcher
(RANK and WORLD_SIZE are set), it is that rank.

Options:
      --ranks N             (default: the GPUs of this machine, at least 2)
      --sizes LIST          message sizes, with KiB, MiB or GiB (default 64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB)
      --dtype TYPE          bf16 (default), fp16 or fp32
      --iterations N        pairs of calls a size, at most (default 50)
      --warmup N            pairs before them (default 5)
      --compensation KIND   dual (default): both estimates; ef: plain error feedback; none
      --group N             elements that share a scale: 32 (default), 64 or 128
      --check               compare the ranks' results bit by bit after every call
  -o, --output FILE         the cost table (default: echo-tp-costs-<UTC time>.json here)
      --force               overwrite files
      --json[=FILE]         the table as a document, on standard output or in FILE
  -q, --quiet               results and errors only
      --color WHEN          auto, always or never
  -h, --help                this text

Examples:
  echo-tp bench --ranks 2 -o costs.json
  echo-tp bench --ranks 4 --sizes 64MiB,256MiB --compensation none

Exit codes: 0; 1 ranks held different results; 2 bad usage; 3 no GPU, or nothing could be measured.
)";

struct Options {
  std::optional<std::int64_t> ranks, iterations, warmup;
  std::optional<std::string> sizes, dtype, compensation, group, output;
  bool check = false, force = false;
  JsonTarget json;
};

Policy policy_of(const Options& options) {
  PolicyRule rule;
  rule.match.dtypes = {DataType::kBf16, DataType::kFp16, DataType::kFp32};
  rule.match.ops = {ReduceOp::kSum};
  rule.codec.group = std::atoi(options.group.value_or("32").c_str());
  rule.transport = TransportChoice::kStaged;
  const std::string kind = options.compensation.value_or("dual");
  if (kind == "none") rule.compensation.mode = CompensationMode::kNone;
  if (kind == "ef") {
    rule.compensation.a = 1;
    rule.compensation.b = 0;
  }
  rule.pass.direction = DirectionSource::kNone;
  Policy policy;
  policy.rules = {rule};
  return policy;
}

// What the worker writes into every entry.
std::string label_of(const PolicyRule& rule) {
  const Compensation& c = rule.compensation;
  const auto rounded = [](float value) { return std::round(static_cast<double>(value) * 1e6) / 1e6; };
  nlohmann::ordered_json out;
  out["transport"] = "staged";
  out["codec"] = {{"bits", rule.codec.bits}, {"group", rule.codec.group}};
  out["compensation"] = {{"mode", compensation_mode_name(c.mode)},
                         {"a", rounded(c.a)},
                         {"bf", rounded(c.bf)},
                         {"b", rounded(c.b)},
                         {"bs", rounded(c.bs)},
                         {"state", state_format_name(c.state)}};
  return out.dump();
}

std::vector<std::string> worker_command(const Options& options, const Installation& installation,
                                        const Policy& policy, const std::string& output) {
  std::vector<std::string> out = {installation.bench_worker,
                                  "--sizes",
                                  options.sizes.value_or("64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"),
                                  "--dtype",
                                  options.dtype.value_or("bf16"),
                                  "--output",
                                  output,
                                  "--label",
                                  label_of(policy.rules.front())};
  if (options.iterations) out.insert(out.end(), {"--iterations", std::to_string(*options.iterations)});
  if (options.warmup) out.insert(out.end(), {"--warmup", std::to_string(*options.warmup)});
  if (options.check) out.push_back("--check");
  return out;
}

// The command that a person would type again, in place of the worker's.
Result<std::string> finished_document(const std::string& path, const std::vector<std::string>& command) {
  auto text = read_text_file(path, 64u << 20);
  if (!text) return text.error();
  auto document = nlohmann::ordered_json::parse(*text, nullptr, false);
  if (!document.is_object()) return Error{ErrorCode::kSystem, "the bench worker wrote no JSON object", path};
  if (!document.contains("generator") || document["generator"].is_null())
    document["generator"] = {{"name", "echo-tp"}, {"version", ECHO_TP_VERSION}};
  std::vector<std::string> shown = command;
  shown.front() = "echo-tp";
  document["command"] = shown;
  return document.dump(2) + "\n";
}

bool is_rank() {
  return std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr;
}
bool is_first_rank() {
  return std::string(std::getenv("RANK")) == "0";
}

int run(Session& session) {
  Options options;
  OptionSet set(kBenchCommand);
  set.integer("--ranks", options.ranks, 2, 64);
  set.text("--sizes", options.sizes);
  set.choice("--dtype", options.dtype, {"bf16", "fp16", "fp32"});
  set.integer("--iterations", options.iterations, 1, 100'000);
  set.integer("--warmup", options.warmup, 1, 100'000);
  set.choice("--compensation", options.compensation, {"dual", "ef", "none"});
  set.choice("--group", options.group, {"32", "64", "128"});
  set.flag("--check", options.check);
  set.text("-o,--output", options.output);
  set.flag("--force", options.force);
  set.json(options.json);
  if (const auto code = set.parse(session)) return *code;
  Terminal& terminal = *session.terminal;
  const auto failed = [&](const Error& error) { return fail(session, kBenchCommand, error); };
  // The worker would refuse them too, but only where there is a driver.
  if (options.sizes) {
    const int element = options.dtype.value_or("bf16") == "fp32" ? 4 : 2;
    if (const auto sizes = read_bench_sizes(*options.sizes, element); !sizes) return failed(sizes.error());
  }

  const bool launched = is_rank();
  const bool first = !launched || is_first_rank();
  const std::string path = options.output.value_or(default_name("echo-tp-costs", ".json"));
  if (first) {
    const Status status =
        claim_outputs({{"--output", path}, {"--json", options.json.path}}, {}, options.force);
    if (!status) return failed(status.error());
  }
  const GpuFacts gpus = probe_gpus();
  if (!gpus.problem.empty()) return failed({ErrorCode::kSystem, gpus.problem, "bench"});
  const Installation installation = find_installation();
  if (const Status status = need_file(installation.bench_worker, "measuring"); !status)
    return failed(status.error());
  auto scratch = Scratch::make(folder_of(path));
  if (!scratch) return failed(scratch.error());
  const Policy policy = policy_of(options);
  const std::string policy_path = scratch->path() + "/policy.json";
  if (const Status status = write_text_file(policy_path, policy_json(policy)); !status)
    return failed(status.error());
  const auto shim = ShimRun::prepare(scratch->path(), policy_path, "compress");
  if (!shim) return failed(shim.error());

  const std::string measured = scratch->path() + "/costs.json";
  JobPlan plan{worker_command(options, installation, policy, measured), {}, nullptr};
  if (!launched) {
    const auto ranks =
        options.ranks.value_or(std::max<std::int64_t>(2, static_cast<std::int64_t>(gpus.devices.size())));
    const std::vector<std::string> launcher = {installation.share + "/launch-ranks.sh", std::to_string(ranks),
                                               "--"};
    plan.command.insert(plan.command.begin(), launcher.begin(), launcher.end());
    terminal.note("measuring " + std::to_string(ranks) + " ranks on " + std::to_string(gpus.devices.size()) +
                  (gpus.devices.size() == 1 ? " GPU" : " GPUs"));
  }
  Environment environment = Environment::current();
  for (const std::string& line : shim->inject(environment)) terminal.warning(line);
  plan.environment = environment.entries();
  // Standard output holds the table alone.
  plan.on_output = [&](JobStream stream, std::string_view piece) {
    if (stream == JobStream::kStderr || !terminal.quiet()) terminal.pass_on(piece);
  };
  const JobEnd end = run_job(plan);
  if (!end.started) return failed({ErrorCode::kSystem, end.error.text(), "bench"});
  if (end.interrupted != 0) return kExitSignal + end.interrupted;
  if (!first) return end.exit_code <= kExitNoAnswer ? end.exit_code : static_cast<int>(kExitNoAnswer);
  if (!is_file(measured)) {
    const std::string how =
        end.killed_by ? signal_text(end.killed_by) : "exit code " + std::to_string(end.exit_code);
    return end.exit_code == kExitUsage
               ? static_cast<int>(kExitUsage)
               : failed({ErrorCode::kSystem, "nothing was measured: the ranks ended with " + how, "bench"});
  }
  const auto document = finished_document(measured, session.command_line);
  if (!document) return failed(document.error());
  if (const Status status = write_text_file(path, *document); !status) return failed(status.error());
  if (const Status status = deliver_json(terminal, options.json, *document); !status)
    return failed(status.error());
  const auto table = read_costs(path);
  if (!table) return failed(table.error());
  if (!options.json.to_stdout) terminal.out(costs_text(*table));
  terminal.note("costs: " + path);
  terminal.note("next: " + shell_line({"echo-tp", "estimate", "PROFILE", "--costs", path}));
  if (end.exit_code == 0) return kExitOk;
  if (end.exit_code == kExitNo)
    return failed({ErrorCode::kSystem, "ranks held different results", "bench"}), kExitNo;
  return failed({ErrorCode::kInsufficient, "no call was compressed: only NCCL was measured", "bench"});
}

}  // namespace

const Command kBenchCommand = {
    "bench", "time NCCL against Echo by message size on this machine", kHelp, false, kExitUsage, run};

}  // namespace echotp
