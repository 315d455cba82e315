// SPDX-License-Identifier: Apache-2.0
// WATCHDOG: one thread a process that notices when a peer process is gone (its pidfd, or the end of the
// connection to it) and then sets the abort word that the kernels of their communicators poll. It also
// notices when a kernel gave up by itself: says so once, and hangs up, so that the peers need not wait for
// their own deadlines.
//
// The thread starts with the first communicator, blocks all signals, makes no CUDA call, and ends in an exit
// handler. A forked child has no watchdog: it closes the connections, since it is no peer of anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shim/result.hpp"
#include "shim/unique_fd.hpp"

namespace echotp {

/// The other end of one connection.
struct WatchedPeer {
  int rank = -1;
  UniqueFd socket;   // connected to it; its end means that the peer left
  UniqueFd process;  // pidfd; may be empty
};

/// What is watched for one communicator. The words lie in memory that must stay until watching ends.
struct WatchPlan {
  int rank = -1;                           // of this process
  std::uint32_t* abort = nullptr;          // set to 1 when a peer is gone
  const std::uint32_t* failure = nullptr;  // not 0: a kernel gave up
  std::vector<WatchedPeer> peers;
  /// One line about the failure, for people; `gone` is the rank of the peer that is gone, -1 if none. Called
  /// by any thread, once; must neither wait nor call CUDA.
  std::function<std::string(int gone)> describe;
};

/// Watches from its creation to its destruction.
class PeerWatch {
 public:
  /// kSystem error if the watchdog's thread can't be started.
  static Result<std::unique_ptr<PeerWatch>> start(WatchPlan plan);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Rank of the first peer that is gone, or -1.
  int gone() const noexcept;

  /// Says the line about a failure, unless that was done.
  void say_failure() noexcept;

  /// Tells the peers that this rank takes part no more. From any thread; never waits.
  void hang_up() noexcept;

  /// True when every peer has hung up or ended. Never waits.
  bool all_gone() const noexcept;

  struct Entry;

 private:
  explicit PeerWatch(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
  std::shared_ptr<Entry> entry_;
};

/// Whether this process has a watchdog thread at present. For tests.
bool watchdog_runs() noexcept;

}  // namespace echotp
