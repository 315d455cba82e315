// SPDX-License-Identifier: Apache-2.0
// Paired comparison: verdicts, intervals, needed repeats.
#include "profiles/ab_compare.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace echotp {
namespace {

AbOptions loss(double tolerance, bool relative = true) {
  AbOptions options;
  options.name = "loss";
  options.tolerance = tolerance;
  options.relative = relative;
  return options;
}

TEST_CASE("Student's t quantiles are those of the tables") {
  CHECK(student_t_quantile(0.975, 1) == doctest::Approx(12.7062).epsilon(1e-4));
  CHECK(student_t_quantile(0.975, 4) == doctest::Approx(2.77645).epsilon(1e-5));
  CHECK(student_t_quantile(0.95, 10) == doctest::Approx(1.81246).epsilon(1e-5));
  CHECK(student_t_quantile(0.975, 1000) == doctest::Approx(1.96234).epsilon(1e-5));
  CHECK(std::abs(student_t_quantile(0.5, 7)) < 1e-6);
  CHECK(student_t_quantile(0.025, 4) == doctest::Approx(-2.77645).epsilon(1e-5));
}

TEST_CASE("one pair is judged by its plain difference") {
  const auto pass = compare({2.00}, {2.01}, loss(0.01));
  REQUIRE(pass);
  CHECK(pass->verdict == AbVerdict::kPass);
  CHECK_FALSE(pass->interval.has_value());
  CHECK(*pass->tolerance_absolute == doctest::Approx(0.02));
  CHECK(compare({2.00}, {2.03}, loss(0.01))->verdict == AbVerdict::kFail);
  // A better loss is no harm.
  CHECK(compare({2.00}, {1.50}, loss(0.01))->verdict == AbVerdict::kPass);
}

TEST_CASE("pairs cancel what both sides share") {
  // The runs drift by far more than the difference, but together.
  const std::vector<double> before = {10, 20, 30, 40, 50}, after = {10.1, 20.1, 30.12, 40.09, 50.1};
  const auto it = compare(before, after, loss(0.5, false));
  REQUIRE(it);
  CHECK(it->verdict == AbVerdict::kPass);
  CHECK(it->mean_difference == doctest::Approx(0.102));
  // By hand: s = 0.010954, t(4) = 2.77645, reach = 0.013601.
  CHECK(it->interval->low == doctest::Approx(0.102 - 0.0136015).epsilon(1e-4));
  CHECK(it->interval->high == doctest::Approx(0.102 + 0.0136015).epsilon(1e-4));
  CHECK(it->baseline.median == 30);
}

TEST_CASE("beyond tolerance in every direction") {
  AbOptions options = loss(0.1, false);
  const std::vector<double> low = {1.00, 1.01, 0.99}, high = {1.50, 1.52, 1.49};
  CHECK(compare(low, high, options)->verdict == AbVerdict::kFail);
  CHECK(compare(high, low, options)->verdict == AbVerdict::kPass);
  options.direction = AbDirection::kHigherIsBetter;
  CHECK(compare(low, high, options)->verdict == AbVerdict::kPass);
  CHECK(compare(high, low, options)->verdict == AbVerdict::kFail);
  options.direction = AbDirection::kEither;
  CHECK(compare(low, high, options)->verdict == AbVerdict::kFail);
  CHECK(compare(high, low, options)->verdict == AbVerdict::kFail);
  CHECK(compare(low, {1.001, 1.009, 0.991}, options)->verdict == AbVerdict::kPass);
}

TEST_CASE("noise that hides the answer: how many repeats would show it") {
  const std::vector<double> before = {1.0, 1.0, 1.0, 1.0}, after = {1.04, 0.96, 1.05, 0.97};
  const auto it = compare(before, after, loss(0.03));
  REQUIRE(it);
  CHECK(it->verdict == AbVerdict::kCannotTell);
  REQUIRE(it->needed_repeats.has_value());
  // Mean 0.005, deviation 0.0465: the interval's half has to fall below 0.025.
  CHECK(*it->needed_repeats > 12);
  CHECK(*it->needed_repeats < 20);
  CHECK(it->reason.find("needs about") != std::string::npos);
  // On the edge of the tolerance no number of repeats is enough.
  const auto edge = compare({1.0, 1.0}, {1.04, 1.02}, loss(0.03));
  CHECK(edge->verdict == AbVerdict::kCannotTell);
  CHECK_FALSE(edge->needed_repeats.has_value());
}

TEST_CASE("equal values pass even without tolerance to spare") {
  const auto it = compare({1.5, 1.5, 1.5}, {1.5, 1.5, 1.5}, loss(0));
  REQUIRE(it);
  CHECK(it->verdict == AbVerdict::kPass);
  CHECK(it->interval->low == 0);
  CHECK(it->interval->high == 0);
}

TEST_CASE("a loss that is not finite fails; bad input is said so") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto it = compare({1, 1}, {1, nan}, loss(0.5));
  REQUIRE(it);
  CHECK(it->verdict == AbVerdict::kFail);
  CHECK_FALSE(compare({1, nan}, {1, 1}, loss(0.5)));
  CHECK_FALSE(compare({}, {}, loss(0.5)));
  CHECK_FALSE(compare({1, 2}, {1}, loss(0.5)));
  CHECK_FALSE(compare({0}, {0}, loss(0.5)));
  CHECK(compare({0}, {0}, loss(0.5, false))->verdict == AbVerdict::kPass);
  CHECK_FALSE(compare({1}, {1}, loss(-0.1)));
}

TEST_CASE("the report: worst verdict, nulls, step gain") {
  AbReport report;
  report.command = {"python", "train.py"};
  report.metrics.push_back(*compare({2.0}, {2.0}, loss(0.01)));
  CHECK(overall_verdict(report) == AbVerdict::kPass);
  AbOptions figures;
  figures.name = "step_time_us";
  report.step_time = *compare({100, 102}, {50, 52}, figures);
  auto document = nlohmann::json::parse(ab_json(report));
  CHECK(document["schema"] == "echo-tp/ab/1");
  CHECK(document["verdict"] == "pass");
  CHECK(document["metrics"][0]["difference"]["interval"].is_null());
  CHECK(document["step_time"]["verdict"] == "none");
  CHECK(document["step_time"]["gain"].get<double>() == doctest::Approx(101.0 / 51));
  CHECK(document["policy"]["hash"].is_null());
  report.metrics.push_back(*compare({2.0}, {3.0}, loss(0.01)));
  CHECK(overall_verdict(report) == AbVerdict::kFail);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  report.metrics.push_back(*compare({2.0}, {nan}, loss(0.01)));
  document = nlohmann::json::parse(ab_json(report));
  CHECK(document["metrics"][2]["echo"]["values"][0].is_null());
}

}  // namespace
}  // namespace echotp
