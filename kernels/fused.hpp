// SPDX-License-Identifier: Apache-2.0
// The only host entry to the fused all-reduce: one kernel a rank that pushes rounded tiles into its peers'
// windows, reduces, and pushes the results back. Same tiles, same device functions and so the same bytes as
// the staged kernels. Asynchronous on `stream`; no allocation, no synchronisation, capturable.
//
// Every rank of a communicator calls it with the same count, types, codec, compensation and layout, one call
// at a time. A kernel waits for its peers: all ranks' kernels must be able to run at the same time.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/fused_plan.hpp"
#include "kernels/params.hpp"

namespace echotp {

/// Why a kernel gave up waiting.
enum class FusedFailure : std::uint32_t { kNone, kAborted, kDeadline };

/// What host and kernel tell each other while a call runs. Mapped host memory, one a communicator.
struct FusedStatus {
  std::uint32_t abort = 0;    // host to kernel: not 0 ends every wait
  std::uint32_t failure = 0;  // kernel to host: a FusedFailure; written last, after the fields below
  std::int32_t rank = 0;      // that gave up
  std::int32_t peer = 0;      // that it waited for
  std::int32_t lane = 0;
  std::int32_t leg = 0;        // 0: for the peer's codes, 1: for the owner's results
  std::uint32_t sequence = 0;  // of the chunk that did not come
};

/// One all-reduce on one rank.
struct FusedArgs {
  const void* send = nullptr;  // [count] elements of `dtype`, element-aligned only
  void* recv = nullptr;        // [count], may equal send
  std::int64_t count = 0;
  int rank = 0;
  DataType dtype = DataType::kBf16;
  Codec codec;                // no leg wider than layout.bits
  Compensation compensation;  // not staged_only()
  float post_scale = 1.0f;    // as in StagedArgs
  bool pass_start = false;    // as in StagedArgs
  StateView state;
  DeviceCounters* counters = nullptr;  // may be null
  FusedLayout layout;                  // equal on all ranks; layout.ranks is the number of ranks
  std::uint8_t* windows[kFusedMaxRanks] =
      {};  // [r]: the window of rank r, fused_window_bytes(layout), zeroed once before the first call
  std::uint32_t* progress = nullptr;  // [1 + fused_lanes(layout)] own device memory, zeroed once: whether a
                                      // call failed, then every lane's count of chunks
  FusedStatus* status = nullptr;      // device address of mapped host memory
  std::uint64_t deadline_ns = 0;      // a wait longer than this fails
};

/// Loads every fused kernel on the current device; see load_staged_kernels().
cudaError_t load_fused_kernels() noexcept;

/// Most CTAs that the current device can hold at the same time for one fused kernel; 0 if it can't run any.
int fused_resident_ctas() noexcept;

/// Runs this rank's part of the call. After a failure (see FusedStatus) `recv` and the state are unspecified
/// and later calls end at once: the communicator can't be used again.
cudaError_t launch_fused(const FusedArgs& args, cudaStream_t stream) noexcept;

/// Runs all ranks of a call in one cooperative launch on one GPU: `args[r]` is rank r's, and all are equal
/// but for what belongs to a rank. layout.ctas * ranks must not exceed fused_resident_ctas().
cudaError_t launch_fused_loopback(const FusedArgs* args, cudaStream_t stream) noexcept;

}  // namespace echotp
