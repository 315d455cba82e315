// SPDX-License-Identifier: Apache-2.0
// ESTIMATE: the step time a recorded job would have with Echo. The timeline of all ranks is replayed as it
// was (if that misses the measured step by more than 10% there is no answer), then with the transfer times of
// eligible all-reduces replaced. Pure.
//
// Assumptions, all printed with every result: host work takes the time it took; kernels other than the
// replaced ones keep their durations and the clocks of the GPU do not change; a collective is a barrier and
// then a transfer; shapes, batches and numbers of steps stay; the recorded steps are typical.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/types.hpp"
#include "profiles/cost_model.hpp"
#include "profiles/trace.hpp"
#include "shim/costs.hpp"
#include "shim/policy.hpp"
#include "shim/result.hpp"

namespace echotp {

struct EstimateOptions {
  std::optional<CostTable> costs;           // unset: the bounded model, labelled "modelled"
  std::string costs_label;                  // path of the table, for the document
  std::vector<std::string> costs_warnings;  // why the table may not fit, for the document
  std::string profile_label;                // path of the profile, for the document
  std::optional<Policy> policy;             // decide as this policy does; unset: propose one
  std::string step_regex;  // names of NVTX ranges that are steps, ECMAScript; empty: the default
  std::vector<DataType> dtypes = {DataType::kBf16, DataType::kFp16};  // that may be compressed
  Codec codec;
  Compensation compensation;
  int max_class_replays = 12;  // size classes whose own effect is simulated, largest first
};

/// Calls of one function, data type and size on communicators of one number of ranks. Times in microseconds,
/// means over the recorded ranks; "per step" is over the used steps.
struct ClassEstimate {
  std::string function;
  std::string dtype;               // empty: unknown
  std::string op;                  // empty: unknown
  std::int64_t bytes = -1;         // of a call, the largest of the class; -1: unknown
  std::int64_t min_bytes = -1;     // the smallest of the class: differs from bytes when sizes were pooled
  std::int32_t communicator = -1;  // index into Estimate::communicators
  int ranks = 0;
  double calls_per_step = 0;
  double total_us = 0;                        // per step: wait and transfer
  std::optional<double> wait_us;              // per step; unset: ranks are missing
  double transfer_us = 0;                     // per step
  double exposed_us = 0;                      // per step: no compute kernel ran beside it
  std::optional<double> exposed_critical_us;  // per step: step time minus step time with this class free
  double share_of_step = 0;                   // total_us / step
  double nccl_us = 0;                         // transfer of one call, median
  std::optional<Interval3> echo_us;           // of one call; unset: not eligible
  std::optional<Evidence> evidence;           // of echo_us
  bool compressed = false;
  std::string why_not;                    // empty if compressed
  std::optional<double> contribution_us;  // per step: saved if this class alone is compressed; not additive
};

struct CommunicatorEstimate {
  std::string hash;  // hexadecimal
  std::string name;
  int ranks = 0;           // 0: unknown
  int recorded_ranks = 0;  // of these
  double calls_per_step = 0;
  double total_us = 0;     // per step
  double exposed_us = 0;   // per step
  double transfer_us = 0;  // per step
};

/// All-reduce kernels that do not go through NCCL.
struct BypassEstimate {
  std::string kernel;     // name, cut to 120 characters
  std::string framework;  // whose kernel it is
  std::string how_to_switch_off;
  std::int64_t calls = 0;
  double total_us = 0;  // per step
};

/// How far the data can be trusted.
struct EstimateQuality {
  double identity_error = 0;  // |replayed - measured| / measured
  double residual_share = 0;  // device waits that the timeline does not explain, of the window
  double host_coverage = 0;   // share of device operations whose launch was recorded
  std::int64_t dropped_records = 0;
  std::int64_t truncated_frames = 0;
  std::int64_t invalid_ops = 0;         // zero or falling timestamps: left out
  std::int64_t imputed_ops = 0;         // collectives whose end was filled in from their class
  std::int64_t contradicted_edges = 0;  // dependencies that the times contradict: left out
  std::int64_t inferred_edges = 0;      // dependencies guessed from times
  std::int64_t partial_collectives = 0;
  std::int64_t collectives = 0;
  int recorded_ranks = 0;
  int expected_ranks = 0;              // of the largest communicator; 0: unknown
  std::vector<std::string> tiers;      // that every process has
  std::optional<double> traced_ratio;  // largest of the processes; unset: not measured
  double max_clock_offset_us = 0;
};

struct EstimateSteps {
  std::string source;  // "ranges", "period" or "window"
  std::string name;    // of the range or the operation that starts a step; empty: none
  std::int64_t found = 0;
  std::int64_t used = 0;   // warm-up left out
  double measured_us = 0;  // median of the slowest rank's step
  double variation = 0;    // standard deviation / mean of the used steps
};

struct CriticalShare {
  std::string what;  // "compute", "transfer", "copies", "host", "launch", "unexplained"
  double share = 0;  // of the critical path after compression
};

struct NoGainReason {
  std::string code;  // "one_rank", "hidden", "too_small", "no_nccl_all_reduce", "bypass", ...
  std::string text;
};

struct Estimate {
  std::string profile_label;
  std::string costs_label;
  EstimateSteps steps;
  double before_us = 0;    // measured step
  double replayed_us = 0;  // identity replay
  Interval3 after_us;      // low is the fastest step
  /// Factor, before / after; low is the smallest gain. Low and high hold 8 of 10 recorded steps with costs at
  /// either end of their spread; high also holds a host at the fast end of what was recorded.
  Interval3 gain;
  double zero_us = 0;      // step if eligible all-reduces transferred in no time and the host was as recorded
  double zero_low_us = 0;  // the same with the host at the fast end of what was recorded
  std::optional<double> nowait_us;        // step if nobody waited for a slower rank; unset: ranks are missing
  double exposed_transfer_us = 0;         // before - zero
  std::optional<double> exposed_wait_us;  // before - nowait
  std::optional<Evidence> evidence;       // the weakest that entered; unset: nothing is compressed
  std::vector<ClassEstimate> classes;     // largest total first
  std::vector<CommunicatorEstimate> communicators;
  std::vector<BypassEstimate> bypass;
  std::vector<CriticalShare> critical_path;  // after compression, largest first
  std::string bound;                         // what limits the step then, one sentence
  std::vector<NoGainReason> reasons;         // why there is little or no gain; empty if there is one
  Policy policy;                             // proposed, or the one given; no rule: leave the job alone
  std::vector<std::string> assumptions;
  std::vector<std::string> warnings;
  EstimateQuality quality;
};

/// Fails with kInsufficient if the trace has no device times, no usable step, or its identity replay misses
/// the measured step by more than 10%; with kBadInput if the step expression is not valid. A job that Echo
/// can't help is no failure: gain 1 and reasons.
Result<Estimate> estimate(const Trace& trace, const EstimateOptions& options);

/// Document of schema echo-tp/estimate/1, keys in a fixed order; ends with a newline.
std::string estimate_json(const Estimate& estimate);

}  // namespace echotp
