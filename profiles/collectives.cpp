// SPDX-License-Identifier: Apache-2.0
// Matching of calls over ranks, and the split into wait and transfer.
#include "profiles/collectives.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace echotp {
namespace {

constexpr std::int64_t kLongestOp_ns = 3'600'000'000'000;       // an hour: beyond it the record is broken
constexpr std::int64_t kLongestWindow_ns = 86'400'000'000'000;  // a day on either side of the middle
constexpr double kDisturbedFrom = 1.5;                          // of the class' fast calls

struct Key {
  std::int32_t communicator;
  std::int32_t function;
  std::int64_t sequence;
  std::int32_t replay;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    auto mix = static_cast<std::uint64_t>(key.sequence) * 0x9e3779b97f4a7c15ull;
    mix ^= (static_cast<std::uint64_t>(key.communicator) << 40) ^
           (static_cast<std::uint64_t>(key.function) << 32) ^ static_cast<std::uint64_t>(key.replay);
    mix *= 0xbf58476d1ce4e5b9ull;
    return static_cast<std::size_t>(mix ^ (mix >> 29));
  }
};

// "ncclAllReduce", "all_reduce" and "AllReduce" are one function.
std::string plain_function(std::string_view function) {
  std::string plain;
  for (const char c : function) {
    if (c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain.rfind("nccl", 0) == 0 ? plain.substr(4) : plain;
}

bool is_barrier(const std::string& plain) {
  return plain == "allreduce" || plain == "allgather" || plain == "reducescatter" || plain == "alltoall";
}

int dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, int> sizes = {
      {"bf16", 2},  {"fp16", 2},   {"fp32", 4},  {"fp64", 8},   {"int8", 1},    {"uint8", 1},
      {"int32", 4}, {"uint32", 4}, {"int64", 8}, {"uint64", 8}, {"fp8e4m3", 1}, {"fp8e5m2", 1}};
  const auto at = sizes.find(dtype);
  return at == sizes.end() ? 0 : at->second;
}

// The type stands in the kernel's name even where protocol and operator there can't be trusted.
std::string dtype_of_kernel(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {
      {{"_bf16", "bf16"}, {"_f16", "fp16"}, {"_f32", "fp32"}, {"_f64", "fp64"}}};
  if (name.rfind("nccl", 0) != 0) return {};
  for (const auto& [token, dtype] : kTypes) {
    const auto at = name.find(token);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = name.substr(at + token.size());
    if (rest.empty() || rest.front() == '_' || rest.front() == '(') return std::string(dtype);
  }
  return {};
}

// Calls as they will be joined: one entry a kernel, or one for a call without kernel.
struct Member {
  std::int32_t call;
  std::int32_t op;
};

// How far this rank's graph launches are behind those of the rank with the most: a rank whose recording began
// late misses the first ones, one that was cut misses the last ones. The ends of the kernels tell which.
std::int32_t replay_shift(const DeviceTimes& times, const CollectiveCall& call,
                          const CollectiveCall& longest) {
  const std::size_t missing = longest.ops.size() - call.ops.size();
  if (missing == 0) return 0;
  const auto distance = [&](std::size_t shift) {
    std::vector<std::int64_t> apart;
    for (std::size_t i = 0; i < call.ops.size(); ++i) {
      const std::int32_t mine = call.ops[i], other = longest.ops[i + shift];
      if (times.usable(mine) && times.usable(other))
        apart.push_back(std::abs(times.end_ns[mine] - times.end_ns[other]));
    }
    return quantile_of(apart, 0.5);
  };
  return distance(missing) < distance(0) ? static_cast<std::int32_t>(missing) : 0;
}

class Matcher {
 public:
  Matcher(const Trace& trace, DeviceTimes& times) : trace_(trace), times_(times) {}

  CollectiveSet run() {
    name_functions();
    find_longest_captures();
    set_.rendezvous_of_op.assign(trace_.device_ops.size(), -1);
    for (std::size_t i = 0; i < trace_.calls.size(); ++i) add_call(static_cast<std::int32_t>(i));
    join_launches();
    impute_ends();
    fill_arrivals();
    return std::move(set_);
  }

 private:
  void name_functions() {
    std::unordered_map<std::string, std::int32_t> known;
    std::unordered_map<Key, std::int64_t, KeyHash> next;
    for (const CollectiveCall& call : trace_.calls) {
      const std::string plain = plain_function(call.function);
      const auto [at, fresh] = known.try_emplace(plain, static_cast<std::int32_t>(barrier_.size()));
      if (fresh) barrier_.push_back(is_barrier(plain));
      function_.push_back(at->second);
      // Counted apart for each process: the ordinal is what all ranks share.
      std::int64_t& ordinal = next[Key{call.communicator, at->second, call.process, -1}];
      sequence_.push_back(call.sequence >= 0 ? call.sequence : ordinal);
      ++ordinal;
    }
  }

  void find_longest_captures() {
    for (std::size_t i = 0; i < trace_.calls.size(); ++i) {
      const CollectiveCall& call = trace_.calls[i];
      if (!call.captured || call.communicator < 0) continue;
      const auto [at, fresh] = longest_.try_emplace(key(static_cast<std::int32_t>(i), 0), i);
      if (!fresh && trace_.calls[at->second].ops.size() < call.ops.size()) at->second = i;
    }
  }

  Key key(std::int32_t call, std::int32_t replay) const {
    return {trace_.calls[call].communicator, function_[call], sequence_[call], replay};
  }

  void add_call(std::int32_t index) {
    const CollectiveCall& call = trace_.calls[index];
    if (call.ops.empty()) {
      ++set_.calls_without_kernel;
      add_member({index, -1}, 0);
      return;
    }
    if (!call.captured) {
      // Several kernels of one call: the longest carries the exchange.
      const auto duration = [&](std::int32_t op) { return times_.end_ns[op] - times_.start_ns[op]; };
      const std::int32_t op = *std::max_element(
          call.ops.begin(), call.ops.end(),
          [&](std::int32_t left, std::int32_t right) { return duration(left) < duration(right); });
      add_member({index, op}, 0);
      return;
    }
    std::int32_t shift = 0;
    if (const auto at = longest_.find(key(index, 0)); at != longest_.end())
      shift = replay_shift(times_, call, trace_.calls[at->second]);
    for (std::size_t i = 0; i < call.ops.size(); ++i)
      add_member({index, call.ops[i]}, static_cast<std::int32_t>(i) + shift);
  }

  void add_member(Member member, std::int32_t replay) {
    const CollectiveCall& call = trace_.calls[member.call];
    // Point-to-point calls pair by peer, not by sequence: each stays alone.
    const bool joins = call.communicator >= 0 && barrier_[function_[member.call]];
    std::int32_t target = -1;
    if (joins) {
      const auto [at, fresh] =
          by_key_.try_emplace(key(member.call, replay), static_cast<std::int32_t>(members_.size()));
      if (!fresh) target = accepts(at->second, member) ? at->second : -2;
      if (fresh) target = -1;
    }
    if (target == -2) ++set_.contradictory;
    if (target < 0) {
      target = static_cast<std::int32_t>(members_.size());
      members_.emplace_back();
      set_.collectives.push_back(describe(member, replay));
    }
    members_[target].push_back(member);
    if (set_.collectives[target].dtype.empty()) set_.collectives[target].dtype = dtype_of(member);
  }

  bool accepts(std::int32_t collective, Member member) const {
    const CollectiveCall& call = trace_.calls[member.call];
    const std::int64_t bytes = set_.collectives[collective].bytes, mine = bytes_of(call, dtype_of(member));
    if (bytes >= 0 && mine >= 0 && bytes != mine) return false;
    for (const Member& other : members_[collective]) {
      if (trace_.calls[other.call].process != call.process) continue;
      // Two ranks in one process have two devices; anything else is the same rank twice.
      if (other.op < 0 || member.op < 0) return false;
      if (trace_.device_ops[other.op].device == trace_.device_ops[member.op].device) return false;
    }
    return true;
  }

  std::string dtype_of(Member member) const {
    const std::string& dtype = trace_.calls[member.call].dtype;
    if (!dtype.empty() || member.op < 0) return dtype;
    const std::int32_t name = trace_.device_ops[member.op].name;
    return name < 0 ? std::string() : dtype_of_kernel(trace_.names[name]);
  }

  static std::int64_t bytes_of(const CollectiveCall& call, const std::string& dtype) {
    if (call.bytes >= 0) return call.bytes;
    const int size = dtype_bytes(dtype);
    return call.count >= 0 && size > 0 ? call.count * size : -1;
  }

  Collective describe(Member member, std::int32_t replay) const {
    const CollectiveCall& call = trace_.calls[member.call];
    Collective collective;
    collective.communicator = call.communicator;
    collective.call = member.call;
    collective.sequence = sequence_[member.call];
    collective.replay = replay;
    collective.dtype = dtype_of(member);
    collective.bytes = bytes_of(call, collective.dtype);
    return collective;
  }

  std::int32_t root(std::int32_t collective) {
    while (parent_[collective] != collective) collective = parent_[collective] = parent_[parent_[collective]];
    return collective;
  }

  // Calls that shared a kernel on any rank are one rendezvous.
  void join_launches() {
    parent_.resize(members_.size());
    std::iota(parent_.begin(), parent_.end(), 0);
    std::vector<std::int32_t> first(trace_.device_ops.size(), -1);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      for (const Member& member : members_[i]) {
        if (member.op < 0) continue;
        if (first[member.op] < 0) {
          first[member.op] = static_cast<std::int32_t>(i);
        } else {
          parent_[root(static_cast<std::int32_t>(i))] = root(first[member.op]);
        }
      }
    }
    std::vector<std::int32_t> rendezvous(members_.size(), -1);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const bool seen = std::any_of(members_[i].begin(), members_[i].end(),
                                    [](const Member& member) { return member.op >= 0; });
      if (!seen) continue;
      std::int32_t& at = rendezvous[root(static_cast<std::int32_t>(i))];
      if (at < 0) {
        at = static_cast<std::int32_t>(set_.rendezvous.size());
        set_.rendezvous.emplace_back();
      }
      set_.collectives[i].rendezvous = at;
      set_.rendezvous[at].collectives.push_back(static_cast<std::int32_t>(i));
      for (const Member& member : members_[i]) {
        if (member.op >= 0) set_.rendezvous_of_op[member.op] = at;
      }
    }
  }

  std::tuple<std::int32_t, std::int32_t, std::int64_t> class_of(std::int32_t collective) const {
    const Collective& it = set_.collectives[collective];
    return {function_[it.call], it.communicator, it.bytes};
  }

  void impute_ends() {
    std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, std::vector<std::int64_t>> durations;
    std::vector<std::pair<std::int32_t, std::int32_t>> broken;  // collective, op
    for (std::size_t i = 0; i < members_.size(); ++i) {
      for (const Member& member : members_[i]) {
        if (member.op < 0) continue;
        if (times_.usable(member.op)) {
          durations[class_of(static_cast<std::int32_t>(i))].push_back(times_.end_ns[member.op] -
                                                                      times_.start_ns[member.op]);
        } else if (trace_.device_ops[member.op].start_ns > 0) {
          broken.emplace_back(static_cast<std::int32_t>(i), member.op);
        }
      }
    }
    for (const auto& [collective, op] : broken) {
      const auto at = durations.find(class_of(collective));
      if (times_.usable(op) || at == durations.end()) continue;
      times_.start_ns[op] = trace_.device_ops[op].start_ns;
      times_.end_ns[op] = times_.start_ns[op] + quantile_of(at->second, 0.5);
      ++set_.imputed;
    }
  }

  void fill_arrivals() {
    for (Rendezvous& rendezvous : set_.rendezvous) {
      std::int64_t total = 0;
      rendezvous.barrier = true;
      for (const std::int32_t index : rendezvous.collectives) {
        const Collective& collective = set_.collectives[index];
        rendezvous.barrier = rendezvous.barrier && barrier_[function_[collective.call]];
        total += std::max<std::int64_t>(collective.bytes, 0);
        if (collective.communicator >= 0)
          rendezvous.ranks = std::max(rendezvous.ranks, trace_.communicators[collective.communicator].ranks);
        for (const Member& member : members_[index]) {
          const auto same = [&](const Arrival& arrival) { return arrival.op == member.op; };
          if (member.op < 0 || !times_.usable(member.op)) continue;
          if (std::none_of(rendezvous.arrivals.begin(), rendezvous.arrivals.end(), same))
            rendezvous.arrivals.push_back({trace_.calls[member.call].process, member.op});
        }
      }
      for (const std::int32_t index : rendezvous.collectives) {
        Collective& collective = set_.collectives[index];
        collective.share = total > 0 ? static_cast<double>(std::max<std::int64_t>(collective.bytes, 0)) /
                                           static_cast<double>(total)
                                     : 1.0 / static_cast<double>(rendezvous.collectives.size());
      }
      const auto seen = static_cast<std::int32_t>(rendezvous.arrivals.size());
      rendezvous.partial = rendezvous.ranks > 0 ? seen < rendezvous.ranks : seen < 2;
    }
  }

  const Trace& trace_;
  DeviceTimes& times_;
  CollectiveSet set_;
  std::vector<std::int32_t> function_;        // by call
  std::vector<std::int64_t> sequence_;        // by call
  std::vector<bool> barrier_;                 // by function
  std::vector<std::vector<Member>> members_;  // by collective
  std::vector<std::int32_t> parent_;          // by collective
  std::unordered_map<Key, std::int32_t, KeyHash> by_key_;
  std::unordered_map<Key, std::size_t, KeyHash> longest_;
};

}  // namespace

std::int64_t quantile_of(std::vector<std::int64_t>& values, double quantile) {
  if (values.empty()) return 0;
  const auto last = static_cast<double>(values.size() - 1);
  const auto at = static_cast<std::ptrdiff_t>(last * std::clamp(quantile, 0.0, 1.0) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

DeviceTimes recorded_times(const Trace& trace, std::int64_t* invalid) {
  DeviceTimes times;
  const std::size_t ops = trace.device_ops.size();
  times.start_ns.assign(ops, -1);
  times.end_ns.assign(ops, -1);
  std::vector<std::int64_t> starts;
  for (const DeviceOp& op : trace.device_ops) {
    if (op.start_ns > 0) starts.push_back(op.start_ns);
  }
  const std::int64_t middle = quantile_of(starts, 0.5);
  std::int64_t bad = 0;
  for (std::size_t i = 0; i < ops; ++i) {
    const DeviceOp& op = trace.device_ops[i];
    const bool good = op.start_ns > 0 && op.end_ns >= op.start_ns &&
                      op.end_ns - op.start_ns < kLongestOp_ns &&
                      std::abs(op.start_ns - middle) < kLongestWindow_ns;
    if (good) {
      times.start_ns[i] = op.start_ns;
      times.end_ns[i] = op.end_ns;
    } else {
      ++bad;
    }
  }
  if (invalid != nullptr) *invalid = bad;
  return times;
}

CollectiveSet match_collectives(const Trace& trace, DeviceTimes& times) {
  return Matcher(trace, times).run();
}

void measure_collectives(const Trace& trace, const DeviceTimes& times, CollectiveSet& set) {
  // By function, communicator and bytes of the launch.
  using ClassKey = std::tuple<std::string, std::int32_t, std::int64_t>;
  std::map<ClassKey, std::vector<std::int64_t>> transfers;
  std::map<ClassKey, std::pair<std::int64_t, std::int64_t>> typical;  // fast, median
  const auto class_of = [&](const Rendezvous& rendezvous) {
    const Collective& first = set.collectives[rendezvous.collectives.front()];
    std::int64_t bytes = 0;
    for (const std::int32_t index : rendezvous.collectives)
      bytes += std::max<std::int64_t>(set.collectives[index].bytes, 0);
    return ClassKey{trace.calls[first.call].function, first.communicator, bytes};
  };
  for (Rendezvous& rendezvous : set.rendezvous) {
    if (rendezvous.arrivals.empty()) continue;
    rendezvous.last_arrival_ns = times.start_ns[rendezvous.arrivals.front().op];
    rendezvous.transfer_ns = std::numeric_limits<std::int64_t>::max();
    for (const Arrival& arrival : rendezvous.arrivals) {
      rendezvous.last_arrival_ns = std::max(rendezvous.last_arrival_ns, times.start_ns[arrival.op]);
      rendezvous.transfer_ns =
          std::min(rendezvous.transfer_ns, times.end_ns[arrival.op] - times.start_ns[arrival.op]);
    }
    transfers[class_of(rendezvous)].push_back(rendezvous.transfer_ns);
  }
  for (auto& [key, values] : transfers) typical[key] = {quantile_of(values, 0.1), quantile_of(values, 0.5)};
  for (Rendezvous& rendezvous : set.rendezvous) {
    if (rendezvous.arrivals.empty()) continue;
    const auto [fast, median] = typical[class_of(rendezvous)];
    rendezvous.fast_ns = fast;
    // One rank alone can't tell waiting from transfer: its best arrivals over all calls of the class can.
    if (rendezvous.arrivals.size() == 1 && rendezvous.ranks != 1)
      rendezvous.transfer_ns = std::min(rendezvous.transfer_ns, fast);
    rendezvous.credited_ns =
        static_cast<double>(rendezvous.transfer_ns) > kDisturbedFrom * static_cast<double>(fast)
            ? std::min(rendezvous.transfer_ns, median)
            : rendezvous.transfer_ns;
  }
}

std::int64_t wait_ns(const Rendezvous& rendezvous, const Arrival& arrival, const DeviceTimes& times) {
  return std::max<std::int64_t>(0, rendezvous.last_arrival_ns - times.start_ns[arrival.op]);
}

bool is_all_reduce(std::string_view function) {
  return plain_function(function) == "allreduce";
}

std::string policy_function_name(std::string_view function) {
  static const std::map<std::string, std::string> names = {{"allreduce", "all_reduce"},
                                                           {"allgather", "all_gather"},
                                                           {"reducescatter", "reduce_scatter"},
                                                           {"alltoall", "all_to_all"}};
  const std::string plain = plain_function(function);
  const auto at = names.find(plain);
  return at == names.end() ? plain : at->second;
}

}  // namespace echotp
