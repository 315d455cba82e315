// SPDX-License-Identifier: Apache-2.0
// TRANSPORT `staged`: quantise kernel -> NCCL send/recv of packed segments to their owners -> reduce kernel
// -> NCCL all-gather -> decode kernel, over the job's own communicator. Works wherever NCCL works; abort,
// time-outs, ordering and graph capture are NCCL's own.
//
// A message longer than one chunk is pipelined: NCCL's calls stay on the caller's stream, the kernels of
// neighbouring chunks run beside them on a second stream that forks from it and joins it again.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/params.hpp"
#include "shim/engine_abi.h"

namespace echotp {

/// Scratch of one chunk in flight; device memory.
struct StagedSlot {
  std::uint8_t* outbox = nullptr;
  std::uint8_t* inbox = nullptr;
  std::uint8_t* gathered = nullptr;
};

class StagedTransport {
 public:
  /// Chunks in flight: while NCCL moves chunk c+1 and gathers c, c-1 is decoded and c+2 quantised.
  static constexpr int kSlots = 3;

  StagedTransport(const EchoTpNccl& nccl, void* comm, int rank, int ranks);
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;
  ~StagedTransport();

  /// Allocates the scratch. `chunk_elements` is rounded up to whole rounds of tiles.
  /// `widest_bits` is the widest code of any call to come; `drift`: some will have that compensation mode.
  cudaError_t allocate(std::int64_t chunk_elements, int widest_bits, bool drift) noexcept;

  /// Enqueues one all-reduce on `stream`. `args` carries everything but the scratch and the chunk's place.
  /// Returns an ncclResult_t. No allocation, no host wait: may run inside a capture.
  int all_reduce(const StagedArgs& args, cudaStream_t stream) noexcept;

  std::int64_t chunk_elements() const noexcept { return chunk_elements_; }
  std::int64_t scratch_bytes() const noexcept { return scratch_bytes_; }

  /// Never free the scratch: a captured graph refers to it, or a peer never answered.
  void keep() noexcept { kept_ = true; }

  /// The communicator is going away: no NCCL call begins after this. From any thread.
  void end() noexcept { ended_ = true; }

 private:
  int exchange(const StagedSlot& slot, std::int64_t segment, cudaStream_t stream) noexcept;
  int gather(const StagedSlot& slot, std::int64_t segment, cudaStream_t stream) noexcept;
  int run_chunk(const StagedArgs& args, cudaStream_t stream) noexcept;
  int run_pipelined(const StagedArgs& args, cudaStream_t stream) noexcept;

  EchoTpNccl nccl_;
  void* comm_;
  int rank_;
  int ranks_;
  std::int64_t chunk_elements_ = 0;
  std::int64_t scratch_bytes_ = 0;
  void* memory_ = nullptr;
  std::array<StagedSlot, kSlots> slots_;
  float* drift_errors_ = nullptr;  // [chunk_elements_]: kernels that use it all run on one stream
  cudaStream_t side_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  std::array<cudaEvent_t, kSlots> quantised_{}, exchanged_{}, reduced_{}, gathered_{};
  bool kept_ = false;
  std::atomic<bool> ended_{false};
};

}  // namespace echotp
