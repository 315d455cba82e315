// SPDX-License-Identifier: Apache-2.0
// Matching over ranks, wait and transfer, clocks.
#include "profiles/collectives.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "profiles/bypass.hpp"
#include "profiles/clock.hpp"
#include "synthetic_trace.hpp"

namespace echotp {
namespace {

using test::serial_job;
using test::Shape;

CollectiveSet measured(const Trace& trace, DeviceTimes& times) {
  times = recorded_times(trace, nullptr);
  CollectiveSet set = match_collectives(trace, times);
  measure_collectives(trace, times, set);
  return set;
}

// Two ranks, one call each, kernels at the given times in microseconds.
Trace two_ranks(double start0, double end0, double start1, double end1) {
  Trace trace;
  trace.names = {"ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"};
  trace.communicators.push_back({1, "", 2, {0, 1}});
  const double times[2][2] = {{start0, end0}, {start1, end1}};
  for (int rank = 0; rank < 2; ++rank) {
    Process process;
    process.host = "a";
    trace.processes.push_back(process);
    DeviceOp op;
    op.process = rank;
    op.name = 0;
    op.start_ns = std::llround(times[rank][0] * 1000);
    op.end_ns = std::llround(times[rank][1] * 1000);
    op.call = rank;
    trace.device_ops.push_back(op);
    CollectiveCall call;
    call.process = rank;
    call.communicator = 0;
    call.function = "AllReduce";
    call.bytes = 1024;
    call.sequence = 0;
    call.ops = {rank};
    trace.calls.push_back(call);
  }
  return trace;
}

TEST_CASE("wait is the last arrival minus the own, transfer the shortest duration") {
  DeviceTimes times;
  const Trace trace = two_ranks(100, 200, 160, 203);
  const CollectiveSet set = measured(trace, times);
  REQUIRE(set.rendezvous.size() == 1);
  const Rendezvous& it = set.rendezvous[0];
  CHECK(it.last_arrival_ns == 160'000);
  CHECK(it.transfer_ns == 43'000);
  CHECK_FALSE(it.partial);
  CHECK(wait_ns(it, it.arrivals[0], times) == 60'000);
  CHECK(wait_ns(it, it.arrivals[1], times) == 0);
  CHECK(set.collectives[0].dtype == "fp16");  // from the kernel's name
}

TEST_CASE("a recorder's first call may be a later one: the sequence joins, not the order") {
  Trace trace = serial_job({.ranks = 2, .layers = 5, .steps = 2}).trace();
  // Rank 1 missed its first three calls.
  int dropped = 0;
  for (std::size_t i = 0; i < trace.calls.size();) {
    if (trace.calls[i].process == 1 && dropped < 3) {
      trace.device_ops[trace.calls[i].ops[0]].call = -1;
      trace.calls.erase(trace.calls.begin() + static_cast<std::ptrdiff_t>(i));
      ++dropped;
    } else {
      ++i;
    }
  }
  DeviceTimes times;
  const CollectiveSet set = measured(trace, times);
  CHECK(set.rendezvous.size() == 10);
  int partial = 0;
  for (const Rendezvous& it : set.rendezvous) partial += it.partial;
  CHECK(partial == 3);
  for (const Rendezvous& it : set.rendezvous) {
    if (!it.partial) CHECK(it.transfer_ns == doctest::Approx(80'000).epsilon(0.001));
  }
}

TEST_CASE("without sequence numbers the ordinal of the process joins") {
  Trace trace = serial_job({.ranks = 3, .layers = 4, .steps = 2}).trace();
  for (CollectiveCall& call : trace.calls) call.sequence = -1;
  DeviceTimes times;
  const CollectiveSet set = measured(trace, times);
  CHECK(set.rendezvous.size() == 8);
  for (const Rendezvous& it : set.rendezvous) CHECK(it.arrivals.size() == 3);
}

TEST_CASE("ranks that disagree on the size are not matched") {
  Trace trace = two_ranks(100, 200, 160, 203);
  trace.calls[1].bytes = 4096;
  DeviceTimes times;
  const CollectiveSet set = measured(trace, times);
  CHECK(set.rendezvous.size() == 2);
  CHECK(set.contradictory == 1);
}

TEST_CASE("calls that share a kernel are one rendezvous and share its time by bytes") {
  Trace trace = two_ranks(100, 200, 160, 200);
  for (int rank = 0; rank < 2; ++rank) {
    CollectiveCall second = trace.calls[rank];
    second.sequence = 1;
    second.bytes = 3072;
    trace.calls.push_back(second);
  }
  DeviceTimes times;
  const CollectiveSet set = measured(trace, times);
  REQUIRE(set.rendezvous.size() == 1);
  REQUIRE(set.collectives.size() == 2);
  CHECK(set.rendezvous[0].arrivals.size() == 2);
  CHECK(set.collectives[0].share == doctest::Approx(0.25));
  CHECK(set.collectives[1].share == doctest::Approx(0.75));
}

TEST_CASE("replays of a captured call are joined launch by launch, from the right end") {
  // Rank 1's recording began one replay late.
  Trace trace = two_ranks(100, 150, 100, 150);
  trace.calls[0].captured = trace.calls[1].captured = true;
  trace.calls[0].ops.clear();
  trace.calls[1].ops.clear();
  trace.device_ops.clear();
  for (int replay = 0; replay < 4; ++replay) {
    for (int rank = 0; rank < 2; ++rank) {
      if (rank == 1 && replay == 0) continue;
      DeviceOp op;
      op.process = rank;
      op.name = 0;
      op.start_ns = 1000'000 * (replay + 1) + 10'000 * rank;
      op.end_ns = 1000'000 * (replay + 1) + 50'000;
      op.call = rank;
      trace.calls[rank].ops.push_back(static_cast<std::int32_t>(trace.device_ops.size()));
      trace.device_ops.push_back(op);
    }
  }
  DeviceTimes times;
  const CollectiveSet set = measured(trace, times);
  REQUIRE(set.rendezvous.size() == 4);
  int whole = 0;
  for (const Rendezvous& it : set.rendezvous) {
    if (it.partial) continue;
    ++whole;
    CHECK(it.transfer_ns == 40'000);
    CHECK(times.end_ns[it.arrivals[0].op] == times.end_ns[it.arrivals[1].op]);
  }
  CHECK(whole == 3);
}

TEST_CASE("sends and receives are never joined") {
  Trace trace = two_ranks(100, 200, 160, 203);
  trace.calls[0].function = "Send";
  trace.calls[1].function = "Recv";
  DeviceTimes times;
  const CollectiveSet set = measured(trace, times);
  CHECK(set.rendezvous.size() == 2);
  CHECK_FALSE(set.rendezvous[0].barrier);
}

TEST_CASE("one recorded rank: transfer is the fast calls' duration, so waiting is not credited") {
  Trace trace = serial_job({.ranks = 2, .layers = 20, .steps = 3, .jitter = 0.3}).trace();
  Trace one;
  one.names = trace.names;
  one.communicators = trace.communicators;
  one.processes = {trace.processes[0]};
  for (const CollectiveCall& call : trace.calls) {
    if (call.process != 0) continue;
    CollectiveCall mine = call;
    one.device_ops.push_back(trace.device_ops[call.ops[0]]);
    mine.ops = {static_cast<std::int32_t>(one.device_ops.size()) - 1};
    one.device_ops.back().call = static_cast<std::int32_t>(one.calls.size());
    one.calls.push_back(mine);
  }
  DeviceTimes times;
  const CollectiveSet set = measured(one, times);
  for (const Rendezvous& it : set.rendezvous) {
    CHECK(it.partial);
    CHECK(it.transfer_ns <= 81'000);
    CHECK(it.transfer_ns >= 79'000);
  }
}

TEST_CASE("a disturbed transfer is not credited beyond its class") {
  Trace trace = serial_job({.ranks = 2, .layers = 10, .steps = 3}).trace();
  DeviceTimes times = recorded_times(trace, nullptr);
  CollectiveSet set = match_collectives(trace, times);
  for (const Arrival& arrival : set.rendezvous[4].arrivals) times.end_ns[arrival.op] += 500'000;
  measure_collectives(trace, times, set);
  CHECK(set.rendezvous[4].transfer_ns > 500'000);
  CHECK(set.rendezvous[4].credited_ns == doctest::Approx(80'000).epsilon(0.01));
}

TEST_CASE("broken timestamps are left out; a collective without end gets its class' duration") {
  Trace trace = serial_job({.ranks = 2, .layers = 4, .steps = 3}).trace();
  const std::int32_t first = trace.calls[0].ops[0], second = trace.calls[2].ops[0];
  trace.device_ops[first].start_ns = trace.device_ops[first].end_ns = 0;
  trace.device_ops[second].end_ns = 0;
  trace.device_ops[0].start_ns = std::int64_t{1} << 62;
  std::int64_t invalid = 0;
  DeviceTimes times = recorded_times(trace, &invalid);
  CHECK(invalid == 3);
  const CollectiveSet set = match_collectives(trace, times);
  CHECK(set.imputed == 1);
  CHECK(times.usable(second));
  CHECK(times.end_ns[second] > times.start_ns[second]);
  CHECK_FALSE(times.usable(first));
  CHECK(set.rendezvous[0].partial);
}

TEST_CASE("another host's clock is corrected from the ends, drift too") {
  Trace trace = serial_job({.ranks = 2, .layers = 50, .steps = 40, .jitter = 0.2}).trace();
  DeviceTimes truth = recorded_times(trace, nullptr);
  trace.processes[1].host = "node1";
  for (DeviceOp& op : trace.device_ops) {
    if (op.process != 1) continue;
    op.start_ns += 7'000'000;
    op.end_ns += 7'000'000;
  }
  DeviceTimes times = recorded_times(trace, nullptr);
  const CollectiveSet set = match_collectives(trace, times);
  const ClockAlignment clocks = align_clocks(trace, times, set);
  CHECK(clocks.offset_ns[1] == doctest::Approx(7'000'000).epsilon(0.001));
  apply_alignment(trace, clocks, times);
  for (std::size_t i = 0; i < times.start_ns.size(); ++i)
    CHECK(std::abs(times.start_ns[i] - truth.start_ns[i]) < 5'000);
}

TEST_CASE("a late leaver on the same host is not taken for a wrong clock; an impossible one is") {
  for (const bool impossible : {false, true}) {
    Trace trace = serial_job({.ranks = 2, .layers = 10, .steps = 4}).trace();
    const std::int64_t shift = impossible ? 900'000 : 30'000;
    for (DeviceOp& op : trace.device_ops) {
      if (op.process != 1) continue;
      op.start_ns += shift;
      op.end_ns += shift;
    }
    DeviceTimes times = recorded_times(trace, nullptr);
    const CollectiveSet set = match_collectives(trace, times);
    const ClockAlignment clocks = align_clocks(trace, times, set);
    CHECK(clocks.pieces[1].empty() != impossible);
    CHECK(clocks.warnings.size() == 1);
  }
}

TEST_CASE("kernels that reduce without NCCL are known, mangled or not") {
  CHECK(bypass_kind("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(...)") != nullptr);
  CHECK(bypass_kind("_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li2EEEvPNS_8RankDataE") != nullptr);
  CHECK(bypass_kind("void multimem_all_reduce_kernel<...>") != nullptr);
  CHECK(bypass_kind("allreduce_fusion_kernel_oneshot_lamport") != nullptr);
  CHECK(bypass_kind("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16") != nullptr);
  CHECK(bypass_kind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL") == nullptr);
  CHECK(bypass_kind("void reduce_kernel<512, 1>") == nullptr);
}

TEST_CASE("functions are one in any spelling") {
  CHECK(is_all_reduce("AllReduce"));
  CHECK(is_all_reduce("ncclAllReduce"));
  CHECK(is_all_reduce("all_reduce"));
  CHECK_FALSE(is_all_reduce("Reduce"));
  CHECK(policy_function_name("ncclAllGather") == "all_gather");
}

}  // namespace
}  // namespace echotp
