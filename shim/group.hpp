// SPDX-License-Identifier: Apache-2.0
// GROUP: all-reduces issued between ncclGroupStart and ncclGroupEnd of one thread. They are held until the
// outermost end; the first call that is not an eligible all-reduce sends the whole group to NCCL, whole and
// in order.
#pragma once

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
  bool mixed = false;  // something else is in it: forward from here on
  std::vector<HeldCall> held;
};

/// The calling thread's group.
Group& this_thread_group() noexcept;

}  // namespace echotp
