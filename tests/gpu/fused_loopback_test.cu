// SPDX-License-Identifier: Apache-2.0
// The fused kernel against the scalar reference, bit for bit, with all ranks in one cooperative launch:
// types, sizes, wrap of the counts, graphs, staged and fused calls on one state; then the same under stalls
// at every point, and builds with a part of the protocol missing, which have to be caught. Exits with 77
// where there is no GPU.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/fused_variants.hpp"
#include "tests/gpu/inputs.hpp"
#include "tests/gpu/virtual_ranks.hpp"

using namespace echotp;
using namespace echotp::test;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Who is held up where, and for how long. -1: everyone.
struct Stall {
  int point = 0;
  int rank = -1;
  int warp = -1;       // of a lane
  unsigned every = 1;  // only in chunks of which this divides the number
  unsigned ns = 0;
};
__device__ Stall stall;

/// The kernel with stalls.
struct StallHooks : echotp::device::NoHooks {
  static __device__ void at(echotp::device::FusedPoint point, int rank, int /*lane*/, std::uint32_t chunk) {
    if (stall.ns == 0 || static_cast<int>(point) != stall.point || chunk % stall.every != 0) return;
    if (stall.rank >= 0 && stall.rank != rank) return;
    if (stall.warp >= 0 && static_cast<int>(threadIdx.x / 32 % 4) != stall.warp) return;
    const std::uint64_t begin = echotp::device::clock_ns();
    while (echotp::device::clock_ns() - begin < stall.ns) {
    }
  }
};
/// A slot is filled again without waiting for its reader.
struct OneSlot : StallHooks {
  static constexpr int kSlots = 1;
};
/// Flags are stored before all warps have stored their codes.
struct NoBarrier : StallHooks {
  static constexpr bool kBarrier = false;
};

/// Flags may overtake the codes that they announce.
struct NoFence : StallHooks {
  static constexpr bool kFence = false;
};

template <class Hooks>
constexpr auto kHooked = echotp::device::fused_kernel<DataType::kBf16, echotp::device::Memory::kDual,
                                                      StateFormat::kInt8, true, Hooks>;

/// Launches the default variant of the kernel with hooks.
template <class Hooks>
void launch_hooked(const std::vector<FusedArgs>& args) {
  must(echotp::device::prepare_fused_kernel(kHooked<Hooks>), "prepare");
  echotp::device::FusedLaunch launch =
      echotp::device::make_fused_launch(args.data(), static_cast<int>(args.size()));
  must(echotp::device::launch_fused_kernel(kHooked<Hooks>, launch, static_cast<int>(args.size()), nullptr),
       "launch");
}

void set_stall(const Stall& wanted) {
  must(cudaMemcpyToSymbol(stall, &wanted, sizeof wanted), "stall");
}

ReferenceSetup default_setup(int ranks, std::int64_t count) {
  ReferenceSetup setup;
  setup.ranks = ranks;
  setup.capacity = tile_count(count) * kTileElements;
  return setup;
}

/// All element types, groups, modes and formats, over consecutive calls of changing sizes and shapes; some of
/// them staged.
void test_matrix(Tally& tally, Inputs& inputs) {
  int number = 0;
  for (DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    for (int group : {32, 64, 128}) {
      for (int variant = 0; variant < 13; ++variant, ++number) {
        ReferenceSetup setup;
        setup.ranks = number % 7 + 2;
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
        setup.capacity = (tile_count(largest) - (number % 3 == 1 ? 2 : 0)) * kTileElements;
        VirtualRanks ranks(setup, largest);
        ranks.make_windows(1 + number % 2);
        const std::int64_t sizes[] = {largest, 1, 2049, 31,   33,   255,  4097, 257,
                                      2047,    7, 2048, 4095, 1000, 4096, 32,   largest - 4097};
        for (int call = 0; call < 12; ++call) {
          const std::int64_t count =
              call == 0 || call % 5 == 1 ? largest : sizes[(call * 7 + number) % std::size(sizes)];
          CallShape shape;
          shape.send_offset = call % 3 == 1 ? static_cast<int>(inputs.random() % 8) : 0;
          shape.recv_offset = call % 4 == 1 ? static_cast<int>(inputs.random() % 8) : 0;
          shape.in_place = call % 5 == 2;
          if (call == 7) ranks.set_bits(8, 8);
          if (call == 8) ranks.set_bits(setup.codec.first_leg_bits, setup.codec.bits);
          ranks.use_fused(call % 4 != 3);
          const std::string name =
              describe(setup) + " call " + std::to_string(call) + " count " + std::to_string(count);
          if (!ranks.call(tally, name, inputs.make(setup, count, call % 3 == 2), call == 0 || call == 9,
                          shape))
            break;
        }
        tally.check(ranks.counters().nonfinite_groups == ranks.reference().nonfinite_groups(),
                    describe(setup) + ": non-finite groups counted once");
      }
    }
  }
}

/// Messages that go round the slots of every lane many times, and counts that wrap.
void test_many_chunks(Tally& tally, Inputs& inputs) {
  for (int ranks : {2, 3, 4, 8}) {
    const std::int64_t count = 1'000'000 + 777 * ranks;
    ReferenceSetup setup = default_setup(ranks, count);
    setup.dtype = ranks == 3 ? DataType::kFp16 : DataType::kBf16;
    VirtualRanks all(setup, count);
    all.make_windows(ranks == 2 ? 1 : 2, 0xFFFFFFF9u);
    all.use_fused(true);
    for (int call = 0; call < 4; ++call) {
      all.call(tally, describe(setup) + " many chunks, call " + std::to_string(call),
               inputs.make(setup, call == 2 ? 12345 : count, call == 1), call == 0,
               CallShape{0, 0, call == 3, 0}, call == 3);
    }
  }
}

void test_graph(Tally& tally, Inputs& inputs) {
  const std::int64_t count = 40 * kTileElements + 50;
  const ReferenceSetup setup = default_setup(2, count);
  VirtualRanks all(setup, count);
  all.make_windows(2);
  all.use_fused(true);
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  all.enqueue(count, true, {}, stream);
  all.enqueue(count, false, {}, stream);
  must(cudaStreamEndCapture(stream, &graph), "end capture");
  must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int replay = 0; replay < 6; ++replay) {
    const auto send = inputs.make(setup, count, false);
    all.prepare(send, {});
    must(cudaDeviceSynchronize(), "prepare");
    must(cudaGraphLaunch(executable, stream), "replay");
    must(cudaStreamSynchronize(stream), "replay");
    all.reference().call(send, true);
    all.reference().call(send, false);
    all.compare(tally, "graph replay " + std::to_string(replay), count, {}, true);
    all.call(tally, "eager call after replay " + std::to_string(replay), inputs.make(setup, 5000, false),
             false, {});
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

/// Calls a kernel with hooks under a stall at every point; counts calls whose bytes are wrong.
template <class Hooks>
int wrong_calls(Inputs& inputs, int ranks, bool stop_at_first) {
  int wrong = 0;
  const std::int64_t count = 60 * kTileElements + 99;
  const ReferenceSetup setup = default_setup(ranks, count);
  VirtualRanks all(setup, count);
  all.make_windows(1);
  Tally own;
  own.quiet = true;
  int number = 0;
  for (int point = 0; point < 5; ++point) {
    for (int warp : {-1, 0, 1, 2, 3}) {
      for (int rank : {0, ranks - 1}) {
        set_stall({point, rank, warp, 1 + static_cast<unsigned>(number) % 3, 20000});
        const auto send = inputs.make(setup, count, false);
        all.prepare(send, {});
        must(cudaDeviceSynchronize(), "prepare");
        launch_hooked<Hooks>(all.fused_args(count, true, {}));
        must(cudaDeviceSynchronize(), "stalled call");
        all.reference().call(send, true);
        const std::string name = "stall at " + std::to_string(point) + " rank " + std::to_string(rank);
        all.use_fused(true);
        wrong += all.compare(own, name, count, {}, true) ? 0 : 1;
        if (wrong != 0 && stop_at_first) return wrong;
        ++number;
      }
    }
  }
  return wrong;
}

void test_stalls(Tally& tally, Inputs& inputs) {
  for (int ranks : {2, 4, 8}) {
    const int wrong = wrong_calls<StallHooks>(inputs, ranks, false);
    tally.check(wrong == 0,
                "stalls, " + std::to_string(ranks) + " ranks: " + std::to_string(wrong) + " wrong calls");
  }
}

/// Without a part of the protocol the same stalls must show: else they prove nothing.
void test_negative_controls(Tally& tally, Inputs& inputs) {
  tally.check(wrong_calls<OneSlot>(inputs, 4, true) > 0, "one slot a source instead of three is caught");
  tally.check(wrong_calls<NoBarrier>(inputs, 4, true) > 0,
              "flags without the barrier before them are caught");
}

/// The fence orders stores of one GPU as seen by another. Within one GPU they may keep their order without
/// it, so that this is told and not judged.
void tell_of_missing_fence(Inputs& inputs) {
  std::printf("without the fence before flags: %d of 50 calls wrong\n",
              wrong_calls<NoFence>(inputs, 4, false));
}

/// A rank that does not come: the others end at the deadline, and so does every later call.
void test_deadline(Tally& tally, Inputs& inputs) {
  const std::int64_t count = 10 * kTileElements;
  const ReferenceSetup setup = default_setup(3, count);
  VirtualRanks all(setup, count);
  all.make_windows(1);
  all.deadline_ns = 50'000'000;
  all.prepare(inputs.make(setup, count, false), {});
  set_stall({0, 1, -1, 1, 400'000'000});
  const auto start = Clock::now();
  launch_hooked<StallHooks>(all.fused_args(count, true, {}));
  must(cudaDeviceSynchronize(), "deadline");
  tally.check(seconds_since(start) < 2, "the deadline ends the kernel");
  tally.check(all.status(0).failure == static_cast<std::uint32_t>(FusedFailure::kDeadline) &&
                  all.status(0).rank == 0 && all.status(0).peer == 1 && all.status(0).leg == 0,
              "rank 0 reports that it waited for rank 1's codes");
  set_stall({});
  const auto again = Clock::now();
  launch_hooked<StallHooks>(all.fused_args(count, true, {}));
  must(cudaDeviceSynchronize(), "after a failure");
  tally.check(seconds_since(again) < 0.04, "later calls end at once");
}

void test_abort(Tally& tally, Inputs& inputs) {
  const std::int64_t count = 10 * kTileElements;
  const ReferenceSetup setup = default_setup(2, count);
  VirtualRanks all(setup, count);
  all.make_windows(1);
  all.deadline_ns = 60'000'000'000;
  all.prepare(inputs.make(setup, count, false), {});
  set_stall({0, 1, -1, 1, 300'000'000});
  const auto start = Clock::now();
  launch_hooked<StallHooks>(all.fused_args(count, true, {}));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int rank : {0, 1}) *static_cast<volatile std::uint32_t*>(&all.status(rank).abort) = 1;
  must(cudaDeviceSynchronize(), "abort");
  tally.check(seconds_since(start) < 5, "the abort word ends the kernel");
  tally.check(all.status(0).failure == static_cast<std::uint32_t>(FusedFailure::kAborted),
              "rank 0 reports the abort");
  set_stall({});
}

void test_arguments(Tally& tally) {
  const ReferenceSetup setup = default_setup(2, 5000);
  VirtualRanks all(setup, 5000);
  all.make_windows(1);
  const auto refused = [&](const char* what, cudaError_t want, auto change) {
    std::vector<FusedArgs> args = all.fused_args(5000, true, {});
    change(args[0]);
    tally.check(launch_fused(args[0], nullptr) == want, std::string("refused: ") + what);
  };
  refused("9 ranks", cudaErrorInvalidValue, [](FusedArgs& a) { a.layout.ranks = 9; });
  refused("rank 2 of 2", cudaErrorInvalidValue, [](FusedArgs& a) { a.rank = 2; });
  refused("codes wider than the window's", cudaErrorInvalidValue, [](FusedArgs& a) {
    a.layout.bits = 4;
    a.codec.bits = 8;
  });
  refused("no window", cudaErrorInvalidValue, [](FusedArgs& a) { a.windows[1] = nullptr; });
  refused("crooked window", cudaErrorMisalignedAddress, [](FusedArgs& a) { a.windows[1] += 8; });
  refused("no deadline", cudaErrorInvalidValue, [](FusedArgs& a) { a.deadline_ns = 0; });
  refused("no progress", cudaErrorInvalidValue, [](FusedArgs& a) { a.progress = nullptr; });
  std::vector<FusedArgs> args = all.fused_args(5000, true, {});
  args[1].count = 4999;
  tally.check(launch_fused_loopback(args.data(), nullptr) == cudaErrorInvalidValue,
              "refused: counts that differ");
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> wanted(argv + 1, argv + argc);
  const auto unpoisoned = std::find(wanted.begin(), wanted.end(), "--unpoisoned");
  if (unpoisoned != wanted.end()) {
    VirtualRanks::poison_windows = false;
    wanted.erase(unpoisoned);
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no GPU\n");
    return 77;
  }
  must(cudaSetDevice(0), "cudaSetDevice");
  must(load_staged_kernels(), "load_staged_kernels");
  must(load_fused_kernels(), "load_fused_kernels");
  std::printf("%d resident CTAs\n", fused_resident_ctas());
  Tally tally;
  Inputs inputs;
  const auto run = [&](const char* name, auto test) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) return;
    const auto start = Clock::now();
    const int passed = tally.passed;
    const int failed = tally.failed;
    test();
    std::printf("%s %-17s %d passed, %d failed, %.1f s\n", tally.failed == failed ? "PASS" : "FAIL", name,
                tally.passed - passed, tally.failed - failed, seconds_since(start));
    std::fflush(stdout);
  };
  run("arguments", [&] { test_arguments(tally); });
  run("matrix", [&] { test_matrix(tally, inputs); });
  run("many chunks", [&] { test_many_chunks(tally, inputs); });
  run("graph", [&] { test_graph(tally, inputs); });
  run("stalls", [&] { test_stalls(tally, inputs); });
  run("negative controls", [&] { test_negative_controls(tally, inputs); });
  run("missing fence", [&] { tell_of_missing_fence(inputs); });
  run("deadline", [&] { test_deadline(tally, inputs); });
  run("abort", [&] { test_abort(tally, inputs); });
  std::printf("%d passed, %d failed\n", tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 1;
}
