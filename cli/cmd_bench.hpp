// SPDX-License-Identifier: Apache-2.0
// What the two halves of echo-tp bench share: its options, and the half that needs no ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/args.hpp"
#include "cli/bench_candidates.hpp"

namespace echotp {

/// The command line of bench, as it was given.
struct BenchRequest {
  std::optional<std::int64_t> ranks, loopback, iterations, warmup;
  std::optional<std::string> sizes, dtype, transports, modes, states, first_leg_bits, group, background,
      output;
  bool check = false, graph = false, force = false;
  JsonTarget json;
  BenchGrid grid;
};

/// The words that both bench programs take: sizes, type, counts, policy and output.
std::vector<std::string> bench_program_words(const std::string& program, const BenchRequest& request,
                                             const std::string& default_sizes, const std::string& policy,
                                             const std::string& output);

/// The document that a bench program wrote, with `command` in place of the program's own: what a person would
/// type again.
Result<std::string> bench_result(const std::string& path, const std::vector<std::string>& command);

/// `bench --loopback N`, from the checked options to the exit code.
int run_loopback(Session& session, const BenchRequest& request);

}  // namespace echotp
