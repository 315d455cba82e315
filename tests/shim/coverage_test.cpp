// SPDX-License-Identifier: Apache-2.0
// The witness and the engine in one job: NCCL's own count against what passed the shim.
#include <doctest/doctest.h>

#include "shim/coverage_report.hpp"
#include "tests/shim/interpose_process.hpp"
#include "tests/shim/temp_dir.hpp"

using namespace echotp;
using namespace echotp::testing;

namespace {

/// Runs a scenario in observe mode; an empty value of `changes` removes.
std::vector<ProcessCoverage> cover(const std::string& scenario, const Environment& changes = {}, int code = 0,
                                   const char* job = COVERAGE_JOB) {
  TempDir dir;
  Environment environment = {{"ECHO_TP_MODE", "observe"},
                             {"ECHO_TP_POLICY", ""},
                             {"ECHO_TP_RUN_DIR", dir.path("")},
                             {"NVTX_INJECTION64_PATH", COVERAGE_WITNESS}};
  for (const auto& [name, value] : changes) environment[name] = value;
  const Outcome outcome = run_watched({job, scenario}, environment);
  CAPTURE(outcome.text());
  CHECK(outcome.code == code);
  CHECK(outcome.err.empty());
  std::vector<std::string> problems;
  std::vector<ProcessCoverage> found = read_coverage(dir.path(""), problems);
  CHECK(problems.empty());
  return found;
}

}  // namespace

TEST_CASE("coverage: every all-reduce that NCCL reports has passed the shim") {
  const auto processes = cover("two_comms");
  REQUIRE(processes.size() == 1);
  CHECK(processes[0].listening);
  CHECK(processes[0].nccl == 2);
  CHECK(processes[0].forwarded == 2);
  CHECK(processes[0].missed() == 0);
}

TEST_CASE("coverage: all-reduces that pass the shim by are missed") {
  const auto processes = cover("two_comms", {{"LD_PRELOAD", ""}});
  REQUIRE(processes.size() == 1);
  CHECK(processes[0].nccl == 2);
  CHECK(processes[0].forwarded == 0);
  CHECK(processes[0].missed() == 2);
}

TEST_CASE("coverage: a program that holds NCCL itself can't be reached, and that is noticed") {
  const auto processes = cover("two_comms", {}, 0, COVERAGE_STATIC_JOB);
  REQUIRE(processes.size() == 1);
  CHECK(processes[0].missed() == 2);
}

TEST_CASE("coverage: without the witness nothing is claimed") {
  const auto processes = cover("two_comms", {{"NVTX_INJECTION64_PATH", ""}});
  REQUIRE(processes.size() == 1);
  CHECK_FALSE(processes[0].listening);
  CHECK(processes[0].forwarded == 2);
  CHECK(processes[0].missed() == 0);
}

TEST_CASE("coverage: ECHO_TP=off leaves nothing behind, nor does a job without a run") {
  CHECK(cover("two_comms", {{"ECHO_TP", "off"}}).empty());
  CHECK(cover("two_comms", {{"ECHO_TP_RUN_DIR", ""}}).empty());
}

TEST_CASE("coverage: a forked child counts for itself") {
  const auto processes = cover("fork_first");  // its parent makes no communicator
  REQUIRE(processes.size() == 1);
  CHECK(processes[0].nccl == 1);
  CHECK(processes[0].forwarded == 1);
  // After the parent's first communicator the child forwards without counting, and says so: NCCL saw those.
  const auto late = cover("fork");
  REQUIRE(late.size() == 2);
  CHECK(late[0].nccl + late[1].nccl == 3);
  CHECK(late[0].forwarded + late[1].forwarded == 1);
}

TEST_CASE("coverage: a killed process leaves its last call") {
  const auto processes = cover("killed", {}, 137);
  REQUIRE(processes.size() == 1);
  CHECK(processes[0].nccl == 1);
  CHECK(processes[0].forwarded == 1);
}

TEST_CASE("coverage: a folder that is gone or can't be written does no harm") {
  CHECK(cover("two_comms",
              {{"ECHO_TP_RUN_DIR", "/proc/no/such/folder"}, {"ECHO_TP_MODE", ""}, {"ECHO_TP_POLICY", ""}})
            .empty());
}

TEST_CASE("verbose: a line for each new decision of each communicator") {
  TempDir dir;
  const Outcome outcome = run_watched({COVERAGE_JOB, "many_calls"}, {{"ECHO_TP_MODE", "observe"},
                                                                     {"ECHO_TP_POLICY", ""},
                                                                     {"ECHO_TP_RUN_DIR", dir.path("")},
                                                                     {"ECHO_TP_LOG", "1"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  std::size_t told = 0;
  for (std::size_t at = 0; (at = outcome.err.find("left to NCCL, observe_mode", at)) != std::string::npos;
       ++at)
    ++told;
  CHECK(told == 2);  // two communicators with many calls each
}

TEST_CASE("NVTX: a range around every call, with what a tool needs to know") {
  TempDir dir;
  const Outcome outcome = run_watched(
      {COVERAGE_JOB, "two_comms"},
      {{"ECHO_TP_MODE", "observe"}, {"ECHO_TP_POLICY", ""}, {"NVTX_INJECTION64_PATH", COVERAGE_NVTX_TOOL}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.lines("nvtx").size() == 4);
  const std::vector<std::string> pushed = outcome.lines("nvtx push");
  REQUIRE(pushed.size() == 2);
  CHECK(pushed[0] ==
        "nvtx push all-reduce, left to NCCL: count=1 bytes=2 ranks=2 rule=-1 reason=observe_mode "
        "transport=nccl bits=0 "
        "group=0");
  CHECK(pushed[1].find("count=2 bytes=4 ") != std::string::npos);
  // The range is open while NCCL is called.
  const int first = outcome.index("nvtx push");
  CHECK(outcome.index("nccl22809 AllReduce", first) < outcome.index("nvtx pop", first));
}
