// SPDX-License-Identifier: Apache-2.0
// echo-tp doctor: will it work here, and which traffic will it not see?
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/doctor_host.hpp"
#include "cli/doctor_probe.hpp"
#include "cli/doctor_switches.hpp"
#include "cli/text.hpp"
#include "echo_tp_version.h"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp doctor [OPTIONS]

Looks at this machine and environment: driver and GPUs, how their memory can be shared between processes, copies of NCCL and
CUPTI, echo-tp's own libraries, MPS, limits of a container, variables that change what echo-tp sees, and the switches of
frameworks whose all-reduces do not go through NCCL, with what turning them off costs. It changes none of them.

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
  HostFacts host;
  std::vector<SwitchFinding> environment;
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
          {"witness", &installation.witness, "run can't count all-reduces that pass it by"},
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
    if (device.compute_mode == "prohibited") out.push_back(device.name + ": compute mode forbids any job");
    if (device.compute_mode == "exclusive_process" && !findings.mps)
      out.push_back(device.name + ": exclusive mode without MPS: one process at a time");
    if (device.memory.ipc.works == false && device.memory.vmm.works == false)
      out.push_back(device.name + ": its memory can't be shared with other processes (" +
                    device.memory.vmm.problem + "): exchanges go through NCCL alone");
  }
  if (findings.nccl.empty()) out.push_back("no copy of NCCL found; a job may still bring its own");
  for (const LibraryCopy& copy : findings.nccl) {
    if (copy.hidden)
      out.push_back(copy.path + ": holds an NCCL without symbols: run can't see what goes through it");
  }
  if (findings.cupti.empty() && findings.gpus.problem.empty())
    out.push_back(
        "no CUPTI found: profiles will lack device times; install cuda-cupti, or give echo-tp profile "
        "--cupti FILE");
  for (std::string& line : host_advice(findings.host)) out.push_back(std::move(line));
  for (const SwitchFinding& finding : findings.environment) {
    if (finding.active) out.push_back(finding.name + "=" + finding.value + ": " + finding.effect);
  }
  return out;
}

std::string words(const Attempt& attempt) {
  if (attempt.works == true) return "works";
  return (attempt.works ? "no" : "not tried") +
         (attempt.problem.empty() ? std::string() : " (" + plain(attempt.problem) + ")");
}

std::string text_of(const HostFacts& host) {
  std::string out = "host     container: " + host.container.value_or("none seen");
  if (host.shm_bytes)
    out += ", /dev/shm " + show_bytes(host.shm_free_bytes.value_or(-1)) + " free of " +
           show_bytes(*host.shm_bytes);
  if (host.locked_memory_bytes)
    out += ", locked memory " + (*host.locked_memory_bytes == HostFacts::kUnlimited
                                     ? std::string("unlimited")
                                     : show_bytes(*host.locked_memory_bytes));
  out += "\n         process namespace: " +
         std::string(!host.own_pid_namespace   ? "unknown"
                     : *host.own_pid_namespace ? "own"
                                               : "the machine's") +
         ", ptrace_scope " + (host.ptrace_scope ? std::to_string(*host.ptrace_scope) : std::string("none")) +
         ", abstract sockets " +
         (!host.abstract_sockets   ? "unknown"
          : *host.abstract_sockets ? "work"
                                   : "refused") +
         "\n";
  return out;
}

// One line a cost, with the switches that have it.
std::string costs_of(const std::vector<SwitchFinding>& switches) {
  std::vector<std::pair<std::string, std::string>> costs;
  for (const SwitchFinding& finding : switches) {
    if (finding.cost.empty()) continue;
    const auto known = std::find_if(costs.begin(), costs.end(),
                                    [&](const auto& entry) { return entry.first == finding.cost; });
    if (known == costs.end()) {
      costs.emplace_back(finding.cost, finding.name);
    } else {
      known->second += ", " + finding.name;
    }
  }
  std::string out;
  for (const auto& [cost, names] : costs) out += "  - " + cost + "\n      " + names + "\n";
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
  for (std::size_t i = 0; i < gpus.devices.size(); ++i) {
    const MemorySharing& memory = gpus.devices[i].memory;
    out += "memory   GPU " + std::to_string(i) + ": CUDA IPC " + words(memory.ipc) + ", VMM handles " +
           words(memory.vmm) + ", peers";
    for (const int peer : memory.peers) out += " " + std::to_string(peer);
    out += memory.peers.empty() ? " none\n" : "\n";
  }
  for (const LibraryCopy& copy : findings.nccl)
    out += "NCCL     " + plain(copy.version.value_or("unknown version")) + "  " + plain(copy.path) +
           (copy.inside.empty() ? ""
            : copy.hidden       ? "  (static, hidden)"
                                : "  (static, visible)") +
           "\n";
  if (findings.nccl.empty()) out += "NCCL     none found\n";
  for (const LibraryCopy& copy : findings.cupti)
    out += "CUPTI    " + plain(copy.version.value_or("unknown version")) + "  " + plain(copy.path) + "\n";
  if (findings.cupti.empty()) out += "CUPTI    none found\n";
  out += "MPS      " + (findings.mps ? plain(*findings.mps) : std::string("not running")) + "\n";
  out += text_of(findings.host);
  for (const OwnFile& file : own_files(findings)) {
    if (is_file(*file.path)) out += std::string("own      ") + file.what + "  " + plain(*file.path) + "\n";
  }
  out += "\nAll-reduces that do not go through NCCL are not seen by run. The switches:\n";
  Table switches({"switch", "of", "now", "what it does"});
  for (const SwitchFinding& finding : findings.environment) {
    if (!finding.bypass) continue;
    switches.row({finding.name, finding.framework, finding.value, finding.effect});
  }
  out += switches.text();
  out += "What turning one off costs:\n" + costs_of(findings.environment);
  const std::vector<std::string> lines = advice(findings);
  out += lines.empty() ? "\nNothing stands in the way.\n" : "\nTo know:\n";
  for (const std::string& line : lines) out += "  - " + plain(line, 400) + "\n";
  return out;
}

Json copies(const std::vector<LibraryCopy>& list) {
  Json out = Json::array();
  for (const LibraryCopy& copy : list)
    out.push_back({{"path", copy.path},
                   {"version", copy.version ? Json(*copy.version) : Json(nullptr)},
                   {"static_in", copy.inside.empty() ? Json(nullptr) : Json(copy.inside)},
                   {"hidden", copy.hidden}});
  return out;
}

template <class T>
Json known(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_of(const Attempt& attempt) {
  return {{"works", known(attempt.works)},
          {"problem", attempt.problem.empty() ? Json(nullptr) : Json(attempt.problem)}};
}

Json json_of(const HostFacts& host) {
  const bool unlimited = host.locked_memory_bytes == HostFacts::kUnlimited;
  Json out;
  out["container"] = known(host.container);
  out["shm_bytes"] = known(host.shm_bytes);
  out["shm_free_bytes"] = known(host.shm_free_bytes);
  out["locked_memory_bytes"] = unlimited ? Json("unlimited") : known(host.locked_memory_bytes);
  out["ptrace_scope"] = known(host.ptrace_scope);
  out["own_pid_namespace"] = known(host.own_pid_namespace);
  out["abstract_sockets"] = known(host.abstract_sockets);
  return out;
}

std::string json_of(const Findings& findings) {
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
         {"capability", device.capability.empty() ? Json(nullptr) : Json(device.capability)},
         {"compute_mode", device.compute_mode.empty() ? Json(nullptr) : Json(device.compute_mode)},
         {"peers", device.memory.peers},
         {"ipc", json_of(device.memory.ipc)},
         {"vmm", json_of(device.memory.vmm)}});
  }
  out["nccl"] = copies(findings.nccl);
  out["cupti"] = copies(findings.cupti);
  out["mps"] = known(findings.mps);
  out["host"] = json_of(findings.host);
  out["installation"] = Json::array();
  for (const OwnFile& file : own_files(findings))
    out["installation"].push_back(
        {{"what", file.what}, {"path", *file.path}, {"present", is_file(*file.path)}});
  out["environment"] = Json::array();
  for (const SwitchFinding& finding : findings.environment) {
    out["environment"].push_back(
        {{"name", finding.name},
         {"framework", finding.framework.empty() ? Json(nullptr) : Json(finding.framework)},
         {"value", finding.value.empty() ? Json(nullptr) : Json(finding.value)},
         {"effect", finding.effect},
         {"cost", finding.cost.empty() ? Json(nullptr) : Json(finding.cost)},
         {"bypass", finding.bypass},
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
  Findings findings;
  findings.gpus = probe_gpus();
  findings.nccl = find_nccl();
  findings.cupti = find_cupti();
  findings.mps = probe_mps();
  findings.host = probe_host("");
  findings.environment = probe_switches([](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  });
  findings.installation = find_installation();
  session.terminal->out(json ? json_of(findings) : text_of(findings));
  return kExitOk;
}

}  // namespace

const Command kDoctorCommand = {
    "doctor", "will it work here, and what will it not see?", kHelp, false, kExitUsage, run};

}  // namespace echotp
