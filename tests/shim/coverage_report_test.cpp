// SPDX-License-Identifier: Apache-2.0
// What the counts of NCCL and of the shim say together.
#include "shim/coverage_report.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "shim/coverage.h"
#include "shim/run_report.hpp"
#include "tests/shim/temp_dir.hpp"

using namespace echotp;

namespace {

std::string file_of(std::int64_t pid, std::int64_t listening, std::int64_t nccl, std::int64_t forwarded,
                    std::int64_t compressed) {
  EchoTpCoverage content{};
  std::memcpy(content.magic, ECHO_TP_COVERAGE_MAGIC, sizeof content.magic);
  content.pid = pid;
  content.listening = listening;
  content.nccl_all_reduces = nccl;
  content.forwarded = forwarded;
  content.compressed = compressed;
  return std::string(reinterpret_cast<const char*>(&content), sizeof content);
}

}  // namespace

TEST_CASE("coverage: sums, misses and processes that NCCL said nothing of") {
  TempDir dir;
  dir.write("coverage-node-1-11", file_of(11, 1, 100, 100, 900));
  dir.write("coverage-node-1-12", file_of(12, 1, 105, 98, 900));
  dir.write("coverage-node-1-13", file_of(13, 0, 0, 98, 900));
  dir.write("coverage-node-1-14", file_of(14, 0, 0, 0, 0));   // saw nothing at all
  dir.write("coverage-node-1-15", file_of(15, 1, 9, 10, 0));  // killed before NCCL began: nothing is missed
  dir.write("coverage-node-1-16.new16", "");                  // killed while making it
  std::vector<std::string> problems;
  const auto processes = read_coverage(dir.path(""), problems);
  CHECK(problems.empty());
  REQUIRE(processes.size() == 5);
  CHECK(processes[1].name == "node-1 pid 12");
  CHECK(processes[1].missed() == 7);
  RunReport report = merge_receipts({}, {}, {});
  const std::size_t before = report.problems.size();
  add_coverage(report, processes);
  REQUIRE(report.coverage);
  CHECK(report.coverage->nccl_all_reduces == 214);
  CHECK(report.coverage->missed == 7);
  CHECK(report.coverage->processes == 3);
  CHECK(report.coverage->unwatched == 1);
  REQUIRE(report.problems.size() == before + 1);
  CHECK(report.problems.back().find("node-1 pid 12: 7 of 105 all-reduces") == 0);
  CHECK(nlohmann::json::parse(run_report_json(report))["coverage"]["missed"] == 7);
}

TEST_CASE("coverage: not measured is null, not zero") {
  RunReport report = merge_receipts({}, {}, {});
  add_coverage(report, {});
  CHECK_FALSE(report.coverage);
  CHECK(nlohmann::json::parse(run_report_json(report))["coverage"].is_null());
}

TEST_CASE("coverage: files that are none are named") {
  TempDir dir;
  const std::string good = file_of(1, 1, 1, 1, 0);
  dir.write("coverage-h-1", good.substr(0, good.size() - 1));
  dir.write("coverage-h-2", "x" + good.substr(1));
  dir.write("coverage-h-3", file_of(3, 1, -1, 0, 0));
  dir.write("receipt-h-4.json", "{}");
  std::vector<std::string> problems;
  CHECK(read_coverage(dir.path(""), problems).empty());
  CHECK(problems.size() == 3);
}
