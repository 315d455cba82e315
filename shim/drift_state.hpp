// SPDX-License-Identifier: Apache-2.0
// STATE STORE of compensation mode drift: device memory of the estimates of channels, one set per
// (communicator, direction, channels). Unlike estimates of elements it outlives passes: it starts from zero
// once, when it is allocated.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/params.hpp"

namespace echotp {

/// Bytes of state for that many channels: estimate, sum and count of tokens, as sender and as owner.
std::int64_t drift_state_bytes(int channels) noexcept;

class DriftState {
 public:
  DriftState() = default;
  DriftState(const DriftState&) = delete;
  DriftState& operator=(const DriftState&) = delete;
  ~DriftState();

  /// State for a message of `count` elements, all but its scratch; or an empty view (null `estimate`) when
  /// the message does not consist of whole tokens, when all sets together would exceed `max_bytes`, when
  /// memory is short or kMostSets are in use, or when a capture is running and there is no set yet.
  DriftView provide(std::int64_t count, const Compensation& compensation,
                    std::optional<std::int64_t> max_bytes, bool capturing, cudaStream_t stream) noexcept;

  /// A captured graph refers to the present memory: it must stay until the process ends.
  void keep() noexcept { kept_ = true; }

  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  /// Models of different width on one communicator, say a draft model.
  static constexpr int kMostSets = 4;
  struct Set {
    int channels = 0;  // 0: not in use
    void* memory = nullptr;
  };

  std::array<Set, kMostSets> sets_;
  std::int64_t bytes_ = 0;
  bool kept_ = false;
  bool refused_ = false;  // an allocation failed: not asked again
};

}  // namespace echotp
