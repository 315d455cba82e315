// SPDX-License-Identifier: Apache-2.0
// How lanes of different ranks meet: flags that count the chunks that have arrived, written by the sender
// after one fence and polled by one thread a flag.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/fused.hpp"

namespace echotp::device {

/// Polls between two looks at the abort word and the clock, which are slow to read.
inline constexpr std::uint32_t kPollsPerLook = 1024;
/// Polls after which a waiting thread leaves the issue slots to others between polls.
inline constexpr std::uint32_t kBusyPolls = 4096;
inline constexpr unsigned kNapNs = 64;

/// The warps of a lane wait for each other: named barrier `id`, 1 to 15.
__device__ __forceinline__ void lane_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kFusedLaneThreads) : "memory");
}

__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/// Makes everything that this thread knows of visible to whoever sees what it stores next.
__device__ __forceinline__ void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ __forceinline__ std::uint64_t clock_ns() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

/// Records the first failure of a communicator: for later calls on the device, for the host in `status`. The
/// other arguments are those of poll().
__device__ __noinline__ inline void report_failure(FusedFailure failure, std::uint32_t* failed,
                                                   FusedStatus* status, std::uint32_t chunks, int rank,
                                                   int peer, int lane, Leg leg) {
  if (atomicCAS(failed, 0u, 1u) != 0u) return;
  status->rank = rank;
  status->peer = peer;
  status->lane = lane;
  status->leg = leg == Leg::kSecond ? 1 : 0;
  status->sequence = chunks;
  fence_system();
  store_relaxed(&status->failure, static_cast<std::uint32_t>(failure));
}

/// Polls the flag of `peer` until it counts `chunks`; false if the call has to end: somebody set the abort
/// word, another lane failed, or the deadline passed.
__device__ __noinline__ inline bool poll(const std::uint32_t* flag, std::uint32_t* failed,
                                         FusedStatus* status, std::uint64_t deadline_ns, std::uint32_t chunks,
                                         int rank, int peer, int lane, Leg leg) {
  std::uint64_t begin = 0;
  for (std::uint32_t polls = 1;; ++polls) {
    // On a circle: the counts may wrap.
    if (static_cast<std::int32_t>(load_relaxed(flag) - chunks) >= 0) break;
    if (polls % kPollsPerLook == 0) {
      if (load_relaxed(failed) != 0) return false;
      const std::uint64_t now = clock_ns();
      if (begin == 0) begin = now;
      const bool aborted = load_relaxed(&status->abort) != 0;
      if (aborted || now - begin > deadline_ns) {
        report_failure(aborted ? FusedFailure::kAborted : FusedFailure::kDeadline, failed, status, chunks,
                       rank, peer, lane, leg);
        return false;
      }
    }
    if (polls > kBusyPolls) __nanosleep(kNapNs);
  }
  load_acquire(flag);
  return true;
}

}  // namespace echotp::device
