// SPDX-License-Identifier: Apache-2.0
// The joins of one process; see section_builder.hpp.
#include "profiles/section_builder.hpp"

#include <algorithm>
#include <numeric>

namespace echotp {
namespace {

constexpr int kCloneDepth = 16;  // a graph is cloned when instantiated and when nested, never this often
constexpr std::uint32_t kUnknownStream = 0xffffffffU;

using Indices = std::vector<std::size_t>;

bool carries_nccl(const Trace& trace, const DeviceOp& op) {
  if (op.kind != DeviceOpKind::kKernel || op.name < 0) return false;
  return trace.names[static_cast<std::size_t>(op.name)].find("nccl") != std::string::npos;
}

void attach(Section& section, std::size_t call, std::size_t op) {
  auto& ops = section.calls[call].call.ops;
  const auto index = static_cast<std::int32_t>(op);
  // A call's ops come in ascending order here, so that a repetition is the last one.
  if (!ops.empty() && ops.back() == index) return;
  ops.push_back(index);
  if (section.ops[op].call < 0) section.ops[op].call = static_cast<std::int32_t>(call);
}

/// Joins by the correlation id seen in the launch callback, by graph node, and by explicit links.
void join_recorded(Section& section) {
  std::unordered_map<std::uint64_t, std::size_t> by_id;
  std::unordered_map<std::uint64_t, Indices> by_launch;
  std::unordered_map<std::uint64_t, Indices> by_node;
  std::unordered_map<std::uint64_t, std::uint64_t> cloned_from;
  for (std::size_t i = 0; i < section.calls.size(); ++i) {
    by_id[section.calls[i].id] = i;
    if (section.calls[i].launch > 0)
      by_launch[static_cast<std::uint64_t>(section.calls[i].launch)].push_back(i);
  }
  for (const LinkRow& link : section.links) {
    if (link.kind == LinkKind::kClone) {
      cloned_from[link.call] = link.target;
      continue;
    }
    const auto found = by_id.find(link.call);
    if (found == by_id.end()) continue;
    if (link.kind == LinkKind::kLaunch) by_launch[link.target].push_back(found->second);
    if (link.kind == LinkKind::kNode) by_node[link.target].push_back(found->second);
    if (link.kind == LinkKind::kOp && link.target < section.ops.size())
      attach(section, found->second, link.target);
  }
  for (std::size_t op = 0; op < section.ops.size(); ++op) {
    if (section.ops[op].kind != DeviceOpKind::kKernel) continue;
    if (section.op_nodes[op] < 0) {
      const auto found = by_launch.find(section.ops[op].correlation);
      if (section.ops[op].correlation == 0 || found == by_launch.end()) continue;
      for (const std::size_t call : found->second) attach(section, call, op);
      continue;
    }
    auto node = static_cast<std::uint64_t>(section.op_nodes[op]);
    for (int depth = 0; depth < kCloneDepth; ++depth) {
      if (const auto found = by_node.find(node); found != by_node.end()) {
        for (const std::size_t call : found->second) {
          attach(section, call, op);
          section.calls[call].call.captured = true;
        }
        break;
      }
      const auto origin = cloned_from.find(node);
      if (origin == cloned_from.end()) break;
      node = origin->second;
    }
  }
}

/// Where no launch callback was possible: a NCCL kernel launched by the same thread while the call was on the
/// stack.
void join_by_time(const Trace& trace, Section& section) {
  std::unordered_map<std::uint32_t, std::size_t> loose;  // correlation -> op
  for (std::size_t op = 0; op < section.ops.size(); ++op) {
    if (section.ops[op].call < 0 && section.op_nodes[op] < 0 && section.ops[op].correlation != 0 &&
        carries_nccl(trace, section.ops[op])) {
      loose[section.ops[op].correlation] = op;
    }
  }
  if (loose.empty()) return;
  struct Launch {
    std::int64_t start_ns;
    std::size_t op;
  };
  std::unordered_map<std::uint32_t, std::vector<Launch>> by_thread;
  for (const HostApi& api : section.apis) {
    const auto found = loose.find(api.correlation);
    if (api.kind == HostApiKind::kLaunch && found != loose.end())
      by_thread[api.thread].push_back({api.start_ns, found->second});
  }
  for (auto& [thread, launches] : by_thread) {
    std::sort(launches.begin(), launches.end(),
              [](const Launch& a, const Launch& b) { return a.start_ns < b.start_ns; });
  }
  for (std::size_t i = 0; i < section.calls.size(); ++i) {
    const CollectiveCall& call = section.calls[i].call;
    const auto found = by_thread.find(call.thread);
    if (!call.ops.empty() || call.host_start_ns < 0 || call.host_end_ns < 0 || found == by_thread.end())
      continue;
    const auto first =
        std::lower_bound(found->second.begin(), found->second.end(), call.host_start_ns,
                         [](const Launch& launch, std::int64_t t) { return launch.start_ns < t; });
    for (auto it = first; it != found->second.end() && it->start_ns <= call.host_end_ns; ++it)
      attach(section, i, it->op);
  }
}

/// A runtime call and the driver call inside it carry one correlation id: the outer one stays.
void merge_nested_apis(std::vector<HostApi>& apis) {
  std::unordered_map<std::uint64_t, std::size_t> seen;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < apis.size(); ++i) {
    if (apis[i].correlation != 0) {
      const std::uint64_t key =
          static_cast<std::uint64_t>(apis[i].correlation) << 8U | static_cast<std::uint64_t>(apis[i].kind);
      const auto [it, added] = seen.try_emplace(key, kept);
      if (!added) {
        HostApi& outer = apis[it->second];
        outer.start_ns = std::min(outer.start_ns, apis[i].start_ns);
        outer.end_ns = std::max(outer.end_ns, apis[i].end_ns);
        continue;
      }
    }
    apis[kept++] = apis[i];
  }
  apis.resize(kept);
}

/// Stream, event and sync id of CUPTI's event and synchronisation records go to the CUDA call of that
/// correlation.
void join_syncs(Section& section) {
  std::unordered_map<std::uint64_t, std::size_t> by_key;
  const auto key = [](std::uint32_t correlation, HostApiKind kind) {
    return static_cast<std::uint64_t>(correlation) << 8U | static_cast<std::uint64_t>(kind);
  };
  for (std::size_t i = 0; i < section.apis.size(); ++i)
    by_key[key(section.apis[i].correlation, section.apis[i].kind)] = i;
  for (const SyncRow& sync : section.syncs) {
    const auto found = by_key.find(key(sync.correlation, sync.kind));
    if (found == by_key.end()) {
      if (!sync.is_wait || sync.start_ns < 0) continue;
      HostApi api;
      api.process = section.process;
      api.kind = sync.kind;
      api.start_ns = sync.start_ns;
      api.end_ns = sync.end_ns;
      api.correlation = sync.correlation;
      section.apis.push_back(api);
    }
    HostApi& api = found == by_key.end() ? section.apis.back() : section.apis[found->second];
    api.stream = sync.stream < 0 ? kUnknownStream : static_cast<std::uint32_t>(sync.stream);
    if (sync.event > 0) api.event = static_cast<std::uint32_t>(sync.event);
    if (sync.sync > 0) api.event_sync = static_cast<std::uint64_t>(sync.sync);
  }
}

}  // namespace

void append_section(Section section, Trace& trace) {
  merge_nested_apis(section.apis);
  join_syncs(section);
  std::stable_sort(
      section.calls.begin(), section.calls.end(),
      [](const SectionCall& a, const SectionCall& b) { return a.call.host_start_ns < b.call.host_start_ns; });
  join_recorded(section);
  join_by_time(trace, section);

  Indices order(section.ops.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const DeviceOp& x = section.ops[a];
    const DeviceOp& y = section.ops[b];
    if (x.device != y.device) return x.device < y.device;
    if (x.stream != y.stream) return x.stream < y.stream;
    return x.start_ns < y.start_ns;
  });
  std::vector<std::int32_t> place(order.size());
  const auto op_base = static_cast<std::int32_t>(trace.device_ops.size());
  const auto call_base = static_cast<std::int32_t>(trace.calls.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = op_base + static_cast<std::int32_t>(i);
    DeviceOp op = section.ops[order[i]];
    if (op.call >= 0) op.call += call_base;
    trace.device_ops.push_back(op);
  }
  for (SectionCall& held : section.calls) {
    for (std::int32_t& op : held.call.ops) op = place[static_cast<std::size_t>(op)];
    std::sort(held.call.ops.begin(), held.call.ops.end(), [&](std::int32_t a, std::int32_t b) {
      const std::int64_t x = trace.device_ops[static_cast<std::size_t>(a)].start_ns;
      const std::int64_t y = trace.device_ops[static_cast<std::size_t>(b)].start_ns;
      return x != y ? x < y : a < b;
    });
    trace.calls.push_back(std::move(held.call));
  }
  std::stable_sort(section.apis.begin(), section.apis.end(),
                   [](const HostApi& a, const HostApi& b) { return a.start_ns < b.start_ns; });
  trace.host_apis.insert(trace.host_apis.end(), section.apis.begin(), section.apis.end());
  trace.ranges.insert(trace.ranges.end(), section.ranges.begin(), section.ranges.end());
}

}  // namespace echotp
