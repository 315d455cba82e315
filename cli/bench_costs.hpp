// SPDX-License-Identifier: Apache-2.0
// The documents that the bench programs write: measured times into a cost table (schema echo-tp/costs/1), and
// loopback times against their bounds (echo-tp/results/1).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_bound.hpp"
#include "shim/policy.hpp"

namespace echotp {

/// What was measured of one candidate at one message size. Times are of one call, the slowest rank's, in
/// microseconds.
struct BenchMeasurement {
  PolicyRule rule;  // the candidate
  std::int64_t bytes = 0;
  std::vector<double> nccl_us;  // of NCCL in the same turns
  std::vector<double> echo_us;
  bool intercepted = false;             // its result differs from NCCL's in at least one bit
  bool bytes_equal = false;             // all ranks held the same bytes after every compared call
  std::optional<bool> reference_equal;  // the reference's bytes, at the size that is compared with it
  std::optional<bool> twin_equal;       // the bytes of the candidate that differs by its transport alone
  double relative_error = 0;            // RMS of the difference over RMS of NCCL's result
  std::optional<double> background_nccl_gbs, background_echo_gbs;
};

/// How it was measured.
struct BenchSettings {
  bool graph = false;
  std::string background = "idle";
  std::optional<std::string> background_path = {};
  std::optional<double> background_alone_gbs = {};
};

/// Where it was measured. Unknown is unset.
struct BenchEnvironment {
  std::optional<std::string> gpu, driver, cuda, nccl, host, link;
  std::map<std::string, std::string> nccl_env;
};

/// One method on the loopback at one message size.
struct LoopbackMeasurement {
  PolicyRule rule;         // its transport is of no matter
  std::int64_t bytes = 0;  // of a message on each rank
  std::vector<double> us;  // one call of all ranks; empty: it did not fit
  MovedBytes moved;        // by one rank
  std::optional<bool> reference_equal;
  std::string why_not;
};

/// Facts of a whole loopback run.
struct LoopbackFacts {
  int ranks = 2;
  int ctas = 0;  // of a rank
  DataType dtype = DataType::kBf16;
  std::vector<double> copy_gbs;  // samples of a plain copy: bytes read and written, 1e9 a second
};

/// Value below which `share` (0 to 1) of the values lie, linear between neighbours; nothing for no values.
std::optional<double> quantile(std::vector<double> values, double share);

/// The cost table as text. A size at which nothing was intercepted has no time for Echo: echo_us and ratio
/// are null there.
std::string bench_document(const std::vector<BenchMeasurement>& measurements,
                           const BenchEnvironment& environment, const BenchSettings& settings,
                           const std::vector<std::string>& command, DataType dtype, int ranks);

/// The loopback's document as text; bounds are for all ranks together, as they share the GPU's memory.
std::string loopback_document(const std::vector<LoopbackMeasurement>& measurements,
                              const LoopbackFacts& facts, const BenchEnvironment& environment,
                              const std::vector<std::string>& command);

}  // namespace echotp
