// SPDX-License-Identifier: Apache-2.0
// COVERAGE REPORT: reads what coverage.h left of every process of a run, and compares NCCL's count with ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace echotp {

/// All-reduce calls of one process.
struct ProcessCoverage {
  std::string name;        // "host pid 123"
  bool listening = false;  // NCCL reported its calls; else its count says nothing
  std::int64_t nccl = 0;   // that NCCL reported
  std::int64_t forwarded = 0;
  std::int64_t compressed = 0;
  /// That reached NCCL without passing us.
  std::int64_t missed() const { return listening && nccl > forwarded ? nccl - forwarded : 0; }
};

/// Every coverage file of a run's folder, by name. One that is no such file is named in `problems`.
std::vector<ProcessCoverage> read_coverage(const std::string& folder, std::vector<std::string>& problems);

}  // namespace echotp
