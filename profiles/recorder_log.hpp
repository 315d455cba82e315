// SPDX-License-Identifier: Apache-2.0
// LOG: what one thread of the job has to say, handed to the recorder's writer through a ring without locks.
// Everything in a record is a number or a string that lives as long as the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "profiles/trace_encode.hpp"

namespace echotp::recorder {

/// A collective call that has returned. Strings are immortal; null where unknown.
struct CallRecord {
  std::uint64_t id;
  std::uint64_t communicator;  // NCCL's commHash; 0: unknown
  std::uint64_t stream;
  std::int64_t count;
  std::int64_t bytes;
  std::int64_t start_ns;
  std::int64_t end_ns;
  std::int64_t sequence;
  const char* function;
  const char* dtype;
  const char* op;
  std::int32_t group_size;
  std::uint32_t launch;  // correlation id; 0: none
  bool captured;
  bool stream_known;
};

/// One more fact about a call: another launch, or a graph node (a raw CUPTI node id here).
struct CallLink {
  LinkKind kind;
  std::uint64_t call;
  std::uint64_t target;
};

/// A finished NVTX range of the job; `name` is an index of Recorder::range_name().
struct RangeRecord {
  std::uint32_t name;
  std::uint32_t thread;
  std::int64_t start_ns;
  std::int64_t end_ns;
};

struct HostRecord {
  enum class Kind : std::uint8_t { kCall, kLink, kRange } kind;
  union {
    CallRecord call;
    CallLink link;
    RangeRecord range;
  };
};

/// Single producer (a thread of the job), single consumer (the writer).
class Ring {
 public:
  static constexpr std::uint64_t kRecords = 16384;

  Ring() : records_(static_cast<HostRecord*>(std::malloc(kRecords * sizeof(HostRecord)))) {}
  ~Ring() { std::free(records_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// False when the ring is full or has no memory: the record is lost.
  bool push(const HostRecord& record) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (!records_ || head - tail_.load(std::memory_order_acquire) >= kRecords) return false;
    records_[head % kRecords] = record;
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  bool half_full() const {
    return head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_relaxed) >= kRecords / 2;
  }
  template <class Visit>
  void drain(Visit visit) {
    std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    const std::uint64_t head = head_.load(std::memory_order_acquire);
    for (; tail != head; ++tail) visit(records_[tail % kRecords]);
    tail_.store(tail, std::memory_order_release);
  }

 private:
  HostRecord* records_;
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
};

/// A collective that has not been handed to the writer yet.
struct OpenCall {
  CallRecord record;
  bool from_nvtx = false;  // opened by NCCL's NVTX range, else by its profiler plugin
  bool has_plugin_facts = false;
};

/// A range on this thread's NVTX stack.
struct Frame {
  enum class Kind : std::uint8_t {
    kRange,
    kNcclOther,
    kNcclCall,
    kGroupStart,
    kGroupEnd,
    kCommInit
  } kind = Kind::kRange;
  const void* domain = nullptr;
  std::uint32_t name = 0;
  std::int64_t start_ns = 0;
};

class Recorder;
struct CommunicatorState;

/// State of one thread of the job. Only `ring` and `finished` are seen by the writer.
struct ThreadLog {
  Recorder* owner = nullptr;
  std::uint32_t thread = 0;  // gettid
  Ring ring;
  std::atomic<bool> finished{false};

  std::vector<Frame> frames;
  std::vector<OpenCall> open;
  int group_depth = 0;            // of ncclGroupStart, seen through NVTX
  bool launch_announced = false;  // between NCCL's kernel launch start and stop events
  std::uint64_t launch_communicator = 0;
  bool in_nccl_launch = false;                // inside the driver's launch call of a NCCL kernel
  CommunicatorState* communicator = nullptr;  // of the last call: most threads use one
  std::vector<std::uint32_t>
      recent_launches;  // NCCL kernels whose call is announced only after the launch (plugin v2 to v4)
};

}  // namespace echotp::recorder
