// SPDX-License-Identifier: Apache-2.0
// Which shipped cost table fits a profile.
#include "cli/cost_choice.hpp"

#include <doctest/doctest.h>

using namespace echotp;

namespace {

NamedCosts table(const char* path, const char* gpu, const char* link, std::vector<int> ranks) {
  NamedCosts out{path, {}};
  out.table.environment.gpu = gpu;
  out.table.environment.link = link;
  for (const int count : ranks) {
    CostEntry entry;
    entry.ranks = count;
    out.table.entries.push_back(entry);
  }
  return out;
}

Trace trace(std::vector<std::pair<const char*, const char*>> gpu_and_uuid) {
  Trace out;
  for (const auto& [gpu, uuid] : gpu_and_uuid) {
    Process process;
    process.host = "node0";
    process.gpu = gpu;
    process.gpu_uuid = uuid;
    out.processes.push_back(process);
    CollectiveCall call;
    call.process = static_cast<std::int32_t>(out.processes.size()) - 1;
    out.calls.push_back(call);
  }
  out.communicators.push_back({1, "", static_cast<std::int32_t>(gpu_and_uuid.size()), {}});
  return out;
}

}  // namespace

TEST_CASE("a machine is what the processes with collectives say") {
  Trace job = trace({{"H200", "GPU-1"}, {"H200", "GPU-1"}});
  Process helper;
  helper.gpu = "other";
  job.processes.push_back(helper);
  const TraceMachine machine = machine_of(job);
  CHECK(machine.gpu == "H200");
  CHECK(machine.ranks_share_gpu == true);
  CHECK(machine.ranks == 2);
  CHECK(machine_of(trace({{"H200", "GPU-1"}, {"H200", "GPU-2"}})).ranks_share_gpu == false);
  CHECK_FALSE(machine_of(trace({{"H200", "GPU-1"}, {"H200", ""}})).ranks_share_gpu);
  CHECK(machine_of(trace({{"H200", "GPU-1"}, {"A100", "GPU-2"}})).gpu.empty());
  CHECK_FALSE(machine_of(trace({{"H200", "GPU-1"}})).ranks_share_gpu);
}

TEST_CASE("only a table of the same GPU and link is taken; the one with the job's ranks first") {
  const std::vector<NamedCosts> tables = {table("a", "A100", "loopback sockets, one GPU, MPS", {2}),
                                          table("peer", "H200", "peer", {2}),
                                          table("two", "H200", "loopback sockets, one GPU, MPS", {2}),
                                          table("four", "H200", "loopback sockets, one GPU, MPS", {4})};
  const auto path = [&](const TraceMachine& machine) {
    const CostChoice choice = choose_costs(machine, tables);
    CHECK_FALSE(choice.why.empty());
    return choice.chosen ? choice.chosen->path : "none";
  };
  CHECK(path({"H200", true, 1, 2}) == "two");
  CHECK(path({"H200", true, 1, 4}) == "four");
  CHECK(path({"H200", true, 1, 8}) == "two");
  CHECK(path({"H200", false, 1, 2}) == "none");
  CHECK(path({"H200", std::nullopt, 1, 2}) == "none");
  CHECK(path({"B200", true, 1, 2}) == "none");
  CHECK(path({"", true, 1, 2}) == "none");
}

TEST_CASE("a table of another GPU, link or number of ranks is named, a fitting one is not") {
  const CostTable fits = table("x", "H200", "loopback sockets, one GPU, MPS", {2}).table;
  const auto told = [&](const TraceMachine& machine, const std::string& part) {
    const std::vector<std::string> lines = cost_mismatches(machine, fits);
    return lines.size() == 1 && lines[0].find(part) != std::string::npos;
  };
  CHECK(cost_mismatches({"H200", true, 1, 2}, fits).empty());
  CHECK(cost_mismatches({"", std::nullopt, 0, 0}, fits).empty());
  CHECK(told({"A100", true, 1, 2}, "measured on H200, the profile was recorded on A100"));
  CHECK(told({"H200", false, 1, 2}, "another link"));
  CHECK(told({"H200", true, 1, 4}, "no entry for 4 ranks"));
  CHECK(cost_mismatches({"A100", false, 1, 8}, fits).size() == 3);
}
