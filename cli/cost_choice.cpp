// SPDX-License-Identifier: Apache-2.0
// Choosing among shipped cost tables.
#include "cli/cost_choice.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

namespace echotp {
namespace {

// What the bench worker writes when ranks share a GPU.
bool measured_on_shared_gpu(const CostTable& table) {
  return table.environment.link && table.environment.link->starts_with("loopback sockets");
}

bool has_ranks(const CostTable& table, int ranks) {
  return std::any_of(table.entries.begin(), table.entries.end(),
                     [&](const CostEntry& entry) { return entry.ranks == ranks; });
}

}  // namespace

std::vector<NamedCosts> load_cost_tables(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().extension() == ".json") paths.push_back(at->path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<NamedCosts> out;
  for (const std::string& path : paths) {
    if (auto table = read_costs(path)) out.push_back({path, *std::move(table)});
  }
  return out;
}

TraceMachine machine_of(const Trace& trace) {
  TraceMachine out;
  std::vector<bool> takes_part(trace.processes.size());
  for (const CollectiveCall& call : trace.calls) {
    if (call.process >= 0 && call.process < static_cast<int>(takes_part.size()))
      takes_part[static_cast<std::size_t>(call.process)] = true;
  }
  std::set<std::string> gpus, hosts;
  std::set<std::pair<std::string, std::string>> devices;
  bool all_known = true;
  std::size_t count = 0;
  for (std::size_t i = 0; i < takes_part.size(); ++i) {
    if (!takes_part[i]) continue;
    const Process& process = trace.processes[i];
    ++count;
    gpus.insert(process.gpu);
    hosts.insert(process.host);
    devices.insert({process.host, process.gpu_uuid});
    all_known = all_known && !process.gpu_uuid.empty();
  }
  if (gpus.size() == 1) out.gpu = *gpus.begin();
  out.hosts = static_cast<int>(hosts.size());
  if (all_known && count >= 2) out.ranks_share_gpu = devices.size() < count;
  for (const Communicator& communicator : trace.communicators)
    out.ranks = std::max(out.ranks, communicator.ranks);
  return out;
}

CostChoice choose_costs(const TraceMachine& machine, const std::vector<NamedCosts>& tables) {
  if (machine.gpu.empty()) return {nullptr, "the profile does not say which GPU it was recorded on"};
  if (!machine.ranks_share_gpu) return {nullptr, "the profile does not say how its ranks were connected"};
  if (!*machine.ranks_share_gpu) return {nullptr, "the shipped tables can't be told to have this job's link"};
  const NamedCosts* best = nullptr;
  for (const NamedCosts& candidate : tables) {
    if (candidate.table.environment.gpu != machine.gpu || !measured_on_shared_gpu(candidate.table)) continue;
    if (!best || (!has_ranks(best->table, machine.ranks) && has_ranks(candidate.table, machine.ranks)))
      best = &candidate;
  }
  if (!best)
    return {nullptr, "no shipped table was measured on " + machine.gpu + " with ranks that share a GPU"};
  return {best, "measured on " + machine.gpu + ", " + best->table.environment.link.value_or("")};
}

std::vector<std::string> cost_mismatches(const TraceMachine& machine, const CostTable& table) {
  std::vector<std::string> out;
  const CostEnvironment& environment = table.environment;
  if (!machine.gpu.empty() && environment.gpu && *environment.gpu != machine.gpu)
    out.push_back("the cost table was measured on " + *environment.gpu + ", the profile was recorded on " +
                  machine.gpu);
  if (machine.ranks_share_gpu && environment.link &&
      *machine.ranks_share_gpu != measured_on_shared_gpu(table)) {
    out.push_back("the cost table is of another link (" + *environment.link + "); in the profile the ranks " +
                  (*machine.ranks_share_gpu ? "share a GPU" : "have a GPU each"));
  }
  if (machine.ranks >= 2 && !has_ranks(table, machine.ranks))
    out.push_back("the cost table has no entry for " + std::to_string(machine.ranks) +
                  " ranks: those of another number stand in");
  return out;
}

}  // namespace echotp
