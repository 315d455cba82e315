// SPDX-License-Identifier: Apache-2.0
// Writer of the policy document, and the hash over it.
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "shim/policy_json.hpp"

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;

// 0.9f as 0.9, not as the nearest double of the float.
double shortest(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double read = value;
  std::from_chars(text, end, read);
  return read;
}

template <class T, class Name>
Json names(std::vector<T> list, std::initializer_list<T> all, Name name) {
  if (list.empty()) list = all;
  std::sort(list.begin(), list.end());
  Json out = Json::array();
  for (T value : list) out.push_back(name(value));
  return out;
}

Json write_match(const PolicyMatch& match, bool resolved) {
  Json out;
  out["dtype"] = names(match.dtypes, {DataType::kBf16, DataType::kFp16, DataType::kFp32}, data_type_name);
  out["op"] = names(match.ops, {ReduceOp::kSum, ReduceOp::kAvg}, reduce_op_name);
  if (match.min_bytes_auto && !resolved) {
    out["min_bytes"] = "auto";
  } else {
    out["min_bytes"] = match.min_bytes;
  }
  if (match.p2p_min_bytes && resolved) out["p2p_min_bytes"] = *match.p2p_min_bytes;
  if (match.max_bytes) out["max_bytes"] = *match.max_bytes;
  out["ranks"] = {match.min_ranks, match.max_ranks};
  if (!match.communicator_name.empty()) out["communicator"]["name"] = match.communicator_name;
  out["capture"] = match.in_capture;
  return out;
}

Json write_compensation(const Compensation& compensation) {
  Json out;
  out["mode"] = compensation_mode_name(compensation.mode);
  if (compensation.mode == CompensationMode::kNone) return out;
  if (compensation.mode == CompensationMode::kDrift) {
    out["channels"] = compensation.channels;
    out["gain"] = shortest(compensation.gain);
    return out;
  }
  out["a"] = shortest(compensation.a);
  out["bf"] = shortest(compensation.bf);
  out["b"] = shortest(compensation.b);
  out["bs"] = shortest(compensation.bs);
  out["state"] = state_format_name(compensation.state);
  return out;
}

Json write_pass(const PassRule& pass) {
  Json out;
  if (pass.calls) out["calls"] = *pass.calls;
  std::vector<std::string> resync = pass.resync;
  std::sort(resync.begin(), resync.end());
  out["resync"] = resync;
  out["direction"] = direction_name(pass.direction);
  if (pass.last_call_bits) out["last_call_bits"] = *pass.last_call_bits;
  return out;
}

// `resolved`: for the hash, which leaves out what changes nothing.
Json write_policy(const Policy& policy, bool resolved) {
  Json out;
  out["schema"] = "echo-tp/policy/1";
  if (!policy.costs.empty() && !resolved) out["costs"] = policy.costs;
  out["rules"] = Json::array();
  for (const PolicyRule& rule : policy.rules) {
    Json item;
    if (!rule.note.empty() && !resolved) item["note"] = rule.note;
    item["match"] = write_match(rule.match, resolved);
    item["codec"] = {{"bits", rule.codec.bits}, {"group", rule.codec.group}};
    if (rule.codec.first_leg_bits != rule.codec.bits)
      item["codec"]["first_leg_bits"] = rule.codec.first_leg_bits;
    item["transport"] = transport_name(rule.transport);
    if (resolved) {
      for (const TransportStep& step : rule.transport_steps)
        item["transport_steps"].push_back({step.ranks, step.from_bytes, transport_name(step.transport)});
    }
    if (rule.max_ctas) item["max_ctas"] = *rule.max_ctas;
    item["compensation"] = write_compensation(rule.compensation);
    item["pass"] = write_pass(rule.pass);
    if (rule.max_state_bytes) item["max_state_bytes"] = *rule.max_state_bytes;
    out["rules"].push_back(std::move(item));
  }
  return out;
}

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::detail::error_handler_t::replace);
}

}  // namespace

std::string policy_json(const Policy& policy) {
  return dump(write_policy(policy, false), 2) + "\n";
}

std::uint64_t policy_hash(const Policy& policy) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char c : dump(write_policy(policy, true), -1)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace echotp
