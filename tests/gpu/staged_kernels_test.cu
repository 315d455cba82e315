// SPDX-License-Identifier: Apache-2.0
// The staged kernels against the scalar reference, bit for bit: payload, scales, outputs and state over many
// calls, with virtual ranks on one GPU. Exits with 77 where there is no GPU.
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/codec.hpp"
#include "kernels/compensator.hpp"
#include "tests/gpu/inputs.hpp"
#include "tests/gpu/virtual_ranks.hpp"

using namespace echotp;
using namespace echotp::test;

namespace {

__global__ void probe_kernel(std::uint32_t first, float* reciprocal, float* bf16_reciprocal,
                             std::uint16_t* bf16, std::uint16_t* fp16, float* clamped, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = bits_float(first + static_cast<std::uint32_t>(i) * 65521u);
  bf16[i] = float_to_bf16(x);
  fp16[i] = float_to_fp16(x);
  clamped[i] = clamp_symmetric(x, i % 2 == 0 ? 0.0f : 1.5f);
  if (i < 65536) {
    const float scale = bf16_to_float(static_cast<std::uint16_t>(i));
    reciprocal[i] = reciprocal_of_bf16(scale);
    bf16_reciprocal[i] = bf16_reciprocal_of_bf16(scale);
  }
}

/// Every operation of hd.hpp that has two implementations gives the same bits on both.
void test_arithmetic(Tally& tally) {
  const int n = 1 << 22;
  DeviceBuffer reciprocal(65536 * 4), bf16_reciprocal(65536 * 4), bf16(n * 2), fp16(n * 2), clamped(n * 4);
  int wrong_conversions = 0;
  for (std::uint32_t first : {0u, 0x12345u, 0x477FE000u}) {
    probe_kernel<<<n / 256, 256>>>(
        first, reinterpret_cast<float*>(reciprocal.data()), reinterpret_cast<float*>(bf16_reciprocal.data()),
        reinterpret_cast<std::uint16_t*>(bf16.data()), reinterpret_cast<std::uint16_t*>(fp16.data()),
        reinterpret_cast<float*>(clamped.data()), n);
    must(cudaDeviceSynchronize(), "probe_kernel");
    const auto got_bf16 = bf16.download<std::uint16_t>(n);
    const auto got_fp16 = fp16.download<std::uint16_t>(n);
    const auto got_clamped = clamped.download<float>(n);
    for (int i = 0; i < n; ++i) {
      const float x = bits_float(first + static_cast<std::uint32_t>(i) * 65521u);
      wrong_conversions +=
          got_bf16[i] != float_to_bf16(x) || got_fp16[i] != float_to_fp16(x) ||
          float_bits(got_clamped[i]) != float_bits(clamp_symmetric(x, i % 2 == 0 ? 0.0f : 1.5f));
    }
  }
  tally.check(wrong_conversions == 0,
              "conversions and clamp equal the host's: " + std::to_string(wrong_conversions) + " differ");
  const auto got = reciprocal.download<float>(65536);
  const auto got_bf16 = bf16_reciprocal.download<float>(65536);
  int wrong = 0;
  int tested = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const float x = bf16_to_float(static_cast<std::uint16_t>(i));
    if (!(std::fabs(x) >= 1e-33f && std::fabs(x) <= 0x1p126f)) continue;
    ++tested;
    wrong += float_bits(got[i]) != float_bits(1.0f / x) ||
             float_bits(got_bf16[i]) != float_bits(bf16_to_float(float_to_bf16(1.0f / x)));
  }
  tally.check(wrong == 0 && tested > 60000,
              "reciprocals of all bf16 scales, in fp32 and in bf16: " + std::to_string(wrong) + " differ");
}

/// All element types, groups, modes and state formats, over consecutive calls of changing sizes and shapes.
void test_matrix(Tally& tally, Inputs& inputs) {
  int number = 0;
  for (DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    for (int group : {32, 64, 128}) {
      for (int variant = 0; variant < 13; ++variant, ++number) {
        ReferenceSetup setup;
        setup.ranks = number % 8 + 1;
        setup.dtype = dtype;
        setup.codec.group = group;
        setup.codec.first_leg_bits = number % 4 == 1 ? 8 : 4;
        setup.codec.bits = number % 7 == 2 ? 8 : 4;
        setup.post_scale = number % 3 == 2 ? 1.0f / static_cast<float>(setup.ranks) : 1.0f;
        Compensation& how = setup.compensation;
        how.mode = variant == 12      ? CompensationMode::kNone
                   : variant % 2 == 0 ? CompensationMode::kBoth
                                      : CompensationMode::kOwner;
        how.state = static_cast<StateFormat>(variant % 3);
        if (variant >= 6) {
          how.a = 1.0f, how.bf = 0.0f, how.b = 0.0f;
        } else if (number % 2 == 0) {
          how.a = 0.75f, how.bf = 0.25f, how.b = 0.25f;
        }
        const std::int64_t largest = (setup.ranks + 1) * kTileElements + 4097;
        // The last tiles of large calls have no state in one of three runs.
        setup.capacity = (tile_count(largest) - (number % 3 == 1 ? 2 : 0)) * kTileElements;
        VirtualRanks ranks(setup, largest);
        const std::int64_t sizes[] = {largest, 1, 2049, 31,   largest - 4097, 33,      255,  4097, 257,
                                      2047,    7, 2048, 4095, 1000,           largest, 4096, 32};
        const int calls = number % 8 == 3 ? 68 : 12;
        for (int call = 0; call < calls; ++call) {
          const std::int64_t count =
              call == 0 || call % 5 == 1 ? largest : sizes[(call * 7 + number) % std::size(sizes)];
          CallShape shape;
          shape.send_offset = call % 3 == 1 ? static_cast<int>(inputs.random() % 8) : 0;
          shape.recv_offset = call % 4 == 1 ? static_cast<int>(inputs.random() % 8) : 0;
          shape.in_place = call % 5 == 2;
          const bool hostile = call % 3 == 2;
          const auto send = inputs.make(setup, count, hostile);
          const bool pass_start = call == 0 || call == 9;
          const std::string name =
              describe(setup) + " call " + std::to_string(call) + " count " + std::to_string(count);
          if (call == 7) ranks.set_bits(8, 8);  // as the last call of a pass
          if (call == 8) ranks.set_bits(setup.codec.first_leg_bits, setup.codec.bits);
          if (!ranks.call(tally, name, send, pass_start, shape)) break;
        }
        tally.check(ranks.counters().nonfinite_groups == ranks.reference().nonfinite_groups(),
                    describe(setup) + ": non-finite groups counted once: got " +
                        std::to_string(ranks.counters().nonfinite_groups) + ", want " +
                        std::to_string(ranks.reference().nonfinite_groups()));
      }
    }
  }
}

void test_sizes(Tally& tally, Inputs& inputs) {
  // Every size around the places where something changes, without and with state.
  for (int ranks : {1, 2, 3, 5}) {
    ReferenceSetup setup;
    setup.ranks = ranks;
    setup.capacity = 4 * kTileElements;
    VirtualRanks all(setup, 8192);
    bool first = true;
    for (std::int64_t count = 1; count <= 4097; count += count < 40                             ? 1
                                                         : count % 256 > 252 || count % 256 < 3 ? 1
                                                                                                : 83) {
      if (!all.call(tally, "size " + std::to_string(count) + " ranks " + std::to_string(ranks),
                    inputs.make(setup, count, false), first,
                    CallShape{static_cast<int>(count % 5 == 0), static_cast<int>(count % 7 == 0), false, 0},
                    count % 50 == 1)) {
        break;
      }
      first = false;
    }
  }
  // Some megabytes.
  for (int kind = 0; kind < 3; ++kind) {
    ReferenceSetup setup;
    setup.ranks = kind == 0 ? 2 : kind == 1 ? 4 : 3;
    setup.dtype = static_cast<DataType>(kind);
    setup.codec.group = 32 << kind;
    setup.compensation.state = static_cast<StateFormat>(2 - kind);
    const std::int64_t count = 1200000 + 12345 * kind;
    setup.capacity = tile_count(count) * kTileElements;
    VirtualRanks all(setup, count);
    for (int call = 0; call < 3; ++call) {
      all.call(tally, describe(setup) + " megabytes, call " + std::to_string(call),
               inputs.make(setup, count, call == 1), call == 0, CallShape{0, 0, call == 2, 0}, call == 2);
    }
  }
}

void test_chunks(Tally& tally, Inputs& inputs) {
  // 12 ranks: more peers than the reduce kernel fetches ahead.
  for (int ranks : {2, 3, 8, 12}) {
    ReferenceSetup setup;
    setup.ranks = ranks;
    setup.compensation.state = ranks == 3 ? StateFormat::kFp16 : StateFormat::kInt8;
    const std::int64_t row = ranks * kTileElements;
    const std::int64_t count = 5 * row + 1234;
    setup.capacity = tile_count(count) * kTileElements;
    VirtualRanks all(setup, count);
    for (int call = 0; call < 4; ++call) {
      if (call == 1) all.set_bits(8, 4);
      if (call == 3) all.set_bits(4, 4);
      CallShape shape;
      shape.chunk = (call + 1) * row;
      shape.in_place = call == 3;
      shape.send_offset = call == 2;
      all.call(tally, describe(setup) + " in chunks, call " + std::to_string(call),
               inputs.make(setup, count, call == 1), call == 0, shape);
    }
  }
}

void test_without_state(Tally& tally, Inputs& inputs) {
  ReferenceSetup setup;
  setup.ranks = 3;
  setup.capacity = 0;
  VirtualRanks all(setup, 20000, true);
  for (int call = 0; call < 3; ++call) {
    all.call(tally, "mode both without state, call " + std::to_string(call), inputs.make(setup, 20000, false),
             call == 0, {});
  }
}

void test_graph(Tally& tally, Inputs& inputs) {
  ReferenceSetup setup;
  setup.ranks = 2;
  const std::int64_t count = 3 * kTileElements + 50;
  setup.capacity = tile_count(count) * kTileElements;
  VirtualRanks all(setup, count);
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  all.enqueue(count, true, {}, stream);
  all.enqueue(count, false, {}, stream);
  must(cudaStreamEndCapture(stream, &graph), "end capture");
  must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int replay = 0; replay < 4; ++replay) {
    const auto send = inputs.make(setup, count, false);
    all.prepare(send, {});
    must(cudaDeviceSynchronize(), "prepare");
    must(cudaGraphLaunch(executable, stream), "replay");
    must(cudaStreamSynchronize(stream), "replay");
    all.reference().call(send, true);
    all.reference().call(send, false);
    all.compare(tally, "graph replay " + std::to_string(replay), count, {}, true);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

/// Estimates of channels, over calls of changing sizes, shapes and chunks, and over passes.
void test_drift(Tally& tally, Inputs& inputs) {
  const struct {
    int channels, group;
  } widths[] = {{32, 32}, {96, 32}, {1024, 128}, {2048, 64}, {5120, 128}, {4096, 32}};
  int number = 0;
  for (DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    for (const auto& width : widths) {
      for (int half = 0; half < 2; ++half, ++number) {
        ReferenceSetup setup;
        setup.ranks = number % 8 + 1;
        setup.dtype = dtype;
        setup.codec.group = width.group;
        setup.codec.first_leg_bits = number % 4 == 1 ? 8 : 4;
        setup.codec.bits = number % 7 == 2 ? 8 : 4;
        setup.compensation.mode = CompensationMode::kDrift;
        setup.compensation.channels = width.channels;
        setup.compensation.gain = number % 3 == 0 ? 1.0f : 0.5f;
        setup.post_scale = number % 5 == 3 ? 1.0f / static_cast<float>(setup.ranks) : 1.0f;
        const std::int64_t row = setup.ranks * kTileElements;
        const std::int64_t tokens = (3 * row + 4097) / width.channels + 2;
        VirtualRanks ranks(setup, tokens * width.channels);
        const int calls = number % 4 == 3 ? 68 : 16;
        for (int call = 0; call < calls; ++call) {
          std::int64_t count = (call % 4 == 3 ? 1 + call % tokens : tokens) * width.channels;
          if (call % 8 == 6) --count;  // not whole tokens: no correction, estimates stay
          CallShape shape;
          shape.send_offset = call % 3 == 1 ? static_cast<int>(inputs.random() % 8) : 0;
          shape.recv_offset = call % 4 == 1 ? static_cast<int>(inputs.random() % 8) : 0;
          shape.in_place = call % 5 == 2;
          shape.chunk = call % 6 == 4 ? row : call % 6 == 5 ? 2 * row : 0;
          const std::string name = describe(setup) + " channels " + std::to_string(width.channels) +
                                   " call " + std::to_string(call) + " count " + std::to_string(count);
          const auto send = inputs.make(setup, count, call % 3 == 2);
          if (!ranks.call(tally, name, send, call % 5 == 0, shape)) break;
        }
        tally.check(ranks.counters().nonfinite_groups == ranks.reference().nonfinite_groups(),
                    describe(setup) + ": non-finite groups counted once");
      }
    }
  }
  // Not in captured graphs either does the state begin anew.
  ReferenceSetup setup;
  setup.ranks = 2;
  setup.compensation.mode = CompensationMode::kDrift;
  setup.compensation.channels = 256;
  const std::int64_t count = 20 * 1024;
  VirtualRanks all(setup, count);
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  all.enqueue(count, true, {}, stream);
  all.enqueue(count, false, {}, stream);
  must(cudaStreamEndCapture(stream, &graph), "end capture");
  must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int replay = 0; replay < 4; ++replay) {
    const auto send = inputs.make(setup, count, false);
    all.prepare(send, {});
    must(cudaDeviceSynchronize(), "prepare");
    must(cudaGraphLaunch(executable, stream), "replay");
    must(cudaStreamSynchronize(stream), "replay");
    all.reference().call(send, true);
    all.reference().call(send, false);
    all.compare(tally, "drift, graph replay " + std::to_string(replay), count, {}, true);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

void test_arguments(Tally& tally) {
  DeviceBuffer memory(1 << 16);
  StagedArgs good;
  good.send = memory.data();
  good.recv = memory.data() + 8192;
  good.count = 100;
  good.ranks = 2;
  good.outbox = memory.data() + 16384;
  good.inbox = memory.data() + 24576;
  good.gathered = memory.data() + 32768;
  tally.check(launch_quantise(good, nullptr) == cudaSuccess && launch_reduce(good, nullptr) == cudaSuccess &&
                  launch_decode(good, nullptr) == cudaSuccess,
              "good arguments are taken");
  const auto refused = [&](const char* what, cudaError_t want, auto change) {
    StagedArgs args = good;
    change(args);
    tally.check(launch_reduce(args, nullptr) == want, std::string("refused: ") + what);
  };
  refused("group 48", cudaErrorInvalidValue, [](StagedArgs& a) { a.codec.group = 48; });
  refused("5 bits", cudaErrorInvalidValue, [](StagedArgs& a) { a.codec.bits = 5; });
  refused("rank 2 of 2", cudaErrorInvalidValue, [](StagedArgs& a) { a.rank = 2; });
  refused("65 ranks", cudaErrorInvalidValue, [](StagedArgs& a) { a.ranks = 65; });
  refused("chunk in the middle of a row", cudaErrorInvalidValue, [](StagedArgs& a) { a.first = 2048; });
  refused("no inbox", cudaErrorInvalidValue, [](StagedArgs& a) { a.inbox = nullptr; });
  refused("odd wire address", cudaErrorMisalignedAddress, [](StagedArgs& a) { a.gathered += 4; });
  refused("odd element address", cudaErrorMisalignedAddress,
          [](StagedArgs& a) { a.recv = static_cast<char*>(a.recv) + 1; });
  refused("int8 state without units", cudaErrorInvalidValue, [&](StagedArgs& a) {
    a.state.fast = memory.data() + 40960;
    a.state.slow = memory.data() + 45056;
    a.state.capacity = 2048;
  });
  refused("two estimates, one array", cudaErrorInvalidValue, [&](StagedArgs& a) {
    a.state.fast = memory.data() + 40960;
    a.state.unit = reinterpret_cast<std::uint16_t*>(memory.data() + 45056);
    a.state.capacity = 2048;
  });
  const auto drifting = [&](auto change) {
    return [&, change](StagedArgs& a) {
      a.compensation.mode = CompensationMode::kDrift;
      a.count = a.message = 128;
      auto* floats = reinterpret_cast<float*>(memory.data() + 40960);
      a.state.drift = {64, floats, floats + 128, reinterpret_cast<std::uint32_t*>(floats + 256),
                       floats + 384};
      change(a);
    };
  };
  StagedArgs drift = good;
  drifting([](StagedArgs&) {})(drift);
  tally.check(launch_quantise(drift, nullptr) == cudaSuccess && launch_reduce(drift, nullptr) == cudaSuccess,
              "good arguments of mode drift are taken");
  refused("channels that cut a group", cudaErrorInvalidValue,
          drifting([](StagedArgs& a) { a.state.drift.channels = 16; }));
  refused("half a token", cudaErrorInvalidValue, drifting([](StagedArgs& a) { a.count = a.message = 96; }));
  refused("more than the message", cudaErrorInvalidValue, drifting([](StagedArgs& a) { a.count = 129; }));
  refused("no scratch for errors", cudaErrorInvalidValue,
          drifting([](StagedArgs& a) { a.state.drift.error = nullptr; }));
  StagedArgs empty;
  tally.check(launch_quantise(empty, nullptr) == cudaSuccess &&
                  launch_reduce(empty, nullptr) == cudaSuccess &&
                  launch_decode(empty, nullptr) == cudaSuccess,
              "no elements, nothing to do");
  must(cudaDeviceSynchronize(), "argument checks");
}

/// A bf16 value between 1 and 2 in magnitude that depends on the index and a seed alone.
__host__ __device__ std::uint16_t hashed_element(std::uint64_t index, std::uint32_t seed) {
  std::uint64_t h = (index + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9ull;
  h ^= h >> 32;
  return static_cast<std::uint16_t>(0x3F00u | (h & 0x80FFu));
}

__global__ void fill_kernel(std::uint16_t* out, std::int64_t count, std::uint32_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    out[i] = hashed_element(static_cast<std::uint64_t>(i), seed);
  }
}

/// More than 2^31 elements, in place, with state: sampled rows of tiles equal a small message of the same
/// elements.
void test_large(Tally& tally) {
  const std::int64_t count = (std::int64_t{1} << 31) + 5 * kTileElements + 77;
  ReferenceSetup setup;
  setup.ranks = 2;
  setup.compensation = {CompensationMode::kBoth, 1.0f, 0.0f, 0.0f, 0.9f, StateFormat::kInt8};
  const std::int64_t segment = segment_bytes(count, 2, setup.codec, Leg::kFirst);
  const std::int64_t capacity = tile_count(count) * kTileElements;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  must(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (free_bytes < 26ull << 30) {
    std::printf("SKIPPED: more than 2^31 elements (needs 26 GiB of free device memory)\n");
    return;
  }
  std::vector<DeviceBuffer> user, outbox, inbox, gathered, fast, unit;
  for (int p = 0; p < 2; ++p) {
    user.emplace_back(count * 2);
    outbox.emplace_back(2 * segment);
    inbox.emplace_back(2 * segment);
    gathered.emplace_back(2 * segment);
    fast.emplace_back(capacity);
    unit.emplace_back(capacity / 32 * 2);
  }
  const std::int64_t rows[] = {
      0, 1, 262143, 262144, 524287, 524288, 524289, tile_count(count) / 2 - 1, (tile_count(count) - 1) / 2};
  std::vector<ReferenceAllReduce> references;
  setup.capacity = 2 * kTileElements;
  for (std::size_t i = 0; i < std::size(rows); ++i) references.emplace_back(setup);
  for (int call = 0; call < 2; ++call) {
    for (int p = 0; p < 2; ++p) {
      fill_kernel<<<2048, 256>>>(reinterpret_cast<std::uint16_t*>(user[p].data()), count,
                                 static_cast<std::uint32_t>(2 * call + p));
    }
    std::vector<StagedArgs> args(2);
    for (int p = 0; p < 2; ++p) {
      StagedArgs& a = args[p];
      a.send = user[p].data();
      a.recv = user[p].data();
      a.count = count;
      a.rank = p;
      a.ranks = 2;
      a.compensation = setup.compensation;
      a.pass_start = call == 0;
      a.state = {fast[p].data(), nullptr, reinterpret_cast<std::uint16_t*>(unit[p].data()), capacity};
      a.outbox = outbox[p].data();
      a.inbox = inbox[p].data();
      a.gathered = gathered[p].data();
    }
    for (const StagedArgs& a : args) must(launch_quantise(a, nullptr), "launch_quantise");
    for (int p = 0; p < 2; ++p) {
      const std::int64_t peer = 1 - p;
      must(cudaMemcpyAsync(inbox[p].data() + peer * segment, outbox[peer].data() + p * segment, segment,
                           cudaMemcpyDeviceToDevice),
           "copy");
    }
    for (const StagedArgs& a : args) must(launch_reduce(a, nullptr), "launch_reduce");
    for (int p = 0; p < 2; ++p) {
      const std::int64_t peer = 1 - p;
      must(cudaMemcpyAsync(gathered[p].data() + peer * segment, gathered[peer].data() + peer * segment,
                           segment, cudaMemcpyDeviceToDevice),
           "copy");
    }
    for (const StagedArgs& a : args) must(launch_decode(a, nullptr), "launch_decode");
    must(cudaDeviceSynchronize(), "large call");
    for (std::size_t i = 0; i < std::size(rows); ++i) {
      const std::int64_t first = rows[i] * 2 * kTileElements;
      const std::int64_t length = std::min<std::int64_t>(2 * kTileElements, count - first);
      std::vector<std::vector<std::uint32_t>> send(2);
      for (int p = 0; p < 2; ++p) {
        for (std::int64_t e = 0; e < length; ++e) {
          send[p].push_back(hashed_element(static_cast<std::uint64_t>(first + e),
                                           static_cast<std::uint32_t>(2 * call + p)));
        }
      }
      references[i].call(send, call == 0);
      for (int p = 0; p < 2; ++p) {
        std::vector<std::uint16_t> got(static_cast<std::size_t>(length));
        must(cudaMemcpy(got.data(), user[p].data() + first * 2, got.size() * 2, cudaMemcpyDeviceToHost),
             "download");
        tally.check(std::equal(got.begin(), got.end(), references[i].output(p).begin()),
                    "2^31 elements: call " + std::to_string(call) + " row " + std::to_string(rows[i]) +
                        " rank " + std::to_string(p));
      }
    }
  }
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no GPU\n");
    return 77;
  }
  must(cudaSetDevice(0), "cudaSetDevice");
  must(load_staged_kernels(), "load_staged_kernels");
  Tally tally;
  Inputs inputs;
  const auto run = [&](const char* name, auto test) {
    const auto start = std::chrono::steady_clock::now();
    const int passed = tally.passed;
    const int failed = tally.failed;
    test();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%s %-14s %d passed, %d failed, %.1f s\n", tally.failed == failed ? "PASS" : "FAIL", name,
                tally.passed - passed, tally.failed - failed, took.count());
    std::fflush(stdout);
  };
  run("arithmetic", [&] { test_arithmetic(tally); });
  run("arguments", [&] { test_arguments(tally); });
  run("sizes", [&] { test_sizes(tally, inputs); });
  run("matrix", [&] { test_matrix(tally, inputs); });
  run("chunks", [&] { test_chunks(tally, inputs); });
  run("without state", [&] { test_without_state(tally, inputs); });
  run("drift", [&] { test_drift(tally, inputs); });
  run("graph", [&] { test_graph(tally, inputs); });
  run("large", [&] { test_large(tally); });
  std::printf("%d passed, %d failed\n", tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 1;
}
