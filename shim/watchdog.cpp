// SPDX-License-Identifier: Apache-2.0
#include "shim/watchdog.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>

#include "shim/say.hpp"

namespace echotp {

namespace {
using Clock = std::chrono::steady_clock;

/// How often the failure words are looked at: they are plain memory and wake nobody.
constexpr auto kLook = std::chrono::milliseconds(100);
/// From a peer's end to the abort word. A peer that ends in good order has sent everything before; a kernel
/// that still reads it gets this time to finish.
constexpr auto kGrace = std::chrono::milliseconds(250);

void store_word(std::uint32_t* word, std::uint32_t value) noexcept {
  std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_release);
}
std::uint32_t load_word(const std::uint32_t* word) noexcept {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
}
}  // namespace

struct PeerWatch::Entry {
  WatchPlan plan;
  std::atomic<int> gone{-1};
  std::atomic<bool> said{false};
  std::vector<bool> left;                     // [peers]: no longer polled; guarded by the watchdog's mutex
  std::optional<Clock::time_point> abort_at;  // guarded
  bool failed = false;                        // guarded: the failure has been seen

  void hang_up() noexcept {
    for (const WatchedPeer& peer : plan.peers)
      if (peer.socket) shutdown(peer.socket.get(), SHUT_WR);
  }
};

namespace {

/// The process's watchdog. Leaked on purpose: communicators may end in exit handlers.
class Watchdog {
 public:
  static Watchdog& instance() {
    static auto* const made = new Watchdog;
    return *made;
  }

  Status add(const std::shared_ptr<PeerWatch::Entry>& entry) {
    const std::lock_guard lock(mutex_);
    if (Status running = run(); !running) return running;
    entries_.push_back(entry);
    wake();
    return Unit{};
  }

  void remove(const std::shared_ptr<PeerWatch::Entry>& entry) {
    const std::lock_guard lock(mutex_);
    entries_.erase(std::remove(entries_.begin(), entries_.end(), entry), entries_.end());
    wake();
  }

  bool runs() {
    const std::lock_guard lock(mutex_);
    return running_;
  }

 private:
  Watchdog() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().in_child(); });
    std::atexit([] { instance().stop(); });
  }

  /// With the lock held. Starts the thread if it does not run.
  Status run() {
    if (running_) return Unit{};
    if (stopped_) return Error{ErrorCode::kSystem, "the process is ending", ""};
    wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) return Error{ErrorCode::kSystem, "no descriptor is left for the watchdog", ""};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(
        &thread_, nullptr,
        [](void* self) -> void* {
          static_cast<Watchdog*>(self)->watch();
          return nullptr;
        },
        this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) return Error{ErrorCode::kSystem, "the watchdog's thread could not be started", ""};
    pthread_setname_np(thread_, "echo-tp-watch");
    running_ = true;
    return Unit{};
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      if (!running_) return;
      running_ = false;
      wake();
    }
    pthread_join(thread_, nullptr);
  }

  /// In a forked child, which has only the thread that forked. Its copies of the connections must not keep
  /// them open when the parent ends. Only closes and plain stores: nothing else is safe here.
  void in_child() {
    for (const auto& entry : entries_) {
      for (WatchedPeer& peer : entry->plan.peers) {
        peer.socket.reset();
        peer.process.reset();
      }
    }
    wake_.reset();
    running_ = false;
    stopped_ = true;
    mutex_.unlock();
  }

  void wake() noexcept {
    const std::uint64_t one = 1;
    if (wake_ && write(wake_.get(), &one, sizeof one) < 0) return;  // full: it is awake anyway
  }

  struct Line {
    int rank = -1;
    std::string text;
  };

  struct Polled {
    std::shared_ptr<PeerWatch::Entry> entry;
    std::size_t peer = 0;
  };

  /// The thread.
  void watch() {
    for (;;) {
      try {
        if (!turn()) return;
      } catch (...) {  // no memory: later
        usleep(10'000);
      }
    }
  }

  /// Waits for something to happen and deals with it. False when the thread has to end.
  bool turn() {
    std::vector<pollfd> polled;
    std::vector<Polled> owners;
    int timeout = -1;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return false;
      polled.push_back({wake_.get(), POLLIN, 0});
      owners.emplace_back();
      for (const auto& entry : entries_) gather(entry, polled, owners);
      if (!entries_.empty()) timeout = static_cast<int>(kLook.count());
    }
    if (poll(polled.data(), polled.size(), timeout) < 0) {
      for (pollfd& one : polled) one.revents = 0;  // the words are looked at nevertheless
      usleep(10'000);
    }
    std::uint64_t count = 0;
    if (polled[0].revents != 0 && read(wake_.get(), &count, sizeof count) < 0) count = 0;
    std::vector<Line> lines;
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 1; i < polled.size(); ++i)
        if (polled[i].revents != 0) notice(owners[i]);
      for (const auto& entry : entries_) look(*entry, lines);
    }
    // Outside the lock: the terminal may be slow.
    for (const Line& line : lines) say(line.rank, "%s", line.text.c_str());
    return true;
  }

  static void gather(const std::shared_ptr<PeerWatch::Entry>& entry, std::vector<pollfd>& polled,
                     std::vector<Polled>& owners) {
    for (std::size_t i = 0; i < entry->plan.peers.size(); ++i) {
      if (entry->left[i]) continue;
      const WatchedPeer& peer = entry->plan.peers[i];
      polled.push_back({peer.socket.get(), POLLRDHUP, 0});
      owners.push_back({entry, i});
      if (!peer.process) continue;
      polled.push_back({peer.process.get(), POLLIN, 0});
      owners.push_back({entry, i});
    }
  }

  /// A peer is gone. An entry that was removed meanwhile is left alone: its words may be freed.
  void notice(const Polled& owner) {
    if (std::find(entries_.begin(), entries_.end(), owner.entry) == entries_.end()) return;
    PeerWatch::Entry& entry = *owner.entry;
    if (entry.left[owner.peer]) return;
    entry.left[owner.peer] = true;
    int none = -1;
    entry.gone.compare_exchange_strong(none, entry.plan.peers[owner.peer].rank);
    if (!entry.abort_at) entry.abort_at = Clock::now() + kGrace;
  }

  static void look(PeerWatch::Entry& entry, std::vector<Line>& lines) {
    if (entry.abort_at && Clock::now() >= *entry.abort_at) store_word(entry.plan.abort, 1);
    if (entry.failed || load_word(entry.plan.failure) == 0) return;
    entry.failed = true;
    entry.hang_up();
    if (!entry.said.exchange(true))
      lines.push_back({entry.plan.rank, entry.plan.describe(entry.gone.load())});
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<PeerWatch::Entry>> entries_;
  UniqueFd wake_;
  pthread_t thread_{};
  bool running_ = false;
  bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<PeerWatch>> PeerWatch::start(WatchPlan plan) {
  auto entry = std::make_shared<Entry>();
  entry->left.resize(plan.peers.size());
  entry->plan = std::move(plan);
  if (Status added = Watchdog::instance().add(entry); !added) return added.error();
  return std::unique_ptr<PeerWatch>(new PeerWatch(std::move(entry)));
}

PeerWatch::~PeerWatch() {
  Watchdog::instance().remove(entry_);
}

int PeerWatch::gone() const noexcept {
  return entry_->gone.load();
}

void PeerWatch::say_failure() noexcept {
  if (entry_->said.exchange(true)) return;
  try {
    say(entry_->plan.rank, "%s", entry_->plan.describe(gone()).c_str());
  } catch (...) {  // no memory for the details
    say(entry_->plan.rank, "an all-reduce between peers failed");
  }
}

void PeerWatch::hang_up() noexcept {
  entry_->hang_up();
}

bool PeerWatch::all_gone() const noexcept {
  for (const WatchedPeer& peer : entry_->plan.peers) {
    pollfd polled[] = {{peer.socket.get(), POLLRDHUP, 0},
                       {peer.process ? peer.process.get() : -1, POLLIN, 0}};
    if (poll(polled, 2, 0) <= 0) return false;
  }
  return true;
}

bool watchdog_runs() noexcept {
  return Watchdog::instance().runs();
}

}  // namespace echotp
