// SPDX-License-Identifier: Apache-2.0
// A host that is slower in most steps than it can be: the high end of the gain has it at its best.
#include "profiles/host_work.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "profiles/estimate.hpp"
#include "profiles/study.hpp"
#include "synthetic_trace.hpp"

namespace echotp {
namespace {

constexpr int kLayers = 10, kSteps = 20;

// Host work of `work(step, rank)` microseconds before every layer, then a short kernel and an all-reduce.
template <class Work>
test::SyntheticJob hosted_job(double transfer_us, Work work) {
  test::SyntheticJob job(2);
  for (int step = 0; step < kSteps; ++step) {
    job.begin_step();
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int rank = 0; rank < 2; ++rank) job.host_work(rank, work(step, rank));
      job.kernel(7, "gemm", [](int) { return 20.0; });
      job.collective(7, "AllReduce", 16 << 20, transfer_us);
    }
    job.synchronise(7);
    job.end_step();
  }
  return job;
}

// A third of the steps have a fast host.
double uneven(int step, int) {
  return step % 3 == 0 ? 100 : 200;
}
double fast(int, int) {
  return 100;
}

EstimateOptions ten_times_faster() {
  EstimateOptions options;
  options.costs.emplace();
  options.costs->entries.resize(1);
  options.costs->entries[0].bytes = 16 << 20;
  options.costs->entries[0].nccl_us = CostSpread{400, 400, 400, 50};
  options.costs->entries[0].echo_us = CostSpread{40, 40, 40, 50};
  return options;
}

bool warns(const Estimate& it, const std::string& part) {
  return std::any_of(it.warnings.begin(), it.warnings.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

TEST_CASE("the factor takes slow steps to the fast end, and fast steps nowhere") {
  const Trace trace = hosted_job(400, uneven).trace();
  const auto study = study_trace(trace, "");
  REQUIRE(study);
  const auto factors = fast_host_factors(trace, study->timeline, study->launches, study->steps);
  REQUIRE(factors.size() == trace.host_apis.size());
  const auto least = *std::min_element(factors.begin(), factors.end());
  // Before an all-reduce: 100 or 200 us of the host and two launch calls of 3 us.
  CHECK(least == doctest::Approx((100 + 6) / (200.0 + 6)).epsilon(0.03));
  CHECK(*std::max_element(factors.begin(), factors.end()) == 1.0F);
  const auto ones = std::count_if(factors.begin(), factors.end(), [](float it) { return it > 0.99F; });
  CHECK(ones > static_cast<std::ptrdiff_t>(factors.size()) / 4);
}

TEST_CASE("a step that the host would bind: the high gain is that of the job run with the fast host") {
  test::SyntheticJob slow = hosted_job(400, uneven);
  const auto it = estimate(slow.trace(), ten_times_faster());
  REQUIRE(it);
  const double as_recorded = slow.truth_us() / hosted_job(40, uneven).truth_us();
  const double at_best = hosted_job(400, fast).truth_us() / hosted_job(40, fast).truth_us();
  CHECK(it->gain.mid == doctest::Approx(as_recorded).epsilon(0.03));
  CHECK(it->gain.high >= 0.97 * at_best);
  CHECK(it->gain.high <= 1.10 * at_best);
  CHECK(it->zero_low_us < 0.75 * it->zero_us);
  CHECK(it->after_us.low < it->zero_us);
  CHECK(warns(*it, "bound by the host"));
}

TEST_CASE("a host that never was faster changes nothing, and nothing is said of it") {
  const auto it = estimate(hosted_job(400, fast).trace(), ten_times_faster());
  REQUIRE(it);
  CHECK(it->zero_low_us == doctest::Approx(it->zero_us).epsilon(0.01));
  CHECK(it->gain.high == doctest::Approx(it->gain.mid).epsilon(0.02));
  CHECK_FALSE(warns(*it, "bound by the host"));
}

TEST_CASE("a faster host is no gain where the exchange is hidden") {
  // The device is bound by the gemm: neither the exchange nor the host is on the path.
  test::SyntheticJob job(2);
  for (int step = 0; step < kSteps; ++step) {
    job.begin_step();
    for (int layer = 0; layer < kLayers; ++layer) {
      job.host_work(uneven(step, 0));
      job.kernel(7, "gemm", [](int) { return 20.0; });
      job.record(1, 7);
      job.wait(1, 20);
      job.collective(20, "AllReduce", 16 << 20, 50);
    }
    job.synchronise(7);
    job.end_step();
  }
  const auto it = estimate(job.trace(), ten_times_faster());
  REQUIRE(it);
  CHECK(it->gain.high < 1.08);
}

}  // namespace
}  // namespace echotp
