// SPDX-License-Identifier: Apache-2.0
// AB COMPARE: is a number of the job (a loss, a step time) still good enough with Echo? Paired repeats, run
// interleaved, so that a drift of the machine cancels; a paired t interval; and, where noise hides the
// answer, about how many repeats would show it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shim/result.hpp"

namespace echotp {

/// Which change of the metric is harmful.
enum class AbDirection : std::uint8_t {
  kLowerIsBetter,   // a loss, a time: only a rise counts
  kHigherIsBetter,  // an accuracy, tokens per second: only a fall counts
  kEither,          // a checksum-like figure: any change counts
};

enum class AbVerdict : std::uint8_t {
  kPass,        // not worse than the tolerance allows
  kFail,        // worse than the tolerance allows
  kCannotTell,  // the interval holds the tolerance: more repeats are needed
  kNone,        // no tolerance was given: figures only
};

struct AbOptions {
  std::string name;                 // of the metric, as shown
  std::optional<double> tolerance;  // >= 0; unset: no verdict
  bool relative = true;             // tolerance is a share of the baseline's median, else an absolute amount
  AbDirection direction = AbDirection::kLowerIsBetter;
  double confidence = 0.95;  // of the interval, inside (0, 1)
};

/// One side of the comparison.
struct AbSide {
  std::vector<double> values;
  double median = 0;
  double mean = 0;
};

struct AbResult {
  AbOptions options;
  AbSide baseline;
  AbSide echo;
  double mean_difference = 0;                 // of the pairs, echo - baseline
  std::optional<double> relative_difference;  // mean_difference / |baseline median|; unset: that is 0
  struct Interval {
    double low = 0;
    double high = 0;
  };
  std::optional<Interval> interval;  // of the mean difference, two-sided; unset with one pair
  std::optional<double>
      tolerance_absolute;  // what the tolerance amounts to, in the metric's own unit; unset: no tolerance
  AbVerdict verdict = AbVerdict::kNone;
  std::optional<std::int64_t> needed_repeats;  // with kCannotTell: about so many pairs; unset: beyond 10000
  std::string reason;                          // one sentence for people
};

/// Compares pairs: baseline[i] and echo[i] were measured one after the other. One pair is judged by its plain
/// difference. A value of `echo` that is not finite fails; kBadInput if there are no pairs, unequal numbers
/// of values, a baseline that is not finite, or a relative tolerance of a baseline of 0.
Result<AbResult> compare(const std::vector<double>& baseline, const std::vector<double>& echo,
                         const AbOptions& options);

/// All that `echo-tp ab` writes.
struct AbReport {
  std::vector<std::string> command;
  std::string policy_path;
  std::string policy_hash;            // hexadecimal; empty: unknown
  std::vector<AbResult> metrics;      // what the user asked for
  std::optional<AbResult> step_time;  // microseconds; unset: the job shows none
  std::vector<std::string> notes;
};

/// The worst verdict of the metrics: fail, then cannot tell, then pass; kNone without any judged metric.
AbVerdict overall_verdict(const AbReport& report);

/// "pass", "fail", "cannot_tell", "none".
const char* ab_verdict_name(AbVerdict verdict);

/// Document of schema echo-tp/ab/1, keys in a fixed order; ends with a newline.
std::string ab_json(const AbReport& report);

/// Value below which a Student t variable with `degrees` >= 1 degrees of freedom stays with probability
/// `probability` inside (0, 1).
double student_t_quantile(double probability, double degrees);

}  // namespace echotp
