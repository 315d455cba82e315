// SPDX-License-Identifier: Apache-2.0
// DOCTOR HOST: what the operating system or a container allows that ranks on one machine need of each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace echotp {

/// Unset: not known.
struct HostFacts {
  std::optional<std::string> container;   // "docker", "podman", "kubernetes", ...
  std::optional<std::int64_t> shm_bytes;  // size of /dev/shm
  std::optional<std::int64_t> shm_free_bytes;
  std::optional<std::int64_t> locked_memory_bytes;  // soft limit; kUnlimited: none
  std::optional<int> ptrace_scope;                  // yama: 0 to 3
  std::optional<bool> own_pid_namespace;            // not the machine's own
  std::optional<bool> abstract_sockets;             // one could be bound
  static constexpr std::int64_t kUnlimited = -1;
};

/// Reads below `root` ("" for this machine; tests give a folder), except for the sockets, which are tried.
HostFacts probe_host(const std::string& root);

/// What a person should know of it, a line each.
std::vector<std::string> host_advice(const HostFacts& facts);

}  // namespace echotp
