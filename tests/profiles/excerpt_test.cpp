// SPDX-License-Identifier: Apache-2.0
// Excerpts: whole steps, complete collectives, an honest mark, no folders.
#include "profiles/excerpt.hpp"

#include <doctest/doctest.h>

#include "profiles/estimate.hpp"
#include "profiles/summary.hpp"
#include "synthetic_trace.hpp"

namespace echotp {
namespace {

TEST_CASE("an excerpt holds whole steps: every collective of them, on every rank, and no other") {
  const Trace whole = test::serial_job({.ranks = 2, .layers = 5, .steps = 9, .jitter = 0.1}).trace();
  const auto cut = excerpt_of_steps(whole, 3, 4);
  REQUIRE(cut);
  REQUIRE(cut->excerpt);
  CHECK(cut->excerpt->of_steps == 9);
  CHECK(cut->calls.size() == 2 * 5 * 4);
  CHECK(cut->device_ops.size() == 2 * (1 + 2 * 5 + 1) * 4);
  CHECK(cut->ranges.size() == 2 * 4);
  CHECK(cut->host_apis.size() == 2 * (1 + 2 * 5 + 1 + 1) * 4);
  for (std::size_t i = 0; i < cut->calls.size(); ++i) {
    REQUIRE(cut->calls[i].ops.size() == 1);
    CHECK(cut->device_ops[cut->calls[i].ops[0]].call == static_cast<std::int32_t>(i));
  }
  const auto it = estimate(*cut, EstimateOptions{});
  REQUIRE(it);
  CHECK(it->steps.found == 4);
  CHECK(it->quality.partial_collectives == 0);
  CHECK(it->classes[0].calls_per_step == doctest::Approx(5));
  bool said = false, shown = false;
  for (const std::string& text : it->warnings)
    said |= text.find("4 of 9 recorded steps") != std::string::npos;
  for (const std::string& text : summarise(*cut).notes) shown |= text.find("of 9 steps") != std::string::npos;
  CHECK(said);
  CHECK(shown);
}

TEST_CASE("an excerpt of what is not there, or of unnamed steps, is refused") {
  const Trace whole = test::serial_job({.ranks = 2, .steps = 4}).trace();
  CHECK_FALSE(excerpt_of_steps(whole, 2, 3));
  CHECK_FALSE(excerpt_of_steps(whole, -1, 2));
  CHECK_FALSE(excerpt_of_steps(whole, 0, 0));
  CHECK(excerpt_of_steps(whole, 1, 3));
  CHECK_FALSE(excerpt_of_steps(test::serial_job({.ranks = 2, .range = ""}).trace(), 0, 2));
}

TEST_CASE("an excerpt of an excerpt is one of the whole recording") {
  const Trace whole = test::serial_job({.ranks = 2, .steps = 8}).trace();
  const auto once = excerpt_of_steps(whole, 1, 6);
  REQUIRE(once);
  const auto twice = excerpt_of_steps(*once, 1, 3);
  REQUIRE(twice);
  CHECK(twice->excerpt->of_steps == 8);
}

TEST_CASE("folders are left out of the command and the programs") {
  Trace trace;
  trace.command = {"share/launch.sh", "2", "/opt/job/bin/train", "--steps", "3"};
  trace.processes.resize(1);
  trace.processes[0].program = "/opt/job/bin/train --steps 3 /data/x";
  strip_folders(trace);
  CHECK(trace.command == std::vector<std::string>{"share/launch.sh", "2", "train", "--steps", "3"});
  CHECK(trace.processes[0].program == "train --steps 3 x");
}

}  // namespace
}  // namespace echotp
