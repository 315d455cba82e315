// SPDX-License-Identifier: Apache-2.0
// Work of the host, cut at the launches of collectives.
#include "profiles/host_work.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "profiles/collectives.hpp"

namespace echotp {
namespace {

constexpr double kFastEnd = 0.10;
constexpr std::size_t kLeastSamples = 4;  // steps and ranks that a fast end is taken from

bool is_host_work(EdgeKind kind) {
  return kind == EdgeKind::kDuration || kind == EdgeKind::kHostOrder || kind == EdgeKind::kHandOff;
}

// Longest work that leads to a point.
std::int64_t work_before(const Timeline& timeline, std::size_t point) {
  std::int64_t work = 0;
  for (std::uint32_t i = timeline.first_edge[point]; i < timeline.first_edge[point + 1]; ++i) {
    const Edge& edge = timeline.edges[i];
    if (is_host_work(edge.kind)) work = std::max(work, edge.lag_ns);
  }
  return work;
}

// A stretch of host calls up to the launch of a collective.
struct Place {
  std::int32_t process = -1;
  std::int32_t step = -1;
  std::int32_t ordinal = 0;  // in the step
  bool operator<(const Place& other) const {
    return std::tie(process, step, ordinal) < std::tie(other.process, other.step, other.ordinal);
  }
};

}  // namespace

std::vector<float> fast_host_factors(const Trace& trace, const Timeline& timeline, const Launches& launches,
                                     const Steps& steps) {
  const std::size_t calls = trace.host_apis.size();
  const auto start_of = [&](std::size_t api) { return timeline.host_base + 2 * api; };
  std::vector<std::size_t> order;
  for (std::size_t api = 0; api < calls; ++api) {
    if (timeline.observed_ns[start_of(api)] >= 0) order.push_back(api);
  }
  if (order.empty()) return {};
  std::sort(order.begin(), order.end(), [&](std::size_t l, std::size_t r) {
    return std::make_tuple(trace.host_apis[l].process, timeline.observed_ns[start_of(l)], l) <
           std::make_tuple(trace.host_apis[r].process, timeline.observed_ns[start_of(r)], r);
  });
  std::vector<std::int32_t> step_of_call(calls, -1);
  std::vector<bool> collective(calls, false);
  for (std::size_t op = 0; op < trace.device_ops.size(); ++op) {
    const std::int32_t api = launches.api_of_op[op];
    if (api < 0) continue;
    if (steps.step_of_op[op] >= 0) step_of_call[api] = steps.step_of_op[op];
    if (trace.device_ops[op].call >= 0) collective[api] = true;
  }
  // What launches nothing belongs to the step of the launch before it.
  std::vector<Place> place_of_call(calls);
  std::map<Place, std::int64_t> work;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> places;  // in a step of a process
  Place at;
  for (const std::size_t api : order) {
    const std::int32_t process = trace.host_apis[api].process;
    if (process != at.process) at = {process, -1, 0};
    if (step_of_call[api] > at.step) at = {process, step_of_call[api], 0};
    if (!steps.is_used(at.step)) continue;
    place_of_call[api] = at;
    work[at] += work_before(timeline, start_of(api)) + work_before(timeline, start_of(api) + 1);
    places[{process, at.step}] = at.ordinal;
    if (collective[api]) ++at.ordinal;
  }
  // Only steps that issue as many collectives are compared.
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>> samples;
  for (const auto& [place, took] : work)
    samples[{places[{place.process, place.step}], place.ordinal}].push_back(took);
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> fast;
  for (auto& [key, values] : samples) {
    if (values.size() >= kLeastSamples) fast[key] = quantile_of(values, kFastEnd);
  }
  std::vector<float> factors(calls, 1.0F);
  for (const std::size_t api : order) {
    const Place& place = place_of_call[api];
    if (place.process < 0) continue;
    const auto best = fast.find({places[{place.process, place.step}], place.ordinal});
    const std::int64_t took = work[place];
    if (best != fast.end() && best->second > 0 && took > best->second)
      factors[api] = static_cast<float>(static_cast<double>(best->second) / static_cast<double>(took));
  }
  return factors;
}

}  // namespace echotp
