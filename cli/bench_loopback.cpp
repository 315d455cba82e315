// SPDX-License-Identifier: Apache-2.0
// The loopback bench: all ranks of the fused all-reduce in one cooperative launch on one GPU, without NCCL, a
// second process or a link. What is left is the traffic to the GPU's memory and the arithmetic: the bound of
// a machine whose links are never in the way. Compared with what a plain copy reaches in the same run, and,
// for a small message, with the reference byte by byte on every rank.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/bench_bound.hpp"
#include "cli/bench_candidates.hpp"
#include "cli/bench_costs.hpp"
#include "cli/bench_cuda.hpp"
#include "cli/bench_kernels.hpp"
#include "cli/bench_options.hpp"
#include "cli/bench_reference.hpp"
#include "kernels/fused.hpp"
#include "shim/policy_json.hpp"
#include "shim/text_file.hpp"
#include "shim/units.hpp"

namespace echotp {
namespace {

constexpr int kFewestIterations = 20;
constexpr std::int64_t kCopyBytes = std::int64_t{2} << 30;  // read, and as many written
constexpr int kCopySamples = 25;
constexpr std::uint64_t kDeadline_ns = 10'000'000'000;
constexpr double kUsableMemory = 0.95;  // of what is free: the rest is the driver's

std::int64_t align_up(std::int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::int64_t entry_bytes(StateFormat format) {
  return format == StateFormat::kFp32 ? 4 : format == StateFormat::kFp16 ? 2 : 1;
}

/// Sizes of the parts of one rank's buffers for one call.
struct RankSizes {
  RankSizes(std::int64_t count, DataType dtype, const Codec& codec, const Compensation& compensation) {
    message = align_up(count * element_bytes(dtype));
    if (compensation.mode == CompensationMode::kNone) return;
    capacity = tile_count(count) * kTileElements;
    estimate = align_up(capacity * entry_bytes(compensation.state));
    slow = compensation.b == 0 ? 0 : estimate;
    unit = compensation.state == StateFormat::kFp32 ? 0 : align_up(capacity / codec.group * 2);
  }
  std::int64_t total() const { return 2 * message + estimate + slow + unit; }

  std::int64_t message = 0, capacity = 0, estimate = 0, slow = 0, unit = 0;
};

/// Everything that one candidate needs at one size: windows of all ranks, and several sets of messages and
/// estimates, so that a call finds nothing of the one before it in the L2 cache.
class Loopback {
 public:
  Loopback(const BenchOptions& options, const PolicyRule& rule, std::int64_t bytes, int ctas,
           cudaStream_t stream)
      : sizes_(bytes / element_bytes(options.dtype), options.dtype, rule.codec, rule.compensation),
        ranks_(options.ranks),
        sets_(sets_of(sizes_, options.ranks)),
        stream_(stream) {
    FusedLayout layout{
        .ranks = ranks_, .ctas = ctas, .bits = std::max(rule.codec.bits, rule.codec.first_leg_bits)};
    const std::int64_t window = align_up(fused_window_bytes(layout));
    const std::int64_t progress = align_up((1 + fused_lanes(layout)) * 4);
    windows_ = DeviceMemory(static_cast<std::size_t>(ranks_ * (window + progress)), "windows");
    messages_ = DeviceMemory(static_cast<std::size_t>(sets_ * ranks_ * sizes_.total()), "messages");
    check(cudaHostAlloc(reinterpret_cast<void**>(&status_), sizeof(FusedStatus) * kFusedMaxRanks,
                        cudaHostAllocMapped),
          "cudaHostAlloc");
    std::fill_n(status_, kFusedMaxRanks, FusedStatus{});
    FusedStatus* status = nullptr;
    check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&status), status_, 0),
          "cudaHostGetDevicePointer");
    for (int rank = 0; rank < ranks_; ++rank) {
      FusedArgs& args = args_[rank];
      args.count = bytes / element_bytes(options.dtype);
      args.rank = rank;
      args.dtype = options.dtype;
      args.codec = rule.codec;
      args.compensation = rule.compensation;
      args.layout = layout;
      for (int peer = 0; peer < ranks_; ++peer)
        args.windows[peer] = windows_.as<std::uint8_t>() + peer * window;
      args.progress =
          reinterpret_cast<std::uint32_t*>(windows_.as<char>() + ranks_ * window + rank * progress);
      args.status = status + rank;
      args.deadline_ns = kDeadline_ns;
    }
    for (int set = 0; set < sets_; ++set)
      for (int rank = 0; rank < ranks_; ++rank) fill(set, rank, static_cast<std::uint64_t>(set));
    check(cudaStreamSynchronize(stream_), "filling the messages");
  }
  ~Loopback() { cudaFreeHost(status_); }
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  /// Device memory that this object would take, or a bit less.
  static std::int64_t memory_bytes(const BenchOptions& options, const PolicyRule& rule, std::int64_t bytes) {
    const RankSizes sizes(bytes / element_bytes(options.dtype), options.dtype, rule.codec, rule.compensation);
    return sets_of(sizes, options.ranks) * options.ranks * sizes.total();
  }

  int sets() const { return sets_; }

  /// Other numbers to send, by rank and `seed`.
  void fill(int set, int rank, std::uint64_t seed) {
    check(bench_fill_normal(send(set, rank), args_[0].count, args_[0].dtype, seed * kFusedMaxRanks + rank,
                            stream_),
          "filling a message");
  }

  void call(int set, bool pass_start) {
    for (int rank = 0; rank < ranks_; ++rank) {
      FusedArgs& args = args_[rank];
      char* at = part(set, rank);
      args.send = at;
      args.recv = at + sizes_.message;
      at += 2 * sizes_.message;
      if (sizes_.capacity > 0) {
        args.state.fast = at;
        args.state.slow = sizes_.slow > 0 ? at + sizes_.estimate : nullptr;
        at += sizes_.estimate + sizes_.slow;
        args.state.unit = sizes_.unit > 0 ? reinterpret_cast<std::uint16_t*>(at) : nullptr;
        args.state.capacity = sizes_.capacity;
      }
      args.pass_start = pass_start;
    }
    check(launch_fused_loopback(args_, stream_), "launch_fused_loopback");
  }

  /// Waits for the calls; ends the program if one of them gave up waiting for a peer.
  void finish() {
    check(cudaStreamSynchronize(stream_), "a loopback call");
    for (int rank = 0; rank < ranks_; ++rank) {
      const FusedStatus& status = status_[rank];
      if (status.failure != 0)
        fail("a loopback call", "rank " + std::to_string(status.rank) + " waited too long for rank " +
                                    std::to_string(status.peer) + ", lane " + std::to_string(status.lane) +
                                    ", leg " + std::to_string(status.leg) + ", chunk " +
                                    std::to_string(status.sequence));
    }
  }

  RawMessage sent(int set, int rank) { return read(send(set, rank)); }
  RawMessage received(int set, int rank) { return read(send(set, rank) + sizes_.message); }

 private:
  static int sets_of(const RankSizes& sizes, int ranks) {
    constexpr std::int64_t kMost = 512;
    return static_cast<int>(std::min(kMost, kRotationBytes / (ranks * sizes.total()) + 1));
  }
  char* part(int set, int rank) { return messages_.as() + (set * ranks_ + rank) * sizes_.total(); }
  char* send(int set, int rank) { return part(set, rank); }
  RawMessage read(const char* from) {
    RawMessage out(static_cast<std::size_t>(args_[0].count * element_bytes(args_[0].dtype)));
    check(cudaMemcpyAsync(out.data(), from, out.size(), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "reading a message");
    return out;
  }

  RankSizes sizes_;
  int ranks_;
  int sets_;
  cudaStream_t stream_;
  DeviceMemory windows_, messages_;
  FusedStatus* status_ = nullptr;
  FusedArgs args_[kFusedMaxRanks];
};

/// A few calls of one pass; every rank must hold the reference's bytes after each of them.
bool equals_reference(const BenchOptions& options, const PolicyRule& rule, int ctas, cudaStream_t stream) {
  Loopback loopback(options, rule, kReferenceElements * element_bytes(options.dtype), ctas, stream);
  std::vector<std::vector<RawMessage>> inputs(kReferenceCalls);
  std::vector<std::vector<RawMessage>> outputs(kReferenceCalls);
  for (int call = 0; call < kReferenceCalls; ++call) {
    const auto index = static_cast<std::size_t>(call);
    for (int rank = 0; rank < options.ranks; ++rank) {
      loopback.fill(0, rank, 1000 + static_cast<std::uint64_t>(call));
      inputs[index].push_back(loopback.sent(0, rank));
    }
    loopback.call(0, call == 0);
    loopback.finish();
    for (int rank = 0; rank < options.ranks; ++rank) outputs[index].push_back(loopback.received(0, rank));
  }
  const auto wanted =
      reference_outputs(inputs, kReferenceElements, options.dtype, rule.codec, rule.compensation);
  if (wanted.empty()) fail("the reference", "its ranks differ");
  for (std::size_t call = 0; call < wanted.size(); ++call) {
    for (std::size_t rank = 0; rank < outputs[call].size(); ++rank) {
      const std::int64_t differs = first_difference(wanted[call], outputs[call][rank], options.dtype);
      if (differs < 0) continue;
      std::fprintf(stderr,
                   "echo-tp-bench-loopback: %s: call %zu, rank %zu: element %lld is not the reference's\n",
                   candidate_name(rule).c_str(), call, rank, static_cast<long long>(differs));
      return false;
    }
  }
  return true;
}

std::vector<double> measure(const BenchOptions& options, Loopback& loopback, cudaStream_t stream) {
  EventPair events;
  double last_s = 0;
  int call = 0;
  for (int set = 0; set < loopback.sets(); ++set) loopback.call(set, true);  // estimates that are not zero
  loopback.finish();
  const auto timed = [&] {
    check(cudaEventRecord(events.start, stream), "cudaEventRecord");
    loopback.call(call % loopback.sets(), false);
    check(cudaEventRecord(events.stop, stream), "cudaEventRecord");
    loopback.finish();
    ++call;
    return events.milliseconds() * 1e-3;
  };
  for (int i = 0; i < options.warmup; ++i) last_s = timed();
  const double fitting = std::min(options.budget_s / std::max(last_s, 1e-6), 1e6);
  const int iterations = std::min(options.iterations, std::max(kFewestIterations, static_cast<int>(fitting)));
  std::vector<double> us;
  for (int i = 0; i < iterations; ++i) us.push_back(timed() * 1e6);
  return us;
}

/// Bytes read and written a second by a copy much larger than the L2 cache: the better of our own kernel and
/// the driver's.
std::vector<double> measure_copy(cudaStream_t stream) {
  const DeviceMemory from(kCopyBytes, "copy"), to(kCopyBytes, "copy");
  EventPair events;
  std::vector<double> best;
  for (const bool own : {true, false}) {
    std::vector<double> gbs;
    for (int sample = -3; sample < kCopySamples; ++sample) {
      check(cudaEventRecord(events.start, stream), "cudaEventRecord");
      check(own ? bench_copy(to.as(), from.as(), kCopyBytes, stream)
                : cudaMemcpyAsync(to.as(), from.as(), kCopyBytes, cudaMemcpyDeviceToDevice, stream),
            "copying");
      check(cudaEventRecord(events.stop, stream), "cudaEventRecord");
      check(cudaStreamSynchronize(stream), "copying");
      if (sample >= 0) gbs.push_back(2.0 * static_cast<double>(kCopyBytes) / (events.milliseconds() * 1e6));
    }
    if (best.empty() || *quantile(gbs, 0.5) > *quantile(best, 0.5)) best = gbs;
  }
  return best;
}

LoopbackMeasurement measure_at(const BenchOptions& options, const PolicyRule& rule, std::int64_t bytes,
                               int ctas, cudaStream_t stream) {
  LoopbackMeasurement measured;
  measured.rule = rule;
  measured.bytes = bytes;
  measured.moved = moved_bytes(bytes / element_bytes(options.dtype), options.ranks, options.dtype, rule.codec,
                               rule.compensation);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const std::int64_t wanted = Loopback::memory_bytes(options, rule, bytes);
  if (static_cast<double>(wanted) > kUsableMemory * static_cast<double>(free)) {
    measured.why_not = "needs " + format_bytes(wanted) + " of memory, " +
                       format_bytes(static_cast<std::int64_t>(free)) + " are free";
    return measured;
  }
  Loopback loopback(options, rule, bytes, ctas, stream);
  measured.us = measure(options, loopback, stream);
  return measured;
}

void print_line(const LoopbackMeasurement& measured, int ranks, double copy_gbs) {
  const std::string size = format_bytes(measured.bytes), name = candidate_name(measured.rule);
  if (measured.us.empty()) {
    std::printf("%10s  %-26s %s\n", size.c_str(), name.c_str(), measured.why_not.c_str());
    return;
  }
  const double us = *quantile(measured.us, 0.5);
  const double bound = bound_us(ranks * measured.moved.total(), copy_gbs);
  std::printf("%10s  %-26s bound %10.1f us  measured %10.1f us (%.1f to %.1f)  ratio %5.3f  %zu calls\n",
              size.c_str(), name.c_str(), bound, us, *quantile(measured.us, 0.1), *quantile(measured.us, 0.9),
              bound / us, measured.us.size());
}

int run(const BenchOptions& options, const Policy& policy, const std::vector<std::string>& command) {
  check(cudaSetDevice(0), "cudaSetDevice");
  check(load_fused_kernels(), "loading the fused kernels");
  LoopbackFacts facts;
  facts.ranks = options.ranks;
  facts.dtype = options.dtype;
  facts.ctas = fused_resident_ctas() / options.ranks;
  if (facts.ctas < 1) fail("the fused kernel", "this GPU can't hold a CTA of each rank at the same time");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  facts.copy_gbs = measure_copy(stream);
  const double copy_gbs = *quantile(facts.copy_gbs, 0.5);
  std::printf("copy %.0f GB/s; %d ranks of %d CTAs\n", copy_gbs, options.ranks, facts.ctas);
  std::vector<LoopbackMeasurement> measurements;
  bool equal = true;
  for (const PolicyRule& rule : policy.rules) {
    if (staged_only(rule.compensation))
      fail(candidate_name(rule).c_str(), "the fused kernel has no such compensation");
    const bool right = equals_reference(options, rule, facts.ctas, stream);
    equal = equal && right;
    for (const std::int64_t bytes : options.sizes) {
      measurements.push_back(measure_at(options, rule, bytes, facts.ctas, stream));
      measurements.back().reference_equal = right;
      print_line(measurements.back(), options.ranks, copy_gbs);
    }
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  BenchEnvironment environment = machine_facts(0);
  environment.link = "none: all ranks in one launch";
  const std::string document = loopback_document(measurements, facts, environment, command);
  if (const Status written = write_text_file(options.output, document); !written)
    fail("results", written.error().text());
  return equal ? 0 : 1;
}

}  // namespace
}  // namespace echotp

int main(int argc, char** argv) {
  using namespace echotp;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  set_bench_program("echo-tp-bench-loopback");
  const auto options = read_bench_options(BenchProgram::kLoopback, argc, argv);
  if (options && options->help) {
    std::fputs(bench_usage(BenchProgram::kLoopback).c_str(), stdout);
    return 0;
  }
  auto policy = options ? read_policy(options->policy) : Result<Policy>(options.error());
  if (!policy) {
    std::fprintf(stderr, "echo-tp-bench-loopback: %s\n", policy.error().text().c_str());
    return 2;
  }
  return run(*options, *policy, {argv, argv + argc});
}
