// SPDX-License-Identifier: Apache-2.0
// FUZZ COLLECTIVES: a job that calls NCCL at random and checks every result (fuzz_plan.hpp). It links no part
// of echo-tp: run it under `echo-tp run` to test the shim, alone to test itself.
//   launch-ranks.sh N -- fuzz-collectives [--seed N] [--seconds S] [--min-bytes B] [--most-bytes B]
// Ends with 0, 1 (a wrong result; the seed and the call are printed), 2 (usage), 3 (no progress for two
// minutes), 77 (no GPU).
#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/rendezvous.hpp"
#include "tests/gpu/fuzz/fuzz_plan.hpp"

namespace {

using namespace echotp;
using namespace echotp::fuzz;

struct Options {
  std::uint64_t seed = 1;
  double seconds = 10;
  std::size_t min_bytes = 65536;  // of the policy: smaller results must be exact
  std::size_t most_bytes = 4u << 20;
};

[[noreturn]] void die(const char* what, const char* error) {
  std::fprintf(stderr, "fuzz: %s: %s\n", what, error);
  std::fflush(nullptr);
  _exit(1);
}

void check(cudaError_t rc, const char* what) {
  if (rc != cudaSuccess) die(what, cudaGetErrorString(rc));
}

void check(ncclResult_t rc, const char* what) {
  if (rc != ncclSuccess) die(what, ncclGetErrorString(rc));
}

#define TRY(call) check(call, #call)

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t hash_of(const std::vector<char>& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

/// A communicator, and which ranks of the job it holds, in its own order.
struct Communicator {
  ncclComm_t comm = nullptr;
  std::vector<int> members;
  int rank = 0;
  int ranks() const { return static_cast<int>(members.size()); }
};

/// Where one call reads and writes.
struct Buffers {
  char* send = nullptr;
  char* receive = nullptr;
};

class Fuzzer {
 public:
  Fuzzer(const Options& options, const RankPlace& place, ncclUniqueId id)
      : options_(options), place_(place), random_(options.seed) {
    TRY(cudaSetDevice(place.local_rank));
    for (cudaStream_t& stream : streams_) TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY(cudaEventCreateWithFlags(&order_, cudaEventDisableTiming));
    communicators_.resize(3);
    Communicator& world = communicators_[0];
    TRY(ncclCommInitRank(&world.comm, place.ranks, id, place.rank));
    for (int rank = 0; rank < place.ranks; ++rank) world.members.push_back(rank);
    world.rank = place.rank;
    split();
    slab_bytes_ = 2 * kMostCalls * (options.most_bytes * static_cast<std::size_t>(place.ranks) + kSlack);
    TRY(cudaMalloc(&slab_, slab_bytes_));
    watchdog_ = std::thread([this] { watch(); });
  }

  int run() {
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    std::size_t resident_before = 0;
    const double warm_at = std::min(30.0, options_.seconds / 4);
    bool stop = false;
    while (!stop) {
      const Limits limits{static_cast<int>(communicators_.size()), kStreams, options_.most_bytes};
      Batch batch = draw(random_, limits, next_id_);
      next_id_ += batch.calls.size();
      run_batch(batch);
      stop = agree(place_.rank == 0 && elapsed() > options_.seconds);
      if (batch.resplit && !stop) split();
      if (resident_before == 0 && elapsed() > warm_at) resident_before = resident_bytes();
      ++batches_;
    }
    const double grown =
        resident_before == 0
            ? 0
            : (static_cast<double>(resident_bytes()) - static_cast<double>(resident_before)) / (1 << 20);
    if (grown > kMostGrowthMib) fail("host memory grew by " + std::to_string(grown) + " MiB");
    for (Communicator& communicator : communicators_) TRY(ncclCommDestroy(communicator.comm));
    done_ = true;
    watchdog_.join();
    if (place_.rank == 0 || failed_)
      std::printf(
          "fuzz: rank %d, seed %llu: %lld calls in %.0f s, %lld all-reduces were not exact (at most %.2f of "
          "the "
          "bound), host memory %+.0f MiB: %s\n",
          place_.rank, static_cast<unsigned long long>(options_.seed), static_cast<long long>(calls_),
          elapsed(), static_cast<long long>(inexact_), worst_, grown,
          failed_ ? "FAILED" : "all results are right");
    return failed_ ? 1 : 0;
  }

 private:
  static constexpr int kStreams = 3;
  static constexpr std::size_t kMostCalls = 12;
  static constexpr std::size_t kSlack = 4096;
  static constexpr double kMostGrowthMib = 256;

  void fail(const std::string& what) {
    if (!failed_)
      std::fprintf(stderr, "fuzz: FAILED on rank %d, seed %llu, batch %lld: %s\n", place_.rank,
                   static_cast<unsigned long long>(options_.seed), static_cast<long long>(batches_),
                   what.c_str());
    failed_ = true;
  }

  /// Communicators 1 (neighbours) and 2 (every other rank, in reverse order) are made, or made anew.
  void split() {
    for (int which = 1; which <= 2; ++which) {
      Communicator& child = communicators_[static_cast<std::size_t>(which)];
      if (child.comm) TRY(ncclCommDestroy(child.comm));
      const auto color = [&](int rank) { return which == 1 ? rank / 2 : rank % 2; };
      const int key = which == 1 ? place_.rank : place_.ranks - place_.rank;
      TRY(ncclCommSplit(communicators_[0].comm, color(place_.rank), key, &child.comm, nullptr));
      child.members.clear();
      for (int rank = 0; rank < place_.ranks; ++rank)
        if (color(rank) == color(place_.rank)) child.members.push_back(rank);
      if (which == 2) std::reverse(child.members.begin(), child.members.end());
      child.rank = static_cast<int>(std::find(child.members.begin(), child.members.end(), place_.rank) -
                                    child.members.begin());
    }
  }

  const Communicator& communicator_of(const Call& call) const {
    return communicators_[static_cast<std::size_t>(call.communicator)];
  }

  /// Buffers out of the slab; ranks differ in alignment, which NCCL allows.
  std::vector<Buffers> lay_out(const std::vector<Call>& calls) {
    std::vector<Buffers> out;
    std::size_t at = 0;
    const auto take = [&](std::size_t bytes, std::size_t element) {
      char* begin = slab_ + at + element * ((calls_ + place_.rank) % 8);
      at += (bytes + kSlack / 2 + 255) / 256 * 256;
      return begin;
    };
    for (const Call& call : calls) {
      const Communicator& communicator = communicator_of(call);
      const std::size_t element = bytes_of(call.type);
      const std::size_t send = send_count(call, communicator.ranks()) * element;
      const std::size_t receive = receive_count(call, communicator.ranks()) * element;
      const std::size_t own = static_cast<std::size_t>(communicator.rank) * call.count * element;
      Buffers buffers;
      buffers.send = take(std::max(send, receive), element);
      buffers.receive = buffers.send;
      if (!call.in_place || call.kind == Kind::kRing) {
        buffers.receive = take(receive, element);
      } else if (call.kind == Kind::kAllGather) {
        buffers.send = buffers.receive + own;
      } else if (call.kind == Kind::kReduceScatter) {
        buffers.receive = buffers.send + own;
      }
      out.push_back(buffers);
    }
    return out;
  }

  static bool shares_buffer(const Call& call) { return call.in_place && call.kind != Kind::kRing; }

  void fill(const Call& call, const Buffers& buffers, int replay) {
    const Communicator& communicator = communicator_of(call);
    const std::size_t count = send_count(call, communicator.ranks());
    const std::size_t receive = receive_count(call, communicator.ranks()) * bytes_of(call.type);
    host_.assign(count * bytes_of(call.type), 0);
    for (std::size_t i = 0; i < count; ++i)
      store(call.type, host_.data(), i, input(call, replay, communicator.rank, i, communicator.ranks()));
    if (!shares_buffer(call)) TRY(cudaMemset(buffers.receive, 0xA5, receive));
    TRY(cudaMemcpy(buffers.send, host_.data(), host_.size(), cudaMemcpyHostToDevice));
  }

  void enqueue(const Call& call, const Buffers& buffers, cudaStream_t stream) {
    const Communicator& communicator = communicator_of(call);
    const auto type = static_cast<ncclDataType_t>(call.type);
    const int root = call.root % communicator.ranks();
    ncclRedOp_t op = static_cast<ncclRedOp_t>(call.op);
    if (call.op == Op::kDouble) {
      alignas(8) char two[8];
      store(call.type, two, 0, 2);
      TRY(ncclRedOpCreatePreMulSum(&op, two, type, ncclScalarHostImmediate, communicator.comm));
    }
    switch (call.kind) {
      case Kind::kAllReduce:
        TRY(ncclAllReduce(buffers.send, buffers.receive, call.count, type, op, communicator.comm, stream));
        break;
      case Kind::kReduce:
        TRY(ncclReduce(buffers.send, buffers.receive, call.count, type, op, root, communicator.comm, stream));
        break;
      case Kind::kBroadcast:
        TRY(ncclBroadcast(buffers.send, buffers.receive, call.count, type, root, communicator.comm, stream));
        break;
      case Kind::kAllGather:
        TRY(ncclAllGather(buffers.send, buffers.receive, call.count, type, communicator.comm, stream));
        break;
      case Kind::kReduceScatter:
        TRY(ncclReduceScatter(buffers.send, buffers.receive, call.count, type, op, communicator.comm,
                              stream));
        break;
      case Kind::kRing: {
        const int ranks = communicator.ranks();
        TRY(ncclGroupStart());
        TRY(ncclSend(buffers.send, call.count, type, (communicator.rank + 1) % ranks, communicator.comm,
                     stream));
        TRY(ncclRecv(buffers.receive, call.count, type, (communicator.rank + ranks - 1) % ranks,
                     communicator.comm, stream));
        TRY(ncclGroupEnd());
        break;
      }
    }
    if (call.op == Op::kDouble) TRY(ncclRedOpDestroy(op, communicator.comm));
    ++calls_;
  }

  /// NCCL orders the calls of one communicator; that kernels of two never wait for each other's ranks in
  /// different orders is the job's duty: whatever follows another communicator's call waits for it.
  void enqueue_all(const Batch& batch, const std::vector<Buffers>& buffers) {
    std::size_t begin = 0;
    cudaStream_t last = nullptr;
    for (const int end : batch.group_ends) {
      const auto until = static_cast<std::size_t>(end);
      if (last) {
        TRY(cudaEventRecord(order_, last));
        for (std::size_t i = begin; i < until; ++i) {
          cudaStream_t stream = stream_of(batch.calls[i]);
          if (stream != last) TRY(cudaStreamWaitEvent(stream, order_));
        }
      }
      const bool grouped = until - begin > 1;
      if (grouped) TRY(ncclGroupStart());
      for (std::size_t i = begin; i < until; ++i)
        enqueue(batch.calls[i], buffers[i], stream_of(batch.calls[i]));
      if (grouped) TRY(ncclGroupEnd());
      // NCCL lets the streams of a group end together; ours must too, so any of them stands for all.
      for (std::size_t i = begin; i < until; ++i) {
        last = stream_of(batch.calls[until - 1]);
        if (stream_of(batch.calls[i]) != last) {
          TRY(cudaEventRecord(order_, stream_of(batch.calls[i])));
          TRY(cudaStreamWaitEvent(last, order_));
        }
      }
      begin = until;
    }
  }

  cudaStream_t stream_of(const Call& call) const { return streams_[call.stream]; }

  void run_batch(Batch& batch) {
    for (Call& call : batch.calls)  // an average that no type holds exactly proves nothing
      if (call.op == Op::kAvg && !std::has_single_bit(static_cast<unsigned>(communicator_of(call).ranks())))
        call.op = Op::kSum;
    current_ = &batch;
    hashes_.clear();
    const std::vector<Buffers> buffers = lay_out(batch.calls);
    cudaGraphExec_t graph = nullptr;
    if (batch.captured) graph = record(batch, buffers);
    for (int replay = 0; replay < batch.replays; ++replay) {
      for (std::size_t i = 0; i < batch.calls.size(); ++i) fill(batch.calls[i], buffers[i], replay);
      TRY(cudaDeviceSynchronize());  // our streams don't wait for the default one
      if (graph) {
        TRY(cudaGraphLaunch(graph, stream_of(batch.calls[0])));
      } else {
        enqueue_all(batch, buffers);
      }
      for (cudaStream_t stream : streams_) TRY(cudaStreamSynchronize(stream));
      for (std::size_t i = 0; i < batch.calls.size(); ++i) verify(batch.calls[i], buffers[i], replay);
    }
    if (graph) TRY(cudaGraphExecDestroy(graph));
  }

  cudaGraphExec_t record(const Batch& batch, const std::vector<Buffers>& buffers) {
    cudaStream_t stream = stream_of(batch.calls[0]);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    // Both modes that frameworks use; in "global" no thread of the process may make an unsafe call.
    TRY(cudaStreamBeginCapture(
        stream, batches_ % 2 ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal));
    enqueue_all(batch, buffers);
    TRY(cudaStreamEndCapture(stream, &graph));
    TRY(cudaGraphInstantiate(&executable, graph, 0));
    TRY(cudaGraphDestroy(graph));
    return executable;
  }

  void verify(const Call& call, const Buffers& buffers, int replay) {
    const Communicator& communicator = communicator_of(call);
    const int ranks = communicator.ranks();
    const std::size_t count = receive_count(call, ranks);
    host_.resize(count * bytes_of(call.type));
    TRY(cudaMemcpy(host_.data(), buffers.receive, host_.size(), cudaMemcpyDeviceToHost));
    const bool reduced = call.kind == Kind::kAllReduce;
    hashes_.push_back(reduced ? hash_of(host_) : 0);
    double largest = 0, squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      double want = 0;
      if (!expected(call, replay, communicator.rank, i, ranks, want)) break;
      const double got = load(call.type, host_.data(), i);
      const double error = std::abs(got - want);
      if (error == 0) continue;
      if (!(error <= largest)) largest = error;  // a NaN stays
      squares += error * error;
      if (!may_compress(call, options_.min_bytes, ranks))
        return fail(describe(call) + ", replay " + std::to_string(replay) + ", element " + std::to_string(i) +
                    ": " + std::to_string(got) + " instead of " + std::to_string(want));
    }
    if (largest != 0) {
      const Bound bound = bound_of(call, ranks);
      const double rms = std::sqrt(squares / static_cast<double>(count));
      ++inexact_;
      worst_ = std::max(worst_, largest / bound.largest);
      if (!(largest <= bound.largest) || !(rms <= bound.rms))
        fail(describe(call) + ": error of " + std::to_string(largest) + " (rms " + std::to_string(rms) +
             "), beyond the bound of " + std::to_string(bound.largest) + " (rms " +
             std::to_string(bound.rms) + ")");
    }
    if (!shares_buffer(call)) check_untouched(call, buffers, replay);
  }

  void check_untouched(const Call& call, const Buffers& buffers, int replay) {
    const Communicator& communicator = communicator_of(call);
    const std::size_t count = send_count(call, communicator.ranks());
    host_.resize(count * bytes_of(call.type));
    TRY(cudaMemcpy(host_.data(), buffers.send, host_.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < count; ++i)
      if (load(call.type, host_.data(), i) != input(call, replay, communicator.rank, i, communicator.ranks()))
        return fail(describe(call) + ": the input was changed at element " + std::to_string(i));
  }

  /// All ranks compare the results of the batch and agree whether to go on. True: stop.
  bool agree(bool stop) {
    std::vector<std::uint64_t> mine = {stop, failed_};
    mine.insert(mine.end(), hashes_.begin(), hashes_.end());
    const std::size_t size = mine.size();
    std::vector<std::uint64_t> all(size * static_cast<std::size_t>(place_.ranks));
    auto* device = reinterpret_cast<std::uint64_t*>(slab_);
    TRY(cudaMemcpy(device, mine.data(), size * sizeof mine[0], cudaMemcpyHostToDevice));
    TRY(cudaDeviceSynchronize());
    TRY(ncclAllGather(device, device + size, size, ncclUint64, communicators_[0].comm, streams_[0]));
    TRY(cudaStreamSynchronize(streams_[0]));
    TRY(cudaMemcpy(all.data(), device + size, all.size() * sizeof all[0], cudaMemcpyDeviceToHost));
    for (std::size_t i = 2; i < size; ++i) {
      const Call& call = current_->calls[(i - 2) % current_->calls.size()];
      for (const int member : communicator_of(call).members)
        if (all[static_cast<std::size_t>(member) * size + i] != mine[i])
          fail(describe(call) + ": rank " + std::to_string(member) + " has another result");
    }
    // What a rank finds only here it tells in the next round, in which all stop together.
    bool end = false;
    for (int rank = 0; rank < place_.ranks; ++rank) {
      const std::size_t at = static_cast<std::size_t>(rank) * size;
      end = end || all[at] != 0 || all[at + 1] != 0;
    }
    progress_.fetch_add(1);
    return end;
  }

  void watch() {
    std::int64_t seen = -1;
    int quiet = 0;
    while (!done_) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const std::int64_t now = progress_.load();
      quiet = now == seen ? quiet + 1 : 0;
      seen = now;
      if (quiet < 120) continue;
      std::fprintf(stderr, "fuzz: no progress for two minutes on rank %d, seed %llu, batch %lld\n",
                   place_.rank, static_cast<unsigned long long>(options_.seed),
                   static_cast<long long>(batches_));
      std::fflush(nullptr);
      _exit(3);
    }
  }

  const Options options_;
  const RankPlace place_;
  Random random_;
  std::vector<Communicator> communicators_;
  cudaStream_t streams_[kStreams] = {};
  cudaEvent_t order_ = nullptr;
  char* slab_ = nullptr;
  std::size_t slab_bytes_ = 0;
  std::vector<char> host_;
  const Batch* current_ = nullptr;
  std::vector<std::uint64_t> hashes_;
  std::uint64_t next_id_ = 0;
  std::int64_t calls_ = 0, batches_ = 0, inexact_ = 0;
  double worst_ = 0;
  bool failed_ = false;
  std::atomic<std::int64_t> progress_{0};
  std::atomic<bool> done_{false};
  std::thread watchdog_;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    char* end = nullptr;
    if (i + 1 >= argc) return false;
    const double value = std::strtod(argv[i + 1], &end);
    if (end == argv[i + 1] || *end != '\0' || value < 0 || value > 1e15) return false;
    if (name == "--seed") {
      options.seed = static_cast<std::uint64_t>(value);
    } else if (name == "--seconds") {
      options.seconds = value;
    } else if (name == "--min-bytes") {
      options.min_bytes = static_cast<std::size_t>(value);
    } else if (name == "--most-bytes" && value >= 64) {
      options.most_bytes = static_cast<std::size_t>(value);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: fuzz-collectives [--seed N] [--seconds S] [--min-bytes B] [--most-bytes B]\n");
    return 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("SKIPPED: no GPU");
    return 77;
  }
  const auto place = rank_place();
  if (!place) {
    std::fprintf(stderr, "fuzz: %s\n", place.error().text().c_str());
    return 2;
  }
  TRY(cudaSetDevice(place->local_rank));
  const auto id = agree_on_id(*place, std::getenv("ECHO_TP_RENDEZVOUS"));
  if (!id) {
    std::fprintf(stderr, "fuzz: %s\n", id.error().text().c_str());
    return 1;
  }
  return Fuzzer(options, *place, *id).run();
}
