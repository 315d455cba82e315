// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_host.hpp"

#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "cli/text.hpp"

namespace echotp {
namespace {

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::string> container_of(const std::string& root) {
  if (exists(root + "/var/run/secrets/kubernetes.io")) return "kubernetes";
  if (exists(root + "/run/.containerenv")) return "podman";
  if (exists(root + "/.dockerenv")) return "docker";
  if (exists(root + "/.singularity.d")) return "apptainer";
  std::ifstream file(root + "/proc/1/cgroup");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (const char* name : {"kubepods", "docker", "containerd", "lxc"})
    if (text.find(name) != std::string::npos) return name;
  return std::nullopt;
}

// "Max locked memory         65536                65536                bytes": the soft limit comes first.
std::optional<std::int64_t> locked_memory(const std::string& root) {
  constexpr std::string_view kTitle = "Max locked memory";
  std::ifstream file(root + "/proc/self/limits");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kTitle)) continue;
    const std::size_t start = line.find_first_not_of(' ', kTitle.size());
    if (start == std::string::npos) return std::nullopt;
    const std::string word = line.substr(start, line.find(' ', start) - start);
    if (word == "unlimited") return HostFacts::kUnlimited;
    long long bytes = 0;
    if (std::sscanf(word.c_str(), "%lld", &bytes) == 1 && bytes >= 0) return bytes;
  }
  return std::nullopt;
}

// The machine's own namespace has a fixed number (PROC_PID_INIT_INO of the kernel).
std::optional<bool> own_pid_namespace(const std::string& root) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlink((root + "/proc/self/ns/pid").c_str(), target.data(), target.size() - 1);
  unsigned long number = 0;
  if (length <= 0 || std::sscanf(target.data(), "pid:[%lu]", &number) != 1) return std::nullopt;
  return number != 0xEFFFFFFCul;
}

std::optional<bool> abstract_sockets() {
  const int file = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (file < 0) return std::nullopt;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // a name that begins with a zero byte is abstract
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "echo-tp-doctor-%ld",
                                   static_cast<long>(::getpid()));
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
  const bool bound = ::bind(file, reinterpret_cast<const sockaddr*>(&address), size) == 0;
  ::close(file);
  return bound;
}

}  // namespace

HostFacts probe_host(const std::string& root) {
  HostFacts out;
  out.container = container_of(root);
  struct statvfs shm {};
  if (::statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    const auto block = static_cast<std::int64_t>(shm.f_frsize);
    out.shm_bytes = static_cast<std::int64_t>(shm.f_blocks) * block;
    out.shm_free_bytes = static_cast<std::int64_t>(shm.f_bavail) * block;
  }
  out.locked_memory_bytes = locked_memory(root);
  int scope = 0;
  if (std::sscanf(first_line(root + "/proc/sys/kernel/yama/ptrace_scope").c_str(), "%d", &scope) == 1)
    out.ptrace_scope = scope;
  out.own_pid_namespace = own_pid_namespace(root);
  out.abstract_sockets = abstract_sockets();
  return out;
}

std::vector<std::string> host_advice(const HostFacts& facts) {
  constexpr std::int64_t kShmPerJob = std::int64_t{256} << 20;
  constexpr std::int64_t kLocked = std::int64_t{64} << 20;
  std::vector<std::string> out;
  if (!facts.shm_bytes) {
    out.push_back("/dev/shm can't be read: NCCL needs it between ranks of one machine");
  } else if (facts.shm_free_bytes && *facts.shm_free_bytes < kShmPerJob) {
    out.push_back(
        "/dev/shm has " + show_bytes(*facts.shm_free_bytes) + " free of " + show_bytes(*facts.shm_bytes) +
        ": NCCL keeps buffers there for every pair of ranks; in a container: --shm-size=1g or --ipc=host");
  }
  if (facts.locked_memory_bytes && *facts.locked_memory_bytes != HostFacts::kUnlimited &&
      *facts.locked_memory_bytes < kLocked)
    out.push_back(
        "locked memory is limited to " + show_bytes(*facts.locked_memory_bytes) +
        ": RDMA networks fail to register buffers; ulimit -l unlimited, in a container --ulimit memlock=-1");
  if (facts.own_pid_namespace.value_or(false) && facts.container)
    out.push_back(
        "processes have a namespace of their own (" + *facts.container +
        "): CUDA IPC works among the ranks of one container, not between containers, unless they share "
        "it (--pid=host)");
  if (facts.ptrace_scope.value_or(0) >= 2)
    out.push_back("ptrace_scope is " + std::to_string(*facts.ptrace_scope) +
                  ": debuggers and py-spy can't attach to a rank that hangs");
  if (facts.abstract_sockets == false)
    out.push_back(
        "abstract unix sockets can't be bound: memory handles can't be passed that way "
        "(NCCL_IPC_USE_ABSTRACT_SOCKET=0)");
  return out;
}

}  // namespace echotp
