// SPDX-License-Identifier: Apache-2.0
// Paired comparison with a t interval.
#include "profiles/ab_compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace echotp {
namespace {

constexpr std::int64_t kMostRepeats = 10'000;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

AbSide side_of(const std::vector<double>& values) {
  return {values, median_of(values), mean_of(values)};
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// Regularised incomplete beta function by its continued fraction (modified Lentz).
double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incomplete_beta(b, a, 1 - x);
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x)) /
      a;
  constexpr double kTiny = 1e-300;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double fraction = d;
  for (int m = 1; m < 500; ++m) {
    for (const double term : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 + term * d;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      c = 1 + term / c;
      c = std::abs(c) < kTiny ? kTiny : c;
      fraction *= c * d;
    }
    if (std::abs(c * d - 1) < 1e-15) break;
  }
  return front * fraction;
}

double student_t_cdf(double t, double degrees) {
  const double tail = 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
  return t > 0 ? 1 - tail : tail;
}

// How much of the difference is harm: the amount that the tolerance is compared with.
double harm_of(double difference, AbDirection direction) {
  switch (direction) {
    case AbDirection::kLowerIsBetter:
      return difference;
    case AbDirection::kHigherIsBetter:
      return -difference;
    case AbDirection::kEither:
      return std::abs(difference);
  }
  return difference;
}

// Smallest and largest harm that the interval allows.
AbResult::Interval harm_interval(const AbResult::Interval& difference, AbDirection direction) {
  if (direction == AbDirection::kLowerIsBetter) return difference;
  if (direction == AbDirection::kHigherIsBetter) return {-difference.high, -difference.low};
  const bool holds_zero = difference.low <= 0 && difference.high >= 0;
  const double low = std::abs(difference.low), high = std::abs(difference.high);
  return {holds_zero ? 0 : std::min(low, high), std::max(low, high)};
}

// Pairs at which an interval around the same mean, with the same spread, would clear the tolerance.
std::optional<std::int64_t> repeats_for(double distance, double deviation, double confidence,
                                        std::int64_t have) {
  for (std::int64_t n = have + 1; n <= kMostRepeats; n += n < 100 ? 1 : n / 20) {
    const double t = student_t_quantile(0.5 + confidence / 2, static_cast<double>(n - 1));
    if (t * deviation / std::sqrt(static_cast<double>(n)) < distance) return n;
  }
  return std::nullopt;
}

void judge(AbResult& result, const std::vector<double>& differences, double deviation) {
  const double tolerance = *result.tolerance_absolute;
  const double harm = harm_of(result.mean_difference, result.options.direction);
  const std::string beside =
      "mean difference " + number(result.mean_difference) + ", tolerance " + number(tolerance);
  if (!result.interval) {
    result.verdict = harm <= tolerance ? AbVerdict::kPass : AbVerdict::kFail;
    result.reason = beside + " (one pair: judged without its noise)";
    return;
  }
  const AbResult::Interval span = harm_interval(*result.interval, result.options.direction);
  if (span.high <= tolerance) {
    result.verdict = AbVerdict::kPass;
    result.reason = "the whole interval is within the tolerance: " + beside;
  } else if (span.low > tolerance) {
    result.verdict = AbVerdict::kFail;
    result.reason = "the whole interval is beyond the tolerance: " + beside;
  } else {
    result.verdict = AbVerdict::kCannotTell;
    const auto have = static_cast<std::int64_t>(differences.size());
    result.needed_repeats =
        repeats_for(std::abs(tolerance - harm), deviation, result.options.confidence, have);
    result.reason = "cannot tell with this noise (" + beside + "), needs about " +
                    (result.needed_repeats ? std::to_string(*result.needed_repeats)
                                           : "more than " + std::to_string(kMostRepeats)) +
                    " repeats";
  }
}

}  // namespace

double student_t_quantile(double probability, double degrees) {
  double low = -1, high = 1;
  while (student_t_cdf(low, degrees) > probability && low > -1e12) low *= 2;
  while (student_t_cdf(high, degrees) < probability && high < 1e12) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (student_t_cdf(middle, degrees) < probability ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

Result<AbResult> compare(const std::vector<double>& baseline, const std::vector<double>& echo,
                         const AbOptions& options) {
  const auto bad = [&](const std::string& what) { return Error{ErrorCode::kBadInput, what, options.name}; };
  if (baseline.empty() || echo.empty()) return bad("no value was measured");
  if (baseline.size() != echo.size())
    return bad(std::to_string(baseline.size()) + " values without Echo, " + std::to_string(echo.size()) +
               " with it; expected pairs");
  if (!(options.confidence > 0 && options.confidence < 1)) return bad("confidence is not between 0 and 1");
  if (options.tolerance && !(*options.tolerance >= 0)) return bad("tolerance is below 0");
  for (const double value : baseline) {
    if (!std::isfinite(value)) return bad("the run without Echo gave " + number(value));
  }
  AbResult result;
  result.options = options;
  result.baseline = side_of(baseline);
  if (options.tolerance) {
    if (options.relative && result.baseline.median == 0 && *options.tolerance > 0)
      return bad("a relative tolerance of a metric that is 0; give an absolute one");
    result.tolerance_absolute =
        options.relative ? *options.tolerance * std::abs(result.baseline.median) : *options.tolerance;
  }
  if (!std::all_of(echo.begin(), echo.end(), [](double value) { return std::isfinite(value); })) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    result.echo = {echo, kNaN, kNaN};
    result.mean_difference = kNaN;
    result.verdict = options.tolerance ? AbVerdict::kFail : AbVerdict::kNone;
    result.reason = "a run with Echo gave a value that is not finite";
    return result;
  }
  result.echo = side_of(echo);
  std::vector<double> differences;
  for (std::size_t i = 0; i < baseline.size(); ++i) differences.push_back(echo[i] - baseline[i]);
  result.mean_difference = mean_of(differences);
  if (result.baseline.median != 0)
    result.relative_difference = result.mean_difference / std::abs(result.baseline.median);
  double deviation = 0;
  if (differences.size() > 1) {
    double square = 0;
    for (const double value : differences)
      square += (value - result.mean_difference) * (value - result.mean_difference);
    const auto n = static_cast<double>(differences.size());
    deviation = std::sqrt(square / (n - 1));
    const double reach = student_t_quantile(0.5 + options.confidence / 2, n - 1) * deviation / std::sqrt(n);
    result.interval = AbResult::Interval{result.mean_difference - reach, result.mean_difference + reach};
  }
  if (options.tolerance) {
    judge(result, differences, deviation);
  } else {
    result.reason = "mean difference " + number(result.mean_difference) + "; no tolerance was given";
  }
  return result;
}

AbVerdict overall_verdict(const AbReport& report) {
  AbVerdict worst = AbVerdict::kNone;
  const auto rank = [](AbVerdict verdict) {
    switch (verdict) {
      case AbVerdict::kNone:
        return 0;
      case AbVerdict::kPass:
        return 1;
      case AbVerdict::kCannotTell:
        return 2;
      case AbVerdict::kFail:
        return 3;
    }
    return 0;
  };
  for (const AbResult& metric : report.metrics) {
    if (rank(metric.verdict) > rank(worst)) worst = metric.verdict;
  }
  return worst;
}

const char* ab_verdict_name(AbVerdict verdict) {
  switch (verdict) {
    case AbVerdict::kPass:
      return "pass";
    case AbVerdict::kFail:
      return "fail";
    case AbVerdict::kCannotTell:
      return "cannot_tell";
    case AbVerdict::kNone:
      return "none";
  }
  return "none";
}

}  // namespace echotp
