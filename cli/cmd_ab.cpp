// SPDX-License-Identifier: Apache-2.0
// echo-tp ab: the job without and with Echo, in turns, compared by numbers that it prints itself.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/args.hpp"
#include "cli/artifacts.hpp"
#include "cli/environment.hpp"
#include "cli/launch.hpp"
#include "cli/metric.hpp"
#include "cli/report_text.hpp"
#include "cli/shim_run.hpp"
#include "cli/text.hpp"
#include "profiles/ab_compare.hpp"
#include "shim/policy_json.hpp"
#include "shim/text_file.hpp"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp ab --policy FILE --metric REGEX [OPTIONS] -- JOB...

Runs the job without Echo and with it, in turns, and compares numbers that the job prints: is the model still as good, and
how much faster is a step? The job's output goes to standard error; the comparison to standard output.

Options:
  -p, --policy FILE           what Echo does in the runs with it
      --metric REGEX          a number in the output: the first group of the expression; the last line that matches counts.
                              NAME=REGEX names it. May be given several times
      --step REGEX            the step time, likewise (default: 'step_ms[= ]([0-9.]+)')
      --step-unit UNIT        us, ms (default) or s
      --tolerance X|X%        how far a metric may move: a share of its value without Echo, or an amount in its own unit
      --lower-is-better       only a rise of the metrics counts
      --higher-is-better      only a fall counts (default: any change counts)
  -n, --repeats N             runs of each kind (default 1); more give an interval
      --without-compensation  also run with error compensation off, and report it beside
      --json[=FILE]           the comparison as a document, on standard output or in FILE
      --force                 overwrite FILE
  -q, --quiet                 don't show the job's output
      --color WHEN            auto, always or never
  -h, --help                  this text

Examples:
  echo-tp ab --policy policy.json --metric 'loss=([0-9.]+)' --tolerance 1% -- torchrun --nproc-per-node 2 train.py
  echo-tp ab --policy policy.json --metric 'accuracy=acc: ([0-9.]+)' --higher-is-better --tolerance 0.2 -n 5 -- ./eval.sh

Exit codes: 0 within the tolerance, or none given; 1 beyond it; 2 bad input or usage; 3 no answer: the job failed, a metric
was not found, nothing was compressed, or the runs differ too much to tell. 128 + signal when interrupted.
)";

constexpr const char* kDefaultStep = "step_ms[= ]([0-9.]+)";

struct Options {
  std::optional<std::string> policy, step, step_unit, tolerance;
  std::vector<std::string> metrics;
  std::optional<std::int64_t> repeats;
  bool lower = false, higher = false, without_compensation = false, force = false;
  JsonTarget json;
};

enum class Side { kBaseline, kEcho, kUncompensated };

const char* side_name(Side side) {
  return side == Side::kBaseline ? "without Echo"
         : side == Side::kEcho   ? "with Echo"
                                 : "with Echo, no compensation";
}
const char* side_key(Side side) {
  return side == Side::kBaseline ? "baseline" : side == Side::kEcho ? "echo" : "without_compensation";
}

struct OneRun {
  Side side = Side::kBaseline;
  JobEnd end;
  std::vector<std::optional<double>> values;  // metrics, then the step time
  std::optional<std::int64_t> calls, compressed;
};

struct Tolerance {
  double value = 0;
  bool relative = false;
};

Result<Tolerance> parse_tolerance(const std::string& text) {
  Tolerance out;
  std::string_view number = text;
  out.relative = number.ends_with('%');
  if (out.relative) number.remove_suffix(1);
  const auto [end, rc] = std::from_chars(number.data(), number.data() + number.size(), out.value);
  if (rc != std::errc() || end != number.data() + number.size() || !std::isfinite(out.value) || out.value < 0)
    return Error{ErrorCode::kBadInput,
                 "'" + text + "' is neither an amount such as 0.01 nor a share such as 1%", "--tolerance"};
  if (out.relative) out.value /= 100;
  return out;
}

/// One comparison: what is fixed before the first run, and the runs.
class Comparison {
 public:
  Comparison(Session& session, Options options)
      : session_(session), terminal_(*session.terminal), options_(std::move(options)) {}

  int go();

 private:
  std::optional<int> prepare();
  std::vector<Side> order() const;
  Result<OneRun> run_one(Side side);
  std::optional<int> judge_run(const OneRun& run) const;
  Result<AbReport> compare_sides(Side other) const;
  std::vector<double> values_of(Side side, std::size_t metric) const;
  std::vector<std::string> command_line() const { return session_.job; }
  std::string document(const AbReport& report, const std::optional<AbReport>& bare,
                       const std::string& problem) const;
  int answer();
  int refuse(const Error& error) { return fail(session_, kAbCommand, error); }
  int no_answer(const std::string& line);

  Session& session_;
  Terminal& terminal_;
  Options options_;
  std::vector<Metric> metrics_;  // the step time is the last
  std::optional<Tolerance> tolerance_;
  AbDirection direction_ = AbDirection::kEither;
  double step_to_us_ = 1e3;
  Policy policy_;
  std::optional<Scratch> scratch_;
  std::string policy_path_, bare_policy_path_;
  std::vector<OneRun> runs_;
};

std::optional<int> Comparison::prepare() {
  if (!options_.policy)
    return refuse({ErrorCode::kBadInput,
                   "missing: --policy FILE; echo-tp estimate PROFILE --policy-out FILE proposes one", "ab"});
  if (options_.metrics.empty())
    return refuse(
        {ErrorCode::kBadInput, "missing: --metric REGEX, for example --metric 'loss=([0-9.]+)'", "ab"});
  if (options_.lower && options_.higher)
    return refuse(
        {ErrorCode::kBadInput, "only one of the two can be", "--lower-is-better --higher-is-better"});
  direction_ = options_.lower    ? AbDirection::kLowerIsBetter
               : options_.higher ? AbDirection::kHigherIsBetter
                                 : AbDirection::kEither;
  for (const std::string& argument : options_.metrics) {
    auto metric = parse_metric(argument, "--metric");
    if (!metric) return refuse(metric.error());
    const bool taken = std::any_of(metrics_.begin(), metrics_.end(),
                                   [&](const Metric& other) { return other.name == metric->name; });
    if (taken)
      return refuse({ErrorCode::kBadInput,
                     "two metrics are named '" + metric->name + "'; name them as NAME=REGEX", "--metric"});
    metrics_.push_back(*std::move(metric));
  }
  auto step = parse_metric("step_time=" + options_.step.value_or(kDefaultStep), "--step");
  if (!step) return refuse(step.error());
  step->name = "step time";
  metrics_.push_back(*std::move(step));
  const std::string unit = options_.step_unit.value_or("ms");
  step_to_us_ = unit == "us" ? 1 : unit == "ms" ? 1e3 : 1e6;
  if (options_.tolerance) {
    const auto tolerance = parse_tolerance(*options_.tolerance);
    if (!tolerance) return refuse(tolerance.error());
    tolerance_ = *tolerance;
  }
  const auto policy = read_policy_or_tell(terminal_, *options_.policy);
  if (!policy) return kExitUsage;
  policy_ = *policy;
  policy_path_ = absolute_path(*options_.policy);
  const Status claimed =
      claim_outputs({{"--json", options_.json.path}},
                    {{"--policy", *options_.policy}, {"the policy's costs", policy_.costs}}, options_.force);
  if (!claimed) return refuse(claimed.error());
  auto scratch = Scratch::make(folder_of(options_.json.path));
  if (!scratch) return refuse(scratch.error());
  scratch_.emplace(*std::move(scratch));
  if (options_.without_compensation) {
    Policy bare = policy_;
    for (PolicyRule& rule : bare.rules) rule.compensation.mode = CompensationMode::kNone;
    bare_policy_path_ = scratch_->path() + "/without-compensation.json";
    if (const Status status = write_text_file(bare_policy_path_, policy_json(bare)); !status)
      return refuse(status.error());
  }
  // Fails now, and not after the first run, if the shim is missing.
  if (const auto trial = ShimRun::prepare(scratch_->path(), policy_path_, "compress"); !trial)
    return refuse(trial.error());
  return std::nullopt;
}

// A B, B A, A B: a machine that drifts in one direction favours neither.
std::vector<Side> Comparison::order() const {
  std::vector<Side> out;
  for (std::int64_t i = 0; i < options_.repeats.value_or(1); ++i) {
    out.push_back(i % 2 == 0 ? Side::kBaseline : Side::kEcho);
    out.push_back(i % 2 == 0 ? Side::kEcho : Side::kBaseline);
    if (options_.without_compensation) out.push_back(Side::kUncompensated);
  }
  return out;
}

Result<OneRun> Comparison::run_one(Side side) {
  Environment environment = Environment::current();
  remove_ours(environment);
  std::optional<ShimRun> shim;
  if (side != Side::kBaseline) {
    auto prepared = ShimRun::prepare(scratch_->path(), side == Side::kEcho ? policy_path_ : bare_policy_path_,
                                     "compress");
    if (!prepared) return prepared.error();
    shim.emplace(*std::move(prepared));
    for (const std::string& line : shim->inject(environment)) terminal_.warning(line);
  }
  MetricWatch watch(metrics_);
  JobPlan plan{session_.job, environment.entries(), nullptr};
  plan.on_output = [&](JobStream stream, std::string_view piece) {
    watch.add(stream, piece);
    // Standard output holds the comparison alone.
    terminal_.block(piece);
  };
  OneRun run;
  run.side = side;
  run.end = run_job(plan);
  watch.finish();
  run.values = watch.values();
  if (shim && run.end.started) {
    const RunReport report = shim->report({});
    run.calls = report.totals.calls;
    run.compressed = report.totals.compressed;
    for (const std::string& problem : report.problems) terminal_.warning(problem);
  }
  return run;
}

// An exit code if the comparison ends with this run.
std::optional<int> Comparison::judge_run(const OneRun& run) const {
  if (!run.end.started) {
    terminal_.error(run.end.error.text());
    return run.end.error.code == ErrorCode::kSystem ? kExitNoAnswer : kExitUsage;
  }
  if (run.end.interrupted != 0) {
    terminal_.error("interrupted by " + signal_text(run.end.interrupted));
    return kExitSignal + run.end.interrupted;
  }
  return std::nullopt;
}

std::vector<double> Comparison::values_of(Side side, std::size_t metric) const {
  std::vector<double> out;
  for (const OneRun& run : runs_) {
    if (run.side == side && run.values[metric]) out.push_back(*run.values[metric]);
  }
  return out;
}

Result<AbReport> Comparison::compare_sides(Side other) const {
  AbReport report;
  report.command = session_.job;
  report.policy_path = policy_path_;
  std::array<char, 19> hash;
  std::snprintf(hash.data(), hash.size(), "0x%016llx", static_cast<unsigned long long>(policy_.hash));
  report.policy_hash = hash.data();
  for (std::size_t i = 0; i + 1 < metrics_.size(); ++i) {
    AbOptions options;
    options.name = metrics_[i].name;
    if (tolerance_) {
      options.tolerance = tolerance_->value;
      options.relative = tolerance_->relative;
    }
    options.direction = direction_;
    auto result = compare(values_of(Side::kBaseline, i), values_of(other, i), options);
    if (!result) return result.error();
    report.metrics.push_back(*std::move(result));
  }
  std::vector<double> before = values_of(Side::kBaseline, metrics_.size() - 1),
                      after = values_of(other, metrics_.size() - 1);
  if (!before.empty() && before.size() == after.size()) {
    for (double& value : before) value *= step_to_us_;
    for (double& value : after) value *= step_to_us_;
    AbOptions options;
    options.name = "step time";
    options.direction = AbDirection::kLowerIsBetter;
    if (auto result = compare(before, after, options)) report.step_time = *std::move(result);
  } else {
    report.notes.push_back("no step time: no line of the job matched /" + metrics_.back().expression +
                           "/ (--step)");
  }
  return report;
}

std::string Comparison::document(const AbReport& report, const std::optional<AbReport>& bare,
                                 const std::string& problem) const {
  using Json = nlohmann::ordered_json;
  Json out = Json::parse(ab_json(report));
  if (bare) {
    const Json other = Json::parse(ab_json(*bare));
    out["without_compensation"] = {{"metrics", other["metrics"]}, {"step_time", other["step_time"]}};
  } else {
    out["without_compensation"] = nullptr;
  }
  out["runs"] = Json::array();
  for (const OneRun& run : runs_) {
    Json one;
    one["side"] = side_key(run.side);
    one["exit_code"] = run.end.started ? Json(run.end.exit_code) : Json(nullptr);
    one["wall_s"] = run.end.wall_s;
    one["metrics"] = Json::object();
    for (std::size_t i = 0; i + 1 < metrics_.size(); ++i) {
      // A loss may be NaN, which JSON can't say.
      one["metrics"][metrics_[i].name] =
          run.values[i] && std::isfinite(*run.values[i]) ? Json(*run.values[i]) : Json(nullptr);
    }
    one["step_us"] = run.values.back() ? Json(*run.values.back() * step_to_us_) : Json(nullptr);
    one["calls"] = run.calls ? Json(*run.calls) : Json(nullptr);
    one["compressed"] = run.compressed ? Json(*run.compressed) : Json(nullptr);
    out["runs"].push_back(std::move(one));
  }
  out["problem"] = problem.empty() ? Json(nullptr) : Json(problem);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The runs so far go into the document all the same.
int Comparison::no_answer(const std::string& line) {
  terminal_.error(line);
  AbReport report;
  report.command = session_.job;
  report.policy_path = policy_path_;
  if (const Status status = deliver_json(terminal_, options_.json, document(report, std::nullopt, line));
      !status)
    terminal_.error(status.error().text());
  return kExitNoAnswer;
}

int Comparison::answer() {
  const auto compressed_in = [&](Side side) {
    std::int64_t sum = 0;
    for (const OneRun& run : runs_) sum += run.side == side ? run.compressed.value_or(0) : 0;
    return sum;
  };
  if (compressed_in(Side::kEcho) == 0) {
    const bool called =
        std::any_of(runs_.begin(), runs_.end(), [](const OneRun& run) { return run.calls.value_or(0) > 0; });
    return no_answer(
        called ? "nothing to compare: no all-reduce was compressed under this policy (echo-tp run says why)"
               : "nothing to compare: the job made no NCCL all-reduce that echo-tp could see");
  }
  auto report = compare_sides(Side::kEcho);
  if (!report) return no_answer(report.error().text());
  std::optional<AbReport> bare;
  if (options_.without_compensation) {
    auto result = compare_sides(Side::kUncompensated);
    if (!result) return no_answer(result.error().text());
    bare = *std::move(result);
  }
  if (const Status status = deliver_json(terminal_, options_.json, document(*report, bare, "")); !status)
    return refuse(status.error());
  if (!options_.json.to_stdout) {
    std::string text = ab_text(*report);
    if (bare) text += "\nthe same with error compensation off:\n" + ab_text(*bare);
    terminal_.out(text);
  }
  switch (overall_verdict(*report)) {
    case AbVerdict::kPass:
    case AbVerdict::kNone:
      return kExitOk;
    case AbVerdict::kFail:
      return kExitNo;
    case AbVerdict::kCannotTell:
      break;
  }
  return kExitNoAnswer;
}

int Comparison::go() {
  if (const auto code = prepare()) return *code;
  for (std::size_t i = 0; i + 1 < metrics_.size(); ++i)
    terminal_.note("metric " + metrics_[i].name + ": last match of /" + metrics_[i].expression + "/");
  const std::vector<Side> sides = order();
  for (std::size_t i = 0; i < sides.size(); ++i) {
    terminal_.note("run " + std::to_string(i + 1) + " of " + std::to_string(sides.size()) + ": " +
                   side_name(sides[i]));
    auto run = run_one(sides[i]);
    if (!run) return no_answer(run.error().text());
    runs_.push_back(*std::move(run));
    const OneRun& last = runs_.back();
    if (const auto code = judge_run(last)) return *code;
    if (last.end.exit_code != 0) {
      return no_answer(std::string("the job failed ") + side_name(last.side) + ": " +
                       (last.end.killed_by ? signal_text(last.end.killed_by)
                                           : "exit code " + std::to_string(last.end.exit_code)));
    }
    for (std::size_t m = 0; m + 1 < metrics_.size(); ++m) {
      if (!last.values[m])
        return no_answer("metric " + metrics_[m].name + " not found: no line of the job's output, " +
                         side_name(last.side) + ", matches /" + metrics_[m].expression + "/");
    }
  }
  return answer();
}

int run(Session& session) {
  Options options;
  OptionSet set(kAbCommand);
  set.text("-p,--policy", options.policy);
  set.texts("--metric", options.metrics);
  set.text("--step", options.step);
  set.choice("--step-unit", options.step_unit, {"us", "ms", "s"});
  set.text("--tolerance", options.tolerance);
  set.flag("--lower-is-better", options.lower);
  set.flag("--higher-is-better", options.higher);
  set.integer("-n,--repeats", options.repeats, 1, 1000);
  set.flag("--without-compensation", options.without_compensation);
  set.json(options.json);
  set.flag("--force", options.force);
  if (const auto code = set.parse(session)) return *code;
  return Comparison(session, std::move(options)).go();
}

}  // namespace

const Command kAbCommand = {
    "ab", "is the job still as good with Echo, and how much faster?", kHelp, true, kExitUsage, run};

}  // namespace echotp
