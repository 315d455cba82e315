// SPDX-License-Identifier: Apache-2.0
// DOCTOR MEMORY: whether a GPU's memory can be shared with the ranks of other processes and GPUs. Tried with
// a real allocation, because attributes promise what containers then refuse.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace echotp {

/// An attempt: unset, it was not made.
struct Attempt {
  std::optional<bool> works;
  std::string problem;  // the driver's words when it does not work, or why it was not tried
};

struct MemorySharing {
  std::vector<int> peers;  // ordinals of the GPUs whose memory this one can reach directly
  Attempt ipc;             // cudaIpcGetMemHandle
  Attempt vmm;             // export as a file descriptor (cuMemExportToShareableHandle)
};

/// `library` is an open libcuda after cuInit, `device` one of its devices with number `ordinal` of `count`.
/// Makes the primary context for a moment and frees everything again.
MemorySharing probe_memory_sharing(void* library, int device, int ordinal, int count);

}  // namespace echotp
