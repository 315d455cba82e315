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

/// How packed bytes travel. kAuto: the faster one by the cost table, without one p2p where the ranks agreed
/// on it, else staged. kP2p: p2p where they did, and somebody counts on it and is told when they did not.
enum class TransportChoice : std::uint8_t { kAuto, kStaged, kP2p };

/// On `ranks` ranks, from `from_bytes` on, until the next step of the same ranks.
struct TransportStep {
  int ranks = 2;
  std::int64_t from_bytes = 0;
  TransportChoice transport = TransportChoice::kP2p;
  bool operator==(const TransportStep&) const = default;
};

/// How forward and backward passes are told apart: by the issuing thread, or not at all.
enum class DirectionSource : std::uint8_t { kThread, kNone };

/// Where a pass (one forward or one backward) starts. State is valid inside one pass only.
struct PassRule {
  std::optional<std::int64_t> calls;  // compressed calls per pass; unset: unknown
  std::vector<std::string>
      resync;  // other collectives of the communicator that end a pass, e.g. "all_gather"
  DirectionSource direction = DirectionSource::kThread;
  std::optional<int> last_call_bits;  // 8: codes of 8 bits, both legs, in the last of `calls`
};

/// Conditions of a rule. Unset or empty means: any.
struct PolicyMatch {
  std::vector<DataType> dtypes;  // default bf16, fp16
  std::vector<ReduceOp> ops;     // default sum
  std::int64_t min_bytes = 0;    // resolved: "auto" was replaced from the cost table when the policy was read
  bool min_bytes_auto = false;   // the document said "auto"
  std::optional<std::int64_t> p2p_min_bytes;  // "auto" by the cost table, where the ranks agreed on p2p
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
  std::vector<TransportStep> transport_steps;  // of kAuto, from the cost table; by ranks, then size
  std::optional<int> max_ctas;  // thread blocks that a call between peers may take; unset: by number of ranks
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
  std::string_view communicator_name = {};
  bool capturing = false;
  bool p2p = false;  // the ranks agreed that they can reach each other's memory
};

/// Which transport a call of `bytes` takes where the ranks agreed on p2p: never kAuto. Pure, and equal on all
/// ranks, because all of it is part of the policy's hash.
TransportChoice transport_of(const PolicyRule& rule, int ranks, std::int64_t bytes) noexcept;

/// How a call of this rule travels; `last_call`: it is the last of its pass.
Codec codec_of(const PolicyRule& rule, bool last_call) noexcept;

/// Whether calls of this rule may go between peers directly: not in mode drift, which the fused kernel does
/// not have.
bool allows_p2p(const PolicyRule& rule) noexcept;

/// The widest code, in bits, that a rule can put on the wire.
int widest_bits(const PolicyRule& rule) noexcept;

/// The widest code, in bits, that any rule can put on the wire; 4 for a policy without rules.
int widest_bits(const Policy& policy) noexcept;

/// Whether a rule has compensation mode drift, which needs scratch of its own.
bool may_drift(const Policy& policy) noexcept;

/// Index of the first rule that matches, or -1.
int match_policy(const Policy& policy, const CallFacts& facts) noexcept;

/// Conditions of a rule that a call can fail; bits, so that one answer holds all of them.
enum Unmet : unsigned {
  kUnmetDtype = 1,
  kUnmetOp = 2,
  kUnmetMinBytes = 4,
  kUnmetMaxBytes = 8,
  kUnmetRanks = 16,
  kUnmetName = 32,
  kUnmetCapture = 64,
};

/// The conditions of `rule` that the call does not meet, as Unmet bits; 0: the rule matches.
unsigned unmet_conditions(const PolicyRule& rule, const CallFacts& facts) noexcept;

/// Bytes of the message, count * element size; the largest integer when that does not fit.
std::int64_t message_bytes(const CallFacts& facts) noexcept;

/// True if `text` matches `pattern`, in which * stands for any characters and ? for one.
bool glob_matches(std::string_view pattern, std::string_view text) noexcept;

/// Which rule fires for this call and why the ones before it do not; one line a rule, for people.
std::string explain(const Policy& policy, const CallFacts& facts);

/// Names as they stand in documents: "bf16", "sum", "both", "int8", "staged", "thread".
const char* data_type_name(DataType type) noexcept;
const char* reduce_op_name(ReduceOp op) noexcept;
const char* compensation_mode_name(CompensationMode mode) noexcept;
const char* state_format_name(StateFormat state) noexcept;
const char* transport_name(TransportChoice transport) noexcept;
const char* direction_name(DirectionSource direction) noexcept;

}  // namespace echotp
