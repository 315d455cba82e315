// SPDX-License-Identifier: Apache-2.0
// GROUP: all-reduces issued between ncclGroupStart and ncclGroupEnd of one thread. They are held until the
// outermost end. The first other collective on the same communicator sends that communicator's part of the
// group to NCCL, whole and in order. Other communicators and sends and receives have no say: a peer may be no
// part of them, and would decide otherwise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "shim/communicator.hpp"

namespace echotp {

/// An eligible all-reduce that waits for the end of its group.
struct HeldCall {
  std::shared_ptr<KnownCommunicator> communicator;
  const void* send = nullptr;
  void* recv = nullptr;
  RawCall raw;
  Decision decision;
  CaptureInfo capture;
  void* stream = nullptr;
};

/// State of one thread.
struct Group {
  int depth = 0;
  std::vector<HeldCall> held;
  std::vector<void*> mixed;  // communicators with something else in it: forward those from here on

  bool is_mixed(void* comm) const { return std::find(mixed.begin(), mixed.end(), comm) != mixed.end(); }
};

/// The calling thread's group.
Group& this_thread_group() noexcept;

}  // namespace echotp
