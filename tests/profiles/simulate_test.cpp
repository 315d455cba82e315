// SPDX-License-Identifier: Apache-2.0
// Replays of jobs with known truth: the same program run again with other transfer times.
#include "profiles/simulate.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <map>

#include "profiles/study.hpp"
#include "synthetic_trace.hpp"

namespace echotp {
namespace {

using test::noise;
using test::overlapped_job;
using test::serial_job;
using test::Shape;
using test::SyntheticJob;

// Step in microseconds when every transfer takes `share` of its time.
double replay_us(const Trace& trace, const Study& study, double share) {
  Scenario scenario = study.recorded;
  for (std::int64_t& transfer : scenario.transfer_ns)
    transfer = std::llround(share * static_cast<double>(transfer));
  return simulated_step_ns(trace, study.timeline, study.steps, scenario) / 1000;
}

// Runs `make` with the recorded transfer, replays it for several shares and compares with running it anew.
template <class Make>
void check_against_truth(Make make, double tolerance) {
  SyntheticJob recorded = make(80.0);
  const auto study = study_trace(recorded.trace(), "");
  REQUIRE(study);
  CHECK(study->identity_error < 0.002);
  for (const double share : {1.0, 0.7, 0.4, 0.1, 0.0}) {
    const double truth = make(80.0 * share).truth_us();
    CAPTURE(share);
    CHECK(replay_us(recorded.trace(), *study, share) == doctest::Approx(truth).epsilon(tolerance));
  }
}

TEST_CASE("serial tensor parallelism, little and much jitter, with and without host records") {
  for (const double jitter : {0.0, 0.02, 0.15}) {
    for (const bool host : {true, false}) {
      CAPTURE(jitter);
      CAPTURE(host);
      check_against_truth(
          [&](double transfer) {
            return serial_job({.transfer_us = transfer, .jitter = jitter, .host_records = host});
          },
          0.01);
    }
  }
}

TEST_CASE("overlapped with events: only what was not covered is saved") {
  for (const bool host : {true, false}) {
    CAPTURE(host);
    check_against_truth(
        [&](double transfer) {
          return overlapped_job({.transfer_us = transfer, .host_records = host},
                                [](int, int layer) { return 20 + 120 * noise(1, layer + 1, 77); });
        },
        0.015);
  }
}

TEST_CASE("a host-bound job gains nothing although its transfers are exposed") {
  const auto make = [](double transfer) {
    SyntheticJob job(2);
    for (int step = 0; step < 8; ++step) {
      job.begin_step();
      for (int layer = 0; layer < 20; ++layer) {
        job.host_work(150);
        job.kernel(7, "gemm", [](int) { return 20.0; });
        job.collective(7, "AllReduce", 1 << 20, transfer);
      }
      job.synchronise(7);
      job.end_step();
    }
    return job;
  };
  check_against_truth(make, 0.01);
  SyntheticJob job = make(80);
  const auto study = study_trace(job.trace(), "");
  // The naive sum of savings would claim 20 * 80 us of a step of about 3200.
  CHECK(replay_us(job.trace(), *study, 0.0) > 0.96 * study->steps.median_ns / 1000);
}

TEST_CASE("host waits for the device in the middle of a step, and works before it goes on") {
  check_against_truth(
      [](double transfer) {
        SyntheticJob job(3);
        for (int step = 0; step < 8; ++step) {
          job.begin_step();
          for (int part = 0; part < 5; ++part) {
            job.kernel(7, "gemm", [&](int rank) { return 60.0 + 10 * noise(rank + 1, step + 1, part + 1); });
            job.collective(7, "AllReduce", 8 << 20, transfer);
            job.synchronise(7);
            job.host_work(90);
          }
          job.end_step();
        }
        return job;
      },
      0.01);
}

TEST_CASE("a wait inside the step on an event of another stream returns with that stream") {
  const auto make = [](double transfer) {
    SyntheticJob job(2);
    for (int step = 0; step < 8; ++step) {
      job.begin_step();
      job.kernel(7, "gemm", [](int) { return 200.0; });
      job.record(1, 7);
      job.wait(1, 20);
      // Recorded without a launch in between: the event stands for what stream 20 waits for.
      job.record(3, 20);
      job.wait(3, 30);
      job.collective(30, "AllReduce", 8 << 20, transfer);
      job.synchronise(30);
      job.end_step();
    }
    return job;
  };
  check_against_truth(make, 0.01);
  SyntheticJob job = make(80);
  CHECK(study_trace(job.trace(), "")->timeline.quality.inferred_edges == 0);  // nothing had to be guessed
}

TEST_CASE("a rank whose host is slow becomes the one that all wait for") {
  // With the recorded transfer rank 0's device comes last, with a fast one rank 1's host does.
  check_against_truth(
      [](double transfer) {
        SyntheticJob job(2);
        for (int step = 0; step < 8; ++step) {
          job.begin_step();
          for (int layer = 0; layer < 20; ++layer) {
            job.host_work(1, 140);
            job.kernel(7, "gemm", [](int rank) { return rank == 0 ? 100.0 : 20.0; });
            job.collective(7, "AllReduce", 8 << 20, transfer);
          }
          job.synchronise(7);
          job.end_step();
        }
        return job;
      },
      0.01);
}

TEST_CASE("a thread that goes on where another stopped is not a fixed gap") {
  check_against_truth(
      [](double transfer) {
        SyntheticJob job(2);
        for (int step = 0; step < 8; ++step) {
          job.begin_step();
          for (const std::uint32_t thread : {1u, 2u}) {
            job.use_thread(thread);
            for (int layer = 0; layer < 6; ++layer) {
              job.kernel(7, "gemm", [](int) { return 60.0; });
              job.collective(7, "AllReduce", 8 << 20, transfer);
            }
            job.synchronise(7);
          }
          job.use_thread(1);
          job.end_step();
        }
        return job;
      },
      0.01);
}

TEST_CASE(
    "a backward thread that starts after some host work of its own follows the forward, not its last step") {
  check_against_truth(
      [](double transfer) {
        SyntheticJob job(2);
        for (int step = 0; step < 8; ++step) {
          job.begin_step();
          for (const std::uint32_t thread : {1u, 2u}) {
            job.use_thread(thread);
            for (int layer = 0; layer < 6; ++layer) {
              job.kernel(7, "gemm", [](int) { return 60.0; });
              job.collective(7, "AllReduce", 8 << 20, transfer);
            }
            job.host_work(100);  // what a framework does before the other thread's first launch
          }
          job.use_thread(1);
          job.synchronise(7);
          job.end_step();
        }
        return job;
      },
      0.02);
}

TEST_CASE("a launch that a full queue blocks is freed by the device") {
  // Without synchronisation the host is a queue's length ahead, and blocks.
  const auto make = [](double transfer) {
    SyntheticJob job(2);
    for (int step = 0; step < 30; ++step) {
      job.begin_step();
      job.kernel(7, "embed", [](int) { return 60.0; });
      for (int layer = 0; layer < 50; ++layer) {
        job.kernel(7, "gemm", [](int) { return 60.0; });
        job.collective(7, "AllReduce", 8 << 20, transfer);
      }
      job.end_step("");
    }
    job.synchronise(7);
    return job;
  };
  SyntheticJob job = make(80);
  Trace& trace = job.trace();
  // Block launch i of each rank until its operation i - 1000 is done.
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::int32_t> ops;
    std::vector<HostApi*> launches;
    for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
      if (trace.device_ops[i].process == rank) ops.push_back(static_cast<std::int32_t>(i));
    }
    for (HostApi& api : trace.host_apis) {
      if (api.process == rank) launches.push_back(&api);
    }
    std::int64_t late = 0;
    for (std::size_t i = 0; i < launches.size(); ++i) {
      launches[i]->start_ns += late;
      launches[i]->end_ns += late;
      // The queue is drained in bursts, as real ones are.
      if (i >= 1000 && i % 100 == 0 && i < ops.size()) {
        const std::int64_t free = trace.device_ops[ops[i - 950]].end_ns;
        if (free > launches[i]->end_ns) {
          late += free - launches[i]->end_ns;
          launches[i]->end_ns = free;
        }
      }
    }
  }
  const auto study = study_trace(trace, "");
  REQUIRE(study);
  CHECK(study->identity_error < 0.01);
  std::size_t queue = 0;
  for (const Edge& edge : study->timeline.edges) queue += edge.kind == EdgeKind::kQueue;
  CHECK(queue > 10);
  // Device-bound throughout: a free exchange leaves the compute.
  CHECK(replay_us(trace, *study, 0.0) == doctest::Approx(51 * 60.0).epsilon(0.05));
}

TEST_CASE("stragglers: nobody waiting is as fast as the mean rank") {
  SyntheticJob job = serial_job({.ranks = 4, .layers = 40, .jitter = 0.3});
  const auto study = study_trace(job.trace(), "");
  REQUIRE(study);
  Scenario alone = study->recorded;
  alone.no_wait = true;
  const double step = simulated_step_ns(job.trace(), study->timeline, study->steps, alone) / 1000;
  CHECK(step < 0.95 * job.truth_us());
  CHECK(step > 40 * (100 * 0.95 + 80));
}

TEST_CASE("kernels of one stream that overlap keep their overlap") {
  Trace trace = serial_job({.layers = 6}).trace();
  // The next kernel of the stream starts a little before the one before it ends.
  std::map<std::int32_t, std::int32_t> last;
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    DeviceOp& op = trace.device_ops[i];
    const auto [at, fresh] = last.try_emplace(op.process, static_cast<std::int32_t>(i));
    if (!fresh && op.call < 0 && trace.device_ops[at->second].end_ns == op.start_ns) op.start_ns -= 2'000;
    at->second = static_cast<std::int32_t>(i);
  }
  const auto study = study_trace(trace, "");
  REQUIRE(study);
  CHECK(study->identity_error < 0.01);
  CHECK(study->timeline.quality.broken_cycles == 0);
}

TEST_CASE("contradictory times: dependencies that can't be are dropped, every point is still replayed") {
  Trace trace = overlapped_job({.ranks = 3}, [](int, int) { return 60.0; }).trace();
  // A wild clock in one process, kernels before their launches, ends before starts.
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    DeviceOp& op = trace.device_ops[i];
    if (i % 7 == 0) op.start_ns -= 400'000, op.end_ns -= 400'000;
    if (i % 31 == 0) op.end_ns = op.start_ns;
    if (i % 53 == 0) op.start_ns = op.end_ns = 0;
    if (i % 67 == 0) op.end_ns = op.start_ns - 5;
  }
  const auto study = study_trace(trace, "");
  REQUIRE(study);
  const auto times = simulate(study->timeline, study->recorded);
  std::size_t missing = 0;
  for (std::size_t i = 0; i < times.size(); ++i)
    missing += study->timeline.observed_ns[i] >= 0 && times[i] < 0 ? 1 : 0;
  CHECK(missing == 0);
  CHECK(study->timeline.quality.contradicted_edges > 0);
}

TEST_CASE("a quarter of a million operations take no more than seconds") {
  const Shape shape{.ranks = 4, .layers = 1000, .steps = 30};
  SyntheticJob job = serial_job(shape);
  const auto before = std::chrono::steady_clock::now();
  const auto study = study_trace(job.trace(), "");
  REQUIRE(study);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  MESSAGE(job.trace().device_ops.size() << " operations studied in " << seconds << " s");
  CHECK(study->identity_error < 0.01);
  CHECK(seconds < 20);  // linear: about 1 s; quadratic would take minutes
}

}  // namespace
}  // namespace echotp
