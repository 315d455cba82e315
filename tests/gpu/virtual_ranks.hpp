// SPDX-License-Identifier: Apache-2.0
// P ranks of the collective in one process on one GPU, with the staged kernels (every rank has its own
// buffers, and copies from outbox rows to inbox rows stand in for the wire) or with the fused one. Compares
// everything with the scalar reference bit for bit.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/fused.hpp"
#include "kernels/launch.hpp"
#include "kernels/reference.hpp"

namespace echotp::test {

/// Counts what was checked and prints what failed.
struct Tally {
  int passed = 0;
  int failed = 0;
  bool quiet = false;

  bool check(bool good, const std::string& what) {
    (good ? passed : failed)++;
    if (!good && !quiet && failed <= 40) std::printf("FAIL %s\n", what.c_str());
    return good;
  }
};

inline void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("FAIL %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

/// Device memory that frees itself.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes = 0) : bytes_(bytes) {
    if (bytes != 0) must(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }
  std::size_t bytes() const { return bytes_; }
  void fill(int value) { must(cudaMemset(data_, value, bytes_), "cudaMemset"); }
  template <class T>
  void upload(const std::vector<T>& host) {
    if (!host.empty())
      must(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  template <class T>
  std::vector<T> download(std::size_t count) const {
    std::vector<T> host(count);
    if (count != 0)
      must(cudaMemcpy(host.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return host;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// How a call is made; results must not depend on any of it.
struct CallShape {
  int send_offset = 0;     // elements by which send is off 16-byte alignment
  int recv_offset = 0;     // the same for recv; ignored in place
  bool in_place = false;   // recv = send
  std::int64_t chunk = 0;  // elements a chunk, a multiple of ranks * kTileElements; 0: all at once
};

class VirtualRanks {
 public:
  VirtualRanks(const ReferenceSetup& setup, std::int64_t largest, bool null_state = false)
      : setup_(setup), reference_(setup), null_state_(null_state) {
    constexpr Codec kLargest{.bits = 8, .group = 32, .first_leg_bits = 8};
    const auto wire =
        static_cast<std::size_t>(segment_bytes(largest, setup.ranks, kLargest, Leg::kFirst) * setup.ranks);
    const std::size_t user = static_cast<std::size_t>((largest + 2 * kGuard) * element_bytes(setup.dtype));
    const auto state = static_cast<std::size_t>(setup.capacity) * state_entry_bytes();
    const auto channels = static_cast<std::size_t>(setup.compensation.channels);
    must(cudaHostAlloc(&counters_, sizeof(DeviceCounters), cudaHostAllocMapped), "cudaHostAlloc");
    *counters_ = {};
    for (int p = 0; p < setup.ranks; ++p) {
      send_.emplace_back(user);
      recv_.emplace_back(user);
      outbox_.emplace_back(wire + kWireGuard);
      inbox_.emplace_back(wire + kWireGuard);
      gathered_.emplace_back(wire + kWireGuard);
      fast_.emplace_back(state);
      slow_.emplace_back(state);
      unit_.emplace_back(static_cast<std::size_t>(setup.capacity / setup.codec.group) * 2);
      estimate_.emplace_back(2 * channels * sizeof(float));
      sum_.emplace_back(2 * channels * sizeof(float));
      tokens_.emplace_back(2 * channels * sizeof(std::uint32_t));
      error_.emplace_back(channels == 0 ? 0
                                        : static_cast<std::size_t>(tile_count(largest) * kTileElements) * 4);
      if (channels != 0) {
        estimate_[p].fill(0);  // zero once, as the state store does it
        sum_[p].fill(0xEE), tokens_[p].fill(0xEE), error_[p].fill(0xEE);
      }
      poison_state(p);
    }
  }
  ~VirtualRanks() {
    cudaFreeHost(counters_);
    cudaFreeHost(status_);
  }
  VirtualRanks(const VirtualRanks&) = delete;
  VirtualRanks& operator=(const VirtualRanks&) = delete;

  /// Changes the width of the codes from the next call on.
  void set_bits(int first_leg, int second_leg) {
    setup_.codec.first_leg_bits = first_leg;
    setup_.codec.bits = second_leg;
    reference_.set_bits(first_leg, second_leg);
  }

  /// Gives the ranks windows for the fused kernel. `chunks` have already arrived in every lane.
  void make_windows(int ctas, std::uint32_t chunks = 0) {
    layout_ = {.ranks = setup_.ranks, .ctas = ctas, .bits = 8};
    must(cudaHostAlloc(&status_, sizeof(FusedStatus) * kFusedMaxRanks, cudaHostAllocMapped), "cudaHostAlloc");
    std::fill_n(status_, kFusedMaxRanks, FusedStatus{});
    const std::vector<std::uint32_t> flags(static_cast<std::size_t>(fused_flags_bytes(layout_) / 4), chunks);
    std::vector<std::uint32_t> progress(static_cast<std::size_t>(fused_lanes(layout_)) + 1, chunks);
    progress[0] = 0;
    for (int p = 0; p < setup_.ranks; ++p) {
      windows_.emplace_back(static_cast<std::size_t>(fused_window_bytes(layout_)));
      progress_.emplace_back(progress.size() * 4);
      if (poison_windows) windows_[p].fill(0xEE);
      windows_[p].upload(flags);
      progress_[p].upload(progress);
    }
  }
  /// Calls from now on use the fused kernel, or the staged ones again. Both work on the same state.
  void use_fused(bool fused) { fused_ = fused; }

  /// Arguments of every rank for one fused call.
  std::vector<FusedArgs> fused_args(std::int64_t count, bool pass_start, const CallShape& shape) {
    std::vector<FusedArgs> all;
    for (int p = 0; p < setup_.ranks; ++p) {
      const StagedArgs staged = make_args(p, 0, count, pass_start, shape);
      FusedArgs args;
      args.send = staged.send;
      args.recv = staged.recv;
      args.count = count;
      args.rank = p;
      args.dtype = staged.dtype;
      args.codec = staged.codec;
      args.compensation = staged.compensation;
      args.post_scale = staged.post_scale;
      args.pass_start = pass_start;
      args.state = staged.state;
      args.counters = staged.counters;
      args.layout = layout_;
      for (int q = 0; q < setup_.ranks; ++q) args.windows[q] = windows_[q].data();
      args.progress = reinterpret_cast<std::uint32_t*>(progress_[p].data());
      args.status = status_ + p;
      args.deadline_ns = deadline_ns;
      all.push_back(args);
    }
    return all;
  }
  FusedStatus& status(int rank) { return status_[rank]; }
  std::uint64_t deadline_ns = 5'000'000'000;
  static inline bool poison_windows = true;

  ReferenceAllReduce& reference() { return reference_; }
  const DeviceCounters& counters() const { return *counters_; }

  /// Puts the inputs of one call into place and poisons what the call has to write.
  void prepare(const std::vector<std::vector<std::uint32_t>>& send, const CallShape& shape) {
    for (int p = 0; p < setup_.ranks; ++p) {
      send_[p].fill(0xEE);
      recv_[p].fill(0xEE);
      outbox_[p].fill(0);
      inbox_[p].fill(0xEE);
      gathered_[p].fill(0);
      upload_elements(send_[p].data() + (kGuard + shape.send_offset) * element_bytes(setup_.dtype), send[p]);
    }
  }

  /// Enqueues one call of all ranks on `stream`.
  void enqueue(std::int64_t count, bool pass_start, const CallShape& shape, cudaStream_t stream) {
    if (fused_) {
      must(launch_fused_loopback(fused_args(count, pass_start, shape).data(), stream),
           "launch_fused_loopback");
      return;
    }
    const std::int64_t chunk = shape.chunk != 0 ? shape.chunk : std::max<std::int64_t>(count, 1);
    for (std::int64_t first = 0; first < count; first += chunk) {
      const std::int64_t length = std::min(chunk, count - first);
      const std::int64_t first_leg = segment_bytes(length, setup_.ranks, setup_.codec, Leg::kFirst);
      const std::int64_t second_leg = segment_bytes(length, setup_.ranks, setup_.codec, Leg::kSecond);
      std::vector<StagedArgs> args;
      for (int p = 0; p < setup_.ranks; ++p) {
        args.push_back(make_args(p, first, length, pass_start, shape));
        args.back().message = count;
        if (!compensable(setup_.compensation, count)) args.back().state.drift = {};
      }
      for (const StagedArgs& a : args) must(launch_quantise(a, stream), "launch_quantise");
      for (int p = 0; p < setup_.ranks; ++p) {
        for (int q = 0; q < setup_.ranks; ++q) {
          if (p != q)
            copy(inbox_[p].data() + q * first_leg, outbox_[q].data() + p * first_leg, first_leg, stream);
        }
      }
      for (const StagedArgs& a : args) must(launch_reduce(a, stream), "launch_reduce");
      for (int p = 0; p < setup_.ranks; ++p) {
        for (int q = 0; q < setup_.ranks; ++q) {
          if (p != q)
            copy(gathered_[p].data() + q * second_leg, gathered_[q].data() + q * second_leg, second_leg,
                 stream);
        }
      }
      for (const StagedArgs& a : args) must(launch_decode(a, stream), "launch_decode");
    }
  }

  /// Runs one call on GPU and reference and compares everything. Returns false at the first difference.
  bool call(Tally& tally, const std::string& name, const std::vector<std::vector<std::uint32_t>>& send,
            bool pass_start, const CallShape& shape, bool compare_state = true) {
    const auto count = static_cast<std::int64_t>(send[0].size());
    prepare(send, shape);
    enqueue(count, pass_start, shape, nullptr);
    must(cudaDeviceSynchronize(), name.c_str());
    if (setup_.compensation.mode == CompensationMode::kDrift && shape.chunk != 0) {
      call_reference_in_chunks(send, pass_start, shape.chunk);
    } else {
      reference_.call(send, pass_start);
    }
    return compare(tally, name, count, shape, compare_state);
  }

  /// Compares the last call with the reference's last call.
  bool compare(Tally& tally, const std::string& name, std::int64_t count, const CallShape& shape,
               bool compare_state) {
    bool good = true;
    for (int p = 0; p < setup_.ranks; ++p) {
      const std::string rank = name + " rank " + std::to_string(p);
      // Chunks have wire layouts of their own, and so has the fused kernel: their outputs and states are
      // compared below.
      if (shape.chunk == 0 && !fused_) {
        std::vector<std::uint8_t> want = reference_.outbox(p);
        want.resize(want.size() + kWireGuard, 0);
        good &=
            equal(tally, rank + " payload and scales", outbox_[p].download<std::uint8_t>(want.size()), want);
        want = reference_.gathered();
        want.resize(want.size() + kWireGuard, 0);
        good &=
            equal(tally, rank + " reduced payload", gathered_[p].download<std::uint8_t>(want.size()), want);
      }
      good &=
          equal(tally, rank + " output", download_output(p, count, shape), expected_output(p, count, shape));
      if (compare_state) good &= compare_state_of(tally, rank, p);
    }
    joined_.clear();
    return good;
  }

 private:
  static constexpr int kGuard = 64;  // poisoned elements on both sides of the user's data
  static constexpr std::size_t kWireGuard = 256;

  /// The order in which the errors of a channel are added depends on the chunks.
  void call_reference_in_chunks(const std::vector<std::vector<std::uint32_t>>& send, bool pass_start,
                                std::int64_t chunk) {
    const auto count = static_cast<std::int64_t>(send[0].size());
    joined_.assign(send.size(), {});
    for (std::int64_t first = 0; first < count; first += chunk) {
      const std::int64_t end = std::min(count, first + chunk);
      std::vector<std::vector<std::uint32_t>> part;
      for (const auto& rank : send) part.emplace_back(rank.begin() + first, rank.begin() + end);
      reference_.call(part, pass_start, first, count);
      for (int p = 0; p < setup_.ranks; ++p) {
        const auto& output = reference_.output(p);
        joined_[p].insert(joined_[p].end(), output.begin(), output.end());
      }
    }
  }

  int state_entry_bytes() const {
    return setup_.compensation.state == StateFormat::kFp32   ? 4
           : setup_.compensation.state == StateFormat::kFp16 ? 2
                                                             : 1;
  }

  void poison_state(int p) {
    ReferenceState& state = reference_.state(p);
    std::fill(state.fast32.begin(), state.fast32.end(), 3.25f);
    std::fill(state.slow32.begin(), state.slow32.end(), -7.5f);
    std::fill(state.fast16.begin(), state.fast16.end(), std::uint16_t{0x3A00});
    std::fill(state.slow16.begin(), state.slow16.end(), std::uint16_t{0xB900});
    std::fill(state.fast8.begin(), state.fast8.end(), std::int8_t{77});
    std::fill(state.slow8.begin(), state.slow8.end(), std::int8_t{-99});
    std::fill(state.unit.begin(), state.unit.end(), std::uint16_t{0x3F10});
    fast_[p].upload(state.fast32), slow_[p].upload(state.slow32);
    fast_[p].upload(state.fast16), slow_[p].upload(state.slow16);
    fast_[p].upload(state.fast8), slow_[p].upload(state.slow8);
    unit_[p].upload(state.unit);
  }

  StagedArgs make_args(int p, std::int64_t first, std::int64_t length, bool pass_start,
                       const CallShape& shape) {
    const int size = element_bytes(setup_.dtype);
    StagedArgs args;
    std::uint8_t* send = send_[p].data() + (kGuard + shape.send_offset + first) * size;
    args.send = send;
    args.recv = shape.in_place ? send : recv_[p].data() + (kGuard + shape.recv_offset + first) * size;
    args.count = length;
    args.first = first;
    args.rank = p;
    args.ranks = setup_.ranks;
    args.dtype = setup_.dtype;
    args.codec = setup_.codec;
    args.compensation = setup_.compensation;
    args.post_scale = setup_.post_scale;
    args.pass_start = pass_start;
    args.outbox = outbox_[p].data();
    args.inbox = inbox_[p].data();
    args.gathered = gathered_[p].data();
    args.counters = counters_;
    if (!null_state_) {
      args.state.fast = fast_[p].data();
      args.state.slow = setup_.compensation.b != 0 ? slow_[p].data() : nullptr;
      args.state.unit = setup_.compensation.state == StateFormat::kFp32
                            ? nullptr
                            : reinterpret_cast<std::uint16_t*>(unit_[p].data());
      args.state.capacity = setup_.capacity;
    }
    if (setup_.compensation.mode == CompensationMode::kDrift) {
      args.state = {};
      args.state.drift = {setup_.compensation.channels, reinterpret_cast<float*>(estimate_[p].data()),
                          reinterpret_cast<float*>(sum_[p].data()),
                          reinterpret_cast<std::uint32_t*>(tokens_[p].data()),
                          reinterpret_cast<float*>(error_[p].data())};
    }
    return args;
  }

  static void copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
    must(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
         "copy");
  }

  void upload_elements(void* to, const std::vector<std::uint32_t>& bits) {
    if (setup_.dtype == DataType::kFp32) {
      must(cudaMemcpy(to, bits.data(), bits.size() * 4, cudaMemcpyHostToDevice), "upload");
      return;
    }
    std::vector<std::uint16_t> halves(bits.begin(), bits.end());
    must(cudaMemcpy(to, halves.data(), halves.size() * 2, cudaMemcpyHostToDevice), "upload");
  }

  /// The output with the guards around it.
  std::vector<std::uint8_t> download_output(int p, std::int64_t count, const CallShape& shape) const {
    const DeviceBuffer& buffer = shape.in_place ? send_[p] : recv_[p];
    return buffer.download<std::uint8_t>(
        static_cast<std::size_t>((count + 2 * kGuard) * element_bytes(setup_.dtype)));
  }
  std::vector<std::uint8_t> expected_output(int p, std::int64_t count, const CallShape& shape) const {
    const int size = element_bytes(setup_.dtype);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>((count + 2 * kGuard) * size), 0xEE);
    const std::int64_t start = kGuard + (shape.in_place ? shape.send_offset : shape.recv_offset);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto& output = joined_.empty() ? reference_.output(p) : joined_[p];
      const std::uint32_t element = output[static_cast<std::size_t>(i)];
      std::memcpy(bytes.data() + (start + i) * size, &element, static_cast<std::size_t>(size));
    }
    return bytes;
  }

  bool compare_state_of(Tally& tally, const std::string& rank, int p) {
    ReferenceState& want = reference_.state(p);
    bool good = true;
    const auto compare_array = [&](const char* what, const DeviceBuffer& got, const auto& expected) {
      using Entry = typename std::decay_t<decltype(expected)>::value_type;
      if (expected.empty()) return;
      const auto bytes = expected.size() * sizeof(Entry);
      std::vector<std::uint8_t> raw(bytes);
      std::memcpy(raw.data(), expected.data(), bytes);
      good &= equal(tally, rank + " state " + what, got.download<std::uint8_t>(bytes), raw);
    };
    compare_array("fast", fast_[p], want.fast32);
    compare_array("slow", slow_[p], want.slow32);
    compare_array("fast", fast_[p], want.fast16);
    compare_array("slow", slow_[p], want.slow16);
    compare_array("fast", fast_[p], want.fast8);
    compare_array("slow", slow_[p], want.slow8);
    compare_array("unit", unit_[p], want.unit);
    std::vector<float> estimates = want.as_sender.estimate;
    estimates.insert(estimates.end(), want.as_owner.estimate.begin(), want.as_owner.estimate.end());
    compare_array("of channels", estimate_[p], estimates);
    return good;
  }

  static bool equal(Tally& tally, const std::string& what, const std::vector<std::uint8_t>& got,
                    const std::vector<std::uint8_t>& want) {
    if (got == want) return tally.check(true, what);
    std::size_t at = 0;
    std::size_t different = 0;
    for (std::size_t i = got.size(); i-- > 0;) {
      if (got[i] != want[i]) at = i, ++different;
    }
    char text[160];
    std::snprintf(text, sizeof text, ": %zu of %zu bytes differ, first at %zu: got %02x, want %02x",
                  different, got.size(), at, got[at], want[at]);
    return tally.check(false, what + text);
  }

  ReferenceSetup setup_;
  ReferenceAllReduce reference_;
  bool null_state_;
  DeviceCounters* counters_ = nullptr;
  bool fused_ = false;
  FusedLayout layout_;
  FusedStatus* status_ = nullptr;
  std::vector<DeviceBuffer> windows_, progress_;
  std::vector<DeviceBuffer> send_, recv_, outbox_, inbox_, gathered_, fast_, slow_, unit_;
  std::vector<DeviceBuffer> estimate_, sum_, tokens_, error_;  // mode drift
  std::vector<std::vector<std::uint32_t>> joined_;             // outputs of the reference's chunks
};

}  // namespace echotp::test
