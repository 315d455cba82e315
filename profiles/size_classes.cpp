// SPDX-License-Identifier: Apache-2.0
// Grouping of collectives by message size.
#include "profiles/size_classes.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace echotp {
namespace {

using Kind = std::tuple<std::string, std::string, std::string, std::int32_t, std::int32_t>;

Kind kind_of(const Trace& trace, const Collective& collective, bool by_communicator) {
  const CollectiveCall& call = trace.calls[collective.call];
  const std::int32_t ranks =
      collective.communicator >= 0 ? trace.communicators[collective.communicator].ranks : 0;
  return {call.function, collective.dtype, call.op, ranks, by_communicator ? collective.communicator : -1};
}

std::int64_t power_of_two_above(std::int64_t bytes) {
  std::int64_t power = 1;
  while (power < bytes && power < (std::int64_t{1} << 62)) power *= 2;
  return power;
}

std::vector<MessageClass> group(const Trace& trace, const CollectiveSet& set, bool by_communicator) {
  std::map<Kind, std::set<std::int64_t>> sizes;
  for (const Collective& collective : set.collectives)
    sizes[kind_of(trace, collective, by_communicator)].insert(collective.bytes);
  std::map<std::pair<Kind, std::int64_t>, MessageClass> classes;
  for (std::size_t i = 0; i < set.collectives.size(); ++i) {
    const Collective& collective = set.collectives[i];
    const Kind kind = kind_of(trace, collective, by_communicator);
    const std::int64_t bytes = sizes[kind].size() > kMostSizes && collective.bytes > 0
                                   ? power_of_two_above(collective.bytes)
                                   : collective.bytes;
    MessageClass& it = classes[{kind, bytes}];
    if (it.collectives.empty()) {
      std::tie(it.function, it.dtype, it.op, it.ranks, it.communicator) = kind;
      it.bytes = it.min_bytes = collective.bytes;
    }
    it.bytes = std::max(it.bytes, collective.bytes);
    it.min_bytes = std::min(it.min_bytes, collective.bytes);
    it.collectives.push_back(static_cast<std::int32_t>(i));
  }
  std::vector<MessageClass> out;
  for (auto& [key, it] : classes) out.push_back(std::move(it));
  return out;
}

void add(MessageClass::Times& to, double total, double wait, double transfer, double exposed) {
  to.total += total;
  to.wait += wait;
  to.transfer += transfer;
  to.exposed += exposed;
}

void measure(const Study& study, MessageClass& it) {
  std::vector<std::int64_t> transfers;
  for (const std::int32_t index : it.collectives) {
    const Collective& collective = study.set.collectives[index];
    if (collective.rendezvous < 0) continue;
    const Rendezvous& rendezvous = study.set.rendezvous[collective.rendezvous];
    if (rendezvous.arrivals.empty()) continue;
    double total = 0, wait = 0, exposed = 0;
    for (const Arrival& arrival : rendezvous.arrivals) {
      const double each = collective.share / static_cast<double>(rendezvous.arrivals.size());
      total += each * static_cast<double>(study.times.end_ns[arrival.op] - study.times.start_ns[arrival.op]);
      wait += each * static_cast<double>(wait_ns(rendezvous, arrival, study.times));
      exposed += each * static_cast<double>(study.exposed_ns[arrival.op]);
    }
    const double transfer = collective.share * static_cast<double>(rendezvous.transfer_ns);
    transfers.push_back(static_cast<std::int64_t>(transfer));
    it.partial = it.partial || rendezvous.partial;
    ++it.timed;
    add(it.in_all, total, wait, transfer, exposed);
    if (!study.steps.is_used(step_of(study, collective))) continue;
    ++it.used;
    add(it.in_steps, total, wait, transfer, exposed);
  }
  it.median_transfer_ns = static_cast<double>(quantile_of(transfers, 0.5));
}

}  // namespace

std::int32_t step_of(const Study& study, const Collective& collective) {
  if (collective.rendezvous < 0) return -1;
  const Rendezvous& rendezvous = study.set.rendezvous[collective.rendezvous];
  return rendezvous.arrivals.empty() ? -1 : study.steps.step_of_op[rendezvous.arrivals.front().op];
}

std::vector<MessageClass> size_classes(const Trace& trace, const Study& study, bool by_communicator) {
  std::vector<MessageClass> out = group(trace, study.set, by_communicator);
  for (MessageClass& it : out) measure(study, it);
  std::stable_sort(out.begin(), out.end(), [](const MessageClass& l, const MessageClass& r) {
    return l.in_all.total > r.in_all.total;
  });
  return out;
}

std::vector<MessageClass> size_classes_without_times(const Trace& trace, const CollectiveSet& set) {
  std::vector<MessageClass> out = group(trace, set, false);
  std::stable_sort(out.begin(), out.end(), [](const MessageClass& l, const MessageClass& r) {
    return l.collectives.size() > r.collectives.size();
  });
  return out;
}

Scenario free_transfer(const Study& study, const std::vector<std::int32_t>& collectives) {
  Scenario scenario = study.recorded;
  for (const std::int32_t index : collectives) {
    const Collective& collective = study.set.collectives[index];
    if (collective.rendezvous < 0) continue;
    std::int64_t& transfer = scenario.transfer_ns[collective.rendezvous];
    const auto part = static_cast<std::int64_t>(
        collective.share * static_cast<double>(study.recorded.transfer_ns[collective.rendezvous]) + 0.5);
    transfer = std::max<std::int64_t>(0, transfer - part);
  }
  return scenario;
}

}  // namespace echotp
