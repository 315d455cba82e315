// SPDX-License-Identifier: Apache-2.0
// The bench worker's document: the reader that estimate and policies use accepts it and finds the same
// numbers.
#include <doctest/doctest.h>

#include "cli/bench_costs.hpp"
#include "shim/costs.hpp"

using namespace echotp;

namespace {

const char* const kLabel =
    R"({"transport":"staged","codec":{"bits":4,"group":32},)"
    R"("compensation":{"mode":"owner","a":0.8,"bf":0.5,"b":0.2,"bs":0.7,"state":"fp16"}})";

BenchMeasurement measurement(bool intercepted) {
  return {.bytes = 67108864,
          .nccl_us = {400, 100, 300, 200, 500},
          .other_us = {10, 20, 40, 30, 50},
          .intercepted = intercepted,
          .bytes_equal = true,
          .relative_error = 0.14};
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
  auto text = bench_document({measurement(true)}, environment, {"worker", "--sizes", "64MiB"}, kLabel,
                             DataType::kBf16, 2);
  REQUIRE(text);
  auto table = parse_costs(*text, "c.json");
  REQUIRE_MESSAGE(table, (table ? "" : table.error().text()));
  CHECK(table->environment.gpu == "NVIDIA H200");
  CHECK(!table->environment.driver);
  CHECK(table->environment.nccl_env.at("NCCL_HOSTID") == "h0");
  REQUIRE(table->entries.size() == 1);
  const CostEntry& entry = table->entries[0];
  CHECK(entry.ranks == 2);
  CHECK(entry.bytes == 67108864);
  CHECK(entry.nccl_us->median == 300);
  CHECK(entry.echo_us->median == 30);
  CHECK(entry.echo_us->samples == 5);
  CHECK(*entry.echo_us->p90 == doctest::Approx(46));
  CHECK(entry.compensation.mode == CompensationMode::kOwner);
  CHECK(entry.compensation.state == StateFormat::kFp16);
  // 32 Mi elements on 2 ranks: each sends half of them twice, at 4.5 bits: 32 Mi * 4.5 / 8 bytes.
  CHECK(entry.wire_bytes == 18874368);
  CHECK(entry.bytes_equal == true);
}

TEST_CASE("bench: without interception there is no time for Echo") {
  auto text = bench_document({measurement(false)}, {}, {}, kLabel, DataType::kBf16, 2);
  REQUIRE(text);
  auto table = parse_costs(*text, "c.json");
  REQUIRE_MESSAGE(table, (table ? "" : table.error().text()));
  CHECK(table->entries[0].nccl_us->median == 300);
  CHECK(!table->entries[0].echo_us);
  CHECK(!table->entries[0].wire_bytes);
}

TEST_CASE("bench: a label that is no object is refused") {
  CHECK(!bench_document({}, {}, {}, "[1]", DataType::kBf16, 2));
  CHECK(!bench_document({}, {}, {}, "{", DataType::kBf16, 2));
  CHECK(!bench_document({measurement(true)}, {}, {}, R"({"codec":{"bits":"four"}})", DataType::kBf16, 2));
}
