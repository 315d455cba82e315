// SPDX-License-Identifier: Apache-2.0
// echo-tp bench: starts one bench worker a rank under the shim and shows the cost table that rank 0 writes.
#include "cli/cmd_bench.hpp"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/artifacts.hpp"
#include "cli/bench_confirm.hpp"
#include "cli/bench_options.hpp"
#include "cli/doctor_probe.hpp"
#include "cli/launch.hpp"
#include "cli/report_text.hpp"
#include "cli/shim_run.hpp"
#include "cli/text.hpp"
#include "shim/costs.hpp"
#include "shim/policy_json.hpp"
#include "shim/text_file.hpp"

namespace echotp {
namespace {

constexpr const char* kDefaultSizes = "8KiB,32KiB,128KiB,512KiB,2MiB,8MiB,32MiB,128MiB,512MiB,1GiB";

constexpr const char* kHelp = R"(usage: echo-tp bench [OPTIONS]

Times NCCL's all-reduce against Echo's by message size, in turns and on the same data, checks the bytes, and writes the cost
table that echo-tp estimate and policies read. Starts the ranks itself; with fewer GPUs than ranks they share them. Started
once a rank by a launcher (RANK and WORLD_SIZE are set), it is that rank. With --loopback it needs neither ranks nor NCCL.

Options:
      --ranks N              (default: the GPUs of this machine, at least 2)
      --sizes LIST           message sizes, with KiB, MiB or GiB (default 8KiB to 1GiB in steps of 4)
      --dtype TYPE           bf16 (default), fp16 or fp32
      --transports LIST      staged,p2p (default both); p2p where the ranks agree on it
      --modes LIST           compensation: both, owner, ef, drift, none (default both,none)
      --states LIST          format of the error estimates: int8 (default), fp16, fp32
      --first-leg-bits LIST  bits of a code on the way to its owner: 4 (default), 8
      --group N              elements that share a scale: 32 (default), 64 or 128
      --iterations N         calls of each candidate at a size, at most (default 50)
      --warmup N             calls before them (default 5)
      --graph                time replays of CUDA graphs, as for small messages in a decoder
      --background KIND      what else uses the link: idle (default), copy or collective
      --check                compare the ranks' results bit by bit after every call
      --loopback N           instead: all of 2 to 8 ranks in one launch on one GPU, without a link (default sizes
                             64MiB,256MiB,1GiB), against the time that the memory needs at least
  -o, --output FILE          the cost table (default: echo-tp-costs-<UTC time>.json here; with --loopback
                             echo-tp-loopback-<UTC time>.json)
      --force                overwrite files
      --json[=FILE]          the table as a document, on standard output or in FILE
  -q, --quiet                results and errors only
      --color WHEN           auto, always or never
  -h, --help                 this text

Examples:
  echo-tp bench --ranks 2 -o costs.json
  echo-tp bench --ranks 4 --sizes 64MiB,256MiB --modes none,owner,both --states int8,fp16
  echo-tp bench --loopback 2

Exit codes: 0; 1 wrong bytes: not the reference's, or not the same on all ranks; 2 bad usage; 3 no GPU, or nothing could be
measured.
)";

bool is_rank() {
  return std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr;
}
bool is_first_rank() {
  return std::string(std::getenv("RANK")) == "0";
}

const std::string* given(const std::optional<std::string>& value) {
  return value ? &*value : nullptr;
}

// What would be refused by the bench programs too, but only where there is a driver.
Status check_request(BenchRequest& request) {
  if (request.sizes) {
    const int element = request.dtype.value_or("bf16") == "fp32" ? 4 : 2;
    if (const auto sizes = read_bench_sizes(*request.sizes, element); !sizes) return sizes.error();
  }
  auto grid = read_bench_grid(given(request.transports), given(request.modes), given(request.states),
                              given(request.first_leg_bits));
  if (!grid) return grid.error();
  request.grid = *std::move(grid);
  request.grid.group = std::atoi(request.group.value_or("32").c_str());
  if (!request.loopback) {
    const auto policy = parse_policy(bench_policy(request.grid), "generated policy", "");
    return policy ? Status(Unit{}) : policy.error();
  }
  const std::vector<std::string>& modes = request.grid.modes;
  if (std::find(modes.begin(), modes.end(), "drift") != modes.end())
    return Error{ErrorCode::kBadInput, "drift runs on the staged transport alone, which --loopback has not",
                 "--modes"};
  const std::pair<bool, const char*> of_ranks[] = {{request.ranks.has_value(), "--ranks"},
                                                   {request.transports.has_value(), "--transports"},
                                                   {request.background.has_value(), "--background"},
                                                   {request.graph, "--graph"},
                                                   {request.check, "--check"}};
  for (const auto& [is_given, name] : of_ranks)
    if (is_given) return Error{ErrorCode::kBadInput, "does not go with --loopback", name};
  return Unit{};
}

std::vector<std::string> worker_command(const BenchRequest& request, const std::string& worker,
                                        const std::string& policy, const std::string& output) {
  std::vector<std::string> out = bench_program_words(worker, request, kDefaultSizes, policy, output);
  if (request.background) out.insert(out.end(), {"--background", *request.background});
  if (request.graph) out.push_back("--graph");
  if (request.check) out.push_back("--check");
  return out;
}

int run_ranks(Session& session, const BenchRequest& request) {
  Terminal& terminal = *session.terminal;
  const auto failed = [&](const Error& error) { return fail(session, kBenchCommand, error); };
  const bool launched = is_rank();
  const bool first = !launched || is_first_rank();
  const std::string path = request.output.value_or(default_name("echo-tp-costs", ".json"));
  if (first) {
    const Status status =
        claim_outputs({{"--output", path}, {"--json", request.json.path}}, {}, request.force);
    if (!status) return failed(status.error());
  }
  const GpuFacts gpus = probe_gpus();
  if (!gpus.problem.empty()) return failed({ErrorCode::kSystem, gpus.problem, "bench"});
  const Installation installation = find_installation();
  if (const Status status = need_file(installation.bench_worker, "measuring"); !status)
    return failed(status.error());
  auto scratch = Scratch::make(folder_of(path));
  if (!scratch) return failed(scratch.error());
  const std::string policy_path = scratch->path() + "/policy.json";
  if (const Status status = write_text_file(policy_path, bench_policy(request.grid)); !status)
    return failed(status.error());
  const auto shim = ShimRun::prepare(scratch->path(), policy_path, "compress");
  if (!shim) return failed(shim.error());

  const std::string measured = scratch->path() + "/costs.json";
  JobPlan plan{worker_command(request, installation.bench_worker, policy_path, measured), {}, nullptr};
  if (!launched) {
    const auto ranks =
        request.ranks.value_or(std::max<std::int64_t>(2, static_cast<std::int64_t>(gpus.devices.size())));
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
  auto document = bench_result(measured, session.command_line);
  std::vector<std::string> doubts;
  if (document) document = confirmed_costs(*document, shim->report({}).processes, doubts);
  if (!document) return failed(document.error());
  for (const std::string& line : doubts) terminal.warning(line);
  if (const Status status = write_text_file(path, *document); !status) return failed(status.error());
  if (const Status status = deliver_json(terminal, request.json, *document); !status)
    return failed(status.error());
  const auto table = read_costs(path);
  if (!table) return failed(table.error());
  if (!request.json.to_stdout) terminal.out(costs_text(*table));
  terminal.note("costs: " + path);
  terminal.note("next: " + shell_line({"echo-tp", "estimate", "PROFILE", "--costs", path}));
  if (end.exit_code == 0) return kExitOk;
  if (end.exit_code == kExitNo)
    return failed({ErrorCode::kSystem, "wrong bytes: see the lines above", "bench"}), kExitNo;
  return failed({ErrorCode::kInsufficient, "no call was compressed: only NCCL was measured", "bench"});
}

int run(Session& session) {
  BenchRequest request;
  OptionSet set(kBenchCommand);
  set.integer("--ranks", request.ranks, 2, 64);
  set.integer("--loopback", request.loopback, 2, 8);
  set.text("--sizes", request.sizes);
  set.choice("--dtype", request.dtype, {"bf16", "fp16", "fp32"});
  set.text("--transports", request.transports);
  set.text("--modes", request.modes);
  set.text("--states", request.states);
  set.text("--first-leg-bits", request.first_leg_bits);
  set.choice("--group", request.group, {"32", "64", "128"});
  set.integer("--iterations", request.iterations, 1, 100'000);
  set.integer("--warmup", request.warmup, 1, 100'000);
  set.flag("--graph", request.graph);
  set.choice("--background", request.background, {"idle", "copy", "collective"});
  set.flag("--check", request.check);
  set.text("-o,--output", request.output);
  set.flag("--force", request.force);
  set.json(request.json);
  if (const auto code = set.parse(session)) return *code;
  if (const Status status = check_request(request); !status)
    return fail(session, kBenchCommand, status.error());
  return request.loopback ? run_loopback(session, request) : run_ranks(session, request);
}

}  // namespace

std::vector<std::string> bench_program_words(const std::string& program, const BenchRequest& request,
                                             const std::string& default_sizes, const std::string& policy,
                                             const std::string& output) {
  std::vector<std::string> out = {program,
                                  "--sizes",
                                  request.sizes.value_or(default_sizes),
                                  "--dtype",
                                  request.dtype.value_or("bf16"),
                                  "--policy",
                                  policy,
                                  "--output",
                                  output};
  if (request.iterations) out.insert(out.end(), {"--iterations", std::to_string(*request.iterations)});
  if (request.warmup) out.insert(out.end(), {"--warmup", std::to_string(*request.warmup)});
  return out;
}

Result<std::string> bench_result(const std::string& path, const std::vector<std::string>& command) {
  auto text = read_text_file(path, 64u << 20);
  if (!text) return text.error();
  auto document = nlohmann::ordered_json::parse(*text, nullptr, false);
  if (!document.is_object()) return Error{ErrorCode::kSystem, "the bench program wrote no JSON object", path};
  std::vector<std::string> shown = command;
  shown.front() = "echo-tp";
  document["command"] = shown;
  return document.dump(2) + "\n";
}

const Command kBenchCommand = {
    "bench", "time NCCL against Echo by message size on this machine", kHelp, false, kExitUsage, run};

}  // namespace echotp
