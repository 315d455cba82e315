// SPDX-License-Identifier: Apache-2.0
// CALL RANGE: an NVTX range of domain "echo-tp" around every all-reduce, so that nsys and other tools show
// what was compressed, what was not and why. Without a tool that listens it costs a comparison.
#pragma once

#include <cstdint>

#include "shim/group.hpp"

namespace echotp {

/// The payload of a range, as tools see it. Enumerations are registered by name.
struct CallRangePayload {
  std::uint64_t communicator;  // its address in this process
  std::uint64_t count;         // elements
  std::uint64_t bytes;         // of the message
  std::int32_t ranks;          // 0: communicator not known
  std::int32_t rule;           // of the policy, -1: none
  std::int32_t reason;         // Reason; 0 is compressed
  std::int32_t transport;      // 0 nccl, 1 staged, 2 p2p
  std::int32_t bits;           // width of a code, 0: not compressed
  std::int32_t group;          // elements of one scale, 0: not compressed
};

class CallRange {
 public:
  /// `compressed` is null for a forwarded call.
  CallRange(const HeldCall& call, const CompressedCall* compressed) noexcept;
  ~CallRange();
  CallRange(const CallRange&) = delete;
  CallRange& operator=(const CallRange&) = delete;

 private:
  bool open_ = false;
};

}  // namespace echotp
