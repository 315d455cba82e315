// SPDX-License-Identifier: Apache-2.0
// FD EXCHANGE: hands file descriptors from process to process on one host, over abstract Unix sockets.
//
// Every rank listens on a socket with a random name and tells name and token to the others over the
// communicator. The higher rank of a pair connects to the lower one; both prove that they were told (token)
// and run as the same user (SO_PEERCRED). The connections stay open: their end is a sign that the peer is
// gone. One thread, no helper; nothing waits longer than it is told to.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "shim/result.hpp"
#include "shim/unique_fd.hpp"

namespace echotp {

/// Where a rank can be reached, and what somebody has to know who wants to talk to it. Plain bytes that
/// travel over the communicator.
struct SocketAddress {
  std::array<std::uint8_t, 16> name{};
  std::array<std::uint8_t, 16> token{};
};

class FdExchange {
 public:
  /// Starts to listen. kSystem error if the system refuses.
  Status listen() noexcept;

  /// What the peers need to know; valid after listen().
  const SocketAddress& address() const noexcept { return address_; }

  /// Connects with every other rank: all[r] is what rank r told, all[rank] is this one's own address. Stops
  /// listening. On an error, which names the rank, nothing stays open.
  Status connect(int rank, std::span<const SocketAddress> all, double timeout_s) noexcept;

  /// Sends `fd`, which stays the caller's, to every peer and takes one from each: received[r] is rank r's,
  /// received[rank] is left empty. On an error nothing that was received stays open.
  Status swap(int fd, std::span<UniqueFd> received, double timeout_s) noexcept;

  /// Another descriptor of the connection to `peer`; empty for this rank, or if none is left.
  UniqueFd share_connection(int peer) const noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  Status connect_before(Clock::time_point deadline, std::span<const SocketAddress> all) noexcept;
  Status call_lower_ranks(std::span<const SocketAddress> all) noexcept;
  Status accept_pending() noexcept;
  void hear_pending(std::size_t index, std::span<const SocketAddress> all) noexcept;
  Status hear_answer(int peer) noexcept;
  int first_missing() const noexcept;

  SocketAddress address_;
  UniqueFd listener_;
  int rank_ = 0;
  std::vector<UniqueFd> peers_;    // [ranks]
  std::vector<bool> ready_;        // [ranks]: the peer has proved who it is
  std::vector<UniqueFd> pending_;  // accepted, have not said anything yet
};

/// A descriptor that becomes readable when the process at the other end of a connected Unix socket ends;
/// empty where the system has none. That process is the one that connected or listened, whatever it has
/// forked since.
UniqueFd open_peer_process(int socket) noexcept;

}  // namespace echotp
