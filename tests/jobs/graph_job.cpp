// SPDX-License-Identifier: Apache-2.0
// A job that mixes everything one communicator may meet: passes of all-reduces issued eagerly and replayed
// from CUDA graphs, two sizes, several streams, two threads, nothing synchronised by the job. One process a
// rank, an ordinary user of NCCL. Every result is compared bit for bit with that of the same pass issued
// eagerly and alone, on every rank; the last line is `result: ...`, the exit code 1 after any difference.
//
// Under echo-tp the policy must compress bf16 and start a pass every kCalls calls: then each pass, replayed
// or not, begins without memory of the one before.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cli/rendezvous.hpp"
#include "tests/jobs/graph_kernels.hpp"

namespace graphjob {
namespace {

constexpr int kCalls = 4;                  // all-reduces of a pass
constexpr std::int64_t kSmall = 50'001;    // elements; one chunk, and no multiple of anything
constexpr std::int64_t kLarge = 200'003;   // several chunks when ECHO_TP_CHUNK_ELEMENTS is 65536
constexpr std::size_t kPasses = 1000;      // small ones, each with inputs of its own, one after the other
constexpr std::size_t kLargePasses = 400;  // and large ones
constexpr std::size_t kMixed = 400;        // passes of all kinds
constexpr std::size_t kTurns = 60;         // passes on the per-thread default streams of two threads
constexpr double kMostError = 0.2;         // of a sum, relative, root mean square: 4 bits reach 0.1

int g_rank = 0;

[[noreturn]] void fail(const char* what, const char* why) {
  std::fprintf(stderr, "graph-job[rank %d]: %s: %s\n", g_rank, what, why);
  std::exit(1);
}
void check(cudaError_t rc, const char* what) {
  if (rc != cudaSuccess) fail(what, cudaGetErrorString(rc));
}
void check(ncclResult_t rc, const char* what) {
  if (rc != ncclSuccess) fail(what, ncclGetErrorString(rc));
}

template <class T>
T* device_array(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(memory);
}

/// The messages of one pass. Odd calls are in place, even ones are not, and most messages start off any
/// alignment but their own.
struct Pass {
  std::int64_t count = 0;
  std::array<Bf16*, kCalls> send{};
  std::array<Bf16*, kCalls> recv{};

  explicit Pass(std::int64_t elements) : count(elements) {
    for (int call = 0; call < kCalls; ++call) {
      const auto at = static_cast<std::size_t>(call);
      send[at] = device_array<Bf16>(static_cast<std::size_t>(count + 8)) + call;
      recv[at] = call % 2 == 1 ? send[at] : device_array<Bf16>(static_cast<std::size_t>(count + 8)) + 3;
    }
  }

  void fill_inputs(std::uint64_t number, cudaStream_t stream) const {
    for (int call = 0; call < kCalls; ++call)
      check(
          fill(send[static_cast<std::size_t>(call)], count,
               (number * kCalls + static_cast<std::uint64_t>(call)) * 64 + static_cast<std::uint64_t>(g_rank),
               stream),
          "fill");
  }

  void reduce(int call, ncclComm_t comm, cudaStream_t stream) const {
    const auto at = static_cast<std::size_t>(call);
    check(ncclAllReduce(send[at], recv[at], static_cast<std::size_t>(count), ncclBfloat16, ncclSum, comm,
                        stream),
          "ncclAllReduce");
  }

  void reduce_all(ncclComm_t comm, cudaStream_t stream) const {
    for (int call = 0; call < kCalls; ++call) reduce(call, comm, stream);
  }

  void take_fingerprint(unsigned long long* sum, cudaStream_t stream) const {
    for (int call = 0; call < kCalls; ++call)
      check(fingerprint(recv[static_cast<std::size_t>(call)], count, static_cast<std::uint64_t>(call), sum,
                        stream),
            "fingerprint");
  }
};

/// A stream with a pass of either size, and with a graph of one of them.
struct Lane {
  cudaStream_t stream = nullptr;
  Pass small{kSmall};
  Pass large{kLarge};
  Pass captured;
  cudaGraphExec_t graph = nullptr;

  explicit Lane(std::int64_t graph_count) : captured(graph_count) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
};

class Job {
 public:
  Job(ncclComm_t comm, int ranks) : comm_(comm), ranks_(ranks), lanes_{Lane(kSmall), Lane(kLarge)} {
    sums_ = device_array<unsigned long long>(kPasses);
    check(cudaStreamCreateWithFlags(&branch_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming), "cudaEventCreate");
  }

  void run() {
    const std::vector<unsigned long long> large = eager(lanes_[0].large, lanes_[0].stream, kLargePasses);
    const std::vector<unsigned long long> small = eager(lanes_[0].small, lanes_[0].stream, kPasses);
    agree(small, "small passes");
    agree(large, "large passes");
    const double error = error_of(lanes_[0].small, lanes_[0].stream);
    if (!(error < kMostError)) fail("sum", ("relative error " + std::to_string(error)).c_str());

    capture(lanes_[0], cudaStreamCaptureModeGlobal, false);
    capture(lanes_[1], cudaStreamCaptureModeThreadLocal, true);

    std::size_t wrong = replays(lanes_[0], small, kPasses) + replays(lanes_[1], large, kLargePasses);
    const std::size_t mixed_wrong = mixed(small, large);
    const std::size_t threads_wrong = two_threads(small);
    std::printf(
        "rank %d: differing passes: %zu of %zu replayed, %zu of %zu mixed, %zu of %zu of two threads\n",
        g_rank, wrong, kPasses + kLargePasses, mixed_wrong, kMixed, threads_wrong, kTurns);
    wrong += mixed_wrong + threads_wrong;
    if (g_rank == 0)
      std::printf("result: replays=%zu mixed=%zu turns=%zu wrong=%zu error=%.4f ranks=%d\n",
                  kPasses + kLargePasses, kMixed, kTurns, wrong, error, ranks_);
    for (Lane& lane : lanes_) check(cudaGraphExecDestroy(lane.graph), "cudaGraphExecDestroy");
    if (wrong > 0) std::exit(1);
  }

 private:
  std::vector<unsigned long long> read_sums() {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<unsigned long long> sums(kPasses);
    check(cudaMemcpy(sums.data(), sums_, sums.size() * sizeof sums[0], cudaMemcpyDeviceToHost), "cudaMemcpy");
    return sums;
  }

  void clear_sums() {
    check(cudaMemset(sums_, 0, kPasses * sizeof(unsigned long long)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  /// What passes 0 to `passes` - 1 give, issued eagerly and alone.
  std::vector<unsigned long long> eager(const Pass& pass, cudaStream_t stream, std::size_t passes) {
    clear_sums();
    for (std::size_t number = 0; number < passes; ++number) {
      pass.fill_inputs(number, stream);
      pass.reduce_all(comm_, stream);
      pass.take_fingerprint(sums_ + number, stream);
    }
    return read_sums();
  }

  /// Every rank must hold the same bytes. Small and of integers: this one goes to NCCL.
  void agree(const std::vector<unsigned long long>& sums, const char* what) {
    auto* both = device_array<unsigned long long>(2 * sums.size());
    for (int half = 0; half < 2; ++half)
      check(cudaMemcpy(both + static_cast<std::size_t>(half) * sums.size(), sums.data(),
                       sums.size() * sizeof sums[0], cudaMemcpyHostToDevice),
            "cudaMemcpy");
    const cudaStream_t stream = lanes_[0].stream;
    check(ncclAllReduce(both, both, sums.size(), ncclUint64, ncclMin, comm_, stream), "ncclAllReduce");
    check(ncclAllReduce(both + sums.size(), both + sums.size(), sums.size(), ncclUint64, ncclMax, comm_,
                        stream),
          "ncclAllReduce");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::vector<unsigned long long> read(2 * sums.size());
    check(cudaMemcpy(read.data(), both, read.size() * sizeof read[0], cudaMemcpyDeviceToHost), "cudaMemcpy");
    check(cudaFree(both), "cudaFree");
    // Passes that were not issued have the sum 0 on all ranks.
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (read[i] != sums[i] || read[sums.size() + i] != sums[i]) fail(what, "ranks hold different bytes");
  }

  /// Against NCCL's sum of the same values in fp32.
  double error_of(const Pass& pass, cudaStream_t stream) {
    const auto count = static_cast<std::size_t>(pass.count);
    auto* sum = device_array<float>(count);
    pass.fill_inputs(1, stream);
    check(widen(pass.send[0], sum, pass.count, stream), "widen");
    check(ncclAllReduce(sum, sum, count, ncclFloat32, ncclSum, comm_, stream), "ncclAllReduce");
    pass.reduce_all(comm_, stream);
    std::vector<float> exact(count);
    std::vector<Bf16> got(count);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    check(cudaMemcpy(exact.data(), sum, count * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    check(cudaMemcpy(got.data(), pass.recv[0], count * sizeof(Bf16), cudaMemcpyDeviceToHost), "cudaMemcpy");
    check(cudaFree(sum), "cudaFree");
    double wrong = 0;
    double power = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double difference = static_cast<double>(to_float(got[i])) - static_cast<double>(exact[i]);
      wrong += difference * difference;
      power += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
    }
    return std::sqrt(wrong / power);
  }

  /// `branching`: every other call runs on a second stream of the same capture.
  void capture(Lane& lane, cudaStreamCaptureMode mode, bool branching) {
    // Twice, and the first graph is thrown away: a capture is not a promise to run it.
    for (int attempt = 0; attempt < 2; ++attempt) {
      cudaGraph_t graph = nullptr;
      check(cudaStreamBeginCapture(lane.stream, mode), "cudaStreamBeginCapture");
      for (int call = 0; call < kCalls; ++call) {
        if (branching && call % 2 == 1) {
          check(cudaEventRecord(fork_, lane.stream), "cudaEventRecord");
          check(cudaStreamWaitEvent(branch_, fork_, 0), "cudaStreamWaitEvent");
          lane.captured.reduce(call, comm_, branch_);
          check(cudaEventRecord(join_, branch_), "cudaEventRecord");
        } else {
          lane.captured.reduce(call, comm_, lane.stream);
        }
      }
      if (branching) check(cudaStreamWaitEvent(lane.stream, join_, 0), "cudaStreamWaitEvent");
      check(cudaStreamEndCapture(lane.stream, &graph), "cudaStreamEndCapture");
      if (attempt == 1) check(cudaGraphInstantiate(&lane.graph, graph, 0), "cudaGraphInstantiate");
      check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
  }

  std::size_t replays(const Lane& lane, const std::vector<unsigned long long>& expected, std::size_t passes) {
    clear_sums();
    for (std::size_t number = 0; number < passes; ++number) {
      lane.captured.fill_inputs(number, lane.stream);
      check(cudaGraphLaunch(lane.graph, lane.stream), "cudaGraphLaunch");
      lane.captured.take_fingerprint(sums_ + number, lane.stream);
    }
    const std::vector<unsigned long long> got = read_sums();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < passes; ++i) wrong += got[i] != expected[i];
    return wrong;
  }

  /// Eager passes and replays on two streams in an arbitrary order, equal on all ranks. The job orders
  /// nothing between the streams: NCCL keeps one communicator's calls in the order of their issue.
  std::size_t mixed(const std::vector<unsigned long long>& small,
                    const std::vector<unsigned long long>& large) {
    clear_sums();
    std::vector<unsigned long long> expected(kPasses);
    for (std::size_t number = 0; number < kMixed; ++number) {
      const std::uint64_t dice = mix(number + 12345);
      const Lane& lane = lanes_[dice % 2];
      const std::uint64_t kind = dice / 2 % 3;
      const Pass& pass = kind == 0 ? lane.small : kind == 1 ? lane.large : lane.captured;
      pass.fill_inputs(number, lane.stream);
      if (kind == 2)
        check(cudaGraphLaunch(lane.graph, lane.stream), "cudaGraphLaunch");
      else
        pass.reduce_all(comm_, lane.stream);
      pass.take_fingerprint(sums_ + number, lane.stream);
      expected[number] = (pass.count == kSmall ? small : large)[number];
    }
    const std::vector<unsigned long long> got = read_sums();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kMixed; ++i) wrong += got[i] != expected[i];
    return wrong;
  }

  /// Two threads in turn, each on "its" cudaStreamPerThread: one handle, two streams.
  std::size_t two_threads(const std::vector<unsigned long long>& expected) {
    clear_sums();
    std::atomic<std::size_t> turn{0};
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    const auto work = [&](std::size_t parity, const Pass& pass) {
      check(cudaSetDevice(device), "cudaSetDevice");
      for (std::size_t number = parity; number < kTurns; number += 2) {
        while (turn.load() != number) std::this_thread::yield();
        pass.fill_inputs(number, cudaStreamPerThread);
        pass.reduce_all(comm_, cudaStreamPerThread);
        pass.take_fingerprint(sums_ + number, cudaStreamPerThread);
        turn.store(number + 1);
      }
      check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
    };
    std::thread other([&] { work(1, lanes_[1].small); });
    work(0, lanes_[0].small);
    other.join();
    const std::vector<unsigned long long> got = read_sums();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kTurns; ++i) wrong += got[i] != expected[i];
    return wrong;
  }

  ncclComm_t comm_;
  int ranks_;
  std::array<Lane, 2> lanes_;
  unsigned long long* sums_ = nullptr;
  cudaStream_t branch_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  cudaEvent_t join_ = nullptr;
};

}  // namespace
}  // namespace graphjob

int main() {
  using namespace graphjob;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto place = echotp::rank_place();
  if (!place) {
    std::fprintf(stderr, "graph-job: %s\n", place.error().text().c_str());
    return 2;
  }
  g_rank = place->rank;
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  check(cudaSetDevice(place->local_rank % devices), "cudaSetDevice");
  const auto id = echotp::agree_on_id(*place, std::getenv("ECHO_TP_RENDEZVOUS"));
  if (!id) fail("rendezvous", id.error().text().c_str());
  ncclComm_t comm = nullptr;
  check(ncclCommInitRank(&comm, place->ranks, *id, place->rank), "ncclCommInitRank");
  Job(comm, place->ranks).run();
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  return 0;
}
