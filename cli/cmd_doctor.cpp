// SPDX-License-Identifier: Apache-2.0
// echo-tp doctor: will it work here, and which traffic will it not see?
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/doctor_probe.hpp"
#include "cli/text.hpp"
#include "echo_tp_version.h"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp doctor [OPTIONS]

Looks at this machine and environment: driver and GPUs, copies of NCCL and CUPTI, echo-tp's own libraries, MPS, variables
that change what echo-tp sees, and the switches of frameworks whose all-reduces do not go through NCCL.

Options:
      --json          the findings as a document on standard output
  -q, --quiet         results and errors only
      --color WHEN    auto, always or never
  -h, --help          this text

Example:
  echo-tp doctor

Exit codes: 0, whatever was found; 2 bad usage.
)";

using Json = nlohmann::ordered_json;

struct Findings {
  GpuFacts gpus;
  std::vector<LibraryCopy> nccl, cupti;
  std::optional<std::string> mps;
  std::vector<EnvironmentFinding> environment;
  Installation installation;
};

struct OwnFile {
  const char* what;
  const std::string* path;
  const char* missing;
};

std::vector<OwnFile> own_files(const Findings& findings) {
  const Installation& installation = findings.installation;
  return {{"shim", &installation.shim, "run and ab can't work"},
          {"engine", &installation.engine, "run and ab can't work"},
          {"recorder", &installation.recorder, "profile can't work"},
          {"bench worker", &installation.bench_worker, "bench can't work"},
          {"bench loopback", &installation.bench_loopback, "bench --loopback can't work"}};
}

// What a person should act on, most important first.
std::vector<std::string> advice(const Findings& findings) {
  std::vector<std::string> out;
  if (!findings.gpus.problem.empty())
    out.push_back(findings.gpus.problem +
                  ": estimate, show, policy and doctor work; profile, run, ab and bench need a GPU");
  for (const OwnFile& file : own_files(findings)) {
    if (!is_file(*file.path)) out.push_back(*file.path + " is missing: " + file.missing);
  }
  for (const GpuDevice& device : findings.gpus.devices) {
    if (!device.capability.empty() && std::atof(device.capability.c_str()) < 8.0)
      out.push_back(device.name + " has compute capability " + device.capability +
                    "; Echo's kernels need 8.0");
    if (device.name.find("MIG") != std::string::npos)
      out.push_back(device.name + ": MIG slices are left to NCCL");
  }
  if (findings.nccl.empty()) out.push_back("no copy of NCCL found; a job may still bring its own");
  if (findings.cupti.empty() && findings.gpus.problem.empty())
    out.push_back(
        "no CUPTI found: profiles will lack device times; install cuda-cupti, or give echo-tp profile "
        "--cupti FILE");
  for (const EnvironmentFinding& finding : findings.environment) {
    if (finding.active) out.push_back(finding.name + "=" + finding.value + ": " + finding.effect);
  }
  return out;
}

std::string text_of(const Findings& findings) {
  const GpuFacts& gpus = findings.gpus;
  std::string out = "echo-tp " ECHO_TP_VERSION "\n";
  out += "driver   " + (gpus.driver ? plain(*gpus.driver) : std::string("not found")) +
         (gpus.cuda ? ", supports CUDA " + *gpus.cuda : "") + "\n";
  for (const GpuDevice& device : gpus.devices)
    out += "GPU      " + plain(device.name) +
           (device.capability.empty() ? "" : ", compute capability " + device.capability) + "\n";
  if (gpus.devices.empty()) out += "GPU      none\n";
  for (const LibraryCopy& copy : findings.nccl)
    out += "NCCL     " + plain(copy.version.value_or("unknown version")) + "  " + plain(copy.path) + "\n";
  if (findings.nccl.empty()) out += "NCCL     none found\n";
  for (const LibraryCopy& copy : findings.cupti)
    out += "CUPTI    " + plain(copy.version.value_or("unknown version")) + "  " + plain(copy.path) + "\n";
  if (findings.cupti.empty()) out += "CUPTI    none found\n";
  out += "MPS      " + (findings.mps ? plain(*findings.mps) : std::string("not running")) + "\n";
  for (const OwnFile& file : own_files(findings)) {
    if (is_file(*file.path)) out += std::string("own      ") + file.what + "  " + plain(*file.path) + "\n";
  }
  out += "\nAll-reduces that do not go through NCCL are not seen by run. The switches:\n";
  Table switches({"switch", "now", "what it does"});
  for (const EnvironmentFinding& finding : findings.environment) {
    if (finding.name.starts_with("VLLM") || finding.name.starts_with("--") ||
        finding.name.starts_with("allreduce")) {
      switches.row({finding.name, finding.value.empty() ? "" : finding.value, finding.effect});
    }
  }
  out += switches.text();
  const std::vector<std::string> lines = advice(findings);
  out += lines.empty() ? "\nNothing stands in the way.\n" : "\nTo know:\n";
  for (const std::string& line : lines) out += "  - " + plain(line, 400) + "\n";
  return out;
}

Json copies(const std::vector<LibraryCopy>& list) {
  Json out = Json::array();
  for (const LibraryCopy& copy : list)
    out.push_back({{"path", copy.path}, {"version", copy.version ? Json(*copy.version) : Json(nullptr)}});
  return out;
}

std::string json_of(const Findings& findings) {
  const auto known = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  Json out;
  out["schema"] = "echo-tp/doctor/1";
  out["generator"] = {{"name", "echo-tp"}, {"version", ECHO_TP_VERSION}};
  out["driver"] = known(findings.gpus.driver);
  out["cuda"] = known(findings.gpus.cuda);
  out["gpu_problem"] = findings.gpus.problem.empty() ? Json(nullptr) : Json(findings.gpus.problem);
  out["gpus"] = Json::array();
  for (const GpuDevice& device : findings.gpus.devices) {
    out["gpus"].push_back(
        {{"name", device.name},
         {"uuid", device.uuid.empty() ? Json(nullptr) : Json(device.uuid)},
         {"capability", device.capability.empty() ? Json(nullptr) : Json(device.capability)}});
  }
  out["nccl"] = copies(findings.nccl);
  out["cupti"] = copies(findings.cupti);
  out["mps"] = known(findings.mps);
  out["installation"] = Json::array();
  for (const OwnFile& file : own_files(findings))
    out["installation"].push_back(
        {{"what", file.what}, {"path", *file.path}, {"present", is_file(*file.path)}});
  out["environment"] = Json::array();
  for (const EnvironmentFinding& finding : findings.environment) {
    out["environment"].push_back({{"name", finding.name},
                                  {"value", finding.value.empty() ? Json(nullptr) : Json(finding.value)},
                                  {"effect", finding.effect},
                                  {"active", finding.active}});
  }
  out["advice"] = advice(findings);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int run(Session& session) {
  bool json = false;
  OptionSet set(kDoctorCommand);
  set.json_on_stdout(json);
  if (const auto code = set.parse(session)) return *code;
  const Findings findings = {probe_gpus(), find_nccl(),         find_cupti(),
                             probe_mps(),  probe_environment(), find_installation()};
  session.terminal->out(json ? json_of(findings) : text_of(findings));
  return kExitOk;
}

}  // namespace

const Command kDoctorCommand = {
    "doctor", "will it work here, and what will it not see?", kHelp, false, kExitUsage, run};

}  // namespace echotp
