// SPDX-License-Identifier: Apache-2.0
// Reader of the policy document.
#include "shim/policy_json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "kernels/tile.hpp"
#include "shim/costs.hpp"
#include "shim/json_reader.hpp"

namespace echotp {
namespace {

constexpr JsonLimits kPolicyLimits{.max_bytes = 1u << 20, .max_depth = 16};
constexpr std::size_t kMaxRules = 256;
constexpr std::int64_t kMaxPassCalls = 1'000'000;
constexpr std::int64_t kMaxChannels = 1 << 20;
constexpr std::int64_t kMaxCtas = 1024;  // more than any GPU can hold
constexpr double kGainTolerance = 1e-6;  // of a + b = 1

// Two of the same in a list are a slip of the pen, and would give equal policies different hashes.
template <class T>
void add_once(std::vector<T>& list, T value, const JsonValue& at, JsonErrors& errors) {
  if (std::find(list.begin(), list.end(), value) != list.end()) {
    at.complain(errors, "is listed twice");
  } else {
    list.push_back(std::move(value));
  }
}

template <class T>
void read_choices(const JsonValue& match, std::string_view key,
                  std::initializer_list<std::string_view> choices, const std::string& expected,
                  std::vector<T>& out, JsonErrors& errors) {
  const auto value = match.get(key);
  if (!value) return;
  out.clear();
  if (!value->expect_array(errors, expected)) return;
  if (value->size() == 0) value->complain(errors, "is empty; expected " + expected);
  for (std::size_t i = 0; i < value->size(); ++i) {
    const JsonValue item = value->at(i);
    if (const auto choice = item.choice(errors, choices))
      add_once(out, static_cast<T>(*choice), item, errors);
  }
}

void read_ranks(const JsonValue& match, PolicyMatch& out, JsonErrors& errors) {
  const auto value = match.get("ranks");
  if (!value) return;
  if (!value->expect_array(errors, "the smallest and the largest number of ranks, such as [2, 8]")) return;
  if (value->size() != 2) {
    value->complain(errors,
                    "has " + std::to_string(value->size()) +
                        " elements; expected the smallest and the largest number of ranks, such as [2, 8]");
    return;
  }
  const auto low = value->at(0).integer(errors, 2, kMaxRanks);
  const auto high = value->at(1).integer(errors, 2, kMaxRanks);
  if (!low || !high) return;
  if (*low > *high) {
    value->complain(errors, "begins with " + std::to_string(*low) + ", above " + std::to_string(*high) +
                                "; expected the smallest number first");
    return;
  }
  out.min_ranks = static_cast<int>(*low);
  out.max_ranks = static_cast<int>(*high);
}

void read_sizes(const JsonValue& match, PolicyMatch& out, JsonErrors& errors) {
  const auto low = match.get("min_bytes");
  const auto high = match.get("max_bytes");
  if (high) out.max_bytes = high->bytes(errors);
  if (!low) return;
  if (low->raw_string() == "auto") {
    out.min_bytes_auto = true;
    return;
  }
  JsonErrors here;
  if (const auto bytes = low->bytes(here)) {
    out.min_bytes = *bytes;
    if (out.max_bytes && *out.max_bytes < *bytes) {
      high->complain(errors,
                     "is " + std::to_string(*out.max_bytes) + ", below min_bytes " + std::to_string(*bytes));
    }
  } else {
    std::string what = here.first().what;
    low->complain(errors, what + ", or \"auto\"");
  }
}

void read_match(const JsonValue& value, PolicyMatch& out, JsonErrors& errors) {
  if (!value.expect_object(errors)) return;
  value.only_keys(errors, {"dtype", "op", "min_bytes", "max_bytes", "ranks", "communicator", "capture"});
  read_choices(value, "dtype", {"bf16", "fp16", "fp32"}, "an array such as [\"bf16\", \"fp16\"]", out.dtypes,
               errors);
  read_choices(value, "op", {"sum", "avg"}, "an array such as [\"sum\"]", out.ops, errors);
  read_sizes(value, out, errors);
  read_ranks(value, out, errors);
  if (const auto communicator = value.get("communicator");
      communicator && communicator->expect_object(errors)) {
    communicator->only_keys(errors, {"name"});
    if (const auto name = communicator->get("name")) {
      out.communicator_name = name->string(errors).value_or("");
      if (out.communicator_name.size() > 256) name->complain(errors, "is longer than 256 characters");
    }
  }
  if (const auto capture = value.get("capture")) out.in_capture = capture->boolean(errors).value_or(true);
}

/// A number that must be one of `allowed`.
std::optional<int> read_one_of(const JsonValue& value, std::string_view key,
                               std::initializer_list<int> allowed, std::string_view expected,
                               JsonErrors& errors) {
  const auto at = value.get(key);
  if (!at) return std::nullopt;
  const auto read = at->integer(errors, std::numeric_limits<std::int64_t>::min(), kNeverBytes);
  if (!read) return std::nullopt;
  if (std::find(allowed.begin(), allowed.end(), *read) != allowed.end()) return static_cast<int>(*read);
  at->complain(errors, "is " + std::to_string(*read) + "; expected " + std::string(expected));
  return std::nullopt;
}

void read_codec(const JsonValue& value, Codec& out, JsonErrors& errors) {
  if (!value.expect_object(errors)) return;
  value.only_keys(errors, {"bits", "group", "first_leg_bits"});
  out.bits = read_one_of(value, "bits", {4, 8}, "4 or 8", errors).value_or(out.bits);
  out.first_leg_bits = read_one_of(value, "first_leg_bits", {4, 8}, "4 or 8", errors).value_or(out.bits);
  out.group = read_one_of(value, "group", {32, 64, 128}, "32, 64 or 128", errors).value_or(out.group);
}

void read_memory(const JsonValue& value, std::string_view key, float& out, JsonErrors& errors) {
  const auto at = value.get(key);
  if (!at) return;
  const auto read = at->number(errors, 0, 1);
  if (!read) return;
  out = static_cast<float>(*read);
  if (out >= 1) at->complain(errors, "is 1; expected a number from 0 to below 1");
}

void read_gains(const JsonValue& value, Compensation& out, JsonErrors& errors) {
  const auto a = value.get("a");
  const auto b = value.get("b");
  std::optional<double> fast, slow;
  if (a) fast = a->number(errors, 0, 1);
  if (b) slow = b->number(errors, 0, 1);
  if ((a && !fast) || (b && !slow) || (!a && !b)) return;
  if (!a) fast = 1 - *slow;
  if (!b) slow = 1 - *fast;
  if (std::abs(*fast + *slow - 1) > kGainTolerance) {
    char text[32];
    const auto end =
        std::to_chars(text, text + sizeof text, *fast + *slow, std::chars_format::general, 6).ptr;
    value.complain(errors, "a + b is " + std::string(text, end) +
                               "; expected 1, or the error that accumulates over the calls is not bounded");
    return;
  }
  out.a = static_cast<float>(*fast);
  out.b = static_cast<float>(*slow);
}

void read_drift(const JsonValue& value, int group, Compensation& out, JsonErrors& errors) {
  for (std::string_view key : {"a", "bf", "b", "bs", "state"}) {
    if (const auto at = value.get(key))
      at->complain(errors, "has no meaning with mode \"drift\"; leave it out");
  }
  if (const auto at = value.need(errors, "channels")) {
    if (const auto channels = at->integer(errors, 1, kMaxChannels)) {
      out.channels = static_cast<int>(*channels);
      if (*channels % group != 0) {
        at->complain(errors, "is " + std::to_string(*channels) +
                                 "; expected a multiple of the codec's group, " + std::to_string(group));
      }
    }
  }
  if (const auto at = value.get("gain")) {
    if (const auto gain = at->number(errors, 0, 1)) {
      out.gain = static_cast<float>(*gain);
      if (out.gain <= 0) at->complain(errors, "is 0; expected a number above 0, at most 1");
    }
  }
}

void read_compensation(const JsonValue& value, int group, Compensation& out, JsonErrors& errors) {
  if (!value.expect_object(errors)) return;
  value.only_keys(errors, {"mode", "a", "bf", "b", "bs", "state", "channels", "gain"});
  bool error_feedback = false;
  if (const auto mode = value.get("mode")) {
    const auto choice = mode->choice(errors, {"none", "owner", "both", "drift", "ef"});
    error_feedback = choice == 4;
    if (choice && !error_feedback) out.mode = static_cast<CompensationMode>(*choice);
  }
  if (out.mode == CompensationMode::kDrift) {
    read_drift(value, group, out, errors);
    return;
  }
  for (std::string_view key : {"channels", "gain"}) {
    if (const auto at = value.get(key)) at->complain(errors, "belongs to mode \"drift\" alone");
  }
  if (error_feedback) {
    out = {.mode = CompensationMode::kBoth, .a = 1, .bf = 0, .b = 0, .bs = out.bs, .state = out.state};
    for (std::string_view key : {"a", "bf", "b", "bs"}) {
      if (const auto at = value.get(key))
        at->complain(errors, "is fixed by mode \"ef\"; leave it out, or use mode \"both\"");
    }
  } else {
    read_gains(value, out, errors);
    read_memory(value, "bf", out.bf, errors);
    read_memory(value, "bs", out.bs, errors);
  }
  if (const auto state = value.get("state")) {
    if (const auto choice = state->choice(errors, {"fp32", "fp16", "int8"}))
      out.state = static_cast<StateFormat>(*choice);
  }
}

void read_pass(const JsonValue& value, PassRule& out, JsonErrors& errors) {
  if (!value.expect_object(errors)) return;
  value.only_keys(errors, {"calls", "resync", "direction", "last_call_bits"});
  if (const auto calls = value.get("calls")) out.calls = calls->integer(errors, 1, kMaxPassCalls);
  if (const auto resync = value.get("resync");
      resync && resync->expect_array(errors, "an array such as [\"all_gather\"]")) {
    const std::initializer_list<std::string_view> others = {"broadcast",      "reduce",     "all_gather",
                                                            "reduce_scatter", "all_to_all", "gather",
                                                            "scatter",        "send",       "recv"};
    for (std::size_t i = 0; i < resync->size(); ++i) {
      const JsonValue item = resync->at(i);
      if (const auto choice = item.choice(errors, others)) {
        add_once(out.resync, std::string(others.begin()[*choice]), item, errors);
      }
    }
  }
  if (const auto direction = value.get("direction")) {
    out.direction = static_cast<DirectionSource>(direction->choice(errors, {"thread", "none"}).value_or(0));
  }
  out.last_call_bits = read_one_of(value, "last_call_bits", {8}, "8", errors);
  if (out.last_call_bits && !value.get("calls")) {
    value.get("last_call_bits")
        ->complain(errors, "needs \"calls\": without it nobody knows which call is the last of a pass");
  }
}

PolicyRule read_rule(const JsonValue& value, JsonErrors& errors) {
  PolicyRule rule;
  rule.match.dtypes = {DataType::kBf16, DataType::kFp16};
  rule.match.ops = {ReduceOp::kSum};
  if (!value.expect_object(errors)) return rule;
  value.only_keys(
      errors, {"match", "codec", "transport", "max_ctas", "compensation", "pass", "max_state_bytes", "note"});
  if (const auto match = value.get("match")) read_match(*match, rule.match, errors);
  if (const auto codec = value.get("codec")) read_codec(*codec, rule.codec, errors);
  if (const auto transport = value.get("transport")) {
    rule.transport =
        static_cast<TransportChoice>(transport->choice(errors, {"auto", "staged", "p2p"}).value_or(0));
  }
  if (const auto limit = value.get("max_ctas")) {
    if (const auto ctas = limit->integer(errors, 1, kMaxCtas)) rule.max_ctas = static_cast<int>(*ctas);
  }
  if (const auto compensation = value.get("compensation"))
    read_compensation(*compensation, rule.codec.group, rule.compensation, errors);
  if (const auto pass = value.get("pass")) read_pass(*pass, rule.pass, errors);
  if (const auto limit = value.get("max_state_bytes")) rule.max_state_bytes = limit->bytes(errors);
  if (const auto note = value.get("note")) rule.note = note->string(errors).value_or("");
  return rule;
}

std::string resolve_path(const std::string& path, const std::string& base_dir) {
  std::error_code failed;
  const auto whole = std::filesystem::absolute(std::filesystem::path(base_dir) / path, failed);
  return failed ? path : whole.lexically_normal().string();
}

// The cost table, or an error at /costs.
std::optional<CostTable> read_table(const JsonValue& root, const std::string& base_dir, Policy& policy,
                                    JsonErrors& errors) {
  const auto value = root.get("costs");
  if (!value) return std::nullopt;
  const auto path = value->string(errors);
  if (!path) return std::nullopt;
  if (path->empty()) {
    value->complain(errors, "is empty; expected the path of a cost table");
    return std::nullopt;
  }
  policy.costs = resolve_path(*path, base_dir);
  auto table = read_costs(policy.costs);
  if (table) return *std::move(table);
  value->complain(errors, "cost table: " + table.error().text());
  return std::nullopt;
}

void resolve_auto(const JsonValue& rules, const std::optional<CostTable>& table, Policy& policy,
                  JsonErrors& errors) {
  for (std::size_t i = 0; i < policy.rules.size(); ++i) {
    PolicyRule& rule = policy.rules[i];
    PolicyMatch& match = rule.match;
    ThresholdQuery query{.min_ranks = match.min_ranks,
                         .max_ranks = match.max_ranks,
                         .dtypes = match.dtypes,
                         .codec = rule.codec,
                         .compensation = rule.compensation.mode};
    if (table && rule.transport == TransportChoice::kAuto)
      rule.transport_steps = transport_steps(*table, query);
    if (!match.min_bytes_auto) continue;
    if (!table) {
      match.min_bytes = kAutoMinBytesWithoutCosts;
      continue;
    }
    const auto bytes = auto_min_bytes(*table, query);
    if (rule.transport != TransportChoice::kStaged) {
      query.transports = {transport_name(TransportChoice::kP2p)};
      if (rule.transport == TransportChoice::kAuto && auto_min_bytes(*table, query))
        query.transports.push_back(transport_name(TransportChoice::kStaged));
      match.p2p_min_bytes = auto_min_bytes(*table, query);
    }
    if (bytes || match.p2p_min_bytes) {
      // Measured with p2p alone: nothing says that the staged transport gains anything.
      match.min_bytes = bytes.value_or(kNeverBytes);
    } else {
      rules.at(i)
          .get("match")
          ->get("min_bytes")
          ->complain(errors, "is \"auto\", but the cost table has no measurement of Echo for " +
                                 std::to_string(match.min_ranks) + " to " + std::to_string(match.max_ranks) +
                                 " ranks; expected bytes, or a table that has them");
    }
  }
}

Policy read_document(const JsonDocument& document, const std::string& base_dir, JsonErrors& errors) {
  Policy policy;
  const JsonValue root = document.root();
  if (!check_schema(root, errors, "policy")) return policy;
  root.only_keys(errors, {"schema", "costs", "rules"});
  const auto table = read_table(root, base_dir, policy, errors);
  const auto rules = root.need(errors, "rules");
  if (!rules || !rules->expect_array(errors, "an array of rules")) return policy;
  if (rules->size() > kMaxRules) {
    rules->complain(errors, "has " + std::to_string(rules->size()) + " rules; expected at most " +
                                std::to_string(kMaxRules));
    return policy;
  }
  for (std::size_t i = 0; i < rules->size(); ++i) policy.rules.push_back(read_rule(rules->at(i), errors));
  if (table || policy.costs.empty()) resolve_auto(*rules, table, policy, errors);
  policy.hash = policy_hash(policy);
  return policy;
}

Result<Policy> finish(const Result<JsonDocument>& document, const std::string& base_dir) {
  if (!document) return document.error();
  JsonErrors errors;
  Policy policy = read_document(*document, base_dir, errors);
  if (!errors.empty()) return errors.first();
  return policy;
}

std::string folder_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

Result<Policy> parse_policy(std::string_view text, const std::string& file_label,
                            const std::string& base_dir) {
  return finish(JsonDocument::parse(text, file_label, kPolicyLimits), base_dir);
}

Result<Policy> read_policy(const std::string& path) {
  return finish(JsonDocument::read(path, kPolicyLimits), folder_of(path));
}

std::vector<Error> check_policy(const std::string& path) {
  const auto document = JsonDocument::read(path, kPolicyLimits);
  if (!document) return {document.error()};
  JsonErrors errors;
  (void)read_document(*document, folder_of(path), errors);
  return errors.sorted();
}

}  // namespace echotp
