// SPDX-License-Identifier: Apache-2.0
// BENCH CANDIDATES: what a bench compares with NCCL. Every candidate is a rule of a generated policy that
// fits one communicator alone, by its name: the worker has one communicator a rule, all in one process, and
// what it times is what a job would get from that rule. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shim/policy.hpp"
#include "shim/result.hpp"

namespace echotp {

/// Elements of a token for mode drift: a power of two, so that all but the smallest messages are whole
/// tokens.
inline constexpr int kBenchChannels = 4096;

/// The candidates are all combinations of these. Modes without estimates of elements have no format of them:
/// one candidate stands for all formats. Methods that only the staged transport can run have no other.
struct BenchGrid {
  std::vector<TransportChoice> transports = {TransportChoice::kStaged, TransportChoice::kP2p};
  std::vector<std::string> modes = {"both", "none"};  // as in a policy: none, owner, both, ef, drift
  std::vector<StateFormat> states = {StateFormat::kInt8};
  std::vector<int> first_leg_bits = {4};
  int group = 32;
};

/// Reads the lists of a command line, such as "staged,p2p"; null: the default. The error names the option.
Result<BenchGrid> read_bench_grid(const std::string* transports, const std::string* modes,
                                  const std::string* states, const std::string* first_leg_bits);

/// Words of a list with commas between.
std::vector<std::string_view> split_list(std::string_view list);

/// The policy document of a grid: one rule a candidate, in the order transport, mode, state, first leg.
std::string bench_policy(const BenchGrid& grid);

/// "p2p both int8 4+4/32": what a candidate is called in tables, messages and its communicator's name.
std::string candidate_name(const PolicyRule& rule);

/// True for two candidates that differ by their transport alone: they must give the same bytes.
bool are_twins(const PolicyRule& left, const PolicyRule& right);

}  // namespace echotp
