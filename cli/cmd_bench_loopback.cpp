// SPDX-License-Identifier: Apache-2.0
// echo-tp bench --loopback: runs the loopback program, and shows its times beside their bounds.
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/artifacts.hpp"
#include "cli/cmd_bench.hpp"
#include "cli/doctor_probe.hpp"
#include "cli/environment.hpp"
#include "cli/launch.hpp"
#include "cli/text.hpp"
#include "shim/text_file.hpp"

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDefaultSizes = "64MiB,256MiB,1GiB";

std::string time_text(const Json& spread) {
  if (!spread.is_object()) return "-";
  return show_time(spread.at("median").get<double>()) + " (" + show_time(spread.at("p10").get<double>()) +
         " to " + show_time(spread.at("p90").get<double>()) + ")";
}

// May throw what the JSON library throws.
std::string loopback_text(const Json& document) {
  Table rows({"a rank's message", "compensation", "first leg", ">moved", ">bound", ">measured",
              ">bound/measured", "as reference"});
  for (const Json& entry : document.at("entries")) {
    const Json& compensation = entry.at("compensation");
    std::string mode = compensation.at("mode");
    if (compensation.contains("state")) mode += " " + compensation.at("state").get<std::string>();
    rows.row({show_bytes(entry.at("bytes").get<std::int64_t>()), mode,
              std::to_string(entry.at("codec").at("first_leg_bits").get<int>()) + " bits",
              show_bytes(static_cast<std::int64_t>(entry.at("moved_bytes").get<double>())),
              show_time(entry.at("bound_us").get<double>()), time_text(entry.at("us")),
              entry.at("ratio").is_number() ? show_percent(entry.at("ratio").get<double>())
                                            : entry.value("why_not", "-"),
              entry.at("reference_equal") == true ? "yes" : "NO"});
  }
  return "  " + plain(document.at("environment").value("gpu", "unknown GPU")) + ", " +
         std::to_string(document.at("ranks").get<int>()) + " ranks of " +
         std::to_string(document.at("ctas_per_rank").get<int>()) + " CTAs, copy " +
         show_number(document.at("copy_gbs").at("median").get<double>()) + " GB/s\n" + rows.text() +
         "  times: median (10% to 90%) of one call of all ranks; bound: the bytes that all ranks' memory "
         "must "
         "move, at the copy's rate\n";
}

}  // namespace

int run_loopback(Session& session, const BenchRequest& request) {
  Terminal& terminal = *session.terminal;
  const auto failed = [&](const Error& error) { return fail(session, kBenchCommand, error); };
  const std::string path = request.output.value_or(default_name("echo-tp-loopback", ".json"));
  if (const Status status =
          claim_outputs({{"--output", path}, {"--json", request.json.path}}, {}, request.force);
      !status)
    return failed(status.error());
  const GpuFacts gpus = probe_gpus();
  if (!gpus.problem.empty()) return failed({ErrorCode::kSystem, gpus.problem, "bench"});
  const Installation installation = find_installation();
  if (const Status status = need_file(installation.bench_loopback, "measuring"); !status)
    return failed(status.error());
  auto scratch = Scratch::make(folder_of(path));
  if (!scratch) return failed(scratch.error());
  const std::string policy_path = scratch->path() + "/policy.json",
                    measured = scratch->path() + "/loopback.json";
  BenchGrid grid = request.grid;
  grid.transports = {TransportChoice::kStaged};  // of no matter here: the methods once each
  if (const Status status = write_text_file(policy_path, bench_policy(grid)); !status)
    return failed(status.error());
  JobPlan plan{
      bench_program_words(installation.bench_loopback, request, kDefaultSizes, policy_path, measured),
      {},
      nullptr};
  plan.command.insert(plan.command.end(), {"--ranks", std::to_string(*request.loopback)});
  plan.environment = Environment::current().entries();
  plan.on_output = [&](JobStream stream, std::string_view piece) {
    if (stream == JobStream::kStderr || !terminal.quiet()) terminal.pass_on(piece);
  };
  const JobEnd end = run_job(plan);
  if (!end.started) return failed({ErrorCode::kSystem, end.error.text(), "bench"});
  if (end.interrupted != 0) return kExitSignal + end.interrupted;
  if (!is_file(measured)) {
    const std::string how =
        end.killed_by ? signal_text(end.killed_by) : "exit code " + std::to_string(end.exit_code);
    return failed({ErrorCode::kSystem, "nothing was measured: the loopback ended with " + how, "bench"});
  }
  const auto document = bench_result(measured, session.command_line);
  if (!document) return failed(document.error());
  if (const Status status = write_text_file(path, *document); !status) return failed(status.error());
  if (const Status status = deliver_json(terminal, request.json, *document); !status)
    return failed(status.error());
  try {
    if (!request.json.to_stdout) terminal.out(loopback_text(Json::parse(*document)));
  } catch (const Json::exception& error) {
    return failed({ErrorCode::kSystem, error.what(), path});
  }
  terminal.note("results: " + path);
  if (end.exit_code == 0) return kExitOk;
  return failed({ErrorCode::kSystem, "wrong bytes: see the lines above", "bench"}), kExitNo;
}

}  // namespace echotp
