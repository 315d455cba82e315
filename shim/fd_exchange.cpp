// SPDX-License-Identifier: Apache-2.0
#include "shim/fd_exchange.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; older kernels refuse it
#endif

namespace echotp {

namespace {

constexpr int kBacklog = 64;
constexpr std::size_t kMostPending = 32;  // connections of strangers that are heard at the same time
constexpr std::size_t kMostFds = 8;       // that one message may carry before they are cut off

/// The only message there is. A sequenced-packet socket keeps its borders.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x646668'6f686365ULL;
  enum Kind : std::uint32_t { kCall = 1, kAnswer = 2, kFd = 3 };
  std::uint64_t magic = kMagic;
  std::uint32_t kind = 0;
  std::int32_t rank = 0;
  std::array<std::uint8_t, 16> token{};  // of the one that is spoken to
};

Error failed(const std::string& what, int number) {
  char text[128] = {};
  return {ErrorCode::kSystem, what + ": " + strerror_r(number, text, sizeof text), ""};
}

Error peer_error(int peer, const std::string& what) {
  return {ErrorCode::kSystem, "rank " + std::to_string(peer) + what, ""};
}

sockaddr_un abstract_address(const SocketAddress& address, socklen_t& length) noexcept {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  char* text = out.sun_path + 1;  // a zero in front: no file, gone with its last descriptor
  text += std::snprintf(text, 16, "echo-tp-");
  for (const std::uint8_t byte : address.name) text += std::snprintf(text, 3, "%02x", byte);
  length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + static_cast<std::size_t>(text - out.sun_path));
  return out;
}

bool same_token(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b) noexcept {
  unsigned different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different |= static_cast<unsigned>(a[i] ^ b[i]);
  return different == 0;
}

bool same_user(int socket) noexcept {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

/// 0, or an errno value.
int send_hello(int socket, const Hello& hello, int fd = -1) noexcept {
  iovec part{const_cast<Hello*>(&hello), sizeof hello};
  alignas(cmsghdr) std::uint8_t control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ssize_t sent = 0;
  do sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent == sizeof hello ? 0 : sent < 0 ? errno : EMSGSIZE;
}

struct Heard {
  enum class State { kNothingYet, kMessage, kEnded, kBroken } state = State::kBroken;
  Hello hello;
  UniqueFd fd;       // the one that came along
  bool cut = false;  // descriptors were lost: this process has no room for them
  int extra = 0;     // descriptors that nobody asked for; closed
};

/// Takes one message without waiting. Whatever descriptors come with it are owned or closed.
Heard receive_hello(int socket) noexcept {
  Heard heard;
  iovec part{&heard.hello, sizeof heard.hello};
  alignas(cmsghdr) std::uint8_t control[CMSG_SPACE(sizeof(int) * kMostFds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0) {
    heard.state = errno == EAGAIN || errno == EWOULDBLOCK ? Heard::State::kNothingYet : Heard::State::kBroken;
    return heard;
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      UniqueFd owned(fd);
      if (heard.fd)
        ++heard.extra;
      else
        heard.fd = std::move(owned);
    }
  }
  heard.cut = (message.msg_flags & MSG_CTRUNC) != 0;
  if (got == 0)
    heard.state = Heard::State::kEnded;
  else if (got == sizeof heard.hello && (message.msg_flags & MSG_TRUNC) == 0 &&
           heard.hello.magic == Hello::kMagic)
    heard.state = Heard::State::kMessage;
  return heard;
}

/// Milliseconds until `deadline`, rounded up, for poll(); 0 when it has passed.
int milliseconds_to(std::chrono::steady_clock::time_point deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1000));
}

std::chrono::steady_clock::time_point deadline_in(double seconds) noexcept {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(seconds));
}

/// 0, or an errno value; a signal is no error.
int wait_for(std::vector<pollfd>& polled, std::chrono::steady_clock::time_point deadline) noexcept {
  return poll(polled.data(), polled.size(), milliseconds_to(deadline)) < 0 && errno != EINTR ? errno : 0;
}

}  // namespace

Status FdExchange::listen() noexcept {
  if (getrandom(&address_, sizeof address_, 0) != sizeof address_) return failed("random numbers", errno);
  UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return failed("opening a Unix socket", errno);
  socklen_t length = 0;
  const sockaddr_un name = abstract_address(address_, length);
  if (bind(made.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0)
    return failed("naming a Unix socket", errno);
  if (::listen(made.get(), kBacklog) != 0) return failed("listening on a Unix socket", errno);
  listener_ = std::move(made);
  return Unit{};
}

Status FdExchange::connect(int rank, std::span<const SocketAddress> all, double timeout_s) noexcept {
  rank_ = rank;
  peers_.clear();
  peers_.resize(all.size());
  ready_.assign(all.size(), false);
  ready_[static_cast<std::size_t>(rank)] = true;
  Status outcome = connect_before(deadline_in(timeout_s), all);
  if (outcome && first_missing() >= 0) {
    char text[96];
    std::snprintf(text, sizeof text, " did not answer on its Unix socket within %.0f s", timeout_s);
    outcome = peer_error(first_missing(), text);
  }
  listener_.reset();
  pending_.clear();
  if (!outcome) peers_.clear();
  return outcome;
}

int FdExchange::first_missing() const noexcept {
  const auto found = std::find(ready_.begin(), ready_.end(), false);
  return found == ready_.end() ? -1 : static_cast<int>(found - ready_.begin());
}

/// Returns when everybody is there, at the deadline, or at an error.
Status FdExchange::connect_before(Clock::time_point deadline, std::span<const SocketAddress> all) noexcept {
  while (first_missing() >= 0 && Clock::now() < deadline) {
    if (Status called = call_lower_ranks(all); !called) return called;
    std::vector<pollfd> polled;
    polled.push_back({listener_.get(), POLLIN, 0});
    for (const UniqueFd& fd : pending_) polled.push_back({fd.get(), POLLIN, 0});
    const std::size_t first_peer = polled.size();
    bool to_call = false;
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      const bool waiting = !ready_[peer] && static_cast<int>(peer) < rank_;
      to_call |= waiting && !peers_[peer];
      polled.push_back({waiting ? peers_[peer].get() : -1, POLLIN, 0});
    }
    // A peer whose queue is full can't be waited for; it is called again soon.
    const auto until = to_call ? std::min(deadline, Clock::now() + std::chrono::milliseconds(5)) : deadline;
    if (const int error = wait_for(polled, until)) return failed("waiting for peers", error);
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      if (polled[first_peer + peer].revents == 0) continue;
      if (Status heard = hear_answer(static_cast<int>(peer)); !heard) return heard;
    }
    for (std::size_t i = pending_.size(); i-- > 0;)
      if (polled[1 + i].revents != 0) hear_pending(i, all);
    if (polled[0].revents != 0) {
      if (Status accepted = accept_pending(); !accepted) return accepted;
    }
  }
  return Unit{};
}

Status FdExchange::call_lower_ranks(std::span<const SocketAddress> all) noexcept {
  for (int peer = 0; peer < rank_; ++peer) {
    UniqueFd& connection = peers_[static_cast<std::size_t>(peer)];
    if (connection) continue;
    UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made) return failed("opening a Unix socket", errno);
    const SocketAddress& address = all[static_cast<std::size_t>(peer)];
    socklen_t length = 0;
    const sockaddr_un name = abstract_address(address, length);
    int error = 0;
    if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) error = errno;
    if (error == EAGAIN || error == EINTR) continue;  // its queue is full: later
    if (error == 0 && !same_user(made.get())) return peer_error(peer, " runs as another user");
    Hello hello;
    hello.kind = Hello::kCall;
    hello.rank = rank_;
    hello.token = address.token;
    if (error == 0) error = send_hello(made.get(), hello);
    if (error == ECONNREFUSED)
      return peer_error(peer, "'s Unix socket is not there: it ended, or lives in another network namespace");
    if (error != 0) return failed("calling rank " + std::to_string(peer) + " over its Unix socket", error);
    connection = std::move(made);
  }
  return Unit{};
}

Status FdExchange::accept_pending() noexcept {
  for (;;) {
    UniqueFd made(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!made) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return Unit{};
      return failed("accepting a peer's connection", errno);
    }
    if (!same_user(made.get())) continue;
    if (pending_.size() == kMostPending)
      pending_.erase(pending_.begin());  // the one that kept silent longest
    pending_.push_back(std::move(made));
  }
}

/// Somebody called. Whoever does not know the token is sent away.
void FdExchange::hear_pending(std::size_t index, std::span<const SocketAddress> all) noexcept {
  Heard heard = receive_hello(pending_[index].get());
  if (heard.state == Heard::State::kNothingYet) return;
  UniqueFd connection = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  const int peer = heard.hello.rank;
  if (heard.state != Heard::State::kMessage || heard.hello.kind != Hello::kCall ||
      !same_token(heard.hello.token, address_.token) || peer <= rank_ ||
      peer >= static_cast<int>(all.size()) || ready_[static_cast<std::size_t>(peer)])
    return;
  Hello answer;
  answer.kind = Hello::kAnswer;
  answer.rank = rank_;
  answer.token = all[static_cast<std::size_t>(peer)].token;
  if (send_hello(connection.get(), answer) != 0) return;
  peers_[static_cast<std::size_t>(peer)] = std::move(connection);
  ready_[static_cast<std::size_t>(peer)] = true;
}

Status FdExchange::hear_answer(int peer) noexcept {
  const auto index = static_cast<std::size_t>(peer);
  const Heard heard = receive_hello(peers_[index].get());
  if (heard.state == Heard::State::kNothingYet) return Unit{};
  if (heard.state != Heard::State::kMessage || heard.hello.kind != Hello::kAnswer ||
      heard.hello.rank != peer || !same_token(heard.hello.token, address_.token))
    return peer_error(peer, heard.state == Heard::State::kMessage ? " gave a wrong answer on its Unix socket"
                                                                  : " closed its Unix socket");
  ready_[index] = true;
  return Unit{};
}

Status FdExchange::swap(int fd, std::span<UniqueFd> received, double timeout_s) noexcept {
  const auto deadline = deadline_in(timeout_s);
  const auto give_back = [&](Error error) -> Status {
    for (UniqueFd& one : received) one.reset();
    return error;
  };
  Hello hello;
  hello.kind = Hello::kFd;
  hello.rank = rank_;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    // A message of this size always fits into an empty queue, and nothing else is ever in it.
    if (const int error = send_hello(peers_[peer].get(), hello, fd))
      return give_back(failed("sending a descriptor to rank " + std::to_string(peer), error));
  }
  for (;;) {
    std::vector<pollfd> polled;
    int missing = -1;
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      const bool waiting = static_cast<int>(peer) != rank_ && !received[peer];
      if (waiting && missing < 0) missing = static_cast<int>(peer);
      polled.push_back({waiting ? peers_[peer].get() : -1, POLLIN, 0});
    }
    if (missing < 0) return Unit{};
    if (Clock::now() >= deadline) {
      char text[96];
      std::snprintf(text, sizeof text, " did not send its descriptor within %.0f s", timeout_s);
      return give_back(peer_error(missing, text));
    }
    if (const int error = wait_for(polled, deadline))
      return give_back(failed("waiting for descriptors", error));
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      if (polled[peer].revents == 0) continue;
      Heard heard = receive_hello(peers_[peer].get());
      const int number = static_cast<int>(peer);
      if (heard.state == Heard::State::kNothingYet) continue;
      if (heard.state != Heard::State::kMessage)
        return give_back(peer_error(number, " closed its Unix socket"));
      if (heard.cut)
        return give_back(Error{ErrorCode::kSystem,
                               "no descriptor is left for that of rank " + std::to_string(number) +
                                   ": raise the limit of open files (ulimit -n)",
                               ""});
      if (heard.hello.kind != Hello::kFd || heard.hello.rank != number || !heard.fd || heard.extra != 0)
        return give_back(peer_error(number, " sent something else than one descriptor"));
      received[peer] = std::move(heard.fd);
    }
  }
}

UniqueFd FdExchange::share_connection(int peer) const noexcept {
  return UniqueFd(fcntl(peers_[static_cast<std::size_t>(peer)].get(), F_DUPFD_CLOEXEC, 3));
}

UniqueFd open_peer_process(int socket) noexcept {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd(fd);
  }
  ucred peer{};
  length = sizeof peer;
  // A pid of 0: the peer lives in a pid namespace that can't be seen from here.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));  // close-on-exec by definition
}

}  // namespace echotp
