// SPDX-License-Identifier: Apache-2.0
// BENCH LOAD: traffic on the link while all-reduces are timed. A thread keeps a few large chunks under way on
// streams of its own, from start() to stop(), and notes when each of them ran.
#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/bench_cuda.hpp"
#include "cli/bench_options.hpp"
#include "cli/bench_rates.hpp"
#include "cli/rendezvous.hpp"

namespace echotp {

void check(ncclResult_t rc, const char* what);

class BackgroundLoad {
 public:
  /// `communicator` is the load's own, for kCollective; null otherwise. `device` is this rank's GPU.
  BackgroundLoad(BenchBackground kind, const RankPlace& place, int device, ncclComm_t communicator);
  ~BackgroundLoad();
  BackgroundLoad(const BackgroundLoad&) = delete;
  BackgroundLoad& operator=(const BackgroundLoad&) = delete;

  /// Between what the bytes move, for people; empty for kIdle.
  const std::string& path() const { return path_; }

  /// `clock` has been recorded and is what spans are measured from.
  void start(cudaEvent_t clock);

  /// Enqueues no more. Returns how many chunks this rank has enqueued: the ranks agree on the largest number
  /// before they go on, because NCCL's chunks need all of them.
  long long pause();

  /// After pause(): enqueues up to `chunks` in all, waits for them, and returns what ran since start().
  std::vector<BackgroundChunk> finish(long long chunks);

 private:
  struct Slot {
    std::unique_ptr<EventPair> events;
    bool busy = false;
  };
  void run();
  Slot& next_slot() { return slots_[static_cast<std::size_t>(enqueued_) % slots_.size()]; }
  void enqueue(Slot& slot);
  void collect(Slot& slot);

  BenchBackground kind_;
  RankPlace place_;
  int device_;
  int peer_device_ = -1;  // of kCopy with GPUs enough; -1: the host
  ncclComm_t communicator_;
  std::string path_;
  cudaStream_t out_stream_ = nullptr;
  cudaStream_t in_stream_ = nullptr;
  cudaEvent_t joined_ = nullptr;
  DeviceMemory out_here_, in_here_;
  void* out_there_ = nullptr;  // on the peer's GPU or in the host's memory
  void* in_there_ = nullptr;
  std::vector<Slot> slots_;
  cudaEvent_t clock_ = nullptr;
  std::thread thread_;
  std::atomic<bool> pausing_{false};
  long long enqueued_ = 0;  // of the thread while it runs
  std::vector<BackgroundChunk> chunks_;
};

}  // namespace echotp
