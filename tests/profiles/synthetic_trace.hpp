// SPDX-License-Identifier: Apache-2.0
// A job whose step time is known: runs a program of launches, collectives, events and waits on simulated
// ranks, instruction by instruction, and writes down what a recorder would have seen. Knows nothing of the
// timeline under test: with other transfer times the program is simply run again.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "profiles/trace.hpp"

namespace echotp::test {

inline constexpr double kLaunchCall_us = 3, kLaunchLatency_us = 4, kReturn_us = 5;

/// A number in [0, 1) that depends on its arguments alone.
inline double noise(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ull ^ b * 0xbf58476d1ce4e5b9ull ^ c * 0x94d049bb133111ebull;
  x ^= x >> 31;
  x *= 0x7fb5d329728ea185ull;
  x ^= x >> 27;
  x *= 0x81dadef4bc2dd44dull;
  x ^= x >> 33;
  return static_cast<double>(x >> 11) / 9007199254740992.0;
}

class SyntheticJob {
 public:
  explicit SyntheticJob(int ranks, bool host_records = true) : host_records_(host_records), ranks_(ranks) {
    trace_.communicators.push_back({0xabcd, "TP", ranks, {}});
    for (int rank = 0; rank < ranks; ++rank) {
      Process process;
      process.host = "node0";
      process.pid = 1000 + rank;
      process.rank = rank;
      process.tiers = {"nvtx", "nccl_profiler", "cupti"};
      process.complete = true;
      trace_.processes.push_back(process);
      trace_.communicators[0].rank_of_process.push_back(rank);
      rank_.emplace_back();
    }
  }

  /// A kernel on every rank; duration(rank) in microseconds.
  template <class Duration>
  void kernel(std::uint32_t stream, const std::string& name, Duration duration) {
    for (int rank = 0; rank < ranks_; ++rank) launch(rank, stream, name, duration(rank), -1);
  }

  /// A collective that all ranks join; leaves `transfer_us` after the last one came.
  void collective(std::uint32_t stream, const std::string& function, std::int64_t bytes, double transfer_us,
                  const std::string& dtype = "bf16", const std::string& op = "sum") {
    const std::int64_t sequence = sequence_[function]++;
    double last = 0;
    std::vector<std::int32_t> ops;
    for (int rank = 0; rank < ranks_; ++rank) {
      CollectiveCall call;
      call.process = rank;
      call.communicator = 0;
      call.function = function;
      call.count = bytes / 2;
      call.dtype = dtype;
      call.op = op;
      call.bytes = bytes;
      call.thread = rank_[rank].thread;
      call.sequence = sequence;
      call.host_start_ns = ns(rank_[rank].host);
      const auto index = static_cast<std::int32_t>(trace_.calls.size());
      const std::int32_t device_op =
          launch(rank, stream, "ncclDevKernel_" + function + "_Sum_bf16_RING_LL", 0, index);
      call.host_end_ns = ns(rank_[rank].host);
      call.ops = {device_op};
      trace_.calls.push_back(call);
      ops.push_back(device_op);
      last = std::max(last, rank_[rank].tail[stream].start);
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      rank_[rank].tail[stream].end = last + transfer_us;
      trace_.device_ops[ops[rank]].end_ns = ns(last + transfer_us);
    }
  }

  void record(std::uint32_t event, std::uint32_t stream) {
    for (int rank = 0; rank < ranks_; ++rank) {
      rank_[rank].events[event] = rank_[rank].tail[stream].end;
      api(rank, HostApiKind::kEventRecord, 1, stream, event);
    }
  }

  void wait(std::uint32_t event, std::uint32_t stream) {
    for (int rank = 0; rank < ranks_; ++rank) {
      double& end = rank_[rank].tail[stream].end;
      end = std::max(end, rank_[rank].events[event]);
      api(rank, HostApiKind::kStreamWaitEvent, 1, stream, event);
    }
  }

  void synchronise(std::uint32_t stream) {
    for (int rank = 0; rank < ranks_; ++rank) {
      State& state = rank_[rank];
      const double returned = std::max(state.host + 2, state.tail[stream].end + kReturn_us);
      api(rank, HostApiKind::kStreamSynchronize, returned - state.host, stream, 0);
    }
  }

  void host_work(double work_us) {
    for (State& state : rank_) state.host += work_us;
  }

  void host_work(int rank, double work_us) { rank_[rank].host += work_us; }

  /// From now on the ranks issue from another thread.
  void use_thread(std::uint32_t thread) {
    for (State& state : rank_) state.thread = thread;
  }

  void begin_step() {
    for (State& state : rank_) state.step_begin = state.host;
  }

  /// Closes a step: an NVTX range of that name (empty: none), and the truth about its length.
  void end_step(const std::string& range = "step") {
    double slowest = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      State& state = rank_[rank];
      slowest = std::max(slowest, state.host - state.last_step_end);
      state.last_step_end = state.host;
      if (!range.empty())
        trace_.ranges.push_back({rank, state.thread, name_of(range), ns(state.step_begin), ns(state.host)});
    }
    if (steps_++ > 0) truth_.push_back(slowest);
  }

  /// Median step in microseconds, by the program's own clock.
  double truth_us() const {
    std::vector<double> sorted = truth_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }

  Trace& trace() { return trace_; }

 private:
  struct Tail {
    double start = 0, end = 0;
  };
  struct State {
    double host = 1e6;  // microseconds; the epoch is not 0, which means unknown
    double step_begin = 0, last_step_end = 1e6;
    std::uint32_t thread = 1;
    std::uint32_t correlation = 0;
    std::map<std::uint32_t, Tail> tail;
    std::map<std::uint32_t, double> events;
  };

  static std::int64_t ns(double time_us) { return std::llround(time_us * 1000); }

  std::int32_t name_of(const std::string& name) {
    const auto [at, fresh] = names_.try_emplace(name, static_cast<std::int32_t>(trace_.names.size()));
    if (fresh) trace_.names.push_back(name);
    return at->second;
  }

  HostApi* api(int rank, HostApiKind kind, double duration_us, std::uint32_t stream, std::uint32_t event) {
    State& state = rank_[rank];
    HostApi call;
    call.process = rank;
    call.kind = kind;
    call.thread = state.thread;
    call.start_ns = ns(state.host);
    state.host += duration_us;
    call.end_ns = ns(state.host);
    call.stream = stream;
    call.event = event;
    if (!host_records_) return nullptr;
    trace_.host_apis.push_back(call);
    return &trace_.host_apis.back();
  }

  std::int32_t launch(int rank, std::uint32_t stream, const std::string& name, double duration_us,
                      std::int32_t call) {
    State& state = rank_[rank];
    const double earliest = state.host + kLaunchLatency_us;
    ++state.correlation;
    if (HostApi* made = api(rank, HostApiKind::kLaunch, kLaunchCall_us, 0, 0))
      made->correlation = state.correlation;
    Tail& tail = state.tail[stream];
    tail.start = std::max(tail.end, earliest);
    tail.end = tail.start + duration_us;
    DeviceOp op;
    op.process = rank;
    op.name = name_of(name);
    op.stream = stream;
    op.start_ns = ns(tail.start);
    op.end_ns = ns(tail.end);
    op.correlation = state.correlation;
    op.call = call;
    trace_.device_ops.push_back(op);
    return static_cast<std::int32_t>(trace_.device_ops.size()) - 1;
  }

  bool host_records_;
  int ranks_;
  int steps_ = 0;
  Trace trace_;
  std::vector<State> rank_;
  std::vector<double> truth_;
  std::map<std::string, std::int32_t> names_;
  std::map<std::string, std::int64_t> sequence_;
};

/// How a job of the tests looks.
struct Shape {
  int ranks = 4;
  int layers = 12;
  int steps = 8;
  double transfer_us = 80;
  double jitter = 0.02;  // of a kernel's duration, over ranks, layers and steps
  std::int64_t bytes = 16 << 20;
  bool host_records = true;
  std::string range = "step";
};

/// Tensor parallelism as it usually is: compute, all-reduce, compute, ... in one stream.
inline SyntheticJob serial_job(const Shape& shape) {
  SyntheticJob job(shape.ranks, shape.host_records);
  for (int step = 0; step < shape.steps; ++step) {
    job.begin_step();
    job.kernel(7, "embed", [](int) { return 40.0; });
    for (int layer = 0; layer < shape.layers; ++layer) {
      job.kernel(7, "gemm", [&](int rank) {
        return 100 * (1 + shape.jitter * (2 * noise(rank + 1, step + 1, layer + 1) - 1));
      });
      job.collective(7, "AllReduce", shape.bytes, shape.transfer_us);
    }
    job.kernel(7, "head", [](int) { return 60.0; });
    job.synchronise(7);
    job.end_step(shape.range);
  }
  return job;
}

/// The all-reduce runs on its own stream beside a kernel that does not need it, `cover_us` long.
template <class Cover>
SyntheticJob overlapped_job(const Shape& shape, Cover cover_us) {
  SyntheticJob job(shape.ranks, shape.host_records);
  for (int step = 0; step < shape.steps; ++step) {
    job.begin_step();
    job.kernel(7, "embed", [](int) { return 40.0; });
    for (int layer = 0; layer < shape.layers; ++layer) {
      job.kernel(7, "gemm", [&](int rank) {
        return 100 * (1 + shape.jitter * (2 * noise(rank + 1, step + 1, layer + 1) - 1));
      });
      job.record(1, 7);
      job.wait(1, 20);
      job.collective(20, "AllReduce", shape.bytes, shape.transfer_us);
      job.record(2, 20);
      job.kernel(7, "cover", [&](int) { return cover_us(step, layer); });
      job.wait(2, 7);
    }
    job.kernel(7, "head", [](int) { return 60.0; });
    job.synchronise(7);
    job.end_step(shape.range);
  }
  return job;
}

}  // namespace echotp::test
