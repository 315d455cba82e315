// SPDX-License-Identifier: Apache-2.0
// Estimates of jobs with known truth, and what is said about jobs that can't be helped.
#include "profiles/estimate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "shim/policy_json.hpp"
#include "synthetic_trace.hpp"

namespace echotp {
namespace {

using test::noise;
using test::overlapped_job;
using test::serial_job;
using test::Shape;
using test::SyntheticJob;

// A table in which NCCL takes nccl_us at 16 MiB and in proportion elsewhere, Echo `ratio` times less.
CostTable table(double ratio, double nccl_us = 80, int ranks = 4, double spread = 0.0) {
  CostTable costs;
  for (const std::int64_t bytes :
       {std::int64_t{1} << 20, std::int64_t{4} << 20, std::int64_t{16} << 20, std::int64_t{64} << 20}) {
    CostEntry entry;
    entry.ranks = ranks;
    entry.bytes = bytes;
    const double nccl = nccl_us * static_cast<double>(bytes) / (16 << 20), echo = nccl / ratio;
    entry.nccl_us = CostSpread{nccl, nccl, nccl, 50};
    entry.echo_us = CostSpread{echo, echo * (1 - spread), echo * (1 + spread), 50};
    costs.entries.push_back(entry);
  }
  return costs;
}

EstimateOptions with(CostTable costs) {
  EstimateOptions options;
  options.costs = std::move(costs);
  return options;
}

bool has_reason(const Estimate& it, const std::string& code) {
  return std::any_of(it.reasons.begin(), it.reasons.end(),
                     [&](const NoGainReason& r) { return r.code == code; });
}

bool warns(const Estimate& it, const std::string& part) {
  return std::any_of(it.warnings.begin(), it.warnings.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

TEST_CASE("serial job: the gain is that of the job run with the shorter transfer") {
  for (const double jitter : {0.0, 0.15}) {
    for (const bool host : {true, false}) {
      CAPTURE(jitter);
      CAPTURE(host);
      SyntheticJob before = serial_job({.jitter = jitter, .host_records = host});
      const SyntheticJob after =
          serial_job({.transfer_us = 80 / 2.5, .jitter = jitter, .host_records = host});
      const auto it = estimate(before.trace(), with(table(2.5)));
      REQUIRE(it);
      const double truth = before.truth_us() / after.truth_us();
      CHECK(it->gain.mid == doctest::Approx(truth).epsilon(0.01));
      CHECK(it->before_us == doctest::Approx(before.truth_us()).epsilon(0.005));
      CHECK(it->after_us.mid == doctest::Approx(after.truth_us()).epsilon(0.01));
      CHECK(it->gain.low <= it->gain.mid);
      CHECK(it->gain.mid <= it->gain.high);
      CHECK(*it->evidence == Evidence::kMeasured);
      CHECK(it->reasons.empty());
    }
  }
}

TEST_CASE("overlapped job: naive sums overstate, the replay does not") {
  const auto cover = [](int, int layer) { return 20 + 120 * noise(1, layer + 1, 5); };
  SyntheticJob before = overlapped_job({.layers = 40}, cover);
  const SyntheticJob after = overlapped_job({.layers = 40, .transfer_us = 80 / 2.5}, cover);
  const auto it = estimate(before.trace(), with(table(2.5)));
  REQUIRE(it);
  const double truth = before.truth_us() - after.truth_us();
  CHECK(it->before_us - it->after_us.mid == doctest::Approx(truth).epsilon(0.05));
  double sum_of_savings = 0, scaled_exposed = 0;
  for (const ClassEstimate& row : it->classes) {
    sum_of_savings += row.transfer_us * (1 - 1 / 2.5);
    scaled_exposed += row.exposed_us * (1 - 1 / 2.5);
  }
  CHECK(sum_of_savings > 2 * truth);
  CHECK(scaled_exposed > 0.2 * truth);
}

TEST_CASE("hidden behind compute: no gain, and the reason") {
  SyntheticJob job = overlapped_job({}, [](int, int) { return 150.0; });
  const auto it = estimate(job.trace(), with(table(3)));
  REQUIRE(it);
  CHECK(it->gain.mid < 1.005);
  CHECK(has_reason(*it, "hidden"));
  CHECK(it->exposed_transfer_us < 0.01 * it->before_us);
  // The transfers themselves are a large part of the step all the same.
  CHECK(it->classes[0].transfer_us > 0.25 * it->before_us);
}

TEST_CASE("Echo as fast as NCCL: the gain is exactly 1") {
  SyntheticJob job = serial_job({.jitter = 0.1});
  const auto it = estimate(job.trace(), with(table(1.0)));
  REQUIRE(it);
  CHECK(it->gain.low == 1.0);
  CHECK(it->gain.mid == 1.0);
  CHECK(it->gain.high == 1.0);
  CHECK(it->policy.rules.empty());
  CHECK_FALSE(it->evidence.has_value());
  CHECK(has_reason(*it, "does_not_pay"));
  // Forced by a policy, all calls are replaced by the same time: still exactly 1.
  EstimateOptions options = with(table(1.0));
  Policy all;
  all.rules.emplace_back();
  all.rules[0].match.dtypes = {DataType::kBf16};
  all.rules[0].match.ops = {ReduceOp::kSum};
  options.policy = all;
  const auto forced = estimate(job.trace(), options);
  REQUIRE(forced);
  CHECK(forced->evidence.has_value());
  CHECK(forced->gain.mid == 1.0);
}

TEST_CASE("gain rises with the ratio, and a free transfer is its limit") {
  SyntheticJob job =
      overlapped_job({.jitter = 0.1}, [](int, int layer) { return 1 + 100 * noise(1, layer + 1, 9); });
  double last = 1;
  for (const double ratio : {1.2, 1.6, 2.0, 3.0, 5.0, 20.0}) {
    const auto it = estimate(job.trace(), with(table(ratio)));
    REQUIRE(it);
    CHECK(it->gain.mid > last);
    CHECK(it->after_us.mid >= it->zero_us);
    last = it->gain.mid;
  }
  const auto limit = estimate(job.trace(), with(table(1e9)));
  REQUIRE(limit);
  CHECK(limit->after_us.mid == doctest::Approx(limit->zero_us).epsilon(1e-4));
}

TEST_CASE("small messages keep NCCL, and the threshold is the policy's") {
  CostTable costs = table(2.5);
  costs.entries[0].echo_us = CostSpread{costs.entries[0].nccl_us->median / 1.05, {}, {}, {}};
  SyntheticJob job = serial_job({.transfer_us = 5, .bytes = 1 << 20});
  const auto it = estimate(job.trace(), with(costs));
  REQUIRE(it);
  CHECK(it->gain.mid == 1.0);
  CHECK(has_reason(*it, "too_small"));
  CHECK(it->policy.rules.empty());
  SyntheticJob large = serial_job({.bytes = 16 << 20});
  const auto pays = estimate(large.trace(), with(costs));
  REQUIRE(pays);
  REQUIRE(pays->policy.rules.size() == 1);
  CHECK(pays->policy.rules[0].match.min_bytes == 4 << 20);
}

TEST_CASE("sizes and ranks outside the table are extrapolated, no table is modelled, and both widen") {
  SyntheticJob inside = serial_job({});
  SyntheticJob outside = serial_job({.transfer_us = 1280, .bytes = 256 << 20});
  const auto measured = estimate(inside.trace(), with(table(2.5)));
  const auto size = estimate(outside.trace(), with(table(2.5)));
  const auto ranks = estimate(inside.trace(), with(table(2.5, 80, 2)));
  const auto modelled = estimate(inside.trace(), EstimateOptions{});
  REQUIRE(measured);
  REQUIRE(size);
  REQUIRE(ranks);
  REQUIRE(modelled);
  CHECK(*size->evidence == Evidence::kExtrapolated);
  CHECK(*ranks->evidence == Evidence::kExtrapolated);
  const auto width = [](const Estimate& it) { return it.gain.high - it.gain.low; };
  CHECK(width(*ranks) > width(*measured));
  CHECK(width(*size) > 0.05);
  CHECK(warns(*ranks, "extrapolated"));
  // 80 us at 16 MiB: too fast a link for the bounded model's fixed costs.
  CHECK_FALSE(modelled->evidence.has_value());
  SyntheticJob slow = serial_job({.transfer_us = 5000});
  const auto wide = estimate(slow.trace(), EstimateOptions{});
  REQUIRE(wide);
  CHECK(*wide->evidence == Evidence::kModelled);
  CHECK(warns(*wide, "modelled"));
  CHECK(wide->gain.low == 1.0);  // "no gain at all" stays possible
  CHECK(wide->gain.high > wide->gain.mid);
  CHECK(wide->gain.high <= 1 / (4.5 / 16));
}

TEST_CASE("the spread of the table and its absolute times span the interval") {
  SyntheticJob job = serial_job({.jitter = 0});
  const auto narrow = estimate(job.trace(), with(table(2.5, 80, 4, 0.05)));
  const auto spread = estimate(job.trace(), with(table(2.5, 80, 4, 0.30)));
  const auto elsewhere = estimate(job.trace(), with(table(2.5, 160, 4, 0.05)));
  REQUIRE(narrow);
  REQUIRE(spread);
  REQUIRE(elsewhere);
  CHECK(spread->gain.low < narrow->gain.low);
  CHECK(spread->gain.high > narrow->gain.high);
  CHECK(spread->gain.mid == doctest::Approx(narrow->gain.mid).epsilon(1e-6));
  // A table of a link half as fast: the ratio holds in the middle, the absolute time is the pessimist's.
  CHECK(elsewhere->gain.mid == doctest::Approx(narrow->gain.mid).epsilon(1e-6));
  CHECK(elsewhere->gain.low < 0.95 * narrow->gain.low);
  CHECK(warns(*elsewhere, "another link"));
  CHECK_FALSE(warns(*narrow, "another link"));
}

TEST_CASE("missing ranks: partial, wait unknown, wider, never a larger middle") {
  Trace trace = serial_job({.ranks = 4, .jitter = 0.2}).trace();
  const auto whole = estimate(trace, with(table(2.5)));
  REQUIRE(whole);
  CHECK(whole->nowait_us.has_value());
  Trace part = trace;
  part.processes.resize(2);
  part.communicators[0].rank_of_process.resize(2);
  part.calls.clear();
  part.device_ops.clear();
  part.host_apis.clear();
  part.ranges.clear();
  for (const HostApi& api : trace.host_apis) {
    if (api.process < 2) part.host_apis.push_back(api);
  }
  for (const Range& range : trace.ranges) {
    if (range.process < 2) part.ranges.push_back(range);
  }
  for (const DeviceOp& op : trace.device_ops) {
    if (op.process >= 2) continue;
    DeviceOp mine = op;
    if (op.call >= 0) {
      CollectiveCall call = trace.calls[op.call];
      call.ops = {static_cast<std::int32_t>(part.device_ops.size())};
      mine.call = static_cast<std::int32_t>(part.calls.size());
      part.calls.push_back(call);
    }
    part.device_ops.push_back(mine);
  }
  const auto it = estimate(part, with(table(2.5)));
  REQUIRE(it);
  CHECK(it->quality.partial_collectives == it->quality.collectives);
  CHECK(it->quality.recorded_ranks == 2);
  CHECK(it->quality.expected_ranks == 4);
  CHECK_FALSE(it->nowait_us.has_value());
  CHECK_FALSE(it->classes[0].wait_us.has_value());
  CHECK(warns(*it, "2 of 4 ranks"));
  CHECK(it->gain.low < it->gain.mid);
  CHECK(it->gain.mid == doctest::Approx(whole->gain.mid).epsilon(0.10));
}

TEST_CASE("one recorded rank of two still answers, cautiously") {
  SyntheticJob job = serial_job({.ranks = 2, .jitter = 0.1});
  Trace trace = job.trace();
  for (DeviceOp& op : trace.device_ops) {
    if (op.process == 1) op.start_ns = op.end_ns = 0;  // all of rank 1 unusable
  }
  const auto it = estimate(trace, with(table(2.5, 80, 2)));
  REQUIRE(it);
  const double truth = job.truth_us() / serial_job({.ranks = 2, .transfer_us = 32, .jitter = 0.1}).truth_us();
  CHECK(it->gain.low <= truth * 1.01);
  CHECK(it->gain.mid == doctest::Approx(truth).epsilon(0.03));
  CHECK(it->quality.invalid_ops > 0);
}

TEST_CASE("another host's skewed clock changes nothing") {
  Trace trace = serial_job({.ranks = 2, .jitter = 0.2}).trace();
  const auto straight = estimate(trace, with(table(2.5, 80, 2)));
  trace.processes[1].host = "node1";
  const std::int64_t skew = 3'000'000;
  for (DeviceOp& op : trace.device_ops) {
    if (op.process == 1) op.start_ns += skew, op.end_ns += skew;
  }
  for (HostApi& api : trace.host_apis) {
    if (api.process == 1) api.start_ns += skew, api.end_ns += skew;
  }
  for (Range& range : trace.ranges) {
    if (range.process == 1) range.start_ns += skew, range.end_ns += skew;
  }
  const auto skewed = estimate(trace, with(table(2.5, 80, 2)));
  REQUIRE(straight);
  REQUIRE(skewed);
  CHECK(skewed->gain.mid == doctest::Approx(straight->gain.mid).epsilon(0.005));
  CHECK(skewed->quality.max_clock_offset_us == doctest::Approx(3000).epsilon(0.01));
}

TEST_CASE("a few dropped and broken records: still an answer, and they are counted") {
  SyntheticJob job = serial_job({.layers = 30, .jitter = 0.05});
  Trace trace = job.trace();
  trace.processes[1].dropped_records = 12;
  for (std::size_t i = 5; i < trace.device_ops.size(); i += 97)
    trace.device_ops[i].start_ns = trace.device_ops[i].end_ns = 0;
  const auto it = estimate(trace, with(table(2.5)));
  REQUIRE(it);
  const double truth =
      job.truth_us() / serial_job({.layers = 30, .transfer_us = 32, .jitter = 0.05}).truth_us();
  CHECK(it->gain.mid == doctest::Approx(truth).epsilon(0.03));
  CHECK(it->quality.dropped_records == 12);
  CHECK(it->quality.invalid_ops > 5);
}

TEST_CASE("a replay that misses the measured step is refused") {
  // In every other exchange one rank leaves 15 us before the other comes, and is the late one next time: no
  // order of events gives these times, but each of them alone could be the clock's error.
  Trace trace;
  trace.names = {"gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "head", "step"};
  trace.communicators.push_back({1, "", 2, {0, 1}});
  trace.processes.resize(2);
  std::int64_t last[2] = {1'000'000, 1'000'000};
  int sequence = 0;
  for (int step = 0; step < 6; ++step) {
    const std::int64_t begin[2] = {last[0], last[1]};
    for (int layer = 0; layer < 40; ++layer, ++sequence) {
      const bool odd = layer % 2 == 1;
      const int late = layer / 2 % 2;
      const std::int64_t arrival = last[late] + 40'000;
      for (int rank = 0; rank < 2; ++rank) {
        const std::int64_t start = odd && rank != late ? arrival - 25'000 : arrival;
        const std::int64_t end = odd && rank != late ? arrival - 15'000 : arrival + 10'000;
        DeviceOp op;
        op.process = rank;
        op.stream = 7;
        op.name = 0;
        op.start_ns = last[rank];
        op.end_ns = start;
        trace.device_ops.push_back(op);
        CollectiveCall call;
        call.process = rank;
        call.communicator = 0;
        call.function = "AllReduce";
        call.dtype = "bf16";
        call.bytes = 16 << 20;
        call.sequence = sequence;
        call.ops = {static_cast<std::int32_t>(trace.device_ops.size())};
        op.name = 1;
        op.start_ns = start;
        op.end_ns = last[rank] = end;
        op.call = static_cast<std::int32_t>(trace.calls.size());
        trace.device_ops.push_back(op);
        trace.calls.push_back(call);
      }
    }
    for (int rank = 0; rank < 2; ++rank) trace.ranges.push_back({rank, 1, 3, begin[rank], last[rank]});
  }
  const auto it = estimate(trace, with(table(2.5, 80, 2)));
  REQUIRE_FALSE(it);
  CHECK(it.error().code == ErrorCode::kInsufficient);
  CHECK(it.error().what.find("off by more than 10%") != std::string::npos);
}

TEST_CASE("one rank, no NCCL, bypass, refused types: gain 1 and the reason") {
  SyntheticJob one = serial_job({.ranks = 1});
  const auto alone = estimate(one.trace(), with(table(2.5)));
  REQUIRE(alone);
  CHECK(alone->gain.mid == 1.0);
  CHECK(has_reason(*alone, "one_rank"));

  Trace bypass = serial_job({.ranks = 2}).trace();
  bypass.names.push_back("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 2>(...)");
  for (DeviceOp& op : bypass.device_ops) {
    if (op.call >= 0) op.name = static_cast<std::int32_t>(bypass.names.size()) - 1;
    op.call = -1;
  }
  bypass.calls.clear();
  const auto around = estimate(bypass, with(table(2.5, 80, 2)));
  REQUIRE(around);
  CHECK(around->gain.mid == 1.0);
  CHECK(has_reason(*around, "no_nccl_all_reduce"));
  CHECK(has_reason(*around, "bypass"));
  REQUIRE(around->bypass.size() == 1);
  CHECK(around->bypass[0].calls == 2 * 12 * 8);
  CHECK(around->bypass[0].how_to_switch_off.find("--disable-custom-all-reduce") != std::string::npos);

  Trace integers = serial_job({.ranks = 2}).trace();
  for (CollectiveCall& call : integers.calls) call.dtype = "int32";
  const auto refused = estimate(integers, with(table(2.5, 80, 2)));
  REQUIRE(refused);
  CHECK(refused->gain.mid == 1.0);
  CHECK(has_reason(*refused, "not_eligible"));
  CHECK(refused->classes[0].why_not == "data type int32 is never compressed");

  Trace largest = serial_job({.ranks = 2}).trace();
  for (CollectiveCall& call : largest.calls) call.op = "max";
  CHECK(estimate(largest, with(table(2.5, 80, 2)))->classes[0].why_not == "operator max is never compressed");
}

TEST_CASE("the obstacle that is named is the real one: the operator before the type, fp32 only by a rule") {
  Trace trace = serial_job({.ranks = 2}).trace();
  for (CollectiveCall& call : trace.calls) call.dtype = "fp32";
  CHECK(estimate(trace, with(table(2.5, 80, 2)))->classes[0].why_not ==
        "data type fp32 only if a policy's rule names it");
  for (CollectiveCall& call : trace.calls) call.op = "max";
  CHECK(estimate(trace, with(table(2.5, 80, 2)))->classes[0].why_not == "operator max is never compressed");
}

TEST_CASE("a table that says nothing of the job's type is not a table that says no") {
  SyntheticJob job = serial_job({.ranks = 2});
  for (const bool empty : {true, false}) {
    CostTable costs = table(2.5, 80, 2);
    for (CostEntry& entry : costs.entries) entry.dtype = DataType::kFp32;
    if (empty) costs.entries.clear();
    const auto it = estimate(job.trace(), with(costs));
    REQUIRE(it);
    CHECK(has_reason(*it, "not_in_table"));
    CHECK_FALSE(has_reason(*it, "does_not_pay"));
    CHECK(it->classes[0].why_not == "the cost table says nothing of bf16 and this number of ranks");
  }
}

TEST_CASE("steps that vary widen the interval, are warned of, and are not called typical") {
  const auto make = [](double vary) {
    SyntheticJob job(2);
    for (int step = 0; step < 24; ++step) {
      job.begin_step();
      for (int layer = 0; layer < 6; ++layer) {
        job.kernel(7, "gemm", [&](int) { return 300 * (1 + vary * (2 * noise(3, step + 1, 1) - 1)); });
        job.collective(7, "AllReduce", 16 << 20, 300);
      }
      job.synchronise(7);
      job.end_step();
    }
    return job;
  };
  SyntheticJob calm_job = make(0.0), wild_job = make(0.9);
  const auto calm = estimate(calm_job.trace(), with(table(2.5, 300, 2)));
  const auto wild = estimate(wild_job.trace(), with(table(2.5, 300, 2)));
  REQUIRE(calm);
  REQUIRE(wild);
  CHECK(calm->gain.high - calm->gain.low < 0.01);
  // A step of 300 + g gains (300 + g) / (120 + g): nine steps in ten have g between 30 and 570.
  CHECK(wild->gain.low < 1.32);
  CHECK(wild->gain.low > (300 + 570.0) / (120 + 570.0) - 0.01);
  CHECK(wild->gain.high > 1.7);
  CHECK(wild->gain.high < (300 + 30.0) / (120 + 30.0) + 0.01);
  CHECK(warns(*wild, "recorded steps vary by"));
  CHECK_FALSE(warns(*calm, "recorded steps vary by"));
  const auto typical = [](const Estimate& it) {
    return std::any_of(it.assumptions.begin(), it.assumptions.end(), [](const std::string& text) {
      return text.find("steps are typical") != std::string::npos;
    });
  };
  CHECK(typical(*calm));
  CHECK_FALSE(typical(*wild));
  CHECK(warns(*estimate(serial_job({.steps = 3}).trace(), with(table(2.5))), "how steps vary"));
}

TEST_CASE("what is doubtful of the input reaches the answer") {
  Trace trace = serial_job({.ranks = 2}).trace();
  EstimateOptions options = with(table(2.5, 80, 2));
  CHECK_FALSE(warns(*estimate(trace, options), "different commands"));
  trace.mixed_commands = true;
  options.costs_warnings = {"the table is of Mars"};
  const auto it = estimate(trace, options);
  REQUIRE(it);
  CHECK(warns(*it, "different commands"));
  CHECK(warns(*it, "the table is of Mars"));
}

TEST_CASE("data that can't carry an answer") {
  EstimateOptions named;
  named.profile_label = "job.echoprof";
  const auto nothing = estimate(Trace{}, named);
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().where == "job.echoprof");
  CHECK(nothing.error().code == ErrorCode::kInsufficient);
  Trace unseen = serial_job({.ranks = 2}).trace();
  for (CollectiveCall& call : unseen.calls) call.ops.clear();
  for (DeviceOp& op : unseen.device_ops) op.call = -1;
  const auto blind = estimate(unseen, EstimateOptions{});
  REQUIRE_FALSE(blind);
  CHECK(blind.error().code == ErrorCode::kInsufficient);
}

TEST_CASE("without host records a host-bound job's low gain is no gain") {
  const auto make = [](bool host, double transfer) {
    SyntheticJob job(2, host);
    for (int step = 0; step < 8; ++step) {
      job.begin_step();
      for (int layer = 0; layer < 20; ++layer) {
        job.host_work(150);
        job.kernel(7, "gemm", [](int) { return 20.0; });
        job.collective(7, "AllReduce", 16 << 20, transfer);
      }
      job.synchronise(7);
      job.end_step();
    }
    return job;
  };
  SyntheticJob known = make(true, 80), unknown = make(false, 80);
  const auto told = estimate(known.trace(), with(table(2.5, 80, 2)));
  const auto guess = estimate(unknown.trace(), with(table(2.5, 80, 2)));
  REQUIRE(told);
  REQUIRE(guess);
  CHECK(told->gain.mid < 1.03);
  CHECK(told->critical_path[0].what == "host");
  CHECK(guess->gain.low < 1.03);
  CHECK(guess->gain.mid > guess->gain.low);
  CHECK(warns(*guess, "host may have caused"));
  // A device-bound job without host records keeps its gain: its kernels wait in the queue.
  SyntheticJob bound = serial_job({.host_records = false});
  CHECK_FALSE(warns(*estimate(bound.trace(), with(table(2.5))), "host may have caused"));
}

TEST_CASE("without host records a gap that the host was ahead of is not the host's") {
  // A kernel of every layer went unrecorded; the host had long issued the all-reduce behind it.
  SyntheticJob job(2, false);
  for (int step = 0; step < 8; ++step) {
    job.begin_step();
    for (int layer = 0; layer < 20; ++layer) {
      job.kernel(7, "lost", [](int) { return 30.0; });
      job.kernel(7, "gemm", [](int) { return 100.0; });
      job.collective(7, "AllReduce", 16 << 20, 80);
    }
    job.synchronise(7);
    job.end_step();
  }
  Trace& trace = job.trace();
  for (DeviceOp& op : trace.device_ops) {
    if (trace.names[op.name] == "lost") op.start_ns = op.end_ns = 0;
  }
  const auto it = estimate(trace, with(table(2.5, 80, 2)));
  REQUIRE(it);
  CHECK_FALSE(warns(*it, "host may have caused"));
  CHECK(it->gain.low == doctest::Approx(210.0 / 162).epsilon(0.02));
}

TEST_CASE("a launch that holds an ineligible call is not compressed") {
  Trace trace = serial_job({.ranks = 2}).trace();
  const std::size_t calls = trace.calls.size();
  for (std::size_t i = 0; i < calls; ++i) {
    CollectiveCall other = trace.calls[i];
    other.function = "AllGather";
    other.op.clear();
    trace.calls.push_back(other);
  }
  const auto it = estimate(trace, with(table(2.5, 80, 2)));
  REQUIRE(it);
  CHECK(it->gain.mid == 1.0);
  for (const ClassEstimate& row : it->classes) CHECK_FALSE(row.compressed);
}

TEST_CASE("classes: what each size costs and brings") {
  SyntheticJob job(2);
  for (int step = 0; step < 8; ++step) {
    job.begin_step();
    for (int layer = 0; layer < 10; ++layer) {
      job.kernel(7, "gemm", [](int) { return 100.0; });
      job.collective(7, "AllReduce", 16 << 20, 80);
    }
    job.kernel(7, "head", [](int) { return 50.0; });
    job.collective(7, "AllReduce", 64 << 20, 320);
    job.collective(7, "AllGather", 1 << 20, 30);
    job.synchronise(7);
    job.end_step();
  }
  const auto it = estimate(job.trace(), with(table(2.0, 80, 2)));
  REQUIRE(it);
  REQUIRE(it->classes.size() == 3);
  const ClassEstimate& small = it->classes[0];
  CHECK(small.bytes == 16 << 20);
  CHECK(small.calls_per_step == doctest::Approx(10));
  CHECK(small.transfer_us == doctest::Approx(800).epsilon(0.01));
  CHECK(small.exposed_us == doctest::Approx(800).epsilon(0.01));
  CHECK(*small.exposed_critical_us == doctest::Approx(800).epsilon(0.02));
  CHECK(*small.contribution_us == doctest::Approx(400).epsilon(0.02));
  CHECK(small.echo_us->mid == doctest::Approx(40).epsilon(0.01));
  CHECK(it->classes[1].bytes == 64 << 20);
  CHECK(*it->classes[1].contribution_us == doctest::Approx(160).epsilon(0.02));
  CHECK(it->classes[2].function == "AllGather");
  CHECK_FALSE(it->classes[2].echo_us.has_value());
  CHECK(it->communicators[0].calls_per_step == doctest::Approx(12));
  CHECK(it->communicators[0].hash == "000000000000abcd");
  double total = 0;
  for (const CriticalShare& share : it->critical_path) total += share.share;
  CHECK(total == doctest::Approx(1));
  CHECK(it->critical_path[0].what == "compute");
}

TEST_CASE("the document: schema, nulls for what is not known, the same every time") {
  Trace trace = serial_job({.ranks = 2}).trace();
  EstimateOptions options = with(table(2.5, 80, 2));
  options.profile_label = "job.echoprof";
  const auto it = estimate(trace, options);
  REQUIRE(it);
  const std::string text = estimate_json(*it);
  CHECK(text == estimate_json(*estimate(trace, options)));
  const auto document = nlohmann::json::parse(text);
  CHECK(document["schema"] == "echo-tp/estimate/1");
  CHECK(document["inputs"]["costs"].is_null());
  CHECK(document["quality"]["traced_ratio"].is_null());
  CHECK(document["policy"]["schema"] == "echo-tp/policy/1");
  CHECK(document["result"]["gain"]["mid"].get<double>() == doctest::Approx(it->gain.mid).epsilon(1e-5));
  // What is proposed is a policy that the shim reads.
  const auto policy = parse_policy(policy_json(it->policy), "policy.json", "");
  REQUIRE(policy);
  CHECK(policy->rules.size() == 1);
}

}  // namespace
}  // namespace echotp
