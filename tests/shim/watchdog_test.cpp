// SPDX-License-Identifier: Apache-2.0
// The watchdog with real processes: whose end it notices, how soon, and what it does then.
#include "shim/watchdog.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "shim/fd_exchange.hpp"
#include "tests/shim/child_process.hpp"

namespace {

using namespace echotp;
using echotp::test::ChildProcess;
using echotp::test::open_descriptors;

/// Words as a communicator has them in mapped memory, and a child at the other end of a connection.
struct Bed {
  alignas(64) std::uint32_t abort = 0;
  alignas(64) std::uint32_t failure = 0;
  std::string said;
  std::unique_ptr<ChildProcess> child;
  UniqueFd ours, theirs;

  Bed() {
    int pair[2] = {-1, -1};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    ours = UniqueFd(pair[0]);
    theirs = UniqueFd(pair[1]);
  }

  /// A child that holds the other end until it is killed.
  void start_child() {
    child = std::make_unique<ChildProcess>([this] {
      ours.reset();
      pause();
      return 0;
    });
    theirs.reset();
  }

  std::unique_ptr<PeerWatch> watch(UniqueFd process = UniqueFd()) {
    WatchPlan plan;
    plan.rank = 0;
    plan.abort = &abort;
    plan.failure = &failure;
    WatchedPeer peer;
    peer.rank = 1;
    peer.socket = std::move(ours);
    peer.process = std::move(process);
    plan.peers.push_back(std::move(peer));
    plan.describe = [this](int gone) { return said = "gone " + std::to_string(gone); };
    auto started = PeerWatch::start(std::move(plan));
    REQUIRE(started);
    return *std::move(started);
  }
};

std::uint32_t read_word(std::uint32_t& word) {
  return std::atomic_ref(word).load();
}

/// Seconds until `condition` holds; 60 if it does not within 10.
template <class Condition>
double seconds_until(Condition condition) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (condition()) return passed;
    if (passed > 10) return 60;
    usleep(1000);
  }
}

}  // namespace

TEST_CASE("watchdog: a killed peer sets the abort word within a second") {
  Bed bed;
  bed.start_child();
  const auto watch = bed.watch();
  CHECK(watchdog_runs());
  CHECK(watch->gone() == -1);
  usleep(300'000);
  CHECK(read_word(bed.abort) == 0);  // the peer lives
  CHECK(!watch->all_gone());
  bed.child->kill_now();
  CHECK(seconds_until([&] { return read_word(bed.abort) == 1; }) < 1);
  CHECK(watch->gone() == 1);
  CHECK(watch->all_gone());
}

TEST_CASE("watchdog: a peer whose connection is kept open by a fork is noticed by its process") {
  Bed bed;
  // The child listens, connects to nobody, and leaves a grandchild that holds its socket.
  FdExchange exchanges[2];
  REQUIRE(exchanges[0].listen());
  REQUIRE(exchanges[1].listen());
  const SocketAddress addresses[] = {exchanges[0].address(), exchanges[1].address()};
  int life[2] = {-1, -1};
  REQUIRE(pipe2(life, O_CLOEXEC) == 0);
  UniqueFd life_read(life[0]), life_write(life[1]);
  bed.child = std::make_unique<ChildProcess>([&] {
    FdExchange mine = std::move(exchanges[1]);
    life_write.reset();
    exchanges[0] = FdExchange();
    if (!mine.connect(1, addresses, 20)) return 1;
    if (fork() == 0) {  // until the test's process closes the pipe
      char byte = 0;
      if (read(life_read.get(), &byte, 1) < 0) return 1;
      return 0;
    }
    pause();
    return 0;
  });
  FdExchange mine = std::move(exchanges[0]);
  exchanges[1] = FdExchange();
  REQUIRE(mine.connect(0, addresses, 20));
  bed.ours = mine.share_connection(1);
  UniqueFd process = open_peer_process(bed.ours.get());
  if (!process) {
    MESSAGE("skipped: this system has no pidfd");
    return;
  }
  const auto watch = bed.watch(std::move(process));
  bed.child->kill_now();
  CHECK(seconds_until([&] { return read_word(bed.abort) == 1; }) < 1);
  CHECK(watch->gone() == 1);
}

TEST_CASE("watchdog: a failure is said once and hung up on") {
  Bed bed;
  const auto watch = bed.watch();
  std::atomic_ref(bed.failure).store(2);
  pollfd polled{bed.theirs.get(), POLLRDHUP, 0};
  CHECK(poll(&polled, 1, 5000) == 1);
  CHECK(seconds_until([&] { return !bed.said.empty(); }) < 1);
  CHECK(bed.said == "gone -1");
  bed.said.clear();
  watch->say_failure();
  CHECK(bed.said.empty());
  CHECK(read_word(bed.abort) == 0);
}

TEST_CASE("watchdog: hanging up tells the peer, who then stops its kernels") {
  Bed bed;
  Bed other;
  other.ours = std::move(bed.theirs);
  const auto watch = bed.watch();
  const auto their_watch = other.watch();
  watch->hang_up();
  CHECK(seconds_until([&] { return read_word(other.abort) == 1; }) < 1);
  CHECK(read_word(bed.abort) == 0);
  CHECK(!watch->all_gone());
  their_watch->hang_up();
  CHECK(watch->all_gone());
  CHECK(their_watch->all_gone());
}

TEST_CASE("watchdog: words are left alone once watching has ended") {
  Bed bed;
  bed.start_child();
  bed.watch().reset();
  bed.child->kill_now();
  usleep(600'000);
  CHECK(read_word(bed.abort) == 0);
}

TEST_CASE("watchdog: many communicators come and go, and no descriptor is left") {
  {
    Bed warm_up;
    warm_up.watch();
  }
  const int before = open_descriptors();
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Bed>> beds;
  for (int i = 0; i < 40; ++i) beds.push_back(std::make_unique<Bed>());
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int i = thread; i < 40; i += 4) {
        Bed& bed = *beds[static_cast<std::size_t>(i)];
        WatchPlan plan;
        plan.abort = &bed.abort;
        plan.failure = &bed.failure;
        WatchedPeer peer;
        peer.rank = 1;
        peer.socket = std::move(bed.ours);
        plan.peers.push_back(std::move(peer));
        plan.describe = [](int) { return std::string(); };
        const auto started = PeerWatch::start(std::move(plan));
        bed.theirs.reset();  // the peer leaves while watching ends
      }
    });
  for (std::thread& thread : threads) thread.join();
  beds.clear();
  CHECK(open_descriptors() == before);
}

TEST_CASE("watchdog: a forked child has none, keeps no connection open and ends in good order") {
  Bed bed;
  const auto watch = bed.watch();
  ChildProcess child([&] {
    if (watchdog_runs()) return 1;
    watch->hang_up();  // says nothing in the parent's name
    exit(0);           // runs the exit handlers
  });
  CHECK(child.wait() == 0);
  pollfd polled{bed.theirs.get(), POLLRDHUP, 0};
  CHECK(poll(&polled, 1, 100) == 0);
  CHECK(watchdog_runs());
}
