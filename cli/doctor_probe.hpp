// SPDX-License-Identifier: Apache-2.0
// DOCTOR PROBE: what this machine has, found without linking any of it: driver and GPUs, copies of NCCL and
// CUPTI, and MPS. Unknown is unset.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/doctor_memory.hpp"

namespace echotp {

struct GpuDevice {
  std::string name;
  std::string uuid;          // "GPU-..."; empty: unknown
  std::string capability;    // "9.0"; empty: unknown
  std::string compute_mode;  // "default", "exclusive_process", "prohibited"; empty: unknown
  MemorySharing memory;
};

struct GpuFacts {
  std::string problem;                // why no GPU can be used, one line; empty: one can
  std::optional<std::string> driver;  // "580.159.03"
  std::optional<std::string> cuda;    // highest that the driver supports, "13.0"
  std::vector<GpuDevice> devices;
};
/// Asks libcuda.so.1. Makes a context on each GPU for a moment, to try how its memory can be shared.
GpuFacts probe_gpus();

struct LibraryCopy {
  std::string path;                    // links resolved
  std::optional<std::string> version;  // "2.28.9"
  std::string inside = {};             // static, inside this kind of library; empty: a library of its own
  bool hidden = false;                 // static, and without symbols: what it does can't be seen
};
/// Copies of NCCL that jobs on this machine could load: the loader's cache, LD_LIBRARY_PATH, the toolkit,
/// Python packages, and static ones inside PyTorch.
std::vector<LibraryCopy> find_nccl();
/// Copies of CUPTI, likewise.
std::vector<LibraryCopy> find_cupti();

/// One line if an MPS daemon answers in this environment; unset: none.
std::optional<std::string> probe_mps();

}  // namespace echotp
