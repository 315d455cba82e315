// SPDX-License-Identifier: Apache-2.0
// STATE STORE: device memory of the error estimates, one set per (communicator, direction), sized for the
// largest message seen. Stream-ordered: grows without a device-wide wait. Whether there is state is this
// rank's own affair: it changes what is sent, never whether ranks agree.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "kernels/params.hpp"

namespace echotp {

/// Bytes of state for `capacity` elements.
std::int64_t state_bytes(std::int64_t capacity, const Codec& codec, const Compensation& compensation);

class CompensationState {
 public:
  CompensationState() = default;
  CompensationState(const CompensationState&) = delete;
  CompensationState& operator=(const CompensationState&) = delete;
  ~CompensationState();

  /// State for a message of `count` elements, or an empty view (null `fast`) when it would exceed
  /// `max_bytes`, when memory is short, or when a capture is running and what is there is too small. `fresh`
  /// is set when the contents are undefined and the kernels must take them for zero.
  StateView provide(std::int64_t count, const Codec& codec, const Compensation& compensation,
                    std::optional<std::int64_t> max_bytes, bool capturing, cudaStream_t stream,
                    bool& fresh) noexcept;

  /// A captured graph refers to the present memory: it must stay until the process ends.
  void keep() noexcept { kept_ = true; }

  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  void drop(cudaStream_t stream) noexcept;

  void* memory_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t capacity_ = 0;
  Codec codec_;
  Compensation compensation_;
  bool kept_ = false;
  bool refused_ = false;  // an allocation of refused_bytes_ failed: not asked again until less is wanted
  std::int64_t refused_bytes_ = 0;
};

}  // namespace echotp
