// SPDX-License-Identifier: Apache-2.0
// The cost table: reading, interpolation against closed forms, and the threshold "auto" on tables worked out
// by hand.
#include <doctest/doctest.h>
#include <cmath>
#include <cstdint>
#include <random>
#include <tuple>

#include "shim/costs.hpp"

using namespace echotp;

namespace {

CostEntry entry(int ranks, std::int64_t bytes, double nccl_us, double echo_us) {
  CostEntry out;
  out.ranks = ranks;
  out.bytes = bytes;
  out.nccl_us = CostSpread{.median = nccl_us, .p10 = {}, .p90 = {}, .samples = {}};
  out.echo_us = CostSpread{.median = echo_us, .p10 = {}, .p90 = {}, .samples = {}};
  return out;
}

std::string refused(const std::string& entries) {
  auto table = parse_costs(R"({"schema":"echo-tp/costs/1","entries":[)" + entries + "]}", "c.json");
  return table ? "accepted" : table.error().text();
}

}  // namespace

TEST_CASE("costs: a whole document is read") {
  auto table = parse_costs(
      R"({"schema":"echo-tp/costs/1","generator":{"name":"echo-tp","version":"0.1.0"},"command":["x"],
    "environment":{"gpu":"NVIDIA H200","driver":"580.159","cuda":"13.0","nccl":"2.28.9","host":"a","link":null,
                   "nccl_env":{"NCCL_NVLS_ENABLE":"0"},"later":1},
    "entries":[{"ranks":2,"dtype":"fp16","bytes":67108864,"transport":"staged","codec":{"bits":4,"group":64},
      "compensation":{"mode":"owner","a":0.8,"bf":0.5,"b":0.2,"bs":0.7,"state":"fp32"},
      "nccl_us":{"median":200.5,"p10":190,"p90":250,"samples":30},"echo_us":{"median":100,"p10":null},
      "ratio":2.005,"wire_bytes":37748736,"bytes_equal":true},
      {"ranks":4,"bytes":10,"nccl_us":null,"echo_us":{"median":null},"wire_bytes":null}]})",
      "c.json");
  REQUIRE_MESSAGE(table, (table ? "" : table.error().text()));
  CHECK(table->environment.gpu == "NVIDIA H200");
  CHECK(table->environment.nccl == "2.28.9");
  CHECK(!table->environment.link);
  CHECK(table->environment.nccl_env.at("NCCL_NVLS_ENABLE") == "0");
  REQUIRE(table->entries.size() == 2);
  const CostEntry& first = table->entries[0];
  CHECK(first.ranks == 2);
  CHECK(first.dtype == DataType::kFp16);
  CHECK(first.bytes == 67108864);
  CHECK(first.codec.group == 64);
  CHECK(first.compensation == Compensation{.mode = CompensationMode::kOwner,
                                           .a = 0.8f,
                                           .bf = 0.5f,
                                           .b = 0.2f,
                                           .bs = 0.7f,
                                           .state = StateFormat::kFp32});
  CHECK(first.nccl_us->median == 200.5);
  CHECK(first.nccl_us->p90 == 250.0);
  CHECK(first.nccl_us->samples == 30);
  CHECK(!first.echo_us->p10);
  CHECK(first.wire_bytes == 37748736);
  CHECK(first.bytes_equal == true);
  CHECK(!table->entries[1].nccl_us);
  CHECK(!table->entries[1].echo_us);
  CHECK(!table->entries[1].wire_bytes);
  CHECK(!table->entries[1].bytes_equal);
}

TEST_CASE("costs: faults are refused at their pointer") {
  CHECK(refused(R"({"bytes":1})") == "c.json:1:40: /entries/0: the key 'ranks' is missing");
  CHECK(refused(R"({"ranks":2})").find("'bytes' is missing") != std::string::npos);
  CHECK(
      refused(R"({"ranks":2,"bytes":0})").find("/entries/0/bytes: is 0; expected an integer of at least 1") !=
      std::string::npos);
  CHECK(refused(R"({"ranks":0,"bytes":1})").find("/entries/0/ranks") != std::string::npos);
  CHECK(refused(R"({"ranks":2,"bytes":1,"dtype":"int8"})").find("/entries/0/dtype") != std::string::npos);
  CHECK(refused(R"({"ranks":2,"bytes":1,"nccl_us":{"median":0}})").find("/entries/0/nccl_us/median: is 0") !=
        std::string::npos);
  CHECK(refused(R"({"ranks":2,"bytes":1,"nccl_us":{"median":-5}})").find("median") != std::string::npos);
  CHECK(
      refused(R"({"ranks":2,"bytes":1,"nccl_us":7})").find("/entries/0/nccl_us: is 7; expected an object") !=
      std::string::npos);
  CHECK(refused("3").find("/entries/0: is 3; expected an object") != std::string::npos);
  CHECK(!parse_costs(R"({"schema":"echo-tp/policy/1","entries":[]})", "c.json"));
  CHECK(!parse_costs(R"({"schema":"echo-tp/costs/1"})", "c.json"));
  CHECK(!read_costs("/no/such/costs.json"));
  CHECK(refused("") == "accepted");
}

TEST_CASE("costs: a power law is interpolated exactly, and marked where it was not measured") {
  // t = 3 * bytes^0.7 for NCCL and half of it for Echo: straight lines on logarithmic scales.
  CostTable table;
  for (std::int64_t bytes : {1000, 8000, 100'000, 5'000'000}) {
    const double us = 3 * std::pow(static_cast<double>(bytes), 0.7);
    table.entries.push_back(entry(2, bytes, us, us / 2));
  }
  for (std::int64_t bytes : {1000, 1001, 7999, 8000, 50'000, 4'999'999, 5'000'000, 50'000'000}) {
    CAPTURE(bytes);
    const auto at = cost_at(table, {.ranks = 2}, bytes);
    REQUIRE(at);
    const double us = 3 * std::pow(static_cast<double>(bytes), 0.7);
    CHECK(at->nccl_us.median == doctest::Approx(us).epsilon(1e-9));
    CHECK(at->echo_us.median == doctest::Approx(us / 2).epsilon(1e-9));
    CHECK(at->extrapolated == (bytes > 5'000'000));
  }
  const auto below = cost_at(table, {.ranks = 2}, 10);
  CHECK(below->extrapolated);
  CHECK(below->nccl_us.median == doctest::Approx(3 * std::pow(1000.0, 0.7)));
}

TEST_CASE("costs: above the largest size the slope stays between constant and proportional") {
  CostTable steep, falling, single;
  steep.entries = {entry(2, 1000, 1, 1), entry(2, 2000, 8, 8)};
  falling.entries = {entry(2, 1000, 8, 8), entry(2, 2000, 2, 2)};
  single.entries = {entry(2, 1000, 5, 4)};
  CHECK(cost_at(steep, {.ranks = 2}, 4000)->nccl_us.median == doctest::Approx(16));
  CHECK(cost_at(falling, {.ranks = 2}, 4000)->nccl_us.median == doctest::Approx(4));  // pooled: sqrt(8 * 2)
  CHECK(cost_at(single, {.ranks = 2}, 3000)->echo_us.median == doctest::Approx(12));
  CHECK(cost_at(single, {.ranks = 2}, 3000)->extrapolated);
  CHECK(!cost_at(single, {.ranks = 2}, 1000)->extrapolated);
}

TEST_CASE("costs: time never falls with the size, whatever the noise") {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    CostTable table;
    std::int64_t bytes = 64;
    for (int i = 0; i < 12; ++i) {
      table.entries.push_back(
          entry(2, bytes, 1 + static_cast<double>(random() % 1000), 1 + static_cast<double>(random() % 9)));
      bytes *= 2 + static_cast<std::int64_t>(random() % 5);
    }
    double last_nccl = 0, last_echo = 0;
    for (std::int64_t at = 1; at < bytes * 4; at += at / 7 + 1) {
      const auto cost = cost_at(table, {.ranks = 2}, at);
      CHECK(cost->nccl_us.median >= last_nccl * (1 - 1e-12));
      CHECK(cost->echo_us.median >= last_echo * (1 - 1e-12));
      last_nccl = cost->nccl_us.median;
      last_echo = cost->echo_us.median;
    }
  }
}

TEST_CASE("costs: a question picks ranks, transport, compensation, type and group") {
  CostTable table;
  table.entries = {entry(2, 1000, 10, 1), entry(4, 1000, 10, 2), entry(2, 1000, 10, 3),
                   entry(2, 1000, 10, 4), entry(2, 1000, 10, 5), entry(2, 1000, 10, 6)};
  table.entries[2].transport = "p2p";
  table.entries[3].compensation.mode = CompensationMode::kNone;
  table.entries[4].dtype = DataType::kFp32;
  table.entries[5].codec.group = 128;
  const auto echo = [&](const CostQuery& query) { return cost_at(table, query, 1000)->echo_us.median; };
  constexpr auto kBoth = CompensationMode::kBoth;
  CHECK(echo({.ranks = 4}) == doctest::Approx(2));
  CHECK(echo({.ranks = 2, .transport = "p2p"}) == doctest::Approx(3));
  CHECK(echo({.ranks = 2, .compensation = CompensationMode::kNone}) == doctest::Approx(4));
  CHECK(echo({.ranks = 2, .dtype = DataType::kFp32}) == doctest::Approx(5));
  CHECK(echo({.ranks = 2, .compensation = kBoth, .dtype = DataType::kBf16, .group = 128}) ==
        doctest::Approx(6));
  CHECK(echo({.ranks = 2, .compensation = kBoth, .dtype = DataType::kBf16, .group = 32}) ==
        doctest::Approx(1));
  // Entries that share a size are averaged on the logarithmic scale: (1*4*5*6)^(1/4).
  CHECK(echo({.ranks = 2}) == doctest::Approx(std::pow(120.0, 0.25)));
  CHECK(!cost_at(table, {.ranks = 8}, 1000));
  CHECK(!cost_at(table, {.ranks = 2}, 0));
  table.entries = {entry(2, 1000, 10, 1)};
  table.entries[0].echo_us.reset();
  CHECK(!cost_at(table, {.ranks = 2}, 1000));
}

TEST_CASE("costs: quantiles are interpolated where every entry has them") {
  CostTable table;
  table.entries = {entry(2, 1000, 10, 5), entry(2, 4000, 40, 20)};
  for (CostEntry& e : table.entries) {
    e.nccl_us->p10 = e.nccl_us->median / 2;
    e.nccl_us->p90 = e.nccl_us->median * 2;
  }
  table.entries[0].echo_us->p90 = 9;
  const auto at = cost_at(table, {.ranks = 2}, 2000);
  CHECK(*at->nccl_us.p10 == doctest::Approx(10));
  CHECK(at->nccl_us.median == doctest::Approx(20));
  CHECK(*at->nccl_us.p90 == doctest::Approx(40));
  CHECK(!at->echo_us.p90);
  CHECK(!at->echo_us.p10);
}

TEST_CASE("costs: the threshold is the size from which every larger measured size gains ten percent") {
  CostTable table;
  table.entries = {entry(2, 4000, 130, 100), entry(2, 1000, 200, 100), entry(2, 2000, 109, 100),
                   entry(2, 8000, 110, 100)};
  const ThresholdQuery query;
  CHECK(auto_min_bytes(table, query) == 4000);  // 2000 gains nine percent: the gain at 1000 does not count
  table.entries[3].echo_us->median = 100.01;    // the largest size just misses it
  CHECK(auto_min_bytes(table, query) == kNeverBytes);
  table.entries = {entry(2, 1000, 200, 100)};
  CHECK(auto_min_bytes(table, query) == 1000);
}

TEST_CASE("costs: over several rank counts the largest threshold holds") {
  CostTable table;
  table.entries = {entry(2, 1000, 20, 10), entry(2, 2000, 20, 10), entry(4, 1000, 10, 10),
                   entry(4, 2000, 20, 10), entry(16, 9000, 5, 10)};
  CHECK(auto_min_bytes(table, {.min_ranks = 2, .max_ranks = 2}) == 1000);
  CHECK(auto_min_bytes(table, {.min_ranks = 2, .max_ranks = 8}) == 2000);
  CHECK(auto_min_bytes(table, {.min_ranks = 4, .max_ranks = 4}) == 2000);
  CHECK(auto_min_bytes(table, {.min_ranks = 2, .max_ranks = 16}) == kNeverBytes);
  CHECK(!auto_min_bytes(table, {.min_ranks = 5, .max_ranks = 15}));
}

TEST_CASE(
    "costs: the threshold looks at staged entries of the same method, and at all of them where there is "
    "none") {
  CostTable table;
  table.entries = {entry(2, 1000, 20, 10), entry(2, 2000, 20, 10), entry(2, 4000, 20, 10),
                   entry(2, 8000, 20, 10)};
  table.entries[0].transport = "p2p";
  table.entries[1].compensation.mode = CompensationMode::kNone;
  table.entries[2].codec.group = 64;
  CHECK(auto_min_bytes(table, {}) == 8000);
  CHECK(auto_min_bytes(table, {.compensation = CompensationMode::kNone}) == 2000);
  CHECK(auto_min_bytes(table, {.codec = {.bits = 4, .group = 64}}) == 4000);
  CHECK(auto_min_bytes(table, {.compensation = CompensationMode::kOwner}) == 2000);
  CHECK(auto_min_bytes(table, {.dtypes = {DataType::kFp32}}) == 2000);
  table.entries = {entry(2, 1000, 20, 10), entry(2, 1000, 10, 10)};  // the worst of one size counts
  CHECK(auto_min_bytes(table, {}) == kNeverBytes);
}

TEST_CASE("costs: a candidate is its transport, codec and compensation") {
  auto table = parse_costs(
      R"({"schema":"echo-tp/costs/1","settings":{"graph":true},"entries":[
      {"ranks":2,"bytes":10,"transport":"p2p","codec":{"bits":4,"group":32,"first_leg_bits":8},"background":"copy",
       "compensation":{"mode":"none"},"echo_us":null,"why_not":"rank 1 said no"},
      {"ranks":2,"bytes":10,"codec":{"bits":8,"group":32}}]})",
      "c.json");
  REQUIRE_MESSAGE(table, (table ? "" : table.error().text()));
  CHECK(table->entries[0].codec == Codec{.bits = 4, .group = 32, .first_leg_bits = 8});
  CHECK(table->entries[0].background == "copy");
  CHECK(table->entries[0].why_not == "rank 1 said no");
  // Tables of before: one width for both ways, an idle link.
  CHECK(table->entries[1].codec == Codec{.bits = 8, .group = 32, .first_leg_bits = 8});
  CHECK(table->entries[1].background == "idle");
  CHECK(!table->entries[1].why_not);
  CHECK(
      refused(R"({"ranks":2,"bytes":1,"codec":{"first_leg_bits":0}})").find("/codec/first_leg_bits: is 0") !=
      std::string::npos);

  table->entries = {entry(2, 1000, 10, 1), entry(2, 1000, 10, 2), entry(2, 1000, 10, 3)};
  table->entries[1].compensation.state = StateFormat::kFp32;
  table->entries[2].codec.first_leg_bits = 8;
  const auto echo = [&](const CostQuery& query) { return cost_at(*table, query, 1000)->echo_us.median; };
  CHECK(echo({.state = StateFormat::kFp32}) == doctest::Approx(2));
  CHECK(echo({.first_leg_bits = 8}) == doctest::Approx(3));
  CHECK(echo({.state = StateFormat::kInt8, .first_leg_bits = 4}) == doctest::Approx(1));
}

TEST_CASE("costs: the faster transport, by number of ranks, from every size on that both were measured at") {
  CostTable table;
  const auto add = [&](const char* transport, int ranks, std::int64_t bytes, double echo_us) {
    table.entries.push_back(entry(ranks, bytes, 100, echo_us));
    table.entries.back().transport = transport;
  };
  for (const auto& [bytes, staged, p2p] :
       {std::tuple{1000, 50.0, 20.0}, std::tuple{2000, 60.0, 60.0}, std::tuple{4000, 70.0, 71.0},
        std::tuple{8000, 80.0, 99.0}, std::tuple{16000, 90.0, 89.0}}) {
    add("staged", 2, bytes, staged);
    add("p2p", 2, bytes, p2p);
  }
  add("staged", 4, 1000, 10);
  add("staged", 4, 2000, 10);
  add("p2p", 4, 2000, 20);
  add("staged", 8, 1000, 10);
  using enum TransportChoice;
  const std::vector<TransportStep> steps = transport_steps(table, {});
  CHECK(steps ==
        std::vector<TransportStep>{{2, 0, kP2p}, {2, 4000, kStaged}, {2, 16000, kP2p}, {4, 0, kStaged}});

  PolicyRule rule;
  rule.transport_steps = steps;
  CHECK(transport_of(rule, 2, 3999) == kP2p);
  CHECK(transport_of(rule, 2, 4000) == kStaged);
  CHECK(transport_of(rule, 2, 20000) == kP2p);
  CHECK(transport_of(rule, 4, 1) == kStaged);
  CHECK(transport_of(rule, 8, 1) == kP2p);  // measured with one transport alone: p2p where it works
  rule.transport = kStaged;
  CHECK(transport_of(rule, 2, 1) == kStaged);
  rule.transport = kP2p;
  CHECK(transport_of(rule, 2, 4000) == kP2p);
}

TEST_CASE("costs: the threshold of several transports is that of the faster one at every size") {
  CostTable table;
  table.entries = {entry(2, 1000, 10, 10), entry(2, 2000, 20, 10), entry(2, 1000, 10, 5),
                   entry(2, 2000, 10, 20)};
  table.entries[2].transport = table.entries[3].transport = "p2p";
  CHECK(auto_min_bytes(table, {}) == 2000);
  CHECK(auto_min_bytes(table, {.transports = {"p2p"}}) == kNeverBytes);
  CHECK(auto_min_bytes(table, {.transports = {"staged", "p2p"}}) == 1000);
  CHECK(!auto_min_bytes(table, {.transports = {"other"}}));
}
