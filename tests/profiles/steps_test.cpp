// SPDX-License-Identifier: Apache-2.0
// Where steps begin and end.
#include "profiles/steps.hpp"

#include <doctest/doctest.h>

#include "profiles/study.hpp"
#include "synthetic_trace.hpp"

namespace echotp {
namespace {

using test::serial_job;
using test::Shape;

TEST_CASE("steps from ranges, with and without host records") {
  for (const bool host : {true, false}) {
    auto job = serial_job({.host_records = host});
    const auto study = study_trace(job.trace(), "");
    REQUIRE(study);
    CHECK(study->steps.source == StepSource::kRanges);
    CHECK(study->steps.found == 8);
    CHECK(study->steps.median_ns / 1000 == doctest::Approx(job.truth_us()).epsilon(0.005));
  }
}

TEST_CASE("the name is a regular expression; a bad one and one that matches nothing are the user's error") {
  auto job = serial_job({.range = "iteration 7"});
  CHECK(study_trace(job.trace(), "ITERATION [0-9]+")->steps.source == StepSource::kRanges);
  CHECK(study_trace(job.trace(), "")->steps.source == StepSource::kPeriod);
  const auto bad = study_trace(job.trace(), "iter[");
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == ErrorCode::kBadInput);
  const auto none = study_trace(job.trace(), "epoch");
  REQUIRE_FALSE(none);
  CHECK(none.error().code == ErrorCode::kBadInput);
}

TEST_CASE("words that only contain step are no steps; nested ranges count once") {
  auto job = serial_job({.range = "stepping stones"});
  CHECK(study_trace(job.trace(), "")->steps.source == StepSource::kPeriod);
  auto nested = serial_job({.range = "ProfilerStep#3"});
  Trace& trace = nested.trace();
  trace.names.push_back("optimizer step");
  const std::size_t outer = trace.ranges.size();
  for (std::size_t i = 0; i < outer; ++i) {
    Range inner = trace.ranges[i];
    inner.name = static_cast<std::int32_t>(trace.names.size()) - 1;
    inner.start_ns += 1000;
    inner.end_ns -= 1000;
    trace.ranges.push_back(inner);
  }
  CHECK(study_trace(trace, "")->steps.found == 8);
}

TEST_CASE("without ranges the period of the operations gives the step, not that of a layer") {
  auto job = serial_job({.layers = 30, .steps = 9, .range = ""});
  const auto study = study_trace(job.trace(), "");
  REQUIRE(study);
  CHECK(study->steps.source == StepSource::kPeriod);
  CHECK(study->steps.found >= 7);
  CHECK(study->steps.median_ns / 1000 == doctest::Approx(job.truth_us()).epsilon(0.01));
}

TEST_CASE("periods") {
  // Warm-up, then five steps of a layered pattern, then a tail.
  std::vector<std::int32_t> sequence = {9, 8, 7};
  for (int step = 0; step < 5; ++step) {
    sequence.push_back(1);
    for (int layer = 0; layer < 4; ++layer) sequence.insert(sequence.end(), {2, 3});
    sequence.push_back(4);
  }
  sequence.push_back(11);
  const Period period = find_period(sequence);
  CHECK(period.begin == 3);
  CHECK(period.length == 10);
  CHECK(period.count == 5);
  CHECK(find_period({1, 2, 3, 4, 5, 6}).length == 0);
  CHECK(find_period({}).length == 0);
}

TEST_CASE("slow first steps are warm-up; a slow one in the middle is not") {
  test::SyntheticJob job(2);
  for (int step = 0; step < 12; ++step) {
    job.begin_step();
    job.kernel(7, "gemm", [&](int) { return step < 2 ? 900.0 : step == 7 ? 300.0 : 100.0; });
    job.collective(7, "AllReduce", 1 << 20, 50);
    job.synchronise(7);
    job.end_step();
  }
  const auto study = study_trace(job.trace(), "");
  REQUIRE(study);
  CHECK(study->steps.first_used == 2);
  CHECK(study->steps.used() == 10);
  CHECK(study->steps.median_ns / 1000 == doctest::Approx(job.truth_us()).epsilon(0.01));
}

TEST_CASE("gaps between steps that are far apart are no part of a step") {
  test::SyntheticJob job(2);
  for (int step = 0; step < 6; ++step) {
    job.begin_step();
    job.kernel(7, "gemm", [](int) { return 100.0; });
    job.collective(7, "AllReduce", 1 << 20, 50);
    job.synchronise(7);
    job.end_step();
    job.host_work(5000);
  }
  const auto study = study_trace(job.trace(), "");
  REQUIRE(study);
  CHECK_FALSE(study->steps.chained);
  CHECK(study->steps.median_ns / 1000 < 170);
}

TEST_CASE("a recording without any pattern is one window") {
  test::SyntheticJob job(2);
  job.kernel(7, "a", [](int) { return 100.0; });
  job.collective(7, "AllReduce", 1 << 20, 50);
  job.kernel(7, "b", [](int) { return 100.0; });
  const auto study = study_trace(job.trace(), "");
  REQUIRE(study);
  CHECK(study->steps.source == StepSource::kWindow);
  CHECK(study->steps.found == 1);
}

}  // namespace
}  // namespace echotp
