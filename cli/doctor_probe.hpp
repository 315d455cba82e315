// SPDX-License-Identifier: Apache-2.0
// DOCTOR PROBE: what this machine has, found without linking any of it: driver and GPUs, copies of NCCL and
// CUPTI, MPS, and variables that change what echo-tp sees. Unknown is unset.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace echotp {

struct GpuDevice {
  std::string name;
  std::string uuid;        // "GPU-..."; empty: unknown
  std::string capability;  // "9.0"; empty: unknown
};

struct GpuFacts {
  std::string problem;                // why no GPU can be used, one line; empty: one can
  std::optional<std::string> driver;  // "580.159.03"
  std::optional<std::string> cuda;    // highest that the driver supports, "13.0"
  std::vector<GpuDevice> devices;
};
/// Asks libcuda.so.1. Makes no context.
GpuFacts probe_gpus();

struct LibraryCopy {
  std::string path;                    // links resolved
  std::optional<std::string> version;  // "2.28.9"
};
/// Copies of NCCL that jobs on this machine could load: the loader's cache, LD_LIBRARY_PATH, the toolkit,
/// Python packages.
std::vector<LibraryCopy> find_nccl();
/// Copies of CUPTI, likewise.
std::vector<LibraryCopy> find_cupti();

/// One line if an MPS daemon answers in this environment; unset: none.
std::optional<std::string> probe_mps();

/// A variable of this environment that matters, or a framework's path around NCCL with its switch.
struct EnvironmentFinding {
  std::string name;   // of the variable or the option
  std::string value;  // empty: not set
  std::string effect;
  bool active = false;  // it changes what echo-tp sees or does, as set now
};
std::vector<EnvironmentFinding> probe_environment();

}  // namespace echotp
