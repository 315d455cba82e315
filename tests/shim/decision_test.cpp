// SPDX-License-Identifier: Apache-2.0
// The decision: the full table of data types and operators, every reason, and that nothing rank-local can
// matter.
#include <doctest/doctest.h>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "shim/decision.hpp"
#include "shim/policy_json.hpp"

using namespace echotp;

namespace {

constexpr int kBf16 = 9, kSum = 0;  // of nccl.h

Policy policy_of(const std::string& rules) {
  auto policy = parse_policy(R"({"schema":"echo-tp/policy/1","rules":[)" + rules + "]}", "p.json", "");
  REQUIRE_MESSAGE(policy, (policy ? "" : policy.error().text()));
  return *std::move(policy);
}

const char* const kAnything = R"({"match":{"dtype":["bf16","fp16","fp32"],"op":["sum","avg"]}})";

Reason reason_of(const Policy& policy, const AgreedFacts& agreed, const RawCall& call) {
  const Decision decision = decide(policy, agreed, call);
  CHECK((decision.reason == Reason::kCompressed) == (decision.rule >= 0));
  return decision.reason;
}

}  // namespace

TEST_CASE("decision: the table of all data types and operators") {
  const Policy policy = policy_of(kAnything);
  for (int dtype = -1; dtype <= 16; ++dtype) {
    for (int op = -1; op <= 12; ++op) {
      CAPTURE(dtype);
      CAPTURE(op);
      const Decision decision = decide(policy, {.ranks = 2}, {.count = 1000, .dtype = dtype, .op = op});
      const bool float_type = dtype == 6 || dtype == 7 || dtype == 9;
      const bool linear = op == 0 || op == 4;
      CHECK(decision.reason == (!float_type ? Reason::kDatatype
                                : !linear   ? Reason::kOperator
                                            : Reason::kCompressed));
      CHECK(decision.rule == (float_type && linear ? 0 : -1));
      if (decision.reason != Reason::kCompressed) continue;
      CHECK(decision.dtype == (dtype == 6   ? DataType::kFp16
                               : dtype == 7 ? DataType::kFp32
                                            : DataType::kBf16));
      CHECK(decision.op == (op == 0 ? ReduceOp::kSum : ReduceOp::kAvg));
    }
  }
  CHECK(reason_of(policy, {.ranks = 2},
                  {.count = 1, .dtype = kBf16, .op = std::numeric_limits<int>::max()}) == Reason::kOperator);
}

TEST_CASE("decision: fp32 and avg only where a rule names them") {
  const Policy policy = policy_of("{}");
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 1, .dtype = kBf16, .op = kSum}) == Reason::kCompressed);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 1, .dtype = 6, .op = kSum}) == Reason::kCompressed);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 1, .dtype = 7, .op = kSum}) == Reason::kNoRule);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 1, .dtype = kBf16, .op = 4}) == Reason::kNoRule);
}

TEST_CASE("decision: each reason, and which comes first") {
  const Policy policy = policy_of(kAnything);
  const RawCall good{.count = 1000, .dtype = kBf16, .op = kSum};
  for (int i = 1; i < static_cast<int>(Reason::kCount); ++i) {
    const auto off = static_cast<Reason>(i);
    CHECK(reason_of(policy, {.ranks = 2, .off = off}, good) == off);
    CHECK(reason_of(policy, {.ranks = 1, .off = off}, {.count = 0, .dtype = 1, .op = 2}) == off);
  }
  CHECK(reason_of(policy, {.ranks = 1}, good) == Reason::kOneRank);
  CHECK(reason_of(policy, {.ranks = 0}, good) == Reason::kOneRank);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 0, .dtype = kBf16, .op = kSum}) == Reason::kZeroCount);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 0, .dtype = 1, .op = 2}) == Reason::kZeroCount);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 5, .dtype = 1, .op = 2}) == Reason::kDatatype);
  CHECK(reason_of(policy, {.ranks = 65}, good) == Reason::kNoRule);
  CHECK(reason_of(policy_of(""), {.ranks = 2}, good) == Reason::kNoRule);
}

TEST_CASE("decision: below min_bytes is said only when that alone keeps a rule from matching") {
  const Policy policy = policy_of(R"({"match":{"ranks":[8,8]}},{"match":{"min_bytes":2000,"ranks":[2,4]}})");
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 1000, .dtype = kBf16, .op = kSum}) == Reason::kCompressed);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 999, .dtype = kBf16, .op = kSum}) ==
        Reason::kBelowMinBytes);
  CHECK(reason_of(policy, {.ranks = 5}, {.count = 999, .dtype = kBf16, .op = kSum}) == Reason::kNoRule);
  CHECK(reason_of(policy, {.ranks = 2}, {.count = 499, .dtype = 7, .op = kSum}) == Reason::kNoRule);
}

TEST_CASE("decision: capture is said only when that alone keeps a rule from matching") {
  const Policy policy = policy_of(R"({"match":{"min_bytes":2000,"capture":false}})");
  const auto reason = [&](std::size_t count, bool capturing) {
    return reason_of(policy, {.ranks = 2},
                     {.count = count, .dtype = kBf16, .op = kSum, .capturing = capturing});
  };
  CHECK(reason(1000, false) == Reason::kCompressed);
  CHECK(reason(1000, true) == Reason::kCapture);
  CHECK(reason(10, true) == Reason::kNoRule);
  CHECK(reason(10, false) == Reason::kBelowMinBytes);
  const Policy later = policy_of(R"({"match":{"capture":false}},{"match":{"min_bytes":4000}})");
  CHECK(reason_of(later, {.ranks = 2}, {.count = 1000, .dtype = kBf16, .op = kSum, .capturing = true}) ==
        Reason::kBelowMinBytes);
  CHECK(decide(later, {.ranks = 2}, {.count = 2000, .dtype = kBf16, .op = kSum, .capturing = true}).rule ==
        1);
}

TEST_CASE("decision: the rule comes from the communicator's name and size") {
  const Policy policy =
      policy_of(R"({"match":{"communicator":{"name":"TP*"},"ranks":[2,2]}},{"match":{"ranks":[4,4]}})");
  const RawCall call{.count = 8, .dtype = kBf16, .op = kSum};
  CHECK(decide(policy, {.ranks = 2, .communicator_name = "TP0"}, call).rule == 0);
  CHECK(decide(policy, {.ranks = 4, .communicator_name = "TP0"}, call).rule == 1);
  CHECK(decide(policy, {.ranks = 4}, call).rule == 1);
  CHECK(decide(policy, {.ranks = 2}, call).rule == -1);
}

TEST_CASE("decision: a count beyond any memory is left for NCCL to refuse") {
  const Policy policy = policy_of(kAnything);
  for (std::size_t count :
       {std::numeric_limits<std::size_t>::max(), std::size_t{1} << 62, (std::size_t{1} << 61) + 1}) {
    CHECK(reason_of(policy, {.ranks = 2}, {.count = count, .dtype = kBf16, .op = kSum}) == Reason::kNoRule);
  }
  CHECK(reason_of(policy, {.ranks = 2}, {.count = (std::size_t{1} << 61) - 1, .dtype = 7, .op = kSum}) ==
        Reason::kCompressed);
}

TEST_CASE("decision: reason names are the ones that reports have always used") {
  const char* const names[] = {"compressed",
                               "observe_mode",
                               "no_rule",
                               "below_min_bytes",
                               "datatype",
                               "operator",
                               "zero_count",
                               "one_rank",
                               "voted_off",
                               "not_set_up",
                               "many_gpus_per_process",
                               "mixed_group",
                               "capture",
                               "communicator_error",
                               "engine_unavailable"};
  REQUIRE(std::size(names) == static_cast<std::size_t>(Reason::kCount));
  std::set<std::string> texts;
  for (std::size_t i = 0; i < std::size(names); ++i) {
    CHECK(std::string(reason_name(static_cast<Reason>(i))) == names[i]);
    texts.insert(reason_text(static_cast<Reason>(i)));
  }
  CHECK(texts.size() == std::size(names));
  CHECK(std::string(reason_name(Reason::kCount)) == "unknown");
  CHECK(std::string(reason_name(static_cast<Reason>(255))) == "unknown");
}
