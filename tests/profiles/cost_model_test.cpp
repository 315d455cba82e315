// SPDX-License-Identifier: Apache-2.0
// Which entries of a cost table stand for a policy's method: the faster transport, and of each the candidate
// that is most like it.
#include <doctest/doctest.h>

#include "profiles/cost_model.hpp"

using namespace echotp;

namespace {

CostEntry entry(const char* transport, std::int64_t bytes, double echo_us) {
  CostEntry out;
  out.transport = transport;
  out.bytes = bytes;
  out.nccl_us = CostSpread{.median = 100};
  out.echo_us = CostSpread{.median = echo_us};
  return out;
}

double share_of(const CostTable& table, std::int64_t bytes, const Codec& codec = {},
                const Compensation& compensation = {}) {
  CostModel model(&table, codec, compensation);
  const auto time = model.echo_time(DataType::kBf16, 2, bytes, 1000);
  REQUIRE(time);
  return time->ns.mid / 1000;
}

}  // namespace

TEST_CASE("cost model: of two transports the faster one at that size") {
  CostTable table;
  table.entries = {entry("staged", 1000, 45), entry("p2p", 1000, 40), entry("staged", 4000, 50),
                   entry("p2p", 4000, 60), entry("ring", 1000, 1)};
  CHECK(share_of(table, 1000) == doctest::Approx(0.4));
  CHECK(share_of(table, 4000) == doctest::Approx(0.5));
  CostModel model(&table, {}, {});
  CHECK(model.min_bytes(DataType::kBf16, 2) == 1000);
  table.entries = {entry("p2p", 1000, 40)};
  CHECK(share_of(table, 1000) == doctest::Approx(0.4));
}

TEST_CASE("cost model: of one transport the candidate that is most like the policy") {
  CostTable table;
  table.entries = {entry("staged", 1000, 50), entry("staged", 1000, 60), entry("staged", 1000, 70),
                   entry("staged", 1000, 80)};
  table.entries[1].compensation.state = StateFormat::kFp32;
  table.entries[2].codec.first_leg_bits = 8;
  table.entries[3].compensation.mode = CompensationMode::kNone;
  const Compensation fp32{.state = StateFormat::kFp32}, none{.mode = CompensationMode::kNone};
  CHECK(share_of(table, 1000) == doctest::Approx(0.5));
  CHECK(share_of(table, 1000, {}, fp32) == doctest::Approx(0.6));
  CHECK(share_of(table, 1000, {.first_leg_bits = 8}) == doctest::Approx(0.7));
  CHECK(share_of(table, 1000, {}, none) == doctest::Approx(0.8));
  // Not measured with this width: the format of the estimates counts for more than the codec.
  CHECK(share_of(table, 1000, {.first_leg_bits = 8}, fp32) == doctest::Approx(0.6));
}
