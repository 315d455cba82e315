// SPDX-License-Identifier: Apache-2.0
// POLICY: which all-reduces are compressed, and how. An ordered list of rules; the first match wins; no match
// means NCCL. Pure: reading the document is in policy_json.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/types.hpp"

namespace echotp {

/// Reduction operators that a rule can name. Anything else is never compressed.
enum class ReduceOp : std::uint8_t { kSum, kAvg };

enum class TransportChoice : std::uint8_t { kAuto, kStaged };

/// How forward and backward passes are told apart: by the issuing thread, or not at all.
enum class DirectionSource : std::uint8_t { kThread, kNone };

/// Where a pass (one forward or one backward) starts. State is valid inside one pass only.
struct PassRule {
  std::optional<std::int64_t> calls;  // compressed calls per pass; unset: unknown
  std::vector<std::string>
      resync;  // other collectives of the communicator that end a pass, e.g. "all_gather"
  DirectionSource direction = DirectionSource::kThread;
};

/// Conditions of a rule. Unset or empty means: any.
struct PolicyMatch {
  std::vector<DataType> dtypes;  // default bf16, fp16
  std::vector<ReduceOp> ops;     // default sum
  std::int64_t min_bytes = 0;    // resolved: "auto" was replaced from the cost table when the policy was read
  bool min_bytes_auto = false;   // the document said "auto"
  std::optional<std::int64_t> max_bytes;
  int min_ranks = 2;
  int max_ranks = 64;
  std::string communicator_name;  // glob over ncclConfig_t.commName; empty: any
  bool in_capture = true;         // also inside CUDA graph capture
};

struct PolicyRule {
  PolicyMatch match;
  Codec codec;
  TransportChoice transport = TransportChoice::kAuto;
  Compensation compensation;
  PassRule pass;
  std::optional<std::int64_t>
      max_state_bytes;  // per communicator and direction; beyond it: no compensation state
  std::string note;
};

struct Policy {
  std::vector<PolicyRule> rules;
  std::string costs;       // path of the cost table, resolved relative to the policy file; may be empty
  std::uint64_t hash = 0;  // FNV-1a of the canonical, resolved document: what ranks compare at set-up
};

/// What is known of one all-reduce and is equal on all its ranks.
struct CallFacts {
  std::int64_t count = 0;  // elements
  DataType dtype = DataType::kBf16;
  ReduceOp op = ReduceOp::kSum;
  int ranks = 1;
  std::string_view communicator_name;
  bool capturing = false;
};

/// Index of the first rule that matches, or -1.
int match_policy(const Policy& policy, const CallFacts& facts) noexcept;

}  // namespace echotp
