// SPDX-License-Identifier: Apache-2.0
// Policy from what the profile shows.
#include "profiles/proposal.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "shim/policy_json.hpp"

namespace echotp {
namespace {

// What one communicator needs of a rule.
struct Need {
  std::int32_t communicator;
  std::string name;
  int ranks = 0;
  std::set<DataType> dtypes;
  std::set<ReduceOp> ops;
  std::int64_t min_bytes = std::numeric_limits<std::int64_t>::max();
  PassPattern pass;
};

PolicyRule rule_of(const std::vector<const Need*>& needs, const ProposalInput& input) {
  PolicyRule rule;
  std::set<DataType> dtypes;
  std::set<ReduceOp> ops;
  rule.match.min_ranks = std::numeric_limits<int>::max();
  rule.match.max_ranks = 0;
  // The highest threshold of those in the rule: a call too many would cost time, one too few only a gain.
  rule.match.min_bytes = 0;
  for (const Need* need : needs) {
    dtypes.insert(need->dtypes.begin(), need->dtypes.end());
    ops.insert(need->ops.begin(), need->ops.end());
    rule.match.min_ranks = std::min(rule.match.min_ranks, need->ranks);
    rule.match.max_ranks = std::max(rule.match.max_ranks, need->ranks);
    rule.match.min_bytes = std::max(rule.match.min_bytes, need->min_bytes);
  }
  rule.match.dtypes.assign(dtypes.begin(), dtypes.end());
  rule.match.ops.assign(ops.begin(), ops.end());
  rule.codec = input.codec;
  rule.compensation = input.compensation;
  rule.note = input.note;
  const bool alike = std::all_of(needs.begin(), needs.end(),
                                 [&](const Need* need) { return need->pass == needs.front()->pass; });
  if (alike) {
    rule.pass.calls = needs.front()->pass.calls;
    rule.pass.resync = needs.front()->pass.resync;
  }
  return rule;
}

}  // namespace

std::optional<DataType> compressible_type(const std::string& dtype) {
  if (dtype == "bf16") return DataType::kBf16;
  if (dtype == "fp16") return DataType::kFp16;
  if (dtype == "fp32") return DataType::kFp32;
  return std::nullopt;
}

int ranks_of(const Trace& trace, const CollectiveSet& set, const Collective& collective) {
  if (collective.communicator >= 0 && trace.communicators[collective.communicator].ranks > 0)
    return trace.communicators[collective.communicator].ranks;
  if (collective.rendezvous < 0) return 0;
  const std::size_t seen = set.rendezvous[collective.rendezvous].arrivals.size();
  return seen > 1 ? static_cast<int>(seen) : 0;
}

PassPattern pass_pattern(const Trace& trace, const Study& study, const std::vector<bool>& compressed,
                         std::int32_t communicator) {
  struct Event {
    std::int64_t start;
    std::int32_t step;
    std::uint32_t thread;
    std::int64_t compressed_calls;
    std::string other;  // function that is no all-reduce
  };
  // The process that shows most of the communicator.
  std::map<std::int32_t, std::vector<Event>> by_process;
  for (const Rendezvous& rendezvous : study.set.rendezvous) {
    const Collective& first = study.set.collectives[rendezvous.collectives.front()];
    if (first.communicator != communicator) continue;
    std::int64_t count = 0;
    for (const std::int32_t index : rendezvous.collectives) count += compressed[index] ? 1 : 0;
    const std::string& function = trace.calls[first.call].function;
    for (const Arrival& arrival : rendezvous.arrivals) {
      const std::int32_t step = study.steps.step_of_op[arrival.op];
      if (!study.steps.is_used(step)) continue;
      const std::int32_t call = trace.device_ops[arrival.op].call;
      by_process[arrival.process].push_back({study.times.start_ns[arrival.op], step,
                                             call >= 0 ? trace.calls[call].thread : 0, count,
                                             is_all_reduce(function) ? "" : policy_function_name(function)});
    }
  }
  PassPattern out;
  if (by_process.empty() || study.steps.source == StepSource::kWindow) return out;
  auto& events = std::max_element(by_process.begin(), by_process.end(), [](const auto& l, const auto& r) {
                   return l.second.size() < r.second.size();
                 })->second;
  std::sort(events.begin(), events.end(), [](const Event& l, const Event& r) { return l.start < r.start; });
  std::map<std::pair<std::int32_t, std::uint32_t>, std::int64_t> calls;  // by step and thread
  struct Seen {
    std::int64_t times = 0;
    bool outside = true;  // before all compressed calls of its step, or after all
  };
  std::map<std::int32_t, std::map<std::string, Seen>> others;  // by step
  std::map<std::int32_t, std::int64_t> total;
  for (const Event& event : events) {
    if (event.compressed_calls == 0) continue;
    calls[{event.step, event.thread}] += event.compressed_calls;
    total[event.step] += event.compressed_calls;
  }
  std::map<std::int32_t, std::int64_t> so_far;
  for (const Event& event : events) {
    so_far[event.step] += event.compressed_calls;
    if (event.other.empty() || total.find(event.step) == total.end()) continue;
    Seen& seen = others[event.step][event.other];
    ++seen.times;
    seen.outside = seen.outside && (so_far[event.step] == 0 || so_far[event.step] == total[event.step]);
  }
  if (calls.empty()) return out;
  const bool constant = std::all_of(calls.begin(), calls.end(),
                                    [&](const auto& entry) { return entry.second == calls.begin()->second; });
  if (constant) out.calls = calls.begin()->second;
  // A collective ends a pass if every step has exactly one of it, beside the compressed calls, not between.
  if (others.size() != total.size()) return out;
  for (const auto& [function, first] : others.begin()->second) {
    const bool always = std::all_of(others.begin(), others.end(), [&, name = function](const auto& step) {
      const auto at = step.second.find(name);
      return at != step.second.end() && at->second.times == 1 && at->second.outside;
    });
    if (always && first.times == 1) out.resync.push_back(function);
  }
  return out;
}

Policy propose_policy(const Trace& trace, const Study& study, const ProposalInput& input) {
  std::map<std::int32_t, Need> by_communicator;
  for (std::size_t i = 0; i < study.set.collectives.size(); ++i) {
    if (!input.compressed[i]) continue;
    const Collective& collective = study.set.collectives[i];
    const auto dtype = compressible_type(collective.dtype);
    if (!dtype) continue;
    Need& need = by_communicator[collective.communicator];
    need.communicator = collective.communicator;
    if (collective.communicator >= 0) need.name = trace.communicators[collective.communicator].name;
    need.ranks = ranks_of(trace, study.set, collective);
    need.dtypes.insert(*dtype);
    need.ops.insert(trace.calls[collective.call].op == "avg" ? ReduceOp::kAvg : ReduceOp::kSum);
    if (const auto at = input.min_bytes.find({*dtype, need.ranks}); at != input.min_bytes.end())
      need.min_bytes = std::min(need.min_bytes, at->second);
    else
      need.min_bytes = std::min(need.min_bytes, collective.bytes);
  }
  Policy policy;
  if (by_communicator.empty()) return policy;
  std::vector<const Need*> needs;
  std::set<std::string> names;
  bool alike = true;
  for (auto& [communicator, need] : by_communicator) {
    need.pass = pass_pattern(trace, study, input.compressed, communicator);
    alike = alike && need.pass == by_communicator.begin()->second.pass;
    if (!need.name.empty()) names.insert(need.name);
    needs.push_back(&need);
  }
  if (!alike && names.size() == needs.size()) {
    for (const Need* need : needs) {
      policy.rules.push_back(rule_of({need}, input));
      policy.rules.back().match.communicator_name = need->name;
    }
  } else {
    policy.rules.push_back(rule_of(needs, input));
  }
  policy.hash = policy_hash(policy);
  return policy;
}

}  // namespace echotp
