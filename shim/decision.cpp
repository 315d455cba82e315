// SPDX-License-Identifier: Apache-2.0
// The decision, and the names and texts of its reasons.
#include "shim/decision.hpp"

#include <limits>
#include <optional>

namespace echotp {
namespace {

// Values of nccl.h, part of its ABI.
constexpr int kNcclFloat16 = 6;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclBfloat16 = 9;
constexpr int kNcclSum = 0;
constexpr int kNcclAvg = 4;

struct ReasonWords {
  const char* name;
  const char* text;
};

// In the order of Reason.
constexpr ReasonWords kReasons[] = {
    {"compressed", "compressed"},
    {"observe_mode", "mode observe: everything is forwarded"},
    {"no_rule", "no rule of the policy matches"},
    {"below_min_bytes", "message smaller than the policy's min_bytes"},
    {"datatype", "element type is not bf16, fp16 or fp32"},
    {"operator", "operator is not sum or avg"},
    {"zero_count", "no elements"},
    {"one_rank", "communicator of one rank"},
    {"voted_off", "a rank voted against compression when the communicator was set up"},
    {"not_set_up", "communicator not known, non-blocking, or created before echo-tp was ready"},
    {"many_gpus_per_process", "two ranks of the communicator live in one process"},
    {"mixed_group", "the group holds another collective of this communicator"},
    {"capture", "inside CUDA graph capture, and the rule excludes that"},
    {"communicator_error", "an earlier call on this communicator failed"},
    {"engine_unavailable", "CUDA or the engine could not be loaded"},
};
static_assert(sizeof kReasons / sizeof kReasons[0] == static_cast<std::size_t>(Reason::kCount));

const ReasonWords& words(Reason reason) noexcept {
  static constexpr ReasonWords kUnknown{"unknown", "unknown reason"};
  return reason < Reason::kCount ? kReasons[static_cast<std::size_t>(reason)] : kUnknown;
}

std::optional<DataType> data_type(int nccl) noexcept {
  switch (nccl) {
    case kNcclBfloat16:
      return DataType::kBf16;
    case kNcclFloat16:
      return DataType::kFp16;
    case kNcclFloat32:
      return DataType::kFp32;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> reduce_op(int nccl) noexcept {
  switch (nccl) {
    case kNcclSum:
      return ReduceOp::kSum;
    case kNcclAvg:
      return ReduceOp::kAvg;
    default:
      return std::nullopt;
  }
}

// No rule matches: the reason that helps most is the one condition that kept a rule from matching.
Reason why_no_rule(const Policy& policy, const CallFacts& facts) noexcept {
  Reason reason = Reason::kNoRule;
  for (const PolicyRule& rule : policy.rules) {
    const unsigned unmet = unmet_conditions(rule, facts);
    if (unmet == kUnmetMinBytes) return Reason::kBelowMinBytes;
    if (unmet == kUnmetCapture) reason = Reason::kCapture;
  }
  return reason;
}

}  // namespace

const char* reason_name(Reason reason) noexcept {
  return words(reason).name;
}
const char* reason_text(Reason reason) noexcept {
  return words(reason).text;
}

Decision decide(const Policy& policy, const AgreedFacts& agreed, const RawCall& call) noexcept {
  Decision decision;
  const auto forward = [&](Reason reason) {
    decision.reason = reason;
    decision.rule = -1;
    return decision;
  };
  if (agreed.off != Reason::kCompressed) return forward(agreed.off);
  if (agreed.ranks < 2) return forward(Reason::kOneRank);
  if (call.count == 0) return forward(Reason::kZeroCount);
  const auto dtype = data_type(call.dtype);
  if (!dtype) return forward(Reason::kDatatype);
  const auto op = reduce_op(call.op);
  if (!op) return forward(Reason::kOperator);
  decision.dtype = *dtype;
  decision.op = *op;
  // A size that no memory can hold: NCCL is the one to refuse it.
  if (call.count > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) / 4) {
    return forward(Reason::kNoRule);
  }
  const CallFacts facts{.count = static_cast<std::int64_t>(call.count),
                        .dtype = *dtype,
                        .op = *op,
                        .ranks = agreed.ranks,
                        .communicator_name = agreed.communicator_name,
                        .capturing = call.capturing,
                        .p2p = agreed.p2p};
  const int rule = match_policy(policy, facts);
  if (rule < 0) return forward(why_no_rule(policy, facts));
  decision.reason = Reason::kCompressed;
  decision.rule = rule;
  return decision;
}

}  // namespace echotp
