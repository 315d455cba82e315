// SPDX-License-Identifier: Apache-2.0
// Steps from ranges or from the period of the device's operations.
#include "profiles/steps.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

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

namespace echotp {
namespace {

constexpr double kWarmUpDiffers = 0.20;
constexpr double kContiguousGap = 0.05;    // of a step: larger gaps between ranges are no part of a step
constexpr std::size_t kLongestName = 512;  // std::regex recurses over the text
constexpr std::size_t kCandidates = 96;
constexpr std::size_t kMostPerStep = 4;

struct Span {
  std::int64_t start_ns;
  std::int64_t end_ns;
};

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

// Spans of steps by process, aligned, in order, without those nested in another.
struct RangeSteps {
  std::vector<std::vector<Span>> spans;
  std::string name;
};

Result<std::optional<RangeSteps>> spans_from_ranges(const Trace& trace, const ClockAlignment& alignment,
                                                    const std::string& expression) {
  std::vector<bool> matches(trace.names.size(), false);
  try {
    const std::regex pattern(expression.empty() ? std::string(kDefaultStepRegex) : expression,
                             std::regex::ECMAScript | std::regex::icase);
    std::vector<bool> is_range(trace.names.size(), false);
    for (const Range& range : trace.ranges) {
      if (range.name >= 0) is_range[range.name] = true;
    }
    for (std::size_t i = 0; i < trace.names.size(); ++i)
      matches[i] = is_range[i] && std::regex_search(trace.names[i].substr(0, kLongestName), pattern);
  } catch (const std::regex_error&) {
    return Error{ErrorCode::kBadInput, "'" + expression + "' is not a valid ECMAScript regular expression",
                 "--step"};
  }
  RangeSteps out;
  out.spans.resize(trace.processes.size());
  bool any = false;
  std::vector<std::map<std::uint32_t, std::vector<const Range*>>> by_thread(trace.processes.size());
  for (const Range& range : trace.ranges) {
    if (range.name < 0 || !matches[range.name] || range.start_ns <= 0 || range.end_ns <= range.start_ns)
      continue;
    by_thread[range.process][range.thread].push_back(&range);
  }
  for (std::size_t process = 0; process < by_thread.size(); ++process) {
    std::vector<const Range*>* best = nullptr;
    for (auto& [thread, ranges] : by_thread[process]) {
      std::sort(ranges.begin(), ranges.end(), [](const Range* l, const Range* r) {
        return l->start_ns != r->start_ns ? l->start_ns < r->start_ns : l->end_ns > r->end_ns;
      });
      std::vector<const Range*> outer;
      for (const Range* range : ranges) {
        if (outer.empty() || range->start_ns >= outer.back()->end_ns) outer.push_back(range);
      }
      ranges = std::move(outer);
      if (best == nullptr || ranges.size() > best->size()) best = &ranges;
    }
    if (best == nullptr) continue;
    for (const Range* range : *best) {
      const auto at = static_cast<std::int32_t>(process);
      out.spans[process].push_back(
          {aligned_ns(alignment, at, range->start_ns), aligned_ns(alignment, at, range->end_ns)});
    }
    if (!any) out.name = trace.names[best->front()->name].substr(0, kLongestName);
    any = true;
  }
  if (any) return std::optional<RangeSteps>(std::move(out));
  if (!expression.empty())
    return Error{ErrorCode::kBadInput, "'" + expression + "' matches no recorded range", "--step"};
  return std::optional<RangeSteps>();
}

bool contiguous(const std::vector<Span>& spans) {
  std::vector<double> lengths, gaps;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    lengths.push_back(static_cast<double>(spans[i].end_ns - spans[i].start_ns));
    if (i > 0) gaps.push_back(static_cast<double>(spans[i].start_ns - spans[i - 1].end_ns));
  }
  return gaps.empty() || median_of(gaps) <= kContiguousGap * median_of(lengths);
}

// The host time that puts an operation into a step: its launch, else its call, else its own start.
std::vector<std::int64_t> step_clock(const Trace& trace, const DeviceTimes& times,
                                     const ClockAlignment& alignment, const Launches& launches) {
  std::vector<std::int64_t> clock(trace.device_ops.size(), -1);
  std::map<std::pair<std::int32_t, std::uint32_t>, std::int64_t> last;  // by stream
  for (std::size_t i = 0; i < clock.size(); ++i) {
    if (times.start_ns[i] < 0) continue;
    const DeviceOp& op = trace.device_ops[i];
    if (!launches.host_known(op.process)) {
      clock[i] = times.start_ns[i];
      continue;
    }
    std::int64_t& before = last.try_emplace({op.process, op.stream}, -1).first->second;
    if (launches.launched_ns[i] >= 0) {
      clock[i] = launches.launched_ns[i];
    } else if (op.call >= 0 && trace.calls[op.call].host_start_ns > 0 && !trace.calls[op.call].captured) {
      clock[i] = aligned_ns(alignment, op.process, trace.calls[op.call].host_start_ns);
    } else {
      // A stream runs in launch order, so it was launched after the one before.
      clock[i] = before >= 0 ? before : times.start_ns[i];
    }
    before = std::max(before, clock[i]);
  }
  return clock;
}

void assign_by_spans(const Trace& trace, const std::vector<std::vector<Span>>& spans,
                     const std::vector<std::int64_t>& clock, Steps& steps) {
  steps.step_of_op.assign(trace.device_ops.size(), -1);
  steps.begin_ns.resize(spans.size());
  for (std::size_t process = 0; process < spans.size(); ++process) {
    for (const Span& span : spans[process]) steps.begin_ns[process].push_back(span.start_ns);
  }
  for (std::size_t i = 0; i < clock.size(); ++i) {
    if (clock[i] < 0) continue;
    const std::vector<Span>& mine = spans[trace.device_ops[i].process];
    const auto after = std::upper_bound(mine.begin(), mine.end(), clock[i],
                                        [](std::int64_t at, const Span& span) { return at < span.start_ns; });
    if (after == mine.begin()) continue;
    const auto at = static_cast<std::int32_t>(after - mine.begin()) - 1;
    const bool last = after == mine.end();
    const bool inside = clock[i] < mine[at].end_ns || (steps.chained && !last);
    if (inside && at < steps.found) steps.step_of_op[i] = at;
  }
}

Steps steps_from_ranges(const Trace& trace, const DeviceTimes& times, const ClockAlignment& alignment,
                        const Launches& launches, RangeSteps ranges) {
  Steps steps;
  steps.source = StepSource::kRanges;
  steps.name = std::move(ranges.name);
  std::vector<bool> busy(trace.processes.size(), false);
  for (const DeviceOp& op : trace.device_ops) busy[op.process] = true;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  const std::vector<Span>* model = nullptr;
  for (std::size_t process = 0; process < ranges.spans.size(); ++process) {
    const auto& spans = ranges.spans[process];
    if (spans.empty() || !busy[process]) continue;
    fewest = std::min(fewest, spans.size());
    if (model == nullptr) model = &spans;
    steps.chained = steps.chained && contiguous(spans);
  }
  if (model == nullptr) return steps;
  // A rank without ranges of its own does what the others do at that time.
  const std::vector<Span> shared = *model;
  for (std::size_t process = 0; process < ranges.spans.size(); ++process) {
    if (ranges.spans[process].empty()) ranges.spans[process] = shared;
  }
  steps.found = static_cast<std::int32_t>(fewest);
  assign_by_spans(trace, ranges.spans, step_clock(trace, times, alignment, launches), steps);
  return steps;
}

using Stream = std::pair<std::int32_t, std::uint32_t>;  // process, stream

std::optional<Steps> steps_from_period(const Trace& trace, const DeviceTimes& times) {
  std::map<Stream, std::vector<std::int32_t>> streams;
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    const DeviceOp& op = trace.device_ops[i];
    if (times.start_ns[i] >= 0) streams[{op.process, op.stream}].push_back(static_cast<std::int32_t>(i));
  }
  if (streams.empty()) return std::nullopt;
  const auto busiest = std::max_element(streams.begin(), streams.end(), [](const auto& l, const auto& r) {
    return l.second.size() < r.second.size();
  });
  std::vector<std::int32_t>& ops = busiest->second;
  std::sort(ops.begin(), ops.end(),
            [&](std::int32_t l, std::int32_t r) { return times.start_ns[l] < times.start_ns[r]; });
  // What an operation is: its kernel, and the size of what it carries.
  std::map<std::pair<std::int32_t, std::int64_t>, std::int32_t> symbols;
  std::vector<std::int32_t> sequence;
  for (const std::int32_t op : ops) {
    const DeviceOp& it = trace.device_ops[op];
    const std::int64_t bytes = it.call >= 0 ? trace.calls[it.call].bytes : it.bytes;
    sequence.push_back(
        symbols.try_emplace({it.name, bytes}, static_cast<std::int32_t>(symbols.size())).first->second);
  }
  const Period period = find_period(sequence);
  if (period.count < 3) return std::nullopt;
  // A step begins at its rarest operation: the least likely to be one of many equal layers.
  std::unordered_map<std::int32_t, std::int32_t> counts;
  for (std::size_t i = 0; i < period.length; ++i) ++counts[sequence[period.begin + i]];
  std::size_t phase = 0;
  for (std::size_t i = 1; i < period.length; ++i) {
    if (counts[sequence[period.begin + i]] < counts[sequence[period.begin + phase]]) phase = i;
  }
  std::vector<std::int64_t> borders;
  for (std::size_t at = period.begin + phase; at < period.begin + period.count * period.length;
       at += period.length)
    borders.push_back(times.start_ns[ops[at]]);
  // The part before the first border and after the last one is no whole step.
  if (borders.size() < 3) return std::nullopt;
  Steps steps;
  steps.source = StepSource::kPeriod;
  const DeviceOp& first = trace.device_ops[ops[period.begin + phase]];
  steps.name = first.name >= 0 ? trace.names[first.name].substr(0, kLongestName) : "";
  steps.found = static_cast<std::int32_t>(borders.size()) - 1;
  std::vector<std::vector<Span>> spans(trace.processes.size());
  std::vector<std::vector<std::int64_t>> same(trace.processes.size());
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    if (times.start_ns[i] >= 0 && trace.device_ops[i].name == first.name)
      same[trace.device_ops[i].process].push_back(times.start_ns[i]);
  }
  for (std::size_t process = 0; process < spans.size(); ++process) {
    std::vector<std::int64_t> mine = borders;
    auto& starts = same[process];
    std::sort(starts.begin(), starts.end());
    const std::int64_t half = (borders[1] - borders[0]) / 2;
    for (std::int64_t& border : mine) {
      if (starts.empty() || static_cast<std::int32_t>(process) == busiest->first.first) continue;
      auto near = std::lower_bound(starts.begin(), starts.end(), border);
      if (near == starts.end() || (near != starts.begin() && border - *(near - 1) < *near - border)) --near;
      if (std::abs(*near - border) < half) border = *near;
    }
    std::sort(mine.begin(), mine.end());
    for (std::size_t i = 0; i + 1 < mine.size(); ++i) spans[process].push_back({mine[i], mine[i + 1]});
  }
  std::vector<std::int64_t> clock = times.start_ns;
  assign_by_spans(trace, spans, clock, steps);
  return steps;
}

void leave_out_warm_up(Steps& steps) {
  std::vector<double> durations(steps.duration_ns.begin(), steps.duration_ns.end());
  const double median = median_of(durations);
  steps.first_used = 0;
  // Only leading steps: a slow one in the middle is part of what the job does. At least half stay.
  while (steps.first_used < steps.found / 2 &&
         std::abs(durations[steps.first_used] - median) > kWarmUpDiffers * median)
    ++steps.first_used;
  std::vector<double> used(durations.begin() + steps.first_used, durations.end());
  steps.median_ns = median_of(used);
  double mean = 0, square = 0;
  for (const double value : used) mean += value / static_cast<double>(used.size());
  for (const double value : used) square += (value - mean) * (value - mean);
  steps.variation =
      used.size() > 1 && mean > 0 ? std::sqrt(square / static_cast<double>(used.size() - 1)) / mean : 0;
}

}  // namespace

const char* step_source_name(StepSource source) {
  switch (source) {
    case StepSource::kRanges:
      return "ranges";
    case StepSource::kPeriod:
      return "period";
    case StepSource::kWindow:
      return "window";
  }
  return "window";
}

Period find_period(const std::vector<std::int32_t>& sequence) {
  const std::size_t size = sequence.size();
  // Distances between equal symbols are the only periods there can be; rare symbols name the long ones.
  std::unordered_map<std::int32_t, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < size; ++i) places[sequence[i]].push_back(i);
  std::vector<std::pair<std::size_t, std::int32_t>> rare;  // occurrences, symbol
  for (const auto& [symbol, at] : places) {
    if (at.size() >= 3) rare.emplace_back(at.size(), symbol);
  }
  std::sort(rare.begin(), rare.end());
  std::vector<std::size_t> candidates;
  for (const auto& [count, symbol] : rare) {
    const auto& at = places[symbol];
    // A symbol that comes several times in a step: the step is as long as several of its distances.
    for (std::size_t apart = 1; apart <= kMostPerStep && apart + 1 < at.size(); ++apart) {
      std::map<std::size_t, std::size_t> distances;
      for (std::size_t i = apart; i < at.size(); ++i) ++distances[at[i] - at[i - apart]];
      const auto common = std::max_element(distances.begin(), distances.end(),
                                           [](const auto& l, const auto& r) { return l.second < r.second; });
      for (const std::size_t distance : {common->first, distances.rbegin()->first}) {
        if (std::find(candidates.begin(), candidates.end(), distance) == candidates.end())
          candidates.push_back(distance);
      }
    }
    if (candidates.size() >= kCandidates) break;
  }
  Period best;
  std::size_t longest = 0;
  std::sort(candidates.begin(), candidates.end());
  for (const std::size_t distance : candidates) {
    std::size_t run = 0;
    for (std::size_t i = 0; i + distance < size; ++i) {
      run = sequence[i] == sequence[i + distance] ? run + 1 : 0;
      const std::size_t stretch = run + distance;
      if (run >= 2 * distance && stretch > longest) {
        longest = stretch;
        best = {i + 1 - run, distance, stretch / distance};
      }
    }
  }
  return best;
}

std::vector<std::int64_t> step_durations(const Trace& trace, const Steps& steps,
                                         const std::vector<std::int64_t>& start_ns,
                                         const std::vector<std::int64_t>& end_ns) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  const std::size_t processes = trace.processes.size(), count = static_cast<std::size_t>(steps.found);
  std::vector<std::int64_t> begins(processes * count, std::numeric_limits<std::int64_t>::max());
  std::vector<std::int64_t> ends(processes * count, kNone);
  for (std::size_t i = 0; i < steps.step_of_op.size(); ++i) {
    if (steps.step_of_op[i] < 0) continue;
    const std::size_t at = trace.device_ops[i].process * count + steps.step_of_op[i];
    begins[at] = std::min(begins[at], start_ns[i]);
    ends[at] = std::max(ends[at], end_ns[i]);
  }
  std::vector<std::int64_t> durations(count, 0);
  for (std::size_t process = 0; process < processes; ++process) {
    for (std::size_t step = 0; step < count; ++step) {
      const std::size_t at = process * count + step;
      if (ends[at] == kNone) continue;
      const bool after = steps.chained && step > 0 && ends[at - 1] != kNone;
      durations[step] = std::max(durations[step], ends[at] - (after ? ends[at - 1] : begins[at]));
    }
  }
  return durations;
}

double median_step_ns(const Steps& steps, const std::vector<std::int64_t>& durations) {
  return median_of(std::vector<double>(durations.begin() + steps.first_used, durations.end()));
}

Result<Steps> find_steps(const Trace& trace, const DeviceTimes& times, const ClockAlignment& alignment,
                         const Launches& launches, const std::string& regex) {
  auto ranges = spans_from_ranges(trace, alignment, regex);
  if (!ranges) return ranges.error();
  Steps steps;
  if (*ranges) steps = steps_from_ranges(trace, times, alignment, launches, std::move(**ranges));
  const auto holds = [&](const Steps& found) {
    return std::any_of(found.step_of_op.begin(), found.step_of_op.end(),
                       [](std::int32_t at) { return at >= 0; });
  };
  if (!holds(steps)) steps = steps_from_period(trace, times).value_or(Steps{});
  if (!holds(steps)) {
    steps = Steps{};
    steps.found = 1;
    steps.step_of_op.assign(trace.device_ops.size(), -1);
    for (std::size_t i = 0; i < steps.step_of_op.size(); ++i) {
      if (times.start_ns[i] >= 0) steps.step_of_op[i] = 0;
    }
  }
  steps.duration_ns = step_durations(trace, steps, times.start_ns, times.end_ns);
  leave_out_warm_up(steps);
  return steps;
}

}  // namespace echotp
