// SPDX-License-Identifier: Apache-2.0
// METRIC: a number in a job's output, found by a regular expression; the last match counts. Output is read
// line by line as it comes and not kept, however much it is.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// GCC 12 sees an uninitialised value inside std::regex when sanitizers are on; there is none (GCC bug
// 105562).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <regex>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "cli/launch.hpp"
#include "shim/result.hpp"

namespace echotp {

struct Metric {
  std::string name;
  std::string expression;
  std::regex compiled;
};

/// From an argument: an expression whose first group is the number, or NAME=EXPRESSION. 'loss=([0-9.]+)' is
/// an expression named "loss", since nothing but the number follows its "="; 'final=val_loss: ([0-9.]+)' is
/// one named "final".
Result<Metric> parse_metric(const std::string& argument, const std::string& option);

/// The last number that each metric has in the output of one run. Standard output goes before standard error.
class MetricWatch {
 public:
  explicit MetricWatch(const std::vector<Metric>& metrics);
  void add(JobStream stream, std::string_view piece);
  /// Reads what has no end of line yet.
  void finish();
  /// In the order of the metrics; unset: no line matched.
  std::vector<std::optional<double>> values() const;

 private:
  struct Stream {
    std::string line;
    std::vector<std::optional<double>> last;
  };
  void read_line(Stream& stream);

  const std::vector<Metric>& metrics_;
  Stream streams_[2];
};

}  // namespace echotp
