// SPDX-License-Identifier: Apache-2.0
// Descriptors passed between real processes: the good case, and everything that can go wrong with a peer.
#include "shim/fd_exchange.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "tests/shim/child_process.hpp"

namespace {

using namespace echotp;
using echotp::test::ChildProcess;
using echotp::test::open_descriptors;

constexpr double kLong_s = 20;
constexpr double kShort_s = 0.3;

/// Listeners of all ranks, opened before the ranks are forked: stands in for the exchange of addresses.
struct Ranks {
  explicit Ranks(int count) : exchanges(static_cast<std::size_t>(count)) {
    for (FdExchange& exchange : exchanges) {
      REQUIRE(exchange.listen());
      addresses.push_back(exchange.address());
    }
  }

  /// Keeps only the exchange of `rank`: every process has its own, as in a job.
  FdExchange take(int rank) {
    FdExchange mine = std::move(exchanges[static_cast<std::size_t>(rank)]);
    exchanges.clear();
    return mine;
  }

  std::vector<FdExchange> exchanges;
  std::vector<SocketAddress> addresses;
};

/// A descriptor that holds the number of a rank.
UniqueFd numbered(int rank) {
  UniqueFd fd(memfd_create("numbered", MFD_CLOEXEC));
  if (write(fd.get(), &rank, sizeof rank) != sizeof rank) fd.reset();
  return fd;
}
int number_in(int fd) {
  int rank = -1;
  return pread(fd, &rank, sizeof rank, 0) == sizeof rank ? rank : -1;
}

/// Connects, swaps and checks what came; 0 if all is well.
int take_part(FdExchange exchange, int rank, std::span<const SocketAddress> addresses) {
  if (!exchange.connect(rank, addresses, kLong_s)) return 1;
  const UniqueFd mine = numbered(rank);
  std::vector<UniqueFd> received(addresses.size());
  if (!exchange.swap(mine.get(), received, kLong_s)) return 2;
  for (int peer = 0; peer < static_cast<int>(addresses.size()); ++peer) {
    const int fd = received[static_cast<std::size_t>(peer)].get();
    if (peer == rank ? fd != -1 : number_in(fd) != peer) return 3;
    if (peer != rank && (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) return 4;
  }
  return 0;
}

/// From here on this process can open nothing more.
bool take_all_descriptors() {
  const UniqueFd lowest(dup(0));
  rlimit limit{};
  if (!lowest || getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = static_cast<rlim_t>(lowest.get());
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A socket that is connected to `address`, as somebody would have who read its name in /proc/net/unix.
UniqueFd stranger_at(const SocketAddress& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  char* text = name.sun_path + 1;
  text += std::snprintf(text, 16, "echo-tp-");
  for (const std::uint8_t byte : address.name) text += std::snprintf(text, 3, "%02x", byte);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(text - reinterpret_cast<char*>(&name));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) fd.reset();
  return fd;
}

}  // namespace

TEST_CASE("fd exchange: every rank gets the descriptor of every other one, and none is left behind") {
  const int before = open_descriptors();
  for (const int count : {2, 3, 8}) {
    Ranks ranks(count);
    std::vector<std::unique_ptr<ChildProcess>> children;
    for (int rank = 1; rank < count; ++rank)
      children.push_back(
          std::make_unique<ChildProcess>([&] { return take_part(ranks.take(rank), rank, ranks.addresses); }));
    CHECK(take_part(ranks.take(0), 0, ranks.addresses) == 0);
    for (const auto& child : children) CHECK(child->wait() == 0);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("fd exchange: a second swap on the same connections works, and connections tell of the end") {
  Ranks ranks(2);
  ChildProcess child([&] {
    FdExchange mine = ranks.take(1);
    if (!mine.connect(1, ranks.addresses, kLong_s)) return 1;
    for (int round = 0; round < 2; ++round) {
      std::vector<UniqueFd> received(2);
      if (!mine.swap(numbered(10 + round).get(), received, kLong_s)) return 2;
      if (number_in(received[0].get()) != 20 + round) return 3;
    }
    return 0;
  });
  FdExchange mine = ranks.take(0);
  REQUIRE(mine.connect(0, ranks.addresses, kLong_s));
  for (int round = 0; round < 2; ++round) {
    std::vector<UniqueFd> received(2);
    REQUIRE(mine.swap(numbered(20 + round).get(), received, kLong_s));
    CHECK(number_in(received[1].get()) == 10 + round);
  }
  CHECK(child.wait() == 0);
  const UniqueFd connection = mine.share_connection(1);
  char byte = 0;
  CHECK(recv(connection.get(), &byte, 1, 0) == 0);
}

TEST_CASE("fd exchange: a peer that is dead is named at once") {
  const int before = open_descriptors();
  Ranks ranks(2);
  const std::vector<SocketAddress> addresses = ranks.addresses;
  FdExchange mine;
  SUBCASE("before it was called") {
    mine = ranks.take(1);  // and the listener of rank 0 closes
    const Status outcome = mine.connect(1, addresses, kLong_s);
    REQUIRE(!outcome);
    CHECK(outcome.error().text().find("rank 0") != std::string::npos);
    CHECK(outcome.error().text().find("is not there") != std::string::npos);
  }
  SUBCASE("after it connected") {
    ChildProcess child([&] {
      FdExchange theirs = ranks.take(1);
      return theirs.connect(1, addresses, kLong_s) ? 0 : 1;
    });
    mine = ranks.take(0);
    REQUIRE(mine.connect(0, addresses, kLong_s));
    CHECK(child.wait() == 0);
    std::vector<UniqueFd> received(2);
    const auto start = std::chrono::steady_clock::now();
    const Status outcome = mine.swap(numbered(0).get(), received, kLong_s);
    REQUIRE(!outcome);
    CHECK(outcome.error().text().find("rank 1") != std::string::npos);
    CHECK(seconds_since(start) < 5);
  }
  mine = FdExchange();
  ranks.exchanges.clear();
  CHECK(open_descriptors() == before);
}

TEST_CASE("fd exchange: a peer that is slow is waited for, but not for ever") {
  Ranks ranks(3);
  ChildProcess child([&] {
    FdExchange theirs = ranks.take(1);
    usleep(300'000);  // both other ranks have called or wait by now
    return theirs.connect(1, ranks.addresses, 3) ? 0 : 7;
  });
  FdExchange mine = std::move(ranks.exchanges[0]);
  const auto start = std::chrono::steady_clock::now();
  const Status outcome = mine.connect(0, ranks.addresses, 1.5);  // rank 2 never calls
  REQUIRE(!outcome);
  CHECK(outcome.error().text().find("rank 2 did not answer") != std::string::npos);
  CHECK(seconds_since(start) >= 1.4);
  CHECK(seconds_since(start) < 10);
}

TEST_CASE("fd exchange: descriptors that do not come are waited for, but not for ever") {
  Ranks ranks(2);
  ChildProcess child([&] {
    FdExchange theirs = ranks.take(1);
    if (!theirs.connect(1, ranks.addresses, kLong_s)) return 1;
    usleep(30'000'000);
    return 0;
  });
  FdExchange mine = ranks.take(0);
  REQUIRE(mine.connect(0, ranks.addresses, kLong_s));
  const UniqueFd fd = numbered(0);
  const int before = open_descriptors();
  std::vector<UniqueFd> received(2);
  const Status outcome = mine.swap(fd.get(), received, kShort_s);
  REQUIRE(!outcome);
  CHECK(outcome.error().text().find("rank 1 did not send") != std::string::npos);
  CHECK(open_descriptors() == before);
}

TEST_CASE("fd exchange: strangers get nothing and stop nobody") {
  Ranks ranks(2);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 10; ++i) strangers.push_back(stranger_at(ranks.addresses[0]));  // say nothing
  UniqueFd liar = stranger_at(ranks.addresses[0]);
  REQUIRE(liar);
  const char words[48] = "give me your descriptor";
  REQUIRE(send(liar.get(), words, sizeof words, 0) == sizeof words);
  // Knows how to talk, but not the token.
  struct {
    std::uint64_t magic = 0x646668'6f686365ULL;
    std::uint32_t kind = 1;
    std::int32_t rank = 1;
    std::uint8_t token[16] = {};
  } forged;
  UniqueFd forger = stranger_at(ranks.addresses[0]);
  REQUIRE(send(forger.get(), &forged, sizeof forged, 0) == sizeof forged);
  ChildProcess child([&] { return take_part(ranks.take(1), 1, ranks.addresses); });
  CHECK(take_part(ranks.take(0), 0, ranks.addresses) == 0);
  CHECK(child.wait() == 0);
  char byte = 0;
  CHECK(recv(liar.get(), &byte, 1, 0) <= 0);
  CHECK(recv(forger.get(), &byte, 1, 0) <= 0);
}

TEST_CASE("fd exchange: a process without room for descriptors says so and leaks none") {
  Ranks ranks(2);
  ChildProcess child([&] {
    FdExchange theirs = ranks.take(1);
    if (!theirs.connect(1, ranks.addresses, kLong_s)) return 1;
    const UniqueFd mine = numbered(1);
    if (!take_all_descriptors()) return 2;
    std::vector<UniqueFd> received(2);
    const Status outcome = theirs.swap(mine.get(), received, kLong_s);
    if (outcome) return 3;
    if (outcome.error().text().find("ulimit -n") == std::string::npos) return 4;
    return received[0] ? 5 : 0;
  });
  FdExchange mine = ranks.take(0);
  REQUIRE(mine.connect(0, ranks.addresses, kLong_s));
  std::vector<UniqueFd> received(2);
  CHECK(mine.swap(numbered(0).get(), received, kLong_s));  // its own half is in order
  CHECK(child.wait() == 0);
}

TEST_CASE("fd exchange: no room for a socket is an error of this rank") {
  ChildProcess child([] {
    if (!take_all_descriptors()) return 2;
    FdExchange exchange;
    return exchange.listen() ? 3 : 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("fd exchange: the process behind a connection can be watched") {
  Ranks ranks(2);
  ChildProcess child([&] {
    FdExchange theirs = ranks.take(1);
    if (!theirs.connect(1, ranks.addresses, kLong_s)) return 1;
    usleep(30'000'000);
    return 0;
  });
  FdExchange mine = ranks.take(0);
  REQUIRE(mine.connect(0, ranks.addresses, kLong_s));
  CHECK(!mine.share_connection(0));
  const UniqueFd connection = mine.share_connection(1);
  CHECK((fcntl(connection.get(), F_GETFD) & FD_CLOEXEC) != 0);
  const UniqueFd process = open_peer_process(connection.get());
  CHECK(process);
  CHECK((fcntl(process.get(), F_GETFD) & FD_CLOEXEC) != 0);
}
