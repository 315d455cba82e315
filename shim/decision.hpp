// SPDX-License-Identifier: Apache-2.0
// DECISION: compress or forward one call, and why. A pure function of values that NCCL requires to be equal
// on all ranks and of what the ranks agreed on at set-up; a rank-local fact can't get in, because the inputs
// hold none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/policy.hpp"

namespace echotp {

/// Why a call went to NCCL. Names appear in receipts and run reports; append only.
enum class Reason : std::uint8_t {
  kCompressed,          // not forwarded
  kObserveMode,         // mode observe: everything is forwarded
  kNoRule,              // no rule of the policy matches
  kBelowMinBytes,       // a rule would match but for its min_bytes
  kDatatype,            // not bf16, fp16 or fp32
  kOperator,            // not sum or avg, or a user-defined operator
  kZeroCount,           // nothing to do
  kOneRank,             // a communicator of one rank
  kVotedOff,            // a rank voted no when the communicator was set up
  kNotSetUp,            // communicator not known, non-blocking, or created before the engine was ready
  kManyGpusPerProcess,  // two ranks of the communicator live in one process
  kMixedGroup,          // the group holds another collective of this communicator
  kCapture,             // inside graph capture, and the rule says not there
  kCommunicatorError,   // an earlier call on this communicator failed
  kEngineUnavailable,   // CUDA or the engine could not be loaded
  kCount
};

/// "below_min_bytes" and so on; stable names.
const char* reason_name(Reason reason) noexcept;

/// One line for people: "message smaller than the policy's min_bytes".
const char* reason_text(Reason reason) noexcept;

/// The call as NCCL got it, with its enum values left as numbers (values of newer NCCL versions must not
/// confuse us).
struct RawCall {
  std::size_t count = 0;
  int dtype = 0;  // ncclDataType_t
  int op = 0;     // ncclRedOp_t
  bool capturing = false;
};

/// What set-up found out about the communicator: equal on all ranks, because they voted.
struct AgreedFacts {
  int ranks = 1;
  Reason off =
      Reason::kCompressed;  // anything else: forward everything on this communicator, for that reason
  std::string_view communicator_name = {};  // from ncclConfig_t; empty if unknown
  bool p2p = false;  // all ranks can reach each other's memory: the policy's p2p thresholds hold
};

struct Decision {
  Reason reason = Reason::kNoRule;  // kCompressed: run `rule`
  int rule = -1;
  DataType dtype = DataType::kBf16;
  ReduceOp op = ReduceOp::kSum;
};

Decision decide(const Policy& policy, const AgreedFacts& agreed, const RawCall& call) noexcept;

}  // namespace echotp
