// SPDX-License-Identifier: Apache-2.0
// Matching of calls against rules, and its explanation.
#include "shim/policy.hpp"

#include <algorithm>
#include <limits>

namespace echotp {
namespace {

template <class T>
bool any_or_listed(const std::vector<T>& list, T value) noexcept {
  return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

std::string quoted(std::string_view text) {
  return "\"" + std::string(text) + "\"";
}

template <class T, class Name>
std::string listed(const std::vector<T>& list, Name name) {
  std::string out;
  for (T value : list) out.append(out.empty() ? "" : ", ").append(name(value));
  return out;
}

std::int64_t min_bytes_of(const PolicyRule& rule, const CallFacts& facts) noexcept {
  const PolicyMatch& match = rule.match;
  return facts.p2p && allows_p2p(rule) ? match.p2p_min_bytes.value_or(match.min_bytes) : match.min_bytes;
}

std::string why_not(const PolicyRule& rule, const CallFacts& facts, unsigned unmet) {
  const PolicyMatch& match = rule.match;
  std::string out;
  const auto add = [&](unsigned bit, const std::string& text) {
    if ((unmet & bit) != 0) out.append(out.empty() ? "" : "; ").append(text);
  };
  const std::string bytes = std::to_string(message_bytes(facts)) + " bytes";
  add(kUnmetDtype, std::string("dtype ") + data_type_name(facts.dtype) + " is not among " +
                       listed(match.dtypes, data_type_name));
  add(kUnmetOp,
      std::string("op ") + reduce_op_name(facts.op) + " is not among " + listed(match.ops, reduce_op_name));
  const std::int64_t least = min_bytes_of(rule, facts);
  add(kUnmetMinBytes,
      least == std::numeric_limits<std::int64_t>::max()
          ? "min_bytes \"auto\" is never reached: the cost table shows no gain at any size"
          : bytes + " is below min_bytes " + std::to_string(least) + (match.min_bytes_auto ? " (auto)" : ""));
  add(kUnmetMaxBytes, bytes + " is above max_bytes " + std::to_string(match.max_bytes.value_or(0)));
  add(kUnmetRanks, std::to_string(facts.ranks) + (facts.ranks == 1 ? " rank" : " ranks") + " is not within " +
                       std::to_string(match.min_ranks) + " to " + std::to_string(match.max_ranks));
  add(kUnmetName, "communicator " + quoted(facts.communicator_name) + " does not match " +
                      quoted(match.communicator_name));
  add(kUnmetCapture, "inside CUDA graph capture, and capture is false");
  return out;
}

std::string method(const PolicyRule& rule) {
  const std::string bits =
      rule.codec.first_leg_bits == rule.codec.bits
          ? std::to_string(rule.codec.bits)
          : std::to_string(rule.codec.first_leg_bits) + " and " + std::to_string(rule.codec.bits);
  return bits + " bits in groups of " + std::to_string(rule.codec.group) + ", transport " +
         transport_name(rule.transport) + ", compensation " + compensation_mode_name(rule.compensation.mode);
}

}  // namespace

std::int64_t message_bytes(const CallFacts& facts) noexcept {
  std::int64_t bytes = 0;
  return __builtin_mul_overflow(facts.count, std::int64_t{element_bytes(facts.dtype)}, &bytes)
             ? std::numeric_limits<std::int64_t>::max()
             : bytes;
}

bool glob_matches(std::string_view pattern, std::string_view text) noexcept {
  // On a mismatch only the last star is widened: linear memory, no recursion, at most pattern * text steps.
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

unsigned unmet_conditions(const PolicyRule& rule, const CallFacts& facts) noexcept {
  const PolicyMatch& match = rule.match;
  const std::int64_t bytes = message_bytes(facts);
  unsigned unmet = 0;
  if (!any_or_listed(match.dtypes, facts.dtype)) unmet |= kUnmetDtype;
  if (!any_or_listed(match.ops, facts.op)) unmet |= kUnmetOp;
  // A threshold of "never" must stay out of reach of a saturated size too.
  const std::int64_t least = min_bytes_of(rule, facts);
  if (bytes < least || least == std::numeric_limits<std::int64_t>::max()) unmet |= kUnmetMinBytes;
  if (match.max_bytes && bytes > *match.max_bytes) unmet |= kUnmetMaxBytes;
  if (facts.ranks < match.min_ranks || facts.ranks > match.max_ranks) unmet |= kUnmetRanks;
  if (!match.communicator_name.empty() && !glob_matches(match.communicator_name, facts.communicator_name)) {
    unmet |= kUnmetName;
  }
  if (facts.capturing && !match.in_capture) unmet |= kUnmetCapture;
  return unmet;
}

TransportChoice transport_of(const PolicyRule& rule, int ranks, std::int64_t bytes) noexcept {
  if (!allows_p2p(rule)) return TransportChoice::kStaged;
  if (rule.transport != TransportChoice::kAuto) return rule.transport;
  auto chosen = TransportChoice::kP2p;
  for (const TransportStep& step : rule.transport_steps)
    if (step.ranks == ranks && step.from_bytes <= bytes) chosen = step.transport;
  return chosen;
}

Codec codec_of(const PolicyRule& rule, bool last_call) noexcept {
  Codec codec = rule.codec;
  if (last_call && rule.pass.last_call_bits) codec.bits = codec.first_leg_bits = *rule.pass.last_call_bits;
  return codec;
}

bool allows_p2p(const PolicyRule& rule) noexcept {
  return rule.transport != TransportChoice::kStaged && rule.compensation.mode != CompensationMode::kDrift;
}

int widest_bits(const PolicyRule& rule) noexcept {
  return std::max({rule.codec.bits, rule.codec.first_leg_bits, rule.pass.last_call_bits.value_or(4)});
}

int widest_bits(const Policy& policy) noexcept {
  int widest = 4;
  for (const PolicyRule& rule : policy.rules) widest = std::max(widest, widest_bits(rule));
  return widest;
}

bool may_drift(const Policy& policy) noexcept {
  return std::any_of(policy.rules.begin(), policy.rules.end(), [](const PolicyRule& rule) {
    return rule.compensation.mode == CompensationMode::kDrift;
  });
}

int match_policy(const Policy& policy, const CallFacts& facts) noexcept {
  for (std::size_t i = 0; i < policy.rules.size(); ++i) {
    if (unmet_conditions(policy.rules[i], facts) == 0) return static_cast<int>(i);
  }
  return -1;
}

std::string explain(const Policy& policy, const CallFacts& facts) {
  std::string out;
  for (std::size_t i = 0; i < policy.rules.size(); ++i) {
    const PolicyRule& rule = policy.rules[i];
    const unsigned unmet = unmet_conditions(rule, facts);
    out += "rule " + std::to_string(i) + ": ";
    if (unmet == 0) {
      return out + "matches; compressed with " + method(rule) +
             (compensable(rule.compensation, facts.count)
                  ? ""
                  : ", but without correction: the count is no multiple of channels " +
                        std::to_string(rule.compensation.channels)) +
             "\n";
    }
    out += "no: " + why_not(rule, facts, unmet) + "\n";
  }
  return out + (policy.rules.empty() ? "the policy has no rules" : "no rule matches") +
         "; forwarded to NCCL\n";
}

const char* data_type_name(DataType type) noexcept {
  switch (type) {
    case DataType::kBf16:
      return "bf16";
    case DataType::kFp16:
      return "fp16";
    case DataType::kFp32:
      return "fp32";
  }
  return "?";
}

const char* reduce_op_name(ReduceOp op) noexcept {
  return op == ReduceOp::kSum ? "sum" : "avg";
}

const char* compensation_mode_name(CompensationMode mode) noexcept {
  switch (mode) {
    case CompensationMode::kNone:
      return "none";
    case CompensationMode::kOwner:
      return "owner";
    case CompensationMode::kBoth:
      return "both";
    case CompensationMode::kDrift:
      return "drift";
  }
  return "?";
}

const char* state_format_name(StateFormat state) noexcept {
  switch (state) {
    case StateFormat::kFp32:
      return "fp32";
    case StateFormat::kFp16:
      return "fp16";
    case StateFormat::kInt8:
      return "int8";
  }
  return "?";
}

const char* transport_name(TransportChoice transport) noexcept {
  switch (transport) {
    case TransportChoice::kAuto:
      return "auto";
    case TransportChoice::kStaged:
      return "staged";
    case TransportChoice::kP2p:
      return "p2p";
  }
  return "?";
}

const char* direction_name(DirectionSource direction) noexcept {
  return direction == DirectionSource::kThread ? "thread" : "none";
}

}  // namespace echotp
