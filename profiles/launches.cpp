// SPDX-License-Identifier: Apache-2.0
// Join of device operations with the host calls that launched them.
#include "profiles/launches.hpp"

#include <unordered_map>

namespace echotp {

Launches find_launches(const Trace& trace, const ClockAlignment& alignment) {
  Launches out;
  out.api_of_op.assign(trace.device_ops.size(), -1);
  out.launched_ns.assign(trace.device_ops.size(), -1);
  out.coverage.assign(trace.processes.size(), 0.0);
  const auto key = [](std::int32_t process, std::uint32_t correlation) {
    return (static_cast<std::uint64_t>(process) << 32) | correlation;
  };
  std::unordered_map<std::uint64_t, std::int32_t> by_correlation;
  by_correlation.reserve(trace.host_apis.size());
  for (std::size_t i = 0; i < trace.host_apis.size(); ++i) {
    const HostApi& api = trace.host_apis[i];
    const bool launches = api.kind == HostApiKind::kLaunch || api.kind == HostApiKind::kGraphLaunch ||
                          api.kind == HostApiKind::kMemcpy || api.kind == HostApiKind::kMemset;
    if (launches && api.correlation != 0 && api.start_ns > 0 && api.end_ns >= api.start_ns)
      by_correlation.emplace(key(api.process, api.correlation), static_cast<std::int32_t>(i));
  }
  std::vector<std::int64_t> ops(trace.processes.size(), 0), known(trace.processes.size(), 0);
  std::int64_t all_known = 0;
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    const DeviceOp& op = trace.device_ops[i];
    ++ops[op.process];
    if (op.correlation == 0) continue;
    const auto at = by_correlation.find(key(op.process, op.correlation));
    if (at == by_correlation.end()) continue;
    out.api_of_op[i] = at->second;
    out.launched_ns[i] = aligned_ns(alignment, op.process, trace.host_apis[at->second].start_ns);
    ++known[op.process];
    ++all_known;
  }
  for (std::size_t process = 0; process < ops.size(); ++process) {
    if (ops[process] > 0)
      out.coverage[process] = static_cast<double>(known[process]) / static_cast<double>(ops[process]);
  }
  if (!trace.device_ops.empty())
    out.total_coverage = static_cast<double>(all_known) / static_cast<double>(trace.device_ops.size());
  return out;
}

}  // namespace echotp
