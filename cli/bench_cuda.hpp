// SPDX-License-Identifier: Apache-2.0
// What the bench programs share on the GPU: errors that end the program, memory, timers, facts of the
// machine.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <utility>

#include "cli/bench_costs.hpp"

namespace echotp {

/// More than three times the L2 of every GPU so far: what a call reads was not left there by an earlier one.
inline constexpr std::int64_t kRotationBytes = std::int64_t{192} << 20;

/// What stands before messages, such as "echo-tp-bench-worker[rank 1]"; set once at the start.
void set_bench_program(std::string name);

/// Prints one line and ends the program with exit code 1; a launcher then ends the other ranks.
[[noreturn]] void fail(const char* what, const std::string& why);
void check(cudaError_t rc, const char* what);

/// Device memory, zeroed; freed at the end of its life.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(std::size_t bytes, const char* what);
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceMemory() { cudaFree(data_); }

  template <class T = char>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// Two events around something.
struct EventPair {
  EventPair();
  ~EventPair();
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;
  /// Both events have happened.
  double milliseconds() const;

  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
};

/// GPU, driver, CUDA and host; the rest is unset.
BenchEnvironment machine_facts(int device);

}  // namespace echotp
