// SPDX-License-Identifier: Apache-2.0
// Measures the staged kernels against the copy bandwidth of the same GPU in the same run: time, bytes that a
// kernel cannot avoid moving, GB/s, and the share of what a plain copy of as many bytes reaches. Prints a
// table, writes JSON to argv[1].
//
// Bytes an element: quantise 2 + first + state, reduce 4 + (ranks-1)*first + second + state, decode 2 +
// second, with first and second = 0.5625 (4 bits, group 32) or 1.0625 (8 bits) and state = 2 * (estimates *
// entry size
// + unit size / 32); quantise and decode work on the (ranks-1)/ranks of the message that others own, reduce
// on the rest.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/launch.hpp"
#include "tests/gpu/virtual_ranks.hpp"

using namespace echotp;
using namespace echotp::test;

namespace {

constexpr int kSamples = 25;
constexpr std::size_t kRotatedBytes = 512u << 20;  // several times any L2

__global__ void fill_kernel(std::uint16_t* out, std::int64_t count, std::uint32_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    std::uint64_t h =
        static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9ull;
    h ^= h >> 32;
    out[i] = static_cast<std::uint16_t>(0x3F00u | (h & 0x80FFu));
  }
}

__global__ void __launch_bounds__(256) copy_kernel(uint4* to, const uint4* from, std::int64_t vectors) {
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * 1024 + threadIdx.x;
  uint4 values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (base + i * 256 < vectors) values[i] = from[base + i * 256];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (base + i * 256 < vectors) to[base + i * 256] = values[i];
  }
}

struct Timing {
  double median_us = 0, p10_us = 0, p90_us = 0;
};

/// Time of one launch, from batches of `sets` launches that rotate over as many buffers.
Timing measure(int sets, const std::function<void(int)>& launch_one) {
  cudaEvent_t start, stop;
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&stop), "event");
  std::vector<double> samples;
  for (int sample = -3; sample < kSamples; ++sample) {
    must(cudaEventRecord(start), "record");
    for (int set = 0; set < sets; ++set) launch_one(set);
    must(cudaEventRecord(stop), "record");
    must(cudaEventSynchronize(stop), "synchronise");
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, start, stop), "elapsed");
    if (sample >= 0) samples.push_back(milliseconds * 1e3 / sets);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(samples.begin(), samples.end());
  return {samples[kSamples / 2], samples[kSamples / 10], samples[kSamples - 1 - kSamples / 10]};
}

/// Bandwidth of a plain copy that reads and writes `bytes` in total: the better of our own kernel and
/// cudaMemcpyAsync.
double copy_gbs(double bytes) {
  const auto half = static_cast<std::size_t>(bytes / 2) / 16 * 16;
  const int sets = static_cast<int>(kRotatedBytes / (2 * half)) + 2;
  std::vector<DeviceBuffer> from, to;
  for (int i = 0; i < sets; ++i) from.emplace_back(half), to.emplace_back(half);
  for (DeviceBuffer& buffer : from) {
    fill_kernel<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(buffer.data()),
                               static_cast<std::int64_t>(half / 2), 7);
  }
  const auto vectors = static_cast<std::int64_t>(half / 16);
  const Timing kernel = measure(sets, [&](int set) {
    copy_kernel<<<static_cast<unsigned>((vectors + 1023) / 1024), 256>>>(
        reinterpret_cast<uint4*>(to[set].data()), reinterpret_cast<const uint4*>(from[set].data()), vectors);
  });
  const Timing engine = measure(sets, [&](int set) {
    must(cudaMemcpyAsync(to[set].data(), from[set].data(), half, cudaMemcpyDeviceToDevice), "copy");
  });
  return 2.0 * static_cast<double>(half) / std::min(kernel.median_us, engine.median_us) * 1e-3;
}

struct Config {
  const char* name;
  Compensation compensation;
  Codec codec = {};
};

/// Buffers of one rotation.
struct Set {
  DeviceBuffer send, recv, outbox, inbox, gathered, fast, slow, unit;
  Set(std::int64_t count, std::size_t wire, std::size_t entry)
      : send(count * 2),
        recv(count * 2),
        outbox(wire),
        inbox(wire),
        gathered(wire),
        fast(count * entry),
        slow(count * entry),
        unit(count / 16) {}
};

class Report {
 public:
  explicit Report(const char* path) : path_(path) {}

  void add(std::int64_t bytes, int ranks, const char* mode, const char* kernel, const Timing& time,
           double moved, double copy, double peak) {
    const double gbs = moved / time.median_us * 1e-3;
    std::printf(
        "%4lld MB  P=%d  %-10s %-8s %8.1f us (p10 %.1f, p90 %.1f)  %7.1f MB  %6.0f GB/s  %5.1f%% of copy "
        "(%.0f)  %5.1f%% of peak copy\n",
        static_cast<long long>(bytes >> 20), ranks, mode, kernel, time.median_us, time.p10_us, time.p90_us,
        moved / 1e6, gbs, 100 * gbs / copy, copy, 100 * gbs / peak);
    std::fflush(stdout);
    char line[512];
    std::snprintf(
        line, sizeof line,
        "%s{\"bytes\":%lld,\"ranks\":%d,\"mode\":\"%s\",\"kernel\":\"%s\",\"median_us\":%.3f,\"p10_us\":%.3f,"
        "\"p90_us\":%.3f,\"moved_bytes\":%.0f,\"achieved_gbs\":%.1f,\"copy_gbs\":%.1f,\"ratio\":%.4f}",
        entries_.empty() ? "" : ",\n    ", static_cast<long long>(bytes), ranks, mode, kernel, time.median_us,
        time.p10_us, time.p90_us, moved, gbs, copy, gbs / copy);
    entries_ += line;
  }

  bool write(const char* gpu, double peak) const {
    if (path_ == nullptr) return true;
    const std::string temporary = std::string(path_) + ".tmp";
    std::FILE* file = std::fopen(temporary.c_str(), "w");
    if (file == nullptr) return false;
    std::fprintf(file,
                 "{\n  \"schema\": \"echo-tp/kernel-bandwidth/1\",\n  \"gpu\": \"%s\",\n  \"samples\": %d,\n"
                 "  \"peak_copy_gbs\": %.1f,\n  \"entries\": [\n    %s\n  ]\n}\n",
                 gpu, kSamples, peak, entries_.c_str());
    return std::fclose(file) == 0 && std::rename(temporary.c_str(), path_) == 0;
  }

 private:
  const char* path_;
  std::string entries_;
};

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no GPU\n");
    return 77;
  }
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  must(load_staged_kernels(), "load_staged_kernels");
  const double peak = copy_gbs(2.0 * (512u << 20));
  std::printf("%s: copy of 512 MB: %.0f GB/s\n", properties.name, peak);

  const Compensation ef = {CompensationMode::kBoth, 1.0f, 0.0f, 0.0f, 0.9f, StateFormat::kInt8};
  const Compensation dual = {CompensationMode::kBoth, 0.9f, 0.0f, 0.1f, 0.9f, StateFormat::kInt8};
  const auto with = [](Compensation c, StateFormat format) {
    c.state = format;
    return c;
  };
  const Config configs[] = {
      {"none", {CompensationMode::kNone, 1.0f, 0.0f, 0.0f, 0.9f, StateFormat::kInt8}},
      {"ef int8", ef},
      {"dual int8", dual},
      {"8+4 owner", {CompensationMode::kOwner, 0.9f, 0.0f, 0.1f, 0.9f, StateFormat::kInt8}, {4, 32, 8}},
      {"ef fp32", with(ef, StateFormat::kFp32)},
      {"dual fp32", with(dual, StateFormat::kFp32)}};
  Report report(argc > 1 ? argv[1] : nullptr);
  for (const std::int64_t bytes : {std::int64_t{64} << 20, std::int64_t{256} << 20}) {
    for (const int ranks : {2, 4, 8}) {
      for (const Config& config : configs) {
        const std::int64_t count = bytes / 2;
        const Codec codec = config.codec;
        const std::int64_t first_leg = segment_bytes(count, ranks, codec, Leg::kFirst);
        const std::int64_t second_leg = segment_bytes(count, ranks, codec, Leg::kSecond);
        const bool compensated = config.compensation.mode != CompensationMode::kNone;
        const std::size_t entry = config.compensation.state == StateFormat::kFp32 ? 4 : 1;
        const double first = static_cast<double>(tile_bytes(codec, Leg::kFirst)) / kTileElements;
        const double second = static_cast<double>(tile_bytes(codec, Leg::kSecond)) / kTileElements;
        const int estimates = config.compensation.b != 0.0f ? 2 : 1;
        const double unit = config.compensation.state == StateFormat::kFp32 ? 0.0 : 2.0 / codec.group;
        const double state = compensated ? 2 * (estimates * static_cast<double>(entry) + unit) : 0.0;
        const double own = static_cast<double>(count) / ranks;
        const double other = static_cast<double>(count) - own;
        const double sender_state = config.compensation.mode == CompensationMode::kBoth ? state : 0.0;
        const double moved[3] = {other * (2 + first + sender_state),
                                 own * (4 + (ranks - 1) * first + second + state), other * (2 + second)};

        std::vector<Set> buffers;
        std::vector<StagedArgs> args;
        const int sets =
            static_cast<int>(static_cast<double>(kRotatedBytes) / *std::min_element(moved, moved + 3)) + 2;
        for (int i = 0; i < sets; ++i) {
          Set& set = buffers.emplace_back(count, static_cast<std::size_t>(first_leg * ranks),
                                          compensated ? entry : 0);
          fill_kernel<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(set.send.data()), count,
                                     static_cast<std::uint32_t>(i));
          StagedArgs a;
          a.send = set.send.data();
          a.recv = set.recv.data();
          a.count = count;
          a.ranks = ranks;
          a.compensation = config.compensation;
          a.codec = codec;
          a.pass_start = true;
          a.outbox = set.outbox.data();
          a.inbox = set.inbox.data();
          a.gathered = set.gathered.data();
          if (compensated) {
            a.state = {set.fast.data(), set.slow.data(), reinterpret_cast<std::uint16_t*>(set.unit.data()),
                       count};
          }
          must(launch_quantise(a, nullptr), "quantise");
          // Valid payloads for the other phases: what this rank would send stands in for what it would get.
          must(cudaMemcpy(set.inbox.data(), set.outbox.data(), static_cast<std::size_t>(first_leg * ranks),
                          cudaMemcpyDeviceToDevice),
               "copy");
          must(launch_reduce(a, nullptr), "reduce");
          // Only decoded without compensation, where both legs have the same layout.
          must(cudaMemcpy(set.gathered.data() + second_leg, set.outbox.data() + first_leg,
                          static_cast<std::size_t>(second_leg * (ranks - 1)), cudaMemcpyDeviceToDevice),
               "copy");
          a.pass_start = false;
          args.push_back(a);
        }
        must(cudaDeviceSynchronize(), "set up");
        const char* names[3] = {"quantise", "reduce", "decode"};
        for (int phase = 0; phase < 3; ++phase) {
          if (phase == 2 && compensated) continue;  // decoding does not depend on the mode
          const Timing time = measure(sets, [&](int set) {
            must(phase == 0   ? launch_quantise(args[set], nullptr)
                 : phase == 1 ? launch_reduce(args[set], nullptr)
                              : launch_decode(args[set], nullptr),
                 names[phase]);
          });
          report.add(bytes, ranks, config.name, names[phase], time, moved[phase], copy_gbs(moved[phase]),
                     peak);
        }
      }
    }
  }
  if (!report.write(properties.name, peak)) {
    std::printf("%s: cannot be written\n", argv[1]);
    return 1;
  }
  return 0;
}
