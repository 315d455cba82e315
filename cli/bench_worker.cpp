// SPDX-License-Identifier: Apache-2.0
// The bench worker: one rank of `echo-tp bench`. Times NCCL's own all-reduce (by its profiling name, which
// nothing intercepts) and those that a job would get (ncclAllReduce, which the preloaded shim intercepts) in
// turns, on the same data. Each rule of the policy is a candidate and has a communicator of its own, whose
// name is the one that the rule asks for. A stand-alone program: a failure ends it, and the launcher then
// ends the other ranks.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cli/bench_candidates.hpp"
#include "cli/bench_costs.hpp"
#include "cli/bench_cuda.hpp"
#include "cli/bench_kernels.hpp"
#include "cli/bench_load.hpp"
#include "cli/bench_options.hpp"
#include "cli/bench_reference.hpp"
#include "cli/rendezvous.hpp"
#include "shim/policy_json.hpp"
#include "shim/text_file.hpp"
#include "shim/units.hpp"

namespace echotp {

void check(ncclResult_t rc, const char* what) {
  if (rc != ncclSuccess) fail(what, ncclGetErrorString(rc));
}

namespace {

constexpr int kFewestIterations = 20;
// Two roundings to 4 bits of normal numbers cost about 0.15; a wrong sum costs 1.
constexpr double kLargestError = 0.25;
// Calls of a graph: enough that its launch costs little of a call, not so many that large messages take long.
constexpr std::int64_t kGraphCalls = 16;
constexpr std::int64_t kGraphBytes = std::int64_t{64} << 20;
constexpr auto kAloneTime = std::chrono::milliseconds(500);

int calls_of_graph(std::int64_t bytes) {
  return static_cast<int>(std::clamp(kGraphBytes / bytes, std::int64_t{1}, kGraphCalls));
}

ncclDataType_t nccl_type(DataType dtype) {
  switch (dtype) {
    case DataType::kBf16:
      return ncclBfloat16;
    case DataType::kFp16:
      return ncclFloat16;
    case DataType::kFp32:
      return ncclFloat32;
  }
  return ncclBfloat16;
}

/// Who takes part in the turns: NCCL, or a rule of the policy.
struct Candidate {
  const PolicyRule* rule = nullptr;  // null: NCCL
  ncclComm_t communicator = nullptr;
  cudaGraphExec_t graph = nullptr;              // at the present size
  std::vector<float> milliseconds = {};         // own times of the present size, of one call
  std::vector<BenchSpan> spans = {};            // when they ran, since the clock's event
  std::vector<unsigned long long> hashes = {};  // own hashes of the present size
};

/// One rank's buffers, stream and communicators.
class Bench {
 public:
  Bench(const BenchOptions& options, const Policy& policy, const RankPlace& place, int device,
        ncclComm_t base);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Compares a few calls of every candidate with the reference.
  void compare_with_reference();
  /// One measurement a rule. Spoken by all ranks, believed by rank 0.
  std::vector<BenchMeasurement> measure(std::int64_t bytes);
  /// The background's rate with nothing beside it.
  std::optional<double> background_alone();
  const std::string& background_path() const { return load_->path(); }

 private:
  static std::int64_t stride_of(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
  static std::int64_t slots_of(std::int64_t bytes) {
    return std::clamp(kRotationBytes / stride_of(bytes) + 1, std::int64_t{2}, std::int64_t{4096});
  }
  void all_reduce(const Candidate& candidate, const void* send, void* recv, std::int64_t count);
  void call(const Candidate& candidate, std::int64_t slot, std::int64_t bytes);
  void timed_turn(Candidate& candidate, std::int64_t turn, std::int64_t bytes, bool keep);
  char* recv_slot(std::int64_t slot, std::int64_t bytes) {
    return recv_.as() + slot % slots_of(bytes) * stride_of(bytes);
  }
  void align_ranks();
  std::vector<unsigned long long> gather_hashes(const std::vector<unsigned long long>& own);
  double slowest_rank(double value);
  void hash_result(Candidate& candidate, std::int64_t slot, std::int64_t bytes);
  void compare_first(std::int64_t bytes, std::vector<BenchMeasurement>& measured);
  int choose_iterations(std::int64_t bytes);
  void capture_graphs(std::int64_t bytes);
  void drop_graphs();
  std::vector<float> gather_times(const std::vector<float>& own);
  void settle_hashes(std::vector<BenchMeasurement>& measured);
  void settle_background(std::vector<BenchMeasurement>& measured, const std::vector<BackgroundChunk>& chunks);
  std::vector<BackgroundChunk> end_background();
  RawMessage reference_input(int rank, int call, char* device);

  BenchOptions options_;
  RankPlace place_;
  ncclComm_t base_;
  ncclComm_t load_communicator_ = nullptr;
  std::vector<Candidate> candidates_;                 // NCCL, then the rules in their order
  std::vector<std::optional<bool>> reference_equal_;  // by rule
  cudaStream_t stream_ = nullptr;
  cudaEvent_t clock_ = nullptr;
  DeviceMemory send_, recv_, word_, difference_, hash_;
  EventPair events_;
  std::unique_ptr<BackgroundLoad> load_;
  std::mt19937 order_{20261};  // the same on all ranks
};

/// A communicator of all ranks with this name, announced to the shim as a job's would be.
ncclComm_t named_communicator(ncclComm_t base, const RankPlace& place, const std::string& name) {
  ncclComm_t out = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
  config.commName = name.c_str();
#else
  fail(name.c_str(),
       "this program was built with an NCCL whose communicators have no names; 2.27.3 is needed");
#endif
  check(ncclCommSplit(base, 0, place.rank, &out, &config), "ncclCommSplit");
  return out;
}

Bench::Bench(const BenchOptions& options, const Policy& policy, const RankPlace& place, int device,
             ncclComm_t base)
    : options_(options), place_(place), base_(base) {
  std::int64_t pool_bytes = kReferenceElements * element_bytes(options_.dtype);
  for (const std::int64_t bytes : options_.sizes)
    pool_bytes = std::max(pool_bytes, slots_of(bytes) * stride_of(bytes));
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaEventCreate(&clock_), "cudaEventCreate");
  send_ = DeviceMemory(static_cast<std::size_t>(pool_bytes), "send buffers");
  recv_ = DeviceMemory(static_cast<std::size_t>(pool_bytes), "receive buffers");
  word_ = DeviceMemory(2 * sizeof(double), "buffers");
  difference_ = DeviceMemory(sizeof(BenchDifference), "buffers");
  hash_ = DeviceMemory(sizeof(unsigned long long), "buffers");
  const std::uint64_t seed = 0x51ed2701u + static_cast<std::uint64_t>(place_.rank) * 7919u;
  check(bench_fill_normal(send_.as(), pool_bytes / element_bytes(options_.dtype), options_.dtype, seed,
                          stream_),
        "filling the send buffers");
  check(cudaStreamSynchronize(stream_), "filling the send buffers");
  candidates_.push_back({nullptr, base_});
  for (const PolicyRule& rule : policy.rules)
    candidates_.push_back({&rule, named_communicator(base_, place_, rule.match.communicator_name)});
  reference_equal_.resize(policy.rules.size());
  if (options_.background == BenchBackground::kCollective)
    check(pncclCommSplit(base_, 0, place_.rank, &load_communicator_, nullptr), "pncclCommSplit");
  load_ = std::make_unique<BackgroundLoad>(options_.background, place_, device, load_communicator_);
}

Bench::~Bench() {
  load_.reset();
  if (load_communicator_ != nullptr) check(pncclCommDestroy(load_communicator_), "pncclCommDestroy");
  for (std::size_t i = 1; i < candidates_.size(); ++i)
    check(ncclCommDestroy(candidates_[i].communicator), "ncclCommDestroy");
  cudaEventDestroy(clock_);
  cudaStreamDestroy(stream_);
}

void Bench::all_reduce(const Candidate& candidate, const void* send, void* recv, std::int64_t count) {
  const auto elements = static_cast<std::size_t>(count);
  const ncclDataType_t type = nccl_type(options_.dtype);
  if (candidate.rule == nullptr) {
    check(pncclAllReduce(send, recv, elements, type, ncclSum, candidate.communicator, stream_),
          "pncclAllReduce");
  } else {
    check(ncclAllReduce(send, recv, elements, type, ncclSum, candidate.communicator, stream_),
          "ncclAllReduce");
  }
}

/// Reads and writes slot `slot`.
void Bench::call(const Candidate& candidate, std::int64_t slot, std::int64_t bytes) {
  const char* send = send_.as() + slot % slots_of(bytes) * stride_of(bytes);
  all_reduce(candidate, send, recv_slot(slot, bytes), bytes / element_bytes(options_.dtype));
}

/// Lets no rank enter the next call long before the others: waiting for them is not the call's own time.
void Bench::align_ranks() {
  auto* word = word_.as<float>();
  check(pncclAllReduce(word, word + 1, 1, ncclFloat32, ncclSum, base_, stream_), "pncclAllReduce");
}

/// One call, or one graph of calls, between two events. All candidates read slot `turn`, or those from it on.
void Bench::timed_turn(Candidate& candidate, std::int64_t turn, std::int64_t bytes, bool keep) {
  align_ranks();
  check(cudaEventRecord(events_.start, stream_), "cudaEventRecord");
  if (candidate.graph != nullptr) {
    check(cudaGraphLaunch(candidate.graph, stream_), "cudaGraphLaunch");
  } else {
    call(candidate, turn, bytes);
  }
  check(cudaEventRecord(events_.stop, stream_), "cudaEventRecord");
  check(cudaStreamSynchronize(stream_), "a timed call");
  if (!keep) return;
  const int calls = candidate.graph != nullptr ? calls_of_graph(bytes) : 1;
  candidate.milliseconds.push_back(static_cast<float>(events_.milliseconds() / calls));
  if (options_.background == BenchBackground::kIdle) return;
  float start = 0;
  check(cudaEventElapsedTime(&start, clock_, events_.start), "cudaEventElapsedTime");
  candidate.spans.push_back({start, start + events_.milliseconds()});
}

std::vector<unsigned long long> Bench::gather_hashes(const std::vector<unsigned long long>& own) {
  const std::size_t bytes = own.size() * sizeof own[0];
  std::vector<unsigned long long> all(own.size() * static_cast<std::size_t>(place_.ranks));
  const DeviceMemory here(bytes, "buffers"), there(all.size() * sizeof all[0], "buffers");
  check(cudaMemcpyAsync(here.as(), own.data(), bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  check(pncclAllGather(here.as(), there.as(), own.size(), ncclUint64, base_, stream_), "pncclAllGather");
  check(cudaMemcpyAsync(all.data(), there.as(), all.size() * sizeof all[0], cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "gathering hashes");
  return all;
}

/// The largest of the ranks' values, on all of them.
double Bench::slowest_rank(double value) {
  auto* word = word_.as<double>();
  check(cudaMemcpyAsync(word, &value, sizeof value, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  check(pncclAllReduce(word, word + 1, 1, ncclFloat64, ncclMax, base_, stream_), "pncclAllReduce");
  check(cudaMemcpyAsync(&value, word + 1, sizeof value, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  check(cudaMemsetAsync(word, 0, 2 * sizeof value, stream_), "cudaMemsetAsync");
  check(cudaStreamSynchronize(stream_), "agreeing on a number");
  return value;
}

void Bench::hash_result(Candidate& candidate, std::int64_t slot, std::int64_t bytes) {
  unsigned long long hash = 0;
  check(cudaMemsetAsync(hash_.as(), 0, sizeof hash, stream_), "cudaMemsetAsync");
  check(bench_hash(recv_slot(slot, bytes), bytes, hash_.as<unsigned long long>(), stream_),
        "hashing a result");
  check(cudaMemcpyAsync(&hash, hash_.as(), sizeof hash, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "hashing a result");
  candidate.hashes.push_back(hash);
}

/// What rank `rank` sends in this call. Every rank can work out every rank's message: their GPUs are alike.
RawMessage Bench::reference_input(int rank, int call, char* device) {
  RawMessage out(static_cast<std::size_t>(kReferenceElements * element_bytes(options_.dtype)));
  const auto seed = 0x2f0ead00u + static_cast<std::uint64_t>(call * place_.ranks + rank);
  check(bench_fill_normal(device, kReferenceElements, options_.dtype, seed, stream_),
        "filling the send buffers");
  check(cudaMemcpyAsync(out.data(), device, out.size(), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "filling the send buffers");
  return out;
}

void Bench::compare_with_reference() {
  const std::int64_t bytes = kReferenceElements * element_bytes(options_.dtype);
  const DeviceMemory message(static_cast<std::size_t>(bytes), "buffers");
  std::vector<std::vector<RawMessage>> inputs(kReferenceCalls);
  for (int call = 0; call < kReferenceCalls; ++call)
    for (int rank = 0; rank < place_.ranks; ++rank)
      inputs[static_cast<std::size_t>(call)].push_back(reference_input(rank, call, message.as()));
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    const Compensation& compensation = candidate.rule->compensation;
    const std::int64_t count = reference_elements(compensation);
    std::vector<RawMessage> outputs;
    for (int call = 0; call < kReferenceCalls; ++call) {
      const RawMessage& own = inputs[static_cast<std::size_t>(call)][static_cast<std::size_t>(place_.rank)];
      outputs.emplace_back(static_cast<std::size_t>(count * element_bytes(options_.dtype)));
      RawMessage& out = outputs.back();
      check(cudaMemcpyAsync(message.as(), own.data(), out.size(), cudaMemcpyHostToDevice, stream_),
            "cudaMemcpyAsync");
      all_reduce(candidate, message.as(), recv_.as(), count);
      check(cudaMemcpyAsync(out.data(), recv_.as(), out.size(), cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync");
      check(cudaStreamSynchronize(stream_), "a compared call");
    }
    // Each rank works it out for itself: then every rank's bytes are compared.
    const auto wanted = reference_outputs(inputs, count, options_.dtype, candidate.rule->codec, compensation);
    if (wanted.empty()) fail("the reference", "its ranks differ");
    double wrong = 0;
    for (std::size_t call = 0; call < wanted.size() && wrong == 0; ++call) {
      const std::int64_t differs = first_difference(wanted[call], outputs[call], options_.dtype);
      if (differs < 0) continue;
      wrong = 1;
      std::fprintf(stderr,
                   "echo-tp-bench-worker[rank %d]: %s: call %zu of %lld elements: element %lld is not the "
                   "reference's\n",
                   place_.rank, candidate_name(*candidate.rule).c_str(), call, static_cast<long long>(count),
                   static_cast<long long>(differs));
    }
    reference_equal_[i - 1] = slowest_rank(wrong) == 0;
  }
}

/// The first call of every candidate at a size, on the same data as NCCL's: was it intercepted, how far is it
/// off?
void Bench::compare_first(std::int64_t bytes, std::vector<BenchMeasurement>& measured) {
  // What an earlier size left in the buffers must not pass for a result.
  check(cudaMemsetAsync(recv_.as(), 0xff, static_cast<std::size_t>(2 * stride_of(bytes)), stream_),
        "cudaMemsetAsync");
  char* const reference = recv_slot(1, bytes);
  all_reduce(candidates_[0], send_.as(), reference, bytes / element_bytes(options_.dtype));
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    BenchMeasurement& result = measured[i - 1];
    call(candidate, 0, bytes);
    check(cudaMemsetAsync(difference_.as(), 0, sizeof(BenchDifference), stream_), "cudaMemsetAsync");
    check(bench_compare(reference, recv_slot(0, bytes), bytes / element_bytes(options_.dtype), options_.dtype,
                        difference_.as<BenchDifference>(), stream_),
          "comparing results");
    hash_result(candidate, 0, bytes);
    BenchDifference difference;
    check(cudaMemcpy(&difference, difference_.as(), sizeof difference, cudaMemcpyDeviceToHost), "cudaMemcpy");
    const double error = std::sqrt(difference.difference_squares / difference.reference_squares);
    const std::string where = candidate_name(*candidate.rule) + " at " + format_bytes(bytes);
    if (slowest_rank(std::isfinite(error) ? 0.0 : 1.0) > 0)
      fail("comparing results", "NaN or Inf in a sum of finite numbers: " + where);
    result.relative_error = slowest_rank(error);
    result.intercepted = slowest_rank(difference.unequal > 0 ? 1.0 : 0.0) > 0;
    if (result.relative_error > kLargestError)
      fail("comparing results",
           "relative error " + std::to_string(result.relative_error) + ": that is no all-reduce: " + where);
  }
}

/// One graph a candidate, of calls on neighbouring slots.
void Bench::capture_graphs(std::int64_t bytes) {
  for (Candidate& candidate : candidates_) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < calls_of_graph(bytes); ++i) call(candidate, i, bytes);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&candidate.graph, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
}

void Bench::drop_graphs() {
  for (Candidate& candidate : candidates_) {
    if (candidate.graph != nullptr) check(cudaGraphExecDestroy(candidate.graph), "cudaGraphExecDestroy");
    candidate.graph = nullptr;
  }
}

/// Warms up. Every candidate runs equally often, so that twins keep the same history.
int Bench::choose_iterations(std::int64_t bytes) {
  double round_s = 0;
  for (int i = 0; i < options_.warmup; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (Candidate& candidate : candidates_) timed_turn(candidate, i, bytes, false);
    // Of the last, warmest round; the host's time, because the budget is for all that a round takes.
    round_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const double budget_s = options_.budget_s * static_cast<double>(candidates_.size());
  const double fitting = std::min(budget_s / std::max(slowest_rank(round_s), 1e-6), 1e6);
  return std::min(options_.iterations, std::max(kFewestIterations, static_cast<int>(fitting)));
}

std::vector<float> Bench::gather_times(const std::vector<float>& own) {
  const std::size_t bytes = own.size() * sizeof own[0];
  std::vector<float> all(own.size() * static_cast<std::size_t>(place_.ranks));
  const DeviceMemory here(bytes, "buffers"), there(all.size() * sizeof all[0], "buffers");
  check(cudaMemcpyAsync(here.as(), own.data(), bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  check(pncclAllGather(here.as(), there.as(), own.size(), ncclFloat32, base_, stream_), "pncclAllGather");
  check(cudaMemcpyAsync(all.data(), there.as(), all.size() * sizeof all[0], cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "gathering times");
  return all;
}

/// Do the ranks hold the same bytes, and twins too?
void Bench::settle_hashes(std::vector<BenchMeasurement>& measured) {
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    const std::vector<unsigned long long>& own = candidates_[i].hashes;
    const std::vector<unsigned long long> all = gather_hashes(own);
    measured[i - 1].bytes_equal = true;
    for (std::size_t k = own.size(); k < all.size(); ++k) {
      if (all[k] == all[k % own.size()]) continue;
      if (place_.rank == 0 && measured[i - 1].bytes_equal)
        std::fprintf(stderr, "echo-tp-bench-worker: %s at %s: rank %zu holds other bytes than rank 0\n",
                     candidate_name(*candidates_[i].rule).c_str(),
                     format_bytes(measured[i - 1].bytes).c_str(), k / own.size());
      measured[i - 1].bytes_equal = false;
    }
    for (std::size_t k = 1; k < candidates_.size(); ++k) {
      if (!are_twins(*candidates_[i].rule, *candidates_[k].rule)) continue;
      measured[i - 1].twin_equal = candidates_[k].hashes == own;
      if (place_.rank == 0 && candidates_[k].hashes != own && i < k)
        std::fprintf(stderr, "echo-tp-bench-worker: %s and %s at %s: not the same bytes\n",
                     candidate_name(*candidates_[i].rule).c_str(),
                     candidate_name(*candidates_[k].rule).c_str(),
                     format_bytes(measured[i - 1].bytes).c_str());
    }
  }
}

std::vector<BackgroundChunk> Bench::end_background() {
  const auto chunks = static_cast<long long>(slowest_rank(static_cast<double>(load_->pause())));
  return load_->finish(chunks);
}

/// Rates of the rank whose background was slowest.
void Bench::settle_background(std::vector<BenchMeasurement>& measured,
                              const std::vector<BackgroundChunk>& chunks) {
  if (options_.background == BenchBackground::kIdle) return;
  const auto slowest = [&](const Candidate& candidate) {
    return -slowest_rank(-background_gbs(chunks, candidate.spans).value_or(0));
  };
  const double beside_nccl = slowest(candidates_[0]);
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    measured[i - 1].background_nccl_gbs = beside_nccl;
    measured[i - 1].background_echo_gbs = slowest(candidates_[i]);
  }
}

std::optional<double> Bench::background_alone() {
  if (options_.background == BenchBackground::kIdle) return std::nullopt;
  std::optional<double> gbs;
  for (const bool warm : {false, true}) {
    check(cudaEventRecord(clock_, stream_), "cudaEventRecord");
    align_ranks();
    check(cudaStreamSynchronize(stream_), "starting together");
    load_->start(clock_);
    std::this_thread::sleep_for(kAloneTime);
    const std::vector<BackgroundChunk> chunks = end_background();
    double end_ms = 0;
    for (const BackgroundChunk& chunk : chunks) end_ms = std::max(end_ms, chunk.span.stop_ms);
    const BenchSpan span{chunks.empty() ? 0 : chunks.front().span.start_ms, end_ms};
    const double slowest = -slowest_rank(-background_gbs(chunks, {span}).value_or(0));
    if (warm) gbs = slowest;
  }
  return gbs;
}

std::vector<BenchMeasurement> Bench::measure(std::int64_t bytes) {
  std::vector<BenchMeasurement> measured(candidates_.size() - 1);
  for (std::size_t i = 0; i < measured.size(); ++i) {
    measured[i].rule = *candidates_[i + 1].rule;
    measured[i].bytes = bytes;
    measured[i].reference_equal = reference_equal_[i];
  }
  for (Candidate& candidate : candidates_) {
    candidate.milliseconds.clear();
    candidate.spans.clear();
    candidate.hashes.clear();
  }
  compare_first(bytes, measured);
  if (options_.graph) capture_graphs(bytes);
  check(cudaEventRecord(clock_, stream_), "cudaEventRecord");
  check(cudaStreamSynchronize(stream_), "setting the clock");
  load_->start(clock_);
  const int iterations = choose_iterations(bytes);
  std::vector<std::size_t> turns(candidates_.size());
  std::iota(turns.begin(), turns.end(), std::size_t{0});
  for (int i = 0; i < iterations; ++i) {
    // In another order every time: nobody profits from what a certain other one left behind.
    std::shuffle(turns.begin(), turns.end(), order_);
    for (const std::size_t turn : turns) {
      Candidate& candidate = candidates_[turn];
      timed_turn(candidate, options_.warmup + i, bytes, true);
      if (candidate.rule == nullptr || (!options_.check && i > 0 && i + 1 < iterations)) continue;
      hash_result(candidate, options_.graph ? calls_of_graph(bytes) - 1 : options_.warmup + i, bytes);
    }
  }
  const std::vector<BackgroundChunk> chunks = end_background();
  drop_graphs();
  settle_hashes(measured);
  settle_background(measured, chunks);
  std::vector<std::vector<double>> us(candidates_.size());
  for (std::size_t c = 0; c < candidates_.size(); ++c) {
    const std::vector<float>& own = candidates_[c].milliseconds;
    const std::vector<float> all = gather_times(own);
    for (std::size_t i = 0; i < own.size(); ++i) {
      float slowest = 0;
      for (std::size_t k = i; k < all.size(); k += own.size()) slowest = std::max(slowest, all[k]);
      us[c].push_back(slowest * 1e3);
    }
  }
  for (std::size_t i = 0; i < measured.size(); ++i) {
    measured[i].nccl_us = us[0];
    measured[i].echo_us = us[i + 1];
  }
  return measured;
}

BenchEnvironment environment_of(int device, int devices) {
  BenchEnvironment environment = machine_facts(device);
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  environment.nccl = std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
                     std::to_string(version % 100);
  // A host name of its own for each rank is how share/launch-ranks.sh puts several on one GPU.
  if (std::getenv("NCCL_HOSTID") != nullptr) {
    environment.link = std::string("loopback sockets, ") +
                       (devices == 1 ? "one GPU" : std::to_string(devices) + " GPUs") +
                       (std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr ? ", MPS" : ", no MPS");
  } else {
    environment.link = "peer";
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    char* equals = std::strchr(*variable, '=');
    if (equals != nullptr && std::strncmp(*variable, "NCCL_", 5) == 0)
      environment.nccl_env.emplace(std::string(*variable, equals), equals + 1);
  }
  return environment;
}

void print_line(const BenchMeasurement& measured) {
  const double nccl = quantile(measured.nccl_us, 0.5).value_or(0);
  const double echo = quantile(measured.echo_us, 0.5).value_or(0);
  std::printf("%10s  %-26s NCCL %10.1f us  %s %10.1f us  ratio %5.2f  error %.3f  %zu calls\n",
              format_bytes(measured.bytes).c_str(), candidate_name(measured.rule).c_str(), nccl,
              measured.intercepted ? "Echo" : "NCCL again", echo, nccl / echo, measured.relative_error,
              measured.nccl_us.size());
}

bool is_right(const BenchMeasurement& measured) {
  return measured.bytes_equal && measured.reference_equal.value_or(true) &&
         measured.twin_equal.value_or(true);
}

int run(const BenchOptions& options, const Policy& policy, const RankPlace& place,
        const std::vector<std::string>& command) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  const int device = place.local_rank % devices;
  check(cudaSetDevice(device), "cudaSetDevice");
  const auto id = agree_on_id(place, std::getenv("ECHO_TP_RENDEZVOUS"));
  if (!id) fail("rendezvous", id.error().text());
  ncclComm_t base = nullptr;
  check(ncclCommInitRank(&base, place.ranks, *id, place.rank), "ncclCommInitRank");
  std::vector<BenchMeasurement> measurements;
  BenchSettings settings{.graph = options.graph, .background = background_name(options.background)};
  {
    Bench bench(options, policy, place, device, base);
    bench.compare_with_reference();
    settings.background_alone_gbs = bench.background_alone();
    if (!bench.background_path().empty()) settings.background_path = bench.background_path();
    for (const std::int64_t bytes : options.sizes) {
      for (BenchMeasurement& measured : bench.measure(bytes)) {
        if (place.rank == 0) print_line(measured);
        measurements.push_back(std::move(measured));
      }
    }
  }
  check(ncclCommDestroy(base), "ncclCommDestroy");
  if (place.rank == 0) {
    const std::string document = bench_document(measurements, environment_of(device, devices), settings,
                                                command, options.dtype, place.ranks);
    if (const Status written = write_text_file(options.output, document); !written)
      fail("cost table", written.error().text());
  }
  const bool right = std::all_of(measurements.begin(), measurements.end(), is_right);
  const bool any =
      std::any_of(measurements.begin(), measurements.end(), [](const auto& m) { return m.intercepted; });
  if (!any && place.rank == 0)
    std::fprintf(stderr,
                 "echo-tp-bench-worker: nothing was intercepted: every result is NCCL's own, bit by bit\n");
  // Without interception NCCL's bytes stand where the reference's were expected: no answer, not a wrong one.
  return !any ? 3 : right ? 0 : 1;
}

}  // namespace
}  // namespace echotp

int main(int argc, char** argv) {
  using namespace echotp;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  set_bench_program("echo-tp-bench-worker");
  const auto place = rank_place();
  if (!place) {
    std::fprintf(stderr, "echo-tp-bench-worker: %s\n", place.error().text().c_str());
    return 2;
  }
  set_bench_program("echo-tp-bench-worker[rank " + std::to_string(place->rank) + "]");
  const auto options = read_bench_options(BenchProgram::kWorker, argc, argv);
  if (options && options->help) {
    if (place->rank == 0) std::fputs(bench_usage(BenchProgram::kWorker).c_str(), stdout);
    return 0;
  }
  const auto policy = options ? read_policy(options->policy) : Result<Policy>(options.error());
  if (!policy) {
    if (place->rank == 0) std::fprintf(stderr, "echo-tp-bench-worker: %s\n", policy.error().text().c_str());
    return 2;
  }
  return run(*options, *policy, *place, {argv, argv + argc});
}
