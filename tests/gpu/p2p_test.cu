// SPDX-License-Identifier: Apache-2.0
// The transport between peers with real processes on one GPU, without NCCL: random calls against the scalar
// reference, counts that wrap, peers that die, aborts. Exits with 77 where there is no GPU.
//
//   p2p_test [--calls N] [--seed S] [--timeout SECONDS] [RANKS...]
//
// N is shared out over all numbers of ranks and both ways of sharing memory. Start the MPS daemon first:
// without it the processes take turns on the GPU, and only a few small calls are made.
#include <cuda_runtime.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shim/context.hpp"
#include "shim/p2p_transport.hpp"
#include "tests/gpu/inputs.hpp"
#include "tests/gpu/p2p_processes.hpp"

using namespace echotp;
using namespace echotp::test;

namespace {

struct Options {
  int calls = 500;
  unsigned seed = 1;
  double timeout_s = 300;
  std::vector<int> ranks;
  bool mps = false;
};

void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// Device memory that frees itself.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) {
    must(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16)), "cudaMalloc");
    must(cudaMemset(data_, 0, std::max<std::size_t>(bytes, 16)), "cudaMemset");
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }

 private:
  void* data_ = nullptr;
};

/// A rank with its transport, set up as in the engine but for the wire of the votes.
class Rank {
 public:
  Rank(const RankContext& context, P2pWay way, int most_ctas, const Options& options)
      : context_(context), transport_(context.rank, context.ranks, options.mps ? 1.0 : 1e9) {
    setenv("ECHO_TP_P2P", p2p_way_name(way), 1);
    must(cudaSetDevice(0), "cudaSetDevice");
    must(cudaFree(nullptr), "cudaFree");
    CUcontext current = nullptr;
    driver().ctx_get_current(&current);
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    transport_.bind(current, stream_);
    P2pNeeds needs;
    needs.wanted = true;
    needs.bits = 8;
    if (most_ctas > 0) needs.max_ctas = most_ctas;
    const Gather gather = [&](std::span<const std::byte> mine, std::span<std::byte> all) -> Status {
      if (context.meeting->gather(context.rank, context.ranks, mine, all)) return Unit{};
      return Error{ErrorCode::kSystem, "a rank is gone", ""};
    };
    const Result<P2pOutcome> outcome = set_up_p2p(transport_, gather, needs, context.ranks, 80);
    if (!outcome) throw std::runtime_error("set-up: " + outcome.error().text());
    if (!context.check(outcome->way == way,
                       std::string("set-up over ") + p2p_way_name(way) + ": " + outcome->why_not))
      throw std::runtime_error("no transport");
  }

  /// Memory is freed only when the peers no longer map it, as in the engine.
  ~Rank() {
    for (int i = 0; i < 2000 && !transport_.released(); ++i) usleep(1000);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  P2pTransport& transport() { return transport_; }

  /// A call whose result does not matter.
  cudaError_t plain_call(Buffer& values, std::int64_t count) {
    FusedArgs args;
    args.send = args.recv = values.data();
    args.count = count;
    args.compensation.mode = CompensationMode::kNone;
    return transport_.all_reduce(args, false, stream_);
  }

  /// Seconds until the stream is done; 1e9 if that takes more than `limit_s`.
  double wait_done(double limit_s) {
    const double start = seconds_now();
    while (seconds_now() - start < limit_s) {
      if (cudaStreamQuery(stream_) == cudaSuccess) return seconds_now() - start;
      cudaGetLastError();
      usleep(1000);
    }
    return 1e9;
  }

 private:
  RankContext context_;
  P2pTransport transport_;
  cudaStream_t stream_ = nullptr;
};

/// One configuration with its state, on the device and in the reference.
struct Config {
  ReferenceSetup setup;
  std::unique_ptr<ReferenceAllReduce> reference;
  std::unique_ptr<Buffer> fast, slow, unit;

  StateView view() const {
    StateView out;
    if (!fast) return out;
    out.fast = fast->data();
    out.slow = setup.compensation.b != 0 ? slow->data() : nullptr;
    out.unit = setup.compensation.state == StateFormat::kFp32
                   ? nullptr
                   : reinterpret_cast<std::uint16_t*>(unit->data());
    out.capacity = setup.capacity;
    return out;
  }
};

/// What one call is, apart from its data; equal on all ranks but for offsets and place.
struct Call {
  int config = 0;
  std::int64_t count = 0;
  bool pass_start = false;
  int send_offset = 0, recv_offset = 0;  // elements off 16-byte alignment
  bool in_place = false;
};

/// Buffers of one call, with poisoned elements around them.
struct Slot {
  static constexpr int kGuard = 64;
  explicit Slot(std::int64_t most) : send(bytes(most)), recv(bytes(most)) {}
  static std::size_t bytes(std::int64_t most) { return static_cast<std::size_t>(most + 2 * kGuard + 16) * 4; }
  Buffer send, recv;
};

/// Makes the same random calls on every rank and compares every output and, at the end, every state.
class RandomCalls {
 public:
  RandomCalls(const RankContext& context, Rank& rank, unsigned seed, std::int64_t largest)
      : context_(context),
        rank_(rank),
        largest_(largest),
        random_(seed),
        own_random_(seed * 31 + context.rank) {
    for (cudaStream_t& stream : streams_)
      must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must(cudaEventCreateWithFlags(&order_, cudaEventDisableTiming), "event");
    must(cudaEventCreateWithFlags(&captured_order_, cudaEventDisableTiming), "event");
    for (int i = 0; i < kConfigs; ++i) add_config();
    for (int i = 0; i < kBurst; ++i) slots_.push_back(std::make_unique<Slot>(largest));
    for (int i = 0; i < kGraphs; ++i) add_graph();
    must(cudaDeviceSynchronize(), "preparing");
  }

  /// False at the first difference.
  bool run(int calls) {
    if (!context_.meeting->wait(context_.ranks)) return false;
    for (int done = 0; done < calls;) {
      // A burst is enqueued without waiting; its outputs are compared afterwards.
      std::vector<Pending> burst;
      const int length = 1 + static_cast<int>(random_() % kBurst);
      std::vector<bool> graph_used(kGraphs, false);
      for (int i = 0; i < length; ++i) {
        const std::size_t stream = random_() % std::size(streams_);
        const std::size_t graph = random_() % kGraphs;
        if (random_() % 3 == 0 && !graph_used[graph]) {
          graph_used[graph] = true;
          replay(*graphs_[graph], streams_[stream], burst);
        } else {
          eager(random_call(), *slots_[static_cast<std::size_t>(i)], streams_[stream], burst);
        }
        if (own_random_() % 8 == 0) usleep(own_random_() % 300);
      }
      for (const cudaStream_t stream : streams_) must(cudaStreamSynchronize(stream), "a call");
      if (!context_.check(!rank_.transport().failed(), "a call gave up")) return false;
      for (const Pending& pending : burst)
        if (!compare(pending)) return false;
      done += static_cast<int>(burst.size());
    }
    bool good = true;
    for (std::size_t i = 0; i < configs_.size(); ++i) good &= compare_state(i);
    return good;
  }

 private:
  static constexpr int kConfigs = 12;
  static constexpr int kBurst = 6;
  static constexpr int kGraphs = 8;

  struct Pending {
    Call call;
    const Slot* slot = nullptr;
    std::vector<std::uint32_t> expected;
    std::string name;
  };

  /// Calls recorded once and replayed with new data.
  struct Graph {
    std::vector<Call> calls;
    std::vector<std::unique_ptr<Slot>> slots;
    cudaGraphExec_t executable = nullptr;
  };

  void add_config() {
    Config config;
    ReferenceSetup& setup = config.setup;
    setup.ranks = context_.ranks;
    setup.dtype = static_cast<DataType>(random_() % 3);
    setup.codec.group = 32 << random_() % 3;
    setup.codec.first_leg_bits = random_() % 3 == 0 ? 8 : 4;
    setup.codec.bits = random_() % 3 == 0 ? 8 : 4;
    setup.compensation.mode = static_cast<CompensationMode>(random_() % 3);
    setup.compensation.state = static_cast<StateFormat>(random_() % 3);
    if (random_() % 3 == 0) {
      setup.compensation.a = 1;
      setup.compensation.b = 0;
    }
    if (random_() % 4 == 0) setup.post_scale = 1.0f / static_cast<float>(context_.ranks);
    // Sometimes less than the messages: the rest goes without compensation.
    setup.capacity = (random_() % 2 == 0 ? tile_count(largest_) : 8) * kTileElements;
    if (setup.compensation.mode != CompensationMode::kNone) {
      const auto entries = static_cast<std::size_t>(setup.capacity);
      config.fast = std::make_unique<Buffer>(entries * 4);
      config.slow = std::make_unique<Buffer>(entries * 4);
      config.unit = std::make_unique<Buffer>(entries / 32 * 2);
    } else {
      setup.capacity = 0;
    }
    config.reference = std::make_unique<ReferenceAllReduce>(setup);
    configs_.push_back(std::move(config));
  }

  std::int64_t random_count(std::int64_t most) {
    const std::uint64_t kind = random_() % 200;
    const std::int64_t limit = kind < 8     ? 1
                               : kind < 120 ? 2000
                               : kind < 180 ? 20'000
                               : kind < 199 ? 100'000
                                            : most;
    if (kind < 4) return 0;
    return 1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(std::min(limit, most)));
  }

  Call random_call() {
    Call call;
    call.config = static_cast<int>(random_() % configs_.size());
    call.count = random_count(largest_);
    call.pass_start = random_() % 10 == 0;
    call.send_offset = static_cast<int>(own_random_() % 2 * (own_random_() % 8));
    call.recv_offset = static_cast<int>(own_random_() % 2 * (own_random_() % 8));
    call.in_place = own_random_() % 3 == 0;
    return call;
  }

  FusedArgs args_of(const Call& call, const Slot& slot) const {
    const Config& config = configs_[static_cast<std::size_t>(call.config)];
    const int size = element_bytes(config.setup.dtype);
    FusedArgs args;
    args.send = slot.send.data() + (Slot::kGuard + call.send_offset) * size;
    args.recv = call.in_place ? const_cast<void*>(args.send)
                              : slot.recv.data() + (Slot::kGuard + call.recv_offset) * size;
    args.count = call.count;
    args.dtype = config.setup.dtype;
    args.codec = config.setup.codec;
    args.compensation = config.setup.compensation;
    args.post_scale = config.setup.post_scale;
    args.pass_start = call.pass_start;
    args.state = config.view();
    return args;
  }

  /// Draws the data of all ranks, puts this rank's into the slot and has the reference make the call. In the
  /// order of the calls, since estimates are carried over.
  Pending prepare(const Call& call, const Slot& slot, const char* kind, cudaStream_t stream) {
    Config& config = configs_[static_cast<std::size_t>(call.config)];
    const auto values = inputs_.make(config.setup, call.count, random_() % 4 == 0);
    const int size = element_bytes(config.setup.dtype);
    const auto& mine = values[static_cast<std::size_t>(context_.rank)];
    const std::size_t bytes = mine.size() * static_cast<std::size_t>(size);
    must(cudaMemsetAsync(slot.send.data(), 0xEE, Slot::bytes(call.count), stream), "poison");
    must(cudaMemsetAsync(slot.recv.data(), 0xEE, Slot::bytes(call.count), stream), "poison");
    std::vector<std::uint16_t> halves;
    const void* from = mine.data();
    if (size == 2) {
      halves.assign(mine.begin(), mine.end());
      from = halves.data();
    }
    void* to = slot.send.data() + (Slot::kGuard + call.send_offset) * size;
    if (bytes != 0) must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "upload");
    Pending pending;
    pending.call = call;
    pending.slot = &slot;
    pending.name = std::string(kind) + " call " + std::to_string(made_++) + " of " +
                   std::to_string(call.count) + " elements, " + describe(config.setup);
    if (call.count != 0) {
      config.reference->call(values, call.pass_start);
      pending.expected = config.reference->output(context_.rank);
    }
    return pending;
  }

  void eager(const Call& call, const Slot& slot, cudaStream_t stream, std::vector<Pending>& burst) {
    burst.push_back(prepare(call, slot, "eager", stream));
    must(cudaStreamWaitEvent(stream, order_, 0), "order");
    must(rank_.transport().all_reduce(args_of(call, slot), false, stream), "launch");
    must(cudaEventRecord(order_, stream), "order");
  }

  void replay(const Graph& graph, cudaStream_t stream, std::vector<Pending>& burst) {
    for (std::size_t i = 0; i < graph.calls.size(); ++i)
      burst.push_back(prepare(graph.calls[i], *graph.slots[i], "replayed", stream));
    must(cudaGraphLaunch(graph.executable, stream), "replay");
  }

  /// Recorded as the engine records: ordered by external events, so that eager calls and other graphs wait.
  void add_graph() {
    auto made = std::make_unique<Graph>();
    const int length = 1 + static_cast<int>(random_() % 3);
    for (int i = 0; i < length; ++i) {
      Call call = random_call();
      call.count = random_count(std::min<std::int64_t>(largest_, 30'000));
      made->calls.push_back(call);
      made->slots.push_back(std::make_unique<Slot>(call.count));
    }
    const cudaStream_t stream = streams_[0];
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (std::size_t i = 0; i < made->calls.size(); ++i) {
      if (i == 0)
        must(cudaStreamWaitEvent(stream, order_, cudaEventWaitExternal), "order");
      else
        must(cudaStreamWaitEvent(stream, captured_order_, 0), "order");
      must(rank_.transport().all_reduce(args_of(made->calls[i], *made->slots[i]), true, stream),
           "captured launch");
      must(cudaEventRecordWithFlags(order_, stream, cudaEventRecordExternal), "order");
      must(cudaEventRecord(captured_order_, stream), "order");
    }
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&made->executable, graph, 0), "graph");
    must(cudaGraphDestroy(graph), "graph");
    graphs_.push_back(std::move(made));
  }

  bool compare(const Pending& pending) {
    const Call& call = pending.call;
    const Config& config = configs_[static_cast<std::size_t>(call.config)];
    const auto size = static_cast<std::size_t>(element_bytes(config.setup.dtype));
    std::vector<std::uint8_t> want(Slot::bytes(call.count), 0xEE);
    const auto begin =
        static_cast<std::size_t>(Slot::kGuard + (call.in_place ? call.send_offset : call.recv_offset)) * size;
    for (std::size_t i = 0; i < pending.expected.size(); ++i)
      std::memcpy(want.data() + begin + i * size, &pending.expected[i], size);
    std::vector<std::uint8_t> got(want.size());
    const Buffer& buffer = call.in_place ? pending.slot->send : pending.slot->recv;
    must(cudaMemcpy(got.data(), buffer.data(), got.size(), cudaMemcpyDeviceToHost), "download");
    return equal(pending.name + " output", got, want);
  }

  bool compare_state(std::size_t index) {
    const Config& config = configs_[index];
    if (!config.fast) return true;
    const ReferenceState& want = config.reference->state(context_.rank);
    const std::string name = "final state " + std::to_string(index) + ", " + describe(config.setup);
    bool good = true;
    const auto array = [&](const char* what, const Buffer& buffer, const auto& expected) {
      if (expected.empty()) return;
      std::vector<std::uint8_t> wanted(expected.size() * sizeof expected[0]);
      std::memcpy(wanted.data(), expected.data(), wanted.size());
      std::vector<std::uint8_t> got(wanted.size());
      must(cudaMemcpy(got.data(), buffer.data(), got.size(), cudaMemcpyDeviceToHost), "download");
      good &= equal(name + " " + what, got, wanted);
    };
    array("fast", *config.fast, want.fast32);
    array("fast", *config.fast, want.fast16);
    array("fast", *config.fast, want.fast8);
    array("slow", *config.slow, want.slow32);
    array("slow", *config.slow, want.slow16);
    array("slow", *config.slow, want.slow8);
    array("unit", *config.unit, want.unit);
    return good;
  }

  bool equal(const std::string& name, const std::vector<std::uint8_t>& got,
             const std::vector<std::uint8_t>& want) {
    if (got == want) return context_.check(true, name);
    const auto first = std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin();
    char text[64];
    std::snprintf(text, sizeof text, ": first difference at byte %td of %zu", first, got.size());
    return context_.check(false, name + text);
  }

  RankContext context_;
  Rank& rank_;
  std::int64_t largest_;
  std::mt19937_64 random_;      // equal on all ranks
  std::mt19937_64 own_random_;  // of this rank alone
  Inputs inputs_;
  cudaStream_t streams_[3] = {};
  cudaEvent_t order_ = nullptr, captured_order_ = nullptr;
  std::vector<Config> configs_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  int made_ = 0;
};

/// Sets every count of this rank, of its own lanes and of the chunks of peers, to `value`.
void set_counts(Rank& rank, std::uint32_t value) {
  const FusedLayout& layout = rank.transport().layout();
  const std::vector<std::uint32_t> flags(static_cast<std::size_t>(fused_flags_bytes(layout)) / 4, value);
  must(cudaMemcpy(rank.transport().window(), flags.data(), flags.size() * 4, cudaMemcpyHostToDevice),
       "flags");
  const std::vector<std::uint32_t> counts(static_cast<std::size_t>(fused_lanes(layout)), value);
  must(cudaMemcpy(rank.transport().progress() + 1, counts.data(), counts.size() * 4, cudaMemcpyHostToDevice),
       "counts");
}

int random_calls(const RankContext& context, P2pWay way, const Options& options, int calls, unsigned seed,
                 bool wrap) {
  // Few thread blocks make a small ring, which large messages go round several times.
  const int most_ctas = wrap ? 1 : std::array{1, 0, 3}[seed % 3];
  const std::int64_t largest = !options.mps ? 4000 : 1'000'000;
  Rank rank(context, way, most_ctas, options);
  if (wrap) {
    if (!context.meeting->wait(context.ranks)) return 1;
    set_counts(rank, 0xFFFFFFF0u);
    if (!context.meeting->wait(context.ranks)) return 1;
  }
  RandomCalls work(context, rank, seed, largest);
  const bool good = work.run(calls);
  if (wrap) {
    std::uint32_t count = 0;
    must(cudaMemcpy(&count, rank.transport().progress() + 1, 4, cudaMemcpyDeviceToHost), "counts");
    context.check(count < 0x80000000u, "the first lane's count did not wrap: the test proves nothing");
  }
  return context.meeting->wait(context.ranks) && good ? 0 : 1;
}

/// The last rank stays away from a call and is killed while the others wait for it.
int dead_peer(const RankContext& context, P2pWay way, const Options& options) {
  Rank rank(context, way, 2, options);
  Buffer values(1 << 20);
  if (rank.plain_call(values, 100'000) != cudaSuccess || rank.wait_done(20) > 20) return 1;
  if (!context.meeting->wait(context.ranks)) return 1;
  if (context.rank == context.ranks - 1) {
    usleep(500'000);
    context.meeting->event_at = seconds_now();
    raise(SIGKILL);
  }
  must(rank.plain_call(values, 100'000), "launch");
  context.check(rank.wait_done(10) < 10, "the call did not end after a peer's death");
  const double after = seconds_now() - context.meeting->event_at;
  context.check(after > 0 && after < 2, "the call ended " + std::to_string(after) + " s after the death");
  context.check(rank.transport().failed(), "the call did not fail");
  must(rank.plain_call(values, 100'000), "launch after the failure");
  context.check(rank.wait_done(2) < 2, "a later call does not end at once");
  return 0;
}

/// The last rank stays away from a call, alive: the others give up at their deadline, and then it is told.
int deadline(const RankContext& context, P2pWay way, const Options& options) {
  setenv("ECHO_TP_P2P_DEADLINE_S", "2", 1);
  Rank rank(context, way, 2, options);
  Buffer values(1 << 20);
  if (!context.meeting->wait(context.ranks)) return 1;
  if (context.rank == context.ranks - 1) {
    usleep(4'500'000);
    must(rank.plain_call(values, 100'000), "launch");
    context.check(rank.wait_done(1.5) < 1.5, "the rank that came too late was not told");
  } else {
    must(rank.plain_call(values, 100'000), "launch");
    const double took = rank.wait_done(10);
    context.check(took > 1 && took < 4, "the call gave up after " + std::to_string(took) + " s, not 2");
  }
  context.check(rank.transport().failed(), "the call did not fail");
  return context.meeting->wait(context.ranks) ? 0 : 1;
}

/// The first rank aborts while it waits for the last: its own call ends at once, the others' soon after.
int abort_call(const RankContext& context, P2pWay way, const Options& options) {
  Rank rank(context, way, 2, options);
  Buffer values(1 << 20);
  if (!context.meeting->wait(context.ranks)) return 1;
  if (context.rank != context.ranks - 1) must(rank.plain_call(values, 100'000), "launch");
  usleep(300'000);
  if (context.rank == 0) {
    std::thread watchdog([&] { rank.transport().end(true); });
    watchdog.join();
    context.check(rank.wait_done(1) < 1, "an aborted call does not end");
  } else if (context.rank != context.ranks - 1) {
    context.check(rank.wait_done(3) < 3, "the call goes on after a peer has aborted");
  }
  if (context.rank != context.ranks - 1) context.check(rank.transport().failed(), "the call did not fail");
  return context.meeting->wait(context.ranks) ? 0 : 1;
}

/// Without MPS the self-test must refuse, with the reason.
int refused(const RankContext& context) {
  bool came_up = true;
  try {
    must(cudaSetDevice(0), "cudaSetDevice");
    must(cudaFree(nullptr), "cudaFree");
    P2pTransport transport(context.rank, context.ranks);
    CUcontext current = nullptr;
    driver().ctx_get_current(&current);
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    transport.bind(current, stream);
    P2pNeeds needs;
    needs.wanted = true;
    needs.max_ctas = 1;
    const Gather gather = [&](std::span<const std::byte> mine, std::span<std::byte> all) -> Status {
      if (context.meeting->gather(context.rank, context.ranks, mine, all)) return Unit{};
      return Error{ErrorCode::kSystem, "a rank is gone", ""};
    };
    const Result<P2pOutcome> outcome = set_up_p2p(transport, gather, needs, context.ranks, 80);
    came_up = !outcome || outcome->way.has_value();
    context.check(outcome && outcome->why_not.find("take turns") != std::string::npos,
                  "the reason does not name turns: " + (outcome ? outcome->why_not : outcome.error().text()));
  } catch (const std::exception& error) {
    context.check(false, error.what());
  }
  context.check(!came_up, "ranks that take turns were not refused");
  return context.meeting->wait(context.ranks) ? 0 : 1;
}

bool mps_runs() {
  const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  struct stat found;
  return stat((std::string(directory ? directory : "/tmp/nvidia-mps") + "/control").c_str(), &found) == 0;
}

/// Asked in a child, so that this process never starts CUDA.
bool has_gpu() {
  const pid_t pid = fork();
  if (pid == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? 0 : 1);
  }
  int status = 1;
  return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--calls" && has_value) {
      options.calls = std::atoi(argv[++i]);
    } else if (word == "--seed" && has_value) {
      options.seed = static_cast<unsigned>(std::atoi(argv[++i]));
    } else if (word == "--timeout" && has_value) {
      options.timeout_s = std::atof(argv[++i]);
    } else {
      const int ranks = std::atoi(word.c_str());
      if (ranks < 2 || ranks > kMostProcesses) return false;
      options.ranks.push_back(ranks);
    }
  }
  if (options.ranks.empty()) options.ranks = {2, 3, 4};
  return options.calls > 0 && options.timeout_s > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::printf("usage: p2p_test [--calls N] [--seed S] [--timeout SECONDS] [RANKS 2 to 8...]\n");
    return 2;
  }
  if (!has_gpu()) {
    std::printf("SKIPPED: no GPU\n");
    return 77;
  }
  options.mps = mps_runs();
  int passed = 0;
  int failures = 0;
  const int scenarios = static_cast<int>(options.ranks.size()) * 2;
  int calls = (options.calls + scenarios - 1) / scenarios;
  if (!options.mps) {
    calls = std::min(calls, 20);
    std::printf(
        "NOTE: no MPS daemon (CUDA_MPS_PIPE_DIRECTORY): ranks take turns on the GPU, only %d calls each\n",
        calls);
    run_ranks(
        "refusal of ranks that take turns", 2, 0, options.timeout_s,
        [](const RankContext& context) { return refused(context); }, passed, failures);
  }
  unsigned seed = options.seed;
  for (const int ranks : options.ranks) {
    for (const P2pWay way : kP2pWays) {
      const std::string name = std::to_string(ranks) + " ranks, " + p2p_way_name(way) + ": ";
      const auto run = [&](const std::string& what, unsigned dying,
                           const std::function<int(const RankContext&)>& body) {
        run_ranks(name + what, ranks, dying, options.timeout_s, body, passed, failures);
      };
      ++seed;
      run("random calls", 0, [&, seed](const RankContext& context) {
        return random_calls(context, way, options, calls, seed, false);
      });
      run("counts that wrap", 0, [&, seed](const RankContext& context) {
        return random_calls(context, way, options, std::max(calls / 10, 60), seed + 1000, true);
      });
      if (!options.mps) continue;
      run("dead peer", 1u << (ranks - 1),
          [&](const RankContext& context) { return dead_peer(context, way, options); });
      run("deadline", 0, [&](const RankContext& context) { return deadline(context, way, options); });
      run("abort", 0, [&](const RankContext& context) { return abort_call(context, way, options); });
    }
  }
  std::printf("%d passed, %d failed\n", passed, failures);
  return failures == 0 ? 0 : 1;
}
