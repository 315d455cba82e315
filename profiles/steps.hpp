// SPDX-License-Identifier: Apache-2.0
// STEPS: where one step of the job ends and the next begins, for every rank, and how long steps take. From
// named ranges, else from the period of what the devices run, else the whole window is one step. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiles/collectives.hpp"
#include "profiles/launches.hpp"
#include "profiles/trace.hpp"
#include "shim/result.hpp"

namespace echotp {

enum class StepSource : std::uint8_t { kRanges, kPeriod, kWindow };

/// "ranges", "period", "window".
const char* step_source_name(StepSource source);

struct Steps {
  StepSource source = StepSource::kWindow;
  std::string name;                                 // of the range or of the operation that starts a step
  std::int32_t found = 0;                           // steps that every rank has
  std::int32_t first_used = 0;                      // the ones before are warm-up
  std::vector<std::int32_t> step_of_op;             // by device operation; -1: outside all steps
  std::vector<std::vector<std::int64_t>> begin_ns;  // by process and step: on one clock, where it begins
  bool chained = true;                    // a step lasts from the end of the one before to its own end
  std::vector<std::int64_t> duration_ns;  // by step: of the slowest rank, as recorded
  double median_ns = 0;                   // of the used ones
  double variation = 0;                   // standard deviation / mean of the used ones
  std::int32_t used() const { return found - first_used; }
  bool is_used(std::int32_t step) const { return step >= first_used && step < found; }
};

/// Names of ranges that count as steps when no expression is given: "step" as a word, or "ProfilerStep".
inline constexpr const char* kDefaultStepRegex = "(^|[^a-z])step([^a-z]|$)|profilerstep";

/// Finds the steps and their recorded durations. `regex` is an ECMAScript expression searched in the names of
/// ranges, case ignored; empty: the default. Fails with kBadInput if it is not valid or, when given, matches
/// no range.
Result<Steps> find_steps(const Trace& trace, const DeviceTimes& times, const ClockAlignment& alignment,
                         const Launches& launches, const std::string& regex);

/// By step, the duration of the slowest rank when device operations start and end as given.
std::vector<std::int64_t> step_durations(const Trace& trace, const Steps& steps,
                                         const std::vector<std::int64_t>& start_ns,
                                         const std::vector<std::int64_t>& end_ns);

/// Median over the used steps.
double median_step_ns(const Steps& steps, const std::vector<std::int64_t>& durations);

/// Period of a sequence: the longest stretch that repeats at least three times with the same period.
struct Period {
  std::size_t begin = 0;   // of the stretch
  std::size_t length = 0;  // of one period; 0: none found
  std::size_t count = 0;   // whole periods
};
Period find_period(const std::vector<std::int32_t>& sequence);

}  // namespace echotp
