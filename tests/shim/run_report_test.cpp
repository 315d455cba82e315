// SPDX-License-Identifier: Apache-2.0
// The run report: sums worked out by hand, and the problems it must notice.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "shim/run_report.hpp"

using namespace echotp;

namespace {

Receipt process(int rank, int ranks) {
  Receipt receipt;
  receipt.host = "h";
  receipt.pid = 100 + rank;
  receipt.mode = "compress";
  receipt.policy_hash = 7;
  CommunicatorReceipt c;
  c.name = "TP";
  c.rank = rank;
  c.ranks = ranks;
  c.calls = 10;
  c.compressed = 6;
  c.captured = 2;
  c.by_reason[static_cast<std::size_t>(Reason::kCompressed)] = 6;
  c.by_reason[static_cast<std::size_t>(Reason::kBelowMinBytes)] = 3;
  c.by_reason[static_cast<std::size_t>(Reason::kDatatype)] = 1;
  c.by_bytes = {{512, {4, 0}}, {1 << 20, {6, 6}}};
  c.payload_bytes = 6 << 20;
  c.nccl_wire_bytes = 6000;
  c.echo_wire_bytes = 1700;
  c.uncompensated = 1;
  c.nonfinite_groups = rank;
  receipt.communicators = {c};
  return receipt;
}

bool has(const RunReport& report, const std::string& words) {
  return std::any_of(report.problems.begin(), report.problems.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

RunFacts facts() {
  return {.command = {"job", "--x"},
          .exit_code = 0,
          .mode = "compress",
          .policy_path = "p.json",
          .policy_hash = 7};
}

}  // namespace

TEST_CASE("run report: sums over all processes and communicators") {
  Receipt first = process(0, 2);
  CommunicatorReceipt other;
  other.ranks = 2;
  other.rank = 0;
  other.name = "DP";
  other.calls = 5;
  other.by_reason[static_cast<std::size_t>(Reason::kNoRule)] = 5;
  other.by_bytes = {{512, {5, 0}}};
  first.communicators.push_back(other);
  Receipt second = process(1, 2);
  other.rank = 1;
  second.communicators.push_back(other);
  const RunReport report = merge_receipts(facts(), {first, second}, {});
  CHECK(report.ranks_seen == 2);
  CHECK(report.totals.calls == 30);
  CHECK(report.totals.compressed == 12);
  CHECK(report.totals.forwarded == 18);
  CHECK(report.totals.captured == 4);
  CHECK(report.totals.uncompensated == 2);
  CHECK(report.totals.nonfinite_groups == 1);
  CHECK(report.totals.by_reason[static_cast<std::size_t>(Reason::kBelowMinBytes)] == 6);
  CHECK(report.totals.by_reason[static_cast<std::size_t>(Reason::kNoRule)] == 10);
  CHECK(report.totals.by_bytes.at(512).calls == 18);
  CHECK(report.totals.by_bytes.at(1 << 20).compressed == 12);
  CHECK(report.totals.payload_bytes == 12 << 20);
  CHECK(report.totals.saved_wire_bytes() == 2 * 4300);
  CHECK(report.problems.empty());

  const auto json = nlohmann::json::parse(run_report_json(report));
  CHECK(json["schema"] == "echo-tp/run/1");
  CHECK(json["command"] == nlohmann::json({"job", "--x"}));
  CHECK(json["exit_code"] == 0);
  CHECK(json["policy"]["hash"] == "0x0000000000000007");
  CHECK(json["totals"]["by_reason"] ==
        nlohmann::json({{"below_min_bytes", 6}, {"datatype", 2}, {"no_rule", 10}}));
  CHECK(json["totals"]["by_bytes"][1]["bytes"] == 1 << 20);
  CHECK(json["totals"]["saved_wire_bytes"] == 8600);
  CHECK(json["processes"].size() == 2);
  CHECK(json["processes"][1]["communicators"][0]["rank"] == 1);
  CHECK(json["problems"].empty());
  std::int64_t forwarded = 0;
  for (const auto& [name, count] : json["totals"]["by_reason"].items())
    forwarded += count.get<std::int64_t>();
  CHECK(forwarded == json["totals"]["forwarded"]);
}

TEST_CASE("run report: a job without NCCL is a problem with a name, not a zero") {
  const RunReport report = merge_receipts(
      {.command = {"true"}, .exit_code = {}, .mode = "observe", .policy_path = ""}, {}, {"bad file"});
  CHECK(report.problems.size() == 2);
  CHECK(has(report, "bad file"));
  CHECK(has(report, "no process left a receipt"));
  const auto json = nlohmann::json::parse(run_report_json(report));
  CHECK(json["exit_code"].is_null());
  CHECK(json["policy"].is_null());
  CHECK(json["ranks_seen"] == 0);
}

TEST_CASE("run report: ranks that left no receipt are counted, and only those") {
  CHECK(has(merge_receipts(facts(), {process(0, 4), process(2, 4)}, {}),
            "communicator \"TP\" of 4 ranks: no receipt of 2 of them"));
  CHECK(merge_receipts(facts(), {process(0, 2), process(1, 2)}, {}).problems.empty());
  Receipt unknown = process(0, 2);
  unknown.communicators[0].rank = -1;
  unknown.communicators[0].ranks = 0;
  const RunReport report = merge_receipts(facts(), {unknown}, {});
  CHECK(report.ranks_seen == 0);
  CHECK(report.totals.calls == 10);
  CHECK(report.problems.empty());
}

TEST_CASE("run report: other policies, errors and communicators that were switched off are told") {
  Receipt first = process(0, 2);
  Receipt second = process(1, 2);
  second.policy_hash = 8;
  second.errors = {"engine: no device"};
  for (Receipt* receipt : {&first, &second}) {
    receipt->communicators[0].off = "voted_off";
    receipt->communicators[0].off_detail = "rank 1 voted no: no device";
  }
  const RunReport report = merge_receipts(facts(), {first, second}, {});
  CHECK(report.problems.size() == 3);
  CHECK(has(report, "h pid 101: read another policy"));
  CHECK(has(report, "h pid 101: engine: no device"));
  CHECK(has(report, "communicator \"TP\" of 2 ranks was not compressed: rank 1 voted no: no device"));
  for (Receipt* receipt : {&first, &second}) {
    receipt->policy_hash = 7;
    receipt->errors.clear();
    receipt->communicators[0].off = "observe_mode";
  }
  CHECK(merge_receipts(facts(), {first, second}, {}).problems.empty());
}

TEST_CASE("run report: a transport that a rule counts on and that was not possible is told, once") {
  Receipt first = process(0, 2);
  Receipt second = process(1, 2);
  for (Receipt* receipt : {&first, &second}) {
    receipt->communicators[0].transport = "staged";
    receipt->communicators[0].p2p_off = "rank 1: no peer access";
  }
  CHECK(merge_receipts(facts(), {first, second}, {}).problems.empty());  // it was left to us
  for (Receipt* receipt : {&first, &second}) receipt->communicators[0].p2p_asked_for = true;
  const RunReport report = merge_receipts(facts(), {first, second}, {});
  CHECK(report.problems.size() == 1);
  CHECK(has(report, "\"TP\" of 2 ranks"));
  CHECK(has(report, "rank 1: no peer access"));
}
