// SPDX-License-Identifier: Apache-2.0
// PROPOSAL: the policy that does what an estimate assumed: thresholds, data types, ranks, and the signals by
// which the engine finds the start of a pass. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "profiles/study.hpp"
#include "shim/policy.hpp"

namespace echotp {

struct ProposalInput {
  std::vector<bool> compressed;  // by collective
  /// Smallest message that pays, by data type and ranks.
  std::map<std::pair<DataType, int>, std::int64_t> min_bytes;
  Codec codec;
  Compensation compensation;
  std::string note;  // why: gain and evidence, for the rules
};

/// Number of compressed calls in a pass and the collectives that end one, as seen on one communicator.
struct PassPattern {
  std::optional<std::int64_t> calls;  // unset: not constant over the steps and directions
  std::vector<std::string> resync;    // policy names, e.g. "all_gather"
  bool operator==(const PassPattern&) const = default;
};

/// A pass is what one thread issues in one step: frameworks run forward and backward on different threads.
PassPattern pass_pattern(const Trace& trace, const Study& study, const std::vector<bool>& compressed,
                         std::int32_t communicator);

/// One rule for all communicators that behave alike, else one for each communicator that has a name of its
/// own. No rule if nothing is compressed.
Policy propose_policy(const Trace& trace, const Study& study, const ProposalInput& input);

/// "bf16" -> kBf16; nothing if it can't be compressed.
std::optional<DataType> compressible_type(const std::string& dtype);

/// Ranks of a collective: of its communicator, else those that were seen; 0: unknown.
int ranks_of(const Trace& trace, const CollectiveSet& set, const Collective& collective);

}  // namespace echotp
