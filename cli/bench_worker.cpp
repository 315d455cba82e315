// SPDX-License-Identifier: Apache-2.0
// The bench worker: one rank of `echo-tp bench`. Times NCCL's own all-reduce (by its profiling name, which
// nothing intercepts) and the all-reduce that a job would call (which the preloaded shim intercepts) in
// turns, on the same data. A stand-alone program: a failure ends it, and the launcher then ends the other
// ranks.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cli/bench_costs.hpp"
#include "cli/bench_kernels.hpp"
#include "cli/bench_options.hpp"
#include "cli/rendezvous.hpp"
#include "shim/text_file.hpp"
#include "shim/units.hpp"

namespace echotp {
namespace {

// More than three times the L2 of every GPU so far: what a call reads was not left there by an earlier one.
constexpr std::int64_t kRotationBytes = std::int64_t{192} << 20;
constexpr int kFewestIterations = 5;
// Two roundings to 4 bits of normal numbers cost about 0.15; a wrong sum costs 1.
constexpr double kLargestError = 0.25;

int g_rank = 0;

[[noreturn]] void fail(const char* what, const std::string& why) {
  std::fprintf(stderr, "echo-tp-bench-worker[rank %d]: %s: %s\n", g_rank, what, why.c_str());
  std::exit(1);
}
void check(cudaError_t rc, const char* what) {
  if (rc != cudaSuccess) fail(what, cudaGetErrorString(rc));
}
void check(ncclResult_t rc, const char* what) {
  if (rc != ncclSuccess) fail(what, ncclGetErrorString(rc));
}

template <class T>
T* device_array(std::size_t count, const char* what) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)), what);
  check(cudaMemset(memory, 0, count * sizeof(T)), what);
  return static_cast<T*>(memory);
}

struct Interval {
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
};

/// One rank's buffers, stream and communicator.
class Bench {
 public:
  Bench(const BenchOptions& options, const RankPlace& place, ncclComm_t communicator);
  BenchMeasurement measure(std::int64_t bytes);

 private:
  static std::int64_t stride_of(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
  static std::int64_t slots_of(std::int64_t bytes) {
    return std::clamp(kRotationBytes / stride_of(bytes) + 1, std::int64_t{3}, std::int64_t{4096});
  }
  void call(bool interceptable, std::int64_t slot, std::int64_t bytes, const Interval* interval);
  void align_ranks();
  std::vector<unsigned long long> gather_hashes(std::size_t count);
  double slowest_rank(double seconds);
  void compare_results(std::int64_t bytes, BenchMeasurement& measured);
  int choose_iterations(std::int64_t bytes);
  std::vector<float> gather_times(const std::vector<float>& own);

  BenchOptions options_;
  RankPlace place_;
  ncclComm_t communicator_;
  cudaStream_t stream_ = nullptr;
  char* send_ = nullptr;
  char* recv_ = nullptr;
  float* word_ = nullptr;
  BenchDifference* difference_ = nullptr;
  unsigned long long* hashes_ = nullptr;  // own, [iterations + 1]
  unsigned long long* all_hashes_ = nullptr;
  float* times_ = nullptr;  // own, [2 * iterations]
  float* all_times_ = nullptr;
  Interval intervals_[2];
};

Bench::Bench(const BenchOptions& options, const RankPlace& place, ncclComm_t communicator)
    : options_(options), place_(place), communicator_(communicator) {
  std::int64_t pool_bytes = 0;
  for (const std::int64_t bytes : options_.sizes)
    pool_bytes = std::max(pool_bytes, slots_of(bytes) * stride_of(bytes));
  const auto count = static_cast<std::size_t>(options_.iterations);
  const auto ranks = static_cast<std::size_t>(place_.ranks);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  send_ = device_array<char>(static_cast<std::size_t>(pool_bytes), "send buffers");
  recv_ = device_array<char>(static_cast<std::size_t>(pool_bytes), "receive buffers");
  word_ = device_array<float>(2, "buffers");
  difference_ = device_array<BenchDifference>(1, "buffers");
  hashes_ = device_array<unsigned long long>(count + 1, "buffers");
  all_hashes_ = device_array<unsigned long long>((count + 1) * ranks, "buffers");
  times_ = device_array<float>(2 * count, "buffers");
  all_times_ = device_array<float>(2 * count * ranks, "buffers");
  for (Interval& interval : intervals_) {
    check(cudaEventCreate(&interval.start), "cudaEventCreate");
    check(cudaEventCreate(&interval.stop), "cudaEventCreate");
  }
  const std::uint64_t seed = 0x51ed2701u + static_cast<std::uint64_t>(place_.rank) * 7919u;
  check(bench_fill_normal(send_, pool_bytes / element_bytes(options_.dtype), options_.dtype, seed, stream_),
        "filling the send buffers");
  check(cudaStreamSynchronize(stream_), "filling the send buffers");
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

/// NCCL's call reads and writes slot `slot`; the interceptable one reads the same and writes the next.
void Bench::call(bool interceptable, std::int64_t slot, std::int64_t bytes, const Interval* interval) {
  const std::int64_t slots = slots_of(bytes);
  const char* send = send_ + slot % slots * stride_of(bytes);
  char* recv = recv_ + (slot + (interceptable ? 1 : 0)) % slots * stride_of(bytes);
  const auto count = static_cast<std::size_t>(bytes / element_bytes(options_.dtype));
  const ncclDataType_t type = nccl_type(options_.dtype);
  if (interval != nullptr) {
    align_ranks();
    check(cudaEventRecord(interval->start, stream_), "cudaEventRecord");
  }
  if (interceptable) {
    check(ncclAllReduce(send, recv, count, type, ncclSum, communicator_, stream_), "ncclAllReduce");
  } else {
    check(pncclAllReduce(send, recv, count, type, ncclSum, communicator_, stream_), "pncclAllReduce");
  }
  if (interval != nullptr) check(cudaEventRecord(interval->stop, stream_), "cudaEventRecord");
}

/// Lets no rank enter the next call long before the others: waiting for them is not the call's own time.
void Bench::align_ranks() {
  check(pncclAllReduce(word_, word_ + 1, 1, ncclFloat32, ncclSum, communicator_, stream_), "pncclAllReduce");
}

std::vector<unsigned long long> Bench::gather_hashes(std::size_t count) {
  std::vector<unsigned long long> all(count * static_cast<std::size_t>(place_.ranks));
  check(pncclAllGather(hashes_, all_hashes_, count, ncclUint64, communicator_, stream_), "pncclAllGather");
  check(cudaMemcpyAsync(all.data(), all_hashes_, all.size() * sizeof all[0], cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "gathering hashes");
  return all;
}

double Bench::slowest_rank(double value) {
  auto slowest = static_cast<float>(value);
  check(cudaMemcpyAsync(word_, &slowest, sizeof slowest, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  check(pncclAllReduce(word_, word_ + 1, 1, ncclFloat32, ncclMax, communicator_, stream_), "pncclAllReduce");
  check(cudaMemcpyAsync(&slowest, word_ + 1, sizeof slowest, cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "agreeing on a number");
  return slowest;
}

bool all_equal(const std::vector<unsigned long long>& gathered, std::size_t count) {
  for (std::size_t i = count; i < gathered.size(); ++i)
    if (gathered[i] != gathered[i % count]) return false;
  return true;
}

/// One call of each on the same data: was the second intercepted, how far is it off, do the ranks agree?
void Bench::compare_results(std::int64_t bytes, BenchMeasurement& measured) {
  const char* reference = recv_;
  const char* other = recv_ + stride_of(bytes);
  // What an earlier size left in the buffers must not pass for a result.
  check(cudaMemsetAsync(recv_, 0xff, static_cast<std::size_t>(2 * stride_of(bytes)), stream_),
        "cudaMemsetAsync");
  call(false, 0, bytes, nullptr);
  call(true, 0, bytes, nullptr);
  check(cudaMemsetAsync(difference_, 0, sizeof *difference_, stream_), "cudaMemsetAsync");
  check(cudaMemsetAsync(hashes_, 0, sizeof *hashes_, stream_), "cudaMemsetAsync");
  check(bench_compare(reference, other, bytes / element_bytes(options_.dtype), options_.dtype, difference_,
                      stream_),
        "comparing results");
  check(bench_hash(other, bytes, hashes_, stream_), "hashing a result");
  measured.bytes_equal = all_equal(gather_hashes(1), 1);
  BenchDifference difference;
  check(cudaMemcpy(&difference, difference_, sizeof difference, cudaMemcpyDeviceToHost), "cudaMemcpy");
  const double error = std::sqrt(difference.difference_squares / difference.reference_squares);
  if (slowest_rank(std::isfinite(error) ? 0.0 : 1.0) > 0)
    fail("comparing results", "NaN or Inf in a sum of finite numbers at " + format_bytes(bytes));
  measured.relative_error = slowest_rank(error);
  measured.intercepted = slowest_rank(difference.unequal > 0 ? 1.0 : 0.0) > 0;
  if (measured.relative_error > kLargestError)
    fail("comparing results", "relative error " + std::to_string(measured.relative_error) + " at " +
                                  format_bytes(bytes) + ": that is no all-reduce");
}

int Bench::choose_iterations(std::int64_t bytes) {
  double pair_s = 0;
  for (int i = 0; i < options_.warmup; ++i) {
    for (const bool interceptable : {false, true}) call(interceptable, i, bytes, &intervals_[interceptable]);
    check(cudaStreamSynchronize(stream_), "warming up");
    float milliseconds[2] = {};
    for (int k = 0; k < 2; ++k)
      check(cudaEventElapsedTime(&milliseconds[k], intervals_[k].start, intervals_[k].stop),
            "cudaEventElapsedTime");
    pair_s = (milliseconds[0] + milliseconds[1]) * 1e-3;  // of the last, warmest pair
  }
  const double fitting = options_.budget_s / std::max(slowest_rank(pair_s), 1e-6);
  return std::min(options_.iterations, std::max(kFewestIterations, static_cast<int>(std::min(fitting, 1e6))));
}

std::vector<float> Bench::gather_times(const std::vector<float>& own) {
  std::vector<float> all(own.size() * static_cast<std::size_t>(place_.ranks));
  check(cudaMemcpyAsync(times_, own.data(), own.size() * sizeof own[0], cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
  check(pncclAllGather(times_, all_times_, own.size(), ncclFloat32, communicator_, stream_),
        "pncclAllGather");
  check(cudaMemcpyAsync(all.data(), all_times_, all.size() * sizeof all[0], cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "gathering times");
  return all;
}

BenchMeasurement Bench::measure(std::int64_t bytes) {
  BenchMeasurement measured;
  measured.bytes = bytes;
  compare_results(bytes, measured);
  const int iterations = choose_iterations(bytes);
  const auto pairs = static_cast<std::size_t>(iterations);
  std::vector<float> own(2 * pairs);
  check(cudaMemsetAsync(hashes_, 0, pairs * sizeof *hashes_, stream_), "cudaMemsetAsync");
  for (int i = 0; i < iterations; ++i) {
    const std::int64_t slot = options_.warmup + i;
    // Which of the two goes first changes with every pair: neither profits from what the other left behind.
    for (const bool interceptable : {i % 2 == 1, i % 2 == 0}) {
      call(interceptable, slot, bytes, &intervals_[interceptable]);
      if (!interceptable || !options_.check) continue;
      const char* result = recv_ + (slot + 1) % slots_of(bytes) * stride_of(bytes);
      check(bench_hash(result, bytes, hashes_ + i, stream_), "hashing a result");
    }
    check(cudaStreamSynchronize(stream_), "a pair of calls");
    for (std::size_t k = 0; k < 2; ++k)
      check(cudaEventElapsedTime(&own[2 * static_cast<std::size_t>(i) + k], intervals_[k].start,
                                 intervals_[k].stop),
            "cudaEventElapsedTime");
  }
  if (options_.check) measured.bytes_equal = all_equal(gather_hashes(pairs), pairs) && measured.bytes_equal;
  const std::vector<float> all = gather_times(own);
  for (std::size_t i = 0; i < own.size(); ++i) {
    float slowest = 0;
    for (std::size_t k = i; k < all.size(); k += own.size()) slowest = std::max(slowest, all[k]);
    (i % 2 == 0 ? measured.nccl_us : measured.other_us).push_back(slowest * 1e3);
  }
  return measured;
}

std::optional<std::string> driver_version() {
  using Init = int (*)();
  using Version = int (*)(char*, unsigned);
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  const auto init = reinterpret_cast<Init>(dlsym(library, "nvmlInit_v2"));
  const auto version = reinterpret_cast<Version>(dlsym(library, "nvmlSystemGetDriverVersion"));
  char text[96] = {};
  if (init == nullptr || version == nullptr || init() != 0 || version(text, sizeof text) != 0)
    return std::nullopt;
  return text;
}

BenchEnvironment environment_of(int device, int devices) {
  BenchEnvironment environment;
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  environment.gpu = properties.name;
  environment.driver = driver_version();
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  environment.cuda = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  check(ncclGetVersion(&version), "ncclGetVersion");
  environment.nccl = std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
                     std::to_string(version % 100);
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) == 0) environment.host = host;
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
  const double other = quantile(measured.other_us, 0.5).value_or(0);
  std::printf("%12s  NCCL %10.1f us  %s %10.1f us  ratio %5.2f  error %.3f  ranks %s  %zu pairs\n",
              format_bytes(measured.bytes).c_str(), nccl, measured.intercepted ? "Echo" : "NCCL again", other,
              nccl / other, measured.relative_error, measured.bytes_equal ? "equal" : "DIFFER",
              measured.nccl_us.size());
}

int run(const BenchOptions& options, const RankPlace& place, const std::vector<std::string>& command) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  const int device = place.local_rank % devices;
  check(cudaSetDevice(device), "cudaSetDevice");
  const auto id = agree_on_id(place, std::getenv("ECHO_TP_RENDEZVOUS"));
  if (!id) fail("rendezvous", id.error().text());
  ncclComm_t communicator = nullptr;
  check(ncclCommInitRank(&communicator, place.ranks, *id, place.rank), "ncclCommInitRank");
  std::vector<BenchMeasurement> measurements;
  {
    Bench bench(options, place, communicator);
    for (const std::int64_t bytes : options.sizes) {
      measurements.push_back(bench.measure(bytes));
      if (place.rank == 0) print_line(measurements.back());
    }
  }
  check(ncclCommDestroy(communicator), "ncclCommDestroy");
  const bool equal =
      std::all_of(measurements.begin(), measurements.end(), [](const auto& m) { return m.bytes_equal; });
  const bool any =
      std::any_of(measurements.begin(), measurements.end(), [](const auto& m) { return m.intercepted; });
  if (place.rank == 0) {
    const auto document = bench_document(measurements, environment_of(device, devices), command,
                                         options.label, options.dtype, place.ranks);
    if (!document) fail("cost table", document.error().text());
    if (const Status written = write_text_file(options.output, *document); !written)
      fail("cost table", written.error().text());
    if (!equal)
      std::fprintf(stderr, "echo-tp-bench-worker: ranks held different bytes after an all-reduce\n");
    if (!any)
      std::fprintf(stderr,
                   "echo-tp-bench-worker: nothing was intercepted: every result is NCCL's own, bit by bit\n");
  }
  return !equal ? 1 : !any ? 3 : 0;
}

}  // namespace
}  // namespace echotp

int main(int argc, char** argv) {
  using namespace echotp;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto place = rank_place();
  if (!place) {
    std::fprintf(stderr, "echo-tp-bench-worker: %s\n", place.error().text().c_str());
    return 2;
  }
  g_rank = place->rank;
  auto options = read_bench_options(argc, argv);
  // A label that is no JSON must fail before the measurement, not after it.
  if (options && !options->help) {
    const auto trial = bench_document({}, {}, {}, options->label, options->dtype, place->ranks);
    if (!trial) options = trial.error();
  }
  if (!options) {
    if (place->rank == 0) std::fprintf(stderr, "echo-tp-bench-worker: %s\n", options.error().text().c_str());
    return 2;
  }
  if (options->help) {
    if (place->rank == 0) std::fputs(bench_usage().c_str(), stdout);
    return 0;
  }
  return run(*options, *place, {argv, argv + argc});
}
