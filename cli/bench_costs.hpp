// SPDX-License-Identifier: Apache-2.0
// The document that the bench worker writes: measured times into a cost table (schema echo-tp/costs/1).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/types.hpp"
#include "shim/result.hpp"

namespace echotp {

/// What was measured at one message size. Times are of one call, the slowest rank's, in microseconds.
struct BenchMeasurement {
  std::int64_t bytes = 0;
  std::vector<double> nccl_us;
  std::vector<double> other_us;  // of the call that may be intercepted
  bool intercepted = false;      // its result differs from NCCL's in at least one bit
  bool bytes_equal = false;      // all ranks held the same bytes after every compared call
  double relative_error = 0;     // RMS of the difference over RMS of NCCL's result
};

/// Where it was measured. Unknown is unset.
struct BenchEnvironment {
  std::optional<std::string> gpu, driver, cuda, nccl, host, link;
  std::map<std::string, std::string> nccl_env;
};

/// Value below which `share` (0 to 1) of the values lie, linear between neighbours; nothing for no values.
std::optional<double> quantile(std::vector<double> values, double share);

/// The document as text. `label` is a JSON object whose transport, codec and compensation every entry gets.
/// A size at which nothing was intercepted has no time for Echo: echo_us and ratio are null there.
Result<std::string> bench_document(const std::vector<BenchMeasurement>& measurements,
                                   const BenchEnvironment& environment,
                                   const std::vector<std::string>& command, const std::string& label,
                                   DataType dtype, int ranks);

}  // namespace echotp
