// SPDX-License-Identifier: Apache-2.0
// COST CHOICE: which of the shipped cost tables was measured on a machine like the profile's. Only a table
// whose GPU and link are certainly the same is taken; otherwise none, and the reason is said. Pure but for
// load_cost_tables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "profiles/trace.hpp"
#include "shim/costs.hpp"

namespace echotp {

struct NamedCosts {
  std::string path;
  CostTable table;
};

/// All readable tables (*.json) of a folder, sorted by name; others are left out.
std::vector<NamedCosts> load_cost_tables(const std::string& folder);

/// What a profile says of its machine.
struct TraceMachine {
  std::string gpu;                      // of all processes with collectives; empty: unknown or several
  std::optional<bool> ranks_share_gpu;  // unset: unknown
  int hosts = 0;                        // 0: unknown
  int ranks = 0;                        // of the largest communicator; 0: unknown
};
TraceMachine machine_of(const Trace& trace);

struct CostChoice {
  const NamedCosts* chosen = nullptr;  // null: none fits
  std::string why;                     // one line, either way
};
CostChoice choose_costs(const TraceMachine& machine, const std::vector<NamedCosts>& tables);

/// Why a table that was asked for may not fit the machine, one line each; empty: nothing speaks against it.
std::vector<std::string> cost_mismatches(const TraceMachine& machine, const CostTable& table);

}  // namespace echotp
