// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: they are forked before any CUDA call, meet in shared memory, and are killed when they
// take too long or one of them fails.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <vector>

namespace echotp::test {

inline constexpr int kMostProcesses = 8;

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Memory that all ranks of a scenario share.
class Meeting {
 public:
  /// Waits for all ranks; false if the scenario has failed meanwhile.
  bool wait(int ranks) {
    const unsigned round = round_.load();
    if (arrived_.fetch_add(1) + 1 == ranks) {
      arrived_ = 0;
      ++round_;
      return !failed_;
    }
    while (round_ == round) {
      if (failed_) return false;
      const timespec pause{0, 20'000};
      nanosleep(&pause, nullptr);
    }
    return !failed_;
  }

  /// Stands in for the communicator's all-gather.
  bool gather(int rank, int ranks, std::span<const std::byte> mine, std::span<std::byte> all) {
    if (mine.size() > kRecordBytes) return false;
    std::memcpy(records_[static_cast<std::size_t>(rank)].data(), mine.data(), mine.size());
    if (!wait(ranks)) return false;
    for (int peer = 0; peer < ranks; ++peer)
      std::memcpy(all.data() + static_cast<std::size_t>(peer) * mine.size(),
                  records_[static_cast<std::size_t>(peer)].data(), mine.size());
    return wait(ranks);
  }

  void fail() { failed_ = true; }

  std::atomic<int> passed{0};
  std::atomic<int> failures{0};
  std::atomic<double> event_at{0};  // when what the scenario is about happened

 private:
  static constexpr std::size_t kRecordBytes = 1024;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> round_{0};
  std::atomic<bool> failed_{false};
  std::array<std::array<std::byte, kRecordBytes>, kMostProcesses> records_{};
};

/// One rank's view of its scenario.
struct RankContext {
  int rank = 0;
  int ranks = 0;
  Meeting* meeting = nullptr;

  bool check(bool good, const std::string& what) const {
    (good ? meeting->passed : meeting->failures)++;
    if (!good) {
      std::printf("FAIL rank %d of %d: %s\n", rank, ranks, what.c_str());
      std::fflush(stdout);
    }
    return good;
  }
};

/// Runs `body` in one process a rank. Its exit code is 0 for "went to the end". Ranks in `dying` have to be
/// killed by a signal. Adds to `passed` and `failures`.
inline void run_ranks(const std::string& name, int ranks, unsigned dying, double timeout_s,
                      const std::function<int(const RankContext&)>& body, int& passed, int& failures) {
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::printf("FAIL %s: no shared memory\n", name.c_str());
    ++failures;
    return;
  }
  auto* meeting = new (memory) Meeting;
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      int code = 1;
      try {
        code = body(RankContext{rank, ranks, meeting});
      } catch (const std::exception& error) {
        std::printf("FAIL rank %d: %s\n", rank, error.what());
      }
      if (code != 0) meeting->fail();
      std::fflush(stdout);
      std::fflush(stderr);
      _exit(code);
    }
    children.push_back(pid);
  }
  const double start = seconds_now();
  double give_up = start + timeout_s;
  int left = ranks;
  bool good = true;
  while (left > 0) {
    for (int rank = 0; rank < ranks; ++rank) {
      pid_t& pid = children[static_cast<std::size_t>(rank)];
      int status = 0;
      if (pid <= 0 || waitpid(pid, &status, WNOHANG) != pid) continue;
      pid = 0;
      --left;
      const bool expected = (dying >> rank & 1) != 0 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                                     : WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (expected) continue;
      if (WIFSIGNALED(status))
        std::printf("FAIL %s: rank %d ended by signal %d\n", name.c_str(), rank, WTERMSIG(status));
      good = false;
      meeting->fail();  // the others stop at their next meeting
      give_up = std::min(give_up, seconds_now() + 30);
    }
    if (left > 0 && seconds_now() > give_up) {
      std::printf("FAIL %s: %d of %d ranks did not end within %.0f s\n", name.c_str(), left, ranks,
                  timeout_s);
      good = false;
      for (pid_t& pid : children) {
        if (pid <= 0) continue;
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        pid = 0;
      }
      left = 0;
    }
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
  (good ? passed : failures)++;
  passed += meeting->passed;
  failures += meeting->failures;
  std::printf("%s %s: %d checks passed, %d failed, %.1f s\n",
              good && meeting->failures == 0 ? "ok  " : "FAIL", name.c_str(), meeting->passed.load(),
              meeting->failures.load(), seconds_now() - start);
  std::fflush(stdout);
  munmap(memory, sizeof(Meeting));
}

}  // namespace echotp::test
