// SPDX-License-Identifier: Apache-2.0
// TRANSPORT `p2p`: one kernel a call that pushes packed tiles into windows of the peers' memory. Owns this
// rank's window, the mapped windows of the peers, the lanes' progress and the words through which host and
// kernels talk. A message of any size is one launch; everything in it can be captured into a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "kernels/fused.hpp"
#include "shim/fd_exchange.hpp"
#include "shim/p2p_setup.hpp"
#include "shim/peer_memory.hpp"
#include "shim/watchdog.hpp"

namespace echotp {

class P2pTransport final : public P2pRank {
 public:
  /// Longest median of a small call, in milliseconds, that the self-test accepts; launch and both hops
  /// included. It takes about 0.02 where kernels of all ranks run at the same time, and several where ranks
  /// take turns on a GPU.
  static constexpr double kSlowestCall_ms = 1.0;

  P2pTransport(int rank, int ranks, double slowest_call_ms = kSlowestCall_ms) noexcept
      : rank_(rank), ranks_(ranks), slowest_call_ms_(slowest_call_ms) {}
  /// With the context current, and idle: see released().
  ~P2pTransport() override;
  P2pTransport(const P2pTransport&) = delete;
  P2pTransport& operator=(const P2pTransport&) = delete;

  /// Where set-up does its work; both outlive this object. Before offer().
  void bind(CUcontext context, cudaStream_t stream) noexcept;

  Status offer(const P2pNeeds& needs, P2pRecord& mine) noexcept override;
  Status connect(const P2pTerms& terms, std::span<const P2pRecord> all, double timeout_s) noexcept override;
  Status open_window(P2pWay way, P2pRecord& mine) noexcept override;
  Status import_windows(std::span<const P2pRecord> all, double timeout_s) noexcept override;
  Status self_test(double timeout_s) noexcept override;
  void settle(bool agreed) noexcept override;
  void close_windows() noexcept override;

  /// Enqueues one call. `args` says everything but what belongs to the transport: rank, layout, windows,
  /// progress, status, deadline. No allocation and no wait: may run inside a capture. An error outside one
  /// ends the communicator, since the peers wait for this call.
  cudaError_t all_reduce(FusedArgs args, bool capturing, cudaStream_t stream) noexcept;

  /// Whether a call failed. The first time, the reason is said on stderr. From any thread; never waits.
  bool failed() noexcept;

  /// The communicator goes away; `abort`: kernels that wait end at once, and the peers are told. From any
  /// thread; never waits.
  void end(bool abort) noexcept;

  /// With all calls done: lets go of the peers' memory, and says whether this rank's own can be freed. Never
  /// waits.
  bool released() noexcept;

  /// Where the lanes' counts are kept, for tests that start close to their wrap.
  const FusedLayout& layout() const noexcept { return layout_; }
  std::uint32_t* progress() const noexcept { return progress_; }
  std::uint8_t* window() const noexcept { return own_window().data(); }

  std::int64_t scratch_bytes() const noexcept { return scratch_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Windows {
    OwnWindow own[std::size(kP2pWays)];  // one a way: that of a failed one may still be mapped by a peer
    std::array<PeerWindow, kFusedMaxRanks> peers;
  };

  OwnWindow& own_window() const noexcept { return windows_->own[static_cast<std::size_t>(way_)]; }
  Status start_watching() noexcept;
  Status run_test_call(std::int64_t count, double timeout_s) noexcept;
  Status time_test_calls(double timeout_s) noexcept;
  Status wait(double timeout_s) noexcept;
  std::string describe_failure(int gone) const;
  void free_device_memory() noexcept;

  int rank_;
  int ranks_;
  double slowest_call_ms_;
  CUcontext context_ = nullptr;
  cudaStream_t stream_ = nullptr;
  double deadline_s_ = 0;
  FusedLayout layout_;
  bool same_gpu_ = false;
  P2pWay way_ = P2pWay::kVmm;
  FdExchange sockets_;
  std::unique_ptr<PeerWatch> watch_;
  std::unique_ptr<Windows> windows_;
  std::uint32_t* progress_ = nullptr;
  void* test_values_ = nullptr;           // bf16
  FusedStatus* status_ = nullptr;         // mapped host memory
  FusedStatus* device_status_ = nullptr;  // the same, for kernels
  bool stuck_ = false;                    // a kernel of the self-test did not end: nothing is ever freed
  std::atomic<std::int64_t> scratch_bytes_{0};
  std::atomic<bool> broken_{false};  // a call could not be enqueued
  std::atomic<bool> ready_{false};   // what end() and failed() look at is there
  std::atomic<bool> aborted_{false};
};

}  // namespace echotp
