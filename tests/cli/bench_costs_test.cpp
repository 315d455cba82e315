// SPDX-License-Identifier: Apache-2.0
// The bench programs' documents: the reader that estimate and policies use accepts the cost table and finds
// the same numbers; what receipts contradict is taken out; bounds and rates against hand-worked values.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/bench_bound.hpp"
#include "cli/bench_candidates.hpp"
#include "cli/bench_confirm.hpp"
#include "cli/bench_costs.hpp"
#include "cli/bench_rates.hpp"
#include "shim/costs.hpp"

using namespace echotp;
using Json = nlohmann::json;

namespace {

BenchMeasurement measurement(bool intercepted) {
  BenchMeasurement out;
  out.rule.transport = TransportChoice::kP2p;
  out.rule.codec.first_leg_bits = 8;
  out.rule.compensation = {.mode = CompensationMode::kOwner,
                           .a = 0.8f,
                           .bf = 0.5f,
                           .b = 0.2f,
                           .bs = 0.7f,
                           .state = StateFormat::kFp16};
  out.bytes = 67108864;
  out.nccl_us = {400, 100, 300, 200, 500};
  out.echo_us = {10, 20, 40, 30, 50};
  out.intercepted = intercepted;
  out.bytes_equal = true;
  out.reference_equal = true;
  out.relative_error = 0.14;
  return out;
}

CostTable read_back(const std::string& text) {
  auto table = parse_costs(text, "c.json");
  REQUIRE_MESSAGE(table, (table ? "" : table.error().text()));
  return *std::move(table);
}

std::string document_of(const BenchMeasurement& measured, const BenchSettings& settings = {}) {
  return bench_document({measured}, {}, settings, {"worker"}, DataType::kBf16, 2);
}

}  // namespace

TEST_CASE("bench: quantiles against hand-worked values") {
  CHECK(!quantile({}, 0.5));
  CHECK(*quantile({7}, 0.9) == 7);
  CHECK(*quantile({4, 1, 3, 2}, 0.5) == 2.5);
  CHECK(*quantile({400, 100, 300, 200, 500}, 0.1) == doctest::Approx(140));
}

TEST_CASE("bench: the cost table reads back") {
  BenchEnvironment environment;
  environment.gpu = "NVIDIA H200";
  environment.nccl = "2.28.9";
  environment.nccl_env = {{"NCCL_HOSTID", "h0"}};
  BenchMeasurement measured = measurement(true);
  measured.background_nccl_gbs = 20;
  measured.background_echo_gbs = 30;
  const BenchSettings settings{
      .graph = true, .background = "copy", .background_path = "copies", .background_alone_gbs = 40.5};
  const CostTable table = read_back(
      bench_document({measured}, environment, settings, {"worker", "--sizes", "64MiB"}, DataType::kBf16, 2));
  CHECK(table.environment.gpu == "NVIDIA H200");
  CHECK(!table.environment.driver);
  CHECK(table.environment.nccl_env.at("NCCL_HOSTID") == "h0");
  CHECK(table.background_path == "copies");
  CHECK(table.background_alone_gbs == 40.5);
  REQUIRE(table.entries.size() == 1);
  const CostEntry& entry = table.entries[0];
  CHECK(entry.ranks == 2);
  CHECK(entry.bytes == 67108864);
  CHECK(entry.transport == "p2p");
  CHECK(entry.codec == measured.rule.codec);
  CHECK(entry.compensation == measured.rule.compensation);
  CHECK(entry.background == "copy");
  CHECK(entry.background_nccl_gbs == 20.0);
  CHECK(entry.background_echo_gbs == 30.0);
  CHECK(entry.nccl_us->median == 300);
  CHECK(entry.echo_us->median == 30);
  CHECK(entry.echo_us->samples == 5);
  CHECK(*entry.echo_us->p90 == doctest::Approx(46));
  // 32 Mi elements on 2 ranks: each sends half of them at 8.5 bits and half at 4.5: 32 Mi * 13 / 2 / 8 bytes.
  CHECK(entry.wire_bytes == 27262976);
  CHECK(entry.bytes_equal == true);
  CHECK(!entry.why_not);
}

TEST_CASE("bench: without interception there is no time for Echo") {
  const CostTable table = read_back(document_of(measurement(false)));
  CHECK(table.entries[0].nccl_us->median == 300);
  CHECK(!table.entries[0].echo_us);
  CHECK(!table.entries[0].wire_bytes);
  CHECK(table.entries[0].why_not);
}

TEST_CASE("bench: a receipt that contradicts an entry takes its time out") {
  const BenchMeasurement measured = measurement(true);
  const std::string document = document_of(measured);
  CommunicatorReceipt communicator;
  communicator.name = candidate_name(measured.rule);
  communicator.transport = "p2p";
  communicator.by_bytes[67108864] = {.calls = 9, .compressed = 9};
  communicator.compressed = communicator.p2p_calls = 12;
  const auto confirm = [&](std::vector<std::string>& doubts) {
    Receipt receipt;
    receipt.communicators = {communicator};
    const auto out = confirmed_costs(document, {receipt}, doubts);
    REQUIRE_MESSAGE(out, (out ? "" : out.error().text()));
    return read_back(*out).entries[0];
  };
  std::vector<std::string> doubts;
  CHECK(confirm(doubts).echo_us->median == 30);
  CHECK(doubts.empty());
  communicator.uncompensated = 3;
  CHECK(confirm(doubts).echo_us);
  REQUIRE(doubts.size() == 1);
  CHECK(doubts[0].find("3 calls found no memory") != std::string::npos);
  communicator.uncompensated = 0;
  communicator.transport = "staged";
  CHECK(!confirm(doubts).echo_us);
  CHECK(confirm(doubts).why_not == "the ranks did not agree on p2p");
  communicator.p2p_off = "rank 1 lives on another host";
  CHECK(confirm(doubts).why_not == "the ranks did not agree on p2p: rank 1 lives on another host");
  communicator.transport = "p2p";
  communicator.p2p_calls = 11;
  CHECK(confirm(doubts).why_not == "of 12 calls 11 went p2p");
  communicator.p2p_calls = 12;
  communicator.by_bytes[67108864].compressed = 8;
  CHECK(confirm(doubts).why_not == "not every call of this size was compressed");
  communicator.off = "voted_off";
  communicator.off_detail = "rank 1 has another policy";
  CHECK(confirm(doubts).why_not == "rank 1 has another policy");
  communicator.name = "somebody else's";
  doubts.clear();
  CHECK(confirm(doubts).echo_us);
  CHECK(doubts.size() == 1);
  CHECK(!confirmed_costs("{", {}, doubts));
}

TEST_CASE("bench: the background's rate during some spans") {
  // 1 GB from 0 to 10 ms and 2 GB from 10 to 20 ms: 100 and 200 GB/s.
  const std::vector<BackgroundChunk> chunks = {{{0, 10}, 1e9}, {{10, 20}, 2e9}};
  CHECK(*background_gbs(chunks, {{0, 10}}) == doctest::Approx(100));
  CHECK(*background_gbs(chunks, {{5, 15}}) == doctest::Approx(150));
  // 2 ms of the first, 3 ms of the second, 5 ms of nothing.
  CHECK(*background_gbs(chunks, {{8, 13}, {30, 35}}) == doctest::Approx((0.2e9 + 0.6e9) / 10e6));
  CHECK(*background_gbs({}, {{0, 1}}) == 0);
  CHECK(!background_gbs(chunks, {}));
  CHECK(!background_gbs(chunks, {{3, 3}}));
}

TEST_CASE("bench: bytes that a rank's memory must move, by hand") {
  // 2 ranks, bf16, 4.5 bits on both legs: values 4 B an element; codes 2 * 1/2 * 9 / 8 = 1.125 B.
  Compensation none{.mode = CompensationMode::kNone};
  MovedBytes moved = moved_bytes(1000, 2, DataType::kBf16, {}, none);
  CHECK(moved.values == doctest::Approx(4000));
  CHECK(moved.codes == doctest::Approx(1125));
  CHECK(moved.state == 0);
  CHECK(moved.total() == doctest::Approx(5125));
  // Two int8 estimates and a 16-bit unit for every 32 elements, read and written, of every element: 4.125 B.
  CHECK(moved_bytes(1000, 2, DataType::kBf16, {}, {}).state == doctest::Approx(4125));
  // Owners remember their own part only; one estimate when b is 0; fp32 has no units.
  const Compensation owner{.mode = CompensationMode::kOwner};
  CHECK(moved_bytes(1000, 4, DataType::kBf16, {}, owner).state == doctest::Approx(1031.25));
  const Compensation ef{.a = 1, .b = 0};
  CHECK(moved_bytes(1000, 2, DataType::kBf16, {}, ef).state == doctest::Approx(2125));
  const Compensation fp32{.state = StateFormat::kFp32};
  CHECK(moved_bytes(1000, 2, DataType::kBf16, {}, fp32).state == doctest::Approx(16000));
  const Compensation fp16{.state = StateFormat::kFp16};
  CHECK(moved_bytes(1000, 2, DataType::kBf16, {}, fp16).state == doctest::Approx(8125));
  // 8 ranks, fp32, 8 bits to the owner, groups of 64: 2 * 7/8 * (8.25 + 4.25) / 8 = 2.734375 B.
  moved = moved_bytes(1000, 8, DataType::kFp32, {.bits = 4, .group = 64, .first_leg_bits = 8}, none);
  CHECK(moved.values == doctest::Approx(8000));
  CHECK(moved.codes == doctest::Approx(2734.375));
  CHECK(bound_us(4.3e9, 4300) == doctest::Approx(1000));
}

TEST_CASE("bench: the loopback's document holds bounds for all ranks together") {
  LoopbackMeasurement measured;
  measured.bytes = 2000;
  measured.us = {2, 4, 3};
  measured.moved = {.values = 4000, .codes = 1000, .state = 1000};
  measured.reference_equal = true;
  LoopbackMeasurement left_out;
  left_out.why_not = "no memory";
  const LoopbackFacts facts{.ranks = 2, .ctas = 66, .dtype = DataType::kBf16, .copy_gbs = {3, 5, 6}};
  const Json document = Json::parse(loopback_document({measured, left_out}, facts, {}, {"x"}));
  CHECK(document["schema"] == "echo-tp/results/1");
  CHECK(document["copy_gbs"]["median"] == 5);
  const Json& entry = document["entries"][0];
  CHECK(entry["moved_bytes"] == 12000);
  CHECK(entry["bound_us"].get<double>() == doctest::Approx(2.4));
  CHECK(entry["us"]["median"] == 3);
  CHECK(entry["ratio"].get<double>() == doctest::Approx(0.8));
  CHECK(document["entries"][1]["us"].is_null());
  CHECK(document["entries"][1]["ratio"].is_null());
  CHECK(document["entries"][1]["why_not"] == "no memory");
}
