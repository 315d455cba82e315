// SPDX-License-Identifier: Apache-2.0
// What doctor makes of a host, of an environment and of a driver, each made up.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "cli/doctor_host.hpp"
#include "cli/doctor_memory.hpp"
#include "cli/doctor_switches.hpp"
#include "tests/shim/temp_dir.hpp"

using namespace echotp;

namespace {

bool says(const std::vector<std::string>& lines, const std::string& words) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

void make_folders(const TempDir& root, std::initializer_list<const char*> folders) {
  for (const char* folder : folders) std::filesystem::create_directories(root.path(folder));
}

const SwitchFinding& switch_named(const std::vector<SwitchFinding>& all, const std::string& name) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const auto& found) { return found.name == name; });
  REQUIRE(at != all.end());
  return *at;
}

std::vector<SwitchFinding> switches(const std::map<std::string, std::string>& variables) {
  return probe_switches([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::string() : at->second;
  });
}

/// The fake driver, which must hold nothing afterwards.
MemorySharing probe_fake(const char* refuse) {
  void* library = ::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  if (refuse) {
    ::setenv("FAKE_CUDA_REFUSE", refuse, 1);
  } else {
    ::unsetenv("FAKE_CUDA_REFUSE");
  }
  const MemorySharing out = probe_memory_sharing(library, 11, 1, 2);
  const auto held = reinterpret_cast<int (*)()>(::dlsym(library, "fake_cuda_held"));
  CHECK(held() == 0);
  return out;
}

}  // namespace

TEST_CASE("doctor: an ordinary container with Docker's defaults") {
  TempDir root;
  make_folders(root, {"proc/self/ns", "proc/sys/kernel/yama", "dev/shm"});
  root.write(".dockerenv", "");
  root.write("proc/sys/kernel/yama/ptrace_scope", "2\n");
  root.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max cpu time              unlimited            unlimited            seconds   \n"
             "Max locked memory         65536                unlimited            bytes     \n");
  ::symlink("pid:[4026532999]", root.path("proc/self/ns/pid").c_str());
  HostFacts facts = probe_host(root.path(""));
  CHECK(facts.container == "docker");
  CHECK(facts.locked_memory_bytes == 65536);
  CHECK(facts.ptrace_scope == 2);
  CHECK(facts.own_pid_namespace == true);
  CHECK(facts.shm_bytes.value_or(0) > 0);
  facts.shm_bytes = facts.shm_free_bytes = 64 << 20;
  facts.abstract_sockets = false;
  const auto lines = host_advice(facts);
  CHECK(lines.size() == 5);
  CHECK(says(lines, "/dev/shm has 64 MiB free of 64 MiB"));
  CHECK(says(lines, "locked memory is limited to 64 KiB"));
  CHECK(says(lines, "CUDA IPC works among the ranks of one container"));
  CHECK(says(lines, "ptrace_scope is 2"));
  CHECK(says(lines, "abstract unix sockets"));
}

TEST_CASE("doctor: a machine without limits has nothing to tell") {
  TempDir root;
  make_folders(root, {"proc/self/ns", "dev/shm"});
  root.write("proc/self/limits",
             "Max locked memory         unlimited            unlimited            bytes     \n");
  ::symlink("pid:[4026531836]", root.path("proc/self/ns/pid").c_str());
  HostFacts facts = probe_host(root.path(""));
  CHECK_FALSE(facts.container);
  CHECK(facts.locked_memory_bytes == HostFacts::kUnlimited);
  CHECK_FALSE(facts.ptrace_scope);
  CHECK(facts.own_pid_namespace == false);
  facts.shm_bytes = facts.shm_free_bytes = std::int64_t{8} << 30;
  facts.abstract_sockets = true;
  CHECK(host_advice(facts).empty());
}

TEST_CASE("doctor: what can't be read is unknown") {
  TempDir root;
  make_folders(root, {"proc/self/ns", "proc/sys/kernel/yama"});
  root.write("proc/self/limits", "Max locked memory         many\nMax locked memory");
  root.write("proc/sys/kernel/yama/ptrace_scope", "x\n");
  ::symlink("net:[1]", root.path("proc/self/ns/pid").c_str());
  const HostFacts facts = probe_host(root.path(""));
  CHECK_FALSE(facts.container);
  CHECK_FALSE(facts.shm_bytes);
  CHECK_FALSE(facts.locked_memory_bytes);
  CHECK_FALSE(facts.ptrace_scope);
  CHECK_FALSE(facts.own_pid_namespace);
  CHECK(says(host_advice(facts), "/dev/shm can't be read"));
}

TEST_CASE("doctor: each way around NCCL has its switch, its framework and its cost") {
  const auto all = switches({});
  for (const SwitchFinding& found : all) {
    CAPTURE(found.name);
    CHECK(found.bypass);  // nothing is set, so nothing else is found
    CHECK_FALSE(found.active);
    CHECK_FALSE(found.framework.empty());
    CHECK_FALSE(found.effect.empty());
    CHECK_FALSE(found.cost.empty());
  }
  for (const char* framework :
       {"vLLM", "SGLang", "TensorRT-LLM", "PyTorch", "Transformer Engine", "MSCCL++"}) {
    CAPTURE(framework);
    CHECK(std::any_of(all.begin(), all.end(), [&](const SwitchFinding& found) {
      return found.framework.find(framework) != std::string::npos;
    }));
  }
}

TEST_CASE("doctor: a switch that is set counts as such, one that is off does not") {
  const auto all = switches({{"VLLM_ALLREDUCE_USE_SYMM_MEM", "0"},
                             {"VLLM_ALLREDUCE_USE_FLASHINFER", "1"},
                             {"NCCL_COMM_BLOCKING", "1"},
                             {"ECHO_TP", "off"},
                             {"LD_PRELOAD", "/a\x1b[31m.so"}});
  CHECK_FALSE(switch_named(all, "VLLM_ALLREDUCE_USE_SYMM_MEM").active);
  CHECK(switch_named(all, "VLLM_ALLREDUCE_USE_FLASHINFER").active);
  CHECK(switch_named(all, "ECHO_TP").active);
  CHECK(switch_named(all, "LD_PRELOAD").value.find('\x1b') == std::string::npos);
  CHECK(std::none_of(all.begin(), all.end(),
                     [](const auto& found) { return found.name == "NCCL_COMM_BLOCKING"; }));
}

TEST_CASE("doctor: memory sharing is tried, and all is given back whatever is refused") {
  const MemorySharing good = probe_fake(nullptr);
  CHECK(good.peers == std::vector<int>{0});
  CHECK(good.ipc.works == true);
  CHECK(good.vmm.works == true);

  CHECK(probe_fake("cuDeviceCanAccessPeer").peers.empty());
  const MemorySharing no_context = probe_fake("cuDevicePrimaryCtxRetain");
  CHECK_FALSE(no_context.ipc.works);
  CHECK(no_context.vmm.problem == "no context: refused for the test (999)");
  CHECK_FALSE(probe_fake("cuCtxPushCurrent_v2").vmm.works);
  CHECK_FALSE(probe_fake("cuMemAlloc_v2").ipc.works);  // no memory says nothing about IPC
  const MemorySharing no_ipc = probe_fake("cuIpcGetMemHandle");
  CHECK(no_ipc.ipc.works == false);
  CHECK(no_ipc.ipc.problem == "cuIpcGetMemHandle: refused for the test (999)");
  CHECK(no_ipc.vmm.works == true);
  for (const char* refused : {"cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemCreate",
                              "cuMemExportToShareableHandle"}) {
    CAPTURE(refused);
    const MemorySharing out = probe_fake(refused);
    CHECK(out.ipc.works == true);
    CHECK(out.vmm.works == false);
    CHECK_FALSE(out.vmm.problem.empty());
  }
}

TEST_CASE("doctor: a driver without the functions is not tried") {
  const MemorySharing out = probe_memory_sharing(::dlopen(nullptr, RTLD_NOW), 0, 0, 1);
  CHECK_FALSE(out.ipc.works);
  CHECK_FALSE(out.vmm.works);
  CHECK(out.peers.empty());
}
