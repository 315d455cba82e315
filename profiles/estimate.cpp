// SPDX-License-Identifier: Apache-2.0
// The estimate: which calls are replaced, the replays, and what to say about them.
#include "profiles/estimate.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "profiles/bypass.hpp"
#include "profiles/host_work.hpp"
#include "profiles/proposal.hpp"
#include "profiles/size_classes.hpp"
#include "profiles/study.hpp"
#include "shim/units.hpp"

namespace echotp {
namespace {

constexpr double kRefuseFrom = 0.10, kWarnFrom = 0.03;  // identity error
constexpr double kNoGain = 1.01;                        // below it, reasons are given
constexpr double kPays = 1.10;                          // as kAutoMinGain: least gain of a call
constexpr double kResidualWarn = 0.10;
constexpr std::int64_t kContradictedOneIn = 20;  // collectives: more is warned of
constexpr double kPerturbedFrom = 1.10;
constexpr std::int64_t kGapsPerStep = 2;
constexpr double kUnusualStep = 0.10;           // of the steps lie below the interval, and as many above
constexpr double kVariesFrom = 0.15;            // standard deviation / mean of steps: more is warned of
constexpr std::int64_t kFewSteps = 5;           // fewer say little of how steps vary
constexpr double kHostMatters = 1.02;           // gain with a fast host / gain with the recorded one
constexpr double kTableDiffers = 1.5;           // NCCL in the job against NCCL in the table
constexpr std::size_t kManyPoints = 8'000'000;  // beyond it fewer replays
constexpr std::size_t kShownName = 120;

double us(double ns) {
  return ns / 1000.0;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

std::string factor(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2fx", value);
  return text;
}

std::string hexadecimal(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

struct Verdict {
  bool eligible = false;  // could be compressed, whether it pays or not
  bool chosen = false;
  std::string why_not;
};

class Estimator {
 public:
  Estimator(const Trace& trace, const EstimateOptions& options, const Study& study)
      : trace_(trace),
        options_(options),
        study_(study),
        model_(options.costs ? &*options.costs : nullptr, options.codec, options.compensation) {}

  Estimate run() {
    classes_ = size_classes(trace_, study_, true);
    out_.profile_label = options_.profile_label;
    out_.costs_label = options_.costs_label;
    out_.before_us = us(study_.steps.median_ns);
    out_.replayed_us = us(study_.replayed_ns);
    fill_steps();
    fill_quality();
    find_thresholds();
    judge();
    replay();
    fill_classes();
    fill_communicators();
    fill_bypass();
    fill_bound();
    fill_policy();
    fill_warnings();
    fill_reasons();
    fill_assumptions();
    return std::move(out_);
  }

 private:
  double per_step(double ns) const { return us(ns) / study_.steps.used(); }
  const CollectiveCall& call_of(const Collective& collective) const { return trace_.calls[collective.call]; }

  void fill_steps() {
    out_.steps.source = step_source_name(study_.steps.source);
    out_.steps.name = study_.steps.name;
    out_.steps.found = study_.steps.found;
    out_.steps.used = study_.steps.used();
    out_.steps.measured_us = us(study_.steps.median_ns);
    out_.steps.variation = study_.steps.variation;
  }

  void fill_quality() {
    EstimateQuality& quality = out_.quality;
    const TimelineQuality& timeline = study_.timeline.quality;
    quality.identity_error = study_.identity_error;
    quality.residual_share = timeline.residual_share;
    quality.host_coverage = study_.launches.total_coverage;
    quality.truncated_frames = trace_.truncated_frames;
    quality.invalid_ops = study_.invalid_ops;
    quality.imputed_ops = study_.set.imputed;
    quality.contradicted_edges = timeline.contradicted_edges + timeline.broken_cycles;
    quality.inferred_edges = timeline.inferred_edges;
    std::vector<bool> recorded(trace_.processes.size(), false);
    for (const Rendezvous& rendezvous : study_.set.rendezvous) {
      ++quality.collectives;
      if (rendezvous.partial) ++quality.partial_collectives;
      quality.expected_ranks = std::max<int>(quality.expected_ranks, rendezvous.ranks);
      for (const Arrival& arrival : rendezvous.arrivals) recorded[arrival.process] = true;
    }
    quality.recorded_ranks = static_cast<int>(std::count(recorded.begin(), recorded.end(), true));
    std::map<std::string, std::size_t> tiers;
    for (const Process& process : trace_.processes) {
      quality.dropped_records += process.dropped_records;
      if (process.traced_ratio)
        quality.traced_ratio = std::max(quality.traced_ratio.value_or(0), *process.traced_ratio);
      for (const std::string& tier : std::set<std::string>(process.tiers.begin(), process.tiers.end()))
        ++tiers[tier];
    }
    for (const auto& [tier, count] : tiers) {
      if (count == trace_.processes.size()) quality.tiers.push_back(tier);
    }
    for (const std::int64_t offset : study_.clocks.offset_ns)
      quality.max_clock_offset_us =
          std::max(quality.max_clock_offset_us, std::abs(us(static_cast<double>(offset))));
  }

  // Data type of a call that may be compressed at all; else why not.
  std::optional<DataType> eligible_type(const Collective& collective, std::string& why_not) const {
    const CollectiveCall& call = call_of(collective);
    const int ranks = ranks_of(trace_, study_.set, collective);
    const auto dtype = compressible_type(collective.dtype);
    const bool wanted =
        dtype && std::find(options_.dtypes.begin(), options_.dtypes.end(), *dtype) != options_.dtypes.end();
    if (!is_all_reduce(call.function)) {
      why_not = "not an all-reduce";
    } else if (!call.op.empty() && call.op != "sum" && call.op != "avg") {
      why_not = "operator " + call.op + " is never compressed";
    } else if (collective.dtype.empty()) {
      why_not = "data type unknown";
    } else if (!dtype) {
      why_not = "data type " + collective.dtype + " is never compressed";
    } else if (!wanted && !options_.policy) {
      why_not = "data type " + collective.dtype + " only if a policy's rule names it";
    } else if (ranks == 1) {
      why_not = "one rank";
    } else if (ranks == 0) {
      why_not = "number of ranks unknown";
    } else if (collective.bytes <= 0) {
      why_not = "message size unknown";
    } else {
      return dtype;
    }
    return std::nullopt;
  }

  // Smallest message that pays, by data type and ranks: from the table, else from the bounded model at the
  // sizes that were seen.
  void find_thresholds() {
    std::map<std::pair<DataType, int>, std::map<std::int64_t, double>> gains;  // least gain by size
    for (const MessageClass& it : classes_) {
      if (it.timed == 0) continue;
      const Collective& first = study_.set.collectives[it.collectives.front()];
      std::string why_not;
      const auto dtype = eligible_type(first, why_not);
      if (!dtype) continue;
      const std::pair<DataType, int> key{*dtype, ranks_of(trace_, study_.set, first)};
      if (model_.has_table()) {
        if (const auto from = model_.min_bytes(key.first, key.second)) thresholds_[key] = *from;
        continue;
      }
      const auto time = model_.echo_time(key.first, key.second, it.bytes, it.median_transfer_ns);
      if (!time) continue;
      const double gain = it.median_transfer_ns / time->ns.mid;
      const auto [at, fresh] = gains[key].try_emplace(it.min_bytes, gain);
      if (!fresh) at->second = std::min(at->second, gain);
    }
    for (const auto& [key, by_size] : gains) {
      std::int64_t from = kNeverBytes;
      for (auto at = by_size.rbegin(); at != by_size.rend() && at->second >= kPays; ++at) from = at->first;
      thresholds_[key] = from;
    }
  }

  static std::string not_in_table(const std::string& dtype) {
    return "the cost table says nothing of " + dtype + " and this number of ranks";
  }

  Verdict judge_call(const Collective& collective) const {
    Verdict verdict;
    const auto dtype = eligible_type(collective, verdict.why_not);
    if (!dtype) return verdict;
    verdict.eligible = true;
    const CollectiveCall& call = call_of(collective);
    const int ranks = ranks_of(trace_, study_.set, collective);
    if (options_.policy) {
      CallFacts facts;
      facts.count = collective.bytes / element_bytes(*dtype);
      facts.dtype = *dtype;
      facts.op = call.op == "avg" ? ReduceOp::kAvg : ReduceOp::kSum;
      facts.ranks = ranks;
      if (collective.communicator >= 0)
        facts.communicator_name = trace_.communicators[collective.communicator].name;
      facts.capturing = call.captured;
      verdict.chosen = match_policy(*options_.policy, facts) >= 0;
      if (!verdict.chosen) verdict.why_not = "no rule of the policy matches";
      return verdict;
    }
    const auto at = thresholds_.find({*dtype, ranks});
    if (at == thresholds_.end()) {
      verdict.why_not = not_in_table(collective.dtype);
    } else if (at->second == kNeverBytes) {
      verdict.why_not = "Echo is not 10% faster than NCCL at this or a larger size";
    } else if (collective.bytes < at->second) {
      verdict.why_not = "below " + format_bytes(at->second) + ", from where Echo pays";
    } else {
      verdict.chosen = true;
    }
    return verdict;
  }

  void judge() {
    verdicts_.reserve(study_.set.collectives.size());
    for (const Collective& collective : study_.set.collectives) verdicts_.push_back(judge_call(collective));
    // A launch is compressed whole or not at all.
    for (const Rendezvous& rendezvous : study_.set.rendezvous) {
      const bool whole = std::all_of(rendezvous.collectives.begin(), rendezvous.collectives.end(),
                                     [&](std::int32_t index) { return verdicts_[index].chosen; });
      for (const std::int32_t index : rendezvous.collectives) {
        if (whole || !verdicts_[index].chosen) continue;
        verdicts_[index].chosen = false;
        verdicts_[index].why_not = "shares a launch with calls that are not compressed";
      }
    }
    // A size that only the model or an extrapolation covers says so; the weakest evidence is the result's.
    for (std::size_t i = 0; i < verdicts_.size(); ++i) {
      const Collective& collective = study_.set.collectives[i];
      if (!verdicts_[i].chosen || collective.rendezvous < 0) continue;
      const auto time = echo_time(collective, 1e6);
      if (!time) {
        verdicts_[i].chosen = false;
        verdicts_[i].why_not = not_in_table(collective.dtype);
        continue;
      }
      if (!out_.evidence || time->evidence > *out_.evidence) out_.evidence = time->evidence;
    }
  }

  std::optional<EchoTime> echo_time(const Collective& collective, double nccl_ns) {
    const auto dtype = compressible_type(collective.dtype);
    if (!dtype) return std::nullopt;
    return model_.echo_time(*dtype, ranks_of(trace_, study_.set, collective), collective.bytes, nccl_ns);
  }

  struct Replacement {
    Scenario fast, mid, slow;
  };

  // Transfer times when these collectives are compressed.
  Replacement replace(const std::vector<std::int32_t>& collectives) {
    Replacement out{study_.recorded, study_.recorded, study_.recorded};
    const std::set<std::int32_t> meant(collectives.begin(), collectives.end());
    std::set<std::int32_t> touched;
    for (const std::int32_t index : meant) {
      const std::int32_t at = study_.set.collectives[index].rendezvous;
      if (at >= 0 && verdicts_[index].chosen) touched.insert(at);
    }
    for (const std::int32_t at : touched) {
      const Rendezvous& rendezvous = study_.set.rendezvous[at];
      // With missing ranks the shortest duration still holds waiting: doubt it down to that of fast calls.
      const auto certain = static_cast<double>(
          rendezvous.partial ? std::min(rendezvous.credited_ns, rendezvous.fast_ns) : rendezvous.credited_ns);
      const auto credited = static_cast<double>(rendezvous.credited_ns);
      double fast = 0, mid = 0, slow = 0;  // change
      for (const std::int32_t index : rendezvous.collectives) {
        if (meant.find(index) == meant.end()) continue;
        const Collective& collective = study_.set.collectives[index];
        const auto likely = echo_time(collective, credited * collective.share);
        const auto least = echo_time(collective, certain * collective.share);
        if (!likely || !least) continue;
        fast += likely->ns.low - credited * collective.share;
        mid += likely->ns.mid - credited * collective.share;
        slow += least->ns.high - certain * collective.share;
      }
      const auto changed = [&](double change) {
        return std::max<std::int64_t>(0, rendezvous.transfer_ns + std::llround(change));
      };
      out.fast.transfer_ns[at] = changed(fast);
      out.mid.transfer_ns[at] = changed(mid);
      out.slow.transfer_ns[at] = changed(slow);
    }
    return out;
  }

  double step_of_scenario(const Scenario& scenario) const {
    return simulated_step_ns(trace_, study_.timeline, study_.steps, scenario);
  }

  // Gain of a replay over another: of the median step in the middle, of single steps at the ends, which leave
  // out one step in ten on either side.
  Interval3 gain_of(const Scenario& before, const Scenario& after) const {
    const auto slow = simulated_steps_ns(trace_, study_.timeline, study_.steps, before);
    const auto fast = simulated_steps_ns(trace_, study_.timeline, study_.steps, after);
    Interval3 gain;
    gain.mid = median_step_ns(study_.steps, slow) / std::max(median_step_ns(study_.steps, fast), 1.0);
    std::vector<double> gains;
    for (std::size_t step = 0; step < slow.size(); ++step) {
      if (study_.steps.is_used(static_cast<std::int32_t>(step)) && slow[step] > 0 && fast[step] > 0)
        gains.push_back(static_cast<double>(slow[step]) / static_cast<double>(fast[step]));
    }
    std::sort(gains.begin(), gains.end());
    const auto at = [&](double share) {
      return gains.empty() ? gain.mid
                           : gains[static_cast<std::size_t>(
                                 std::lround(share * static_cast<double>(gains.size() - 1)))];
    };
    gain.low = std::min(gain.mid, at(kUnusualStep));
    gain.high = std::max(gain.mid, at(1 - kUnusualStep));
    return gain;
  }

  // Without host calls a gap between kernels may be the host's: then a faster exchange only makes it longer.
  // One gap a step is the synchronisation at its end; a host that can't keep up leaves many.
  bool host_may_bound() const {
    std::int64_t gaps = 0;
    std::set<std::int32_t> processes;
    for (std::size_t i = 0; i < trace_.device_ops.size(); ++i) {
      if (study_.timeline.pinnable[2 * i] == 0 || !study_.steps.is_used(study_.steps.step_of_op[i])) continue;
      ++gaps;
      processes.insert(trace_.device_ops[i].process);
    }
    return gaps > kGapsPerStep * study_.steps.used() * static_cast<std::int64_t>(processes.size());
  }

  void replay() {
    std::vector<std::int32_t> eligible, chosen;
    for (std::size_t i = 0; i < verdicts_.size(); ++i) {
      if (verdicts_[i].eligible) eligible.push_back(static_cast<std::int32_t>(i));
      if (verdicts_[i].chosen) chosen.push_back(static_cast<std::int32_t>(i));
    }
    const double base = study_.replayed_ns;
    Replacement with = replace(chosen);
    after_ = with.mid;
    pinned_ = !chosen.empty() && host_may_bound();
    with.slow.pin_unexplained = pinned_;
    Scenario recorded = study_.recorded, free = free_transfer(study_, eligible);
    const std::vector<float> fast_host =
        fast_host_factors(trace_, study_.timeline, study_.launches, study_.steps);
    out_.gain = {1, 1, 1};
    Interval3 as_recorded;  // with the fast end of the costs
    if (!chosen.empty()) {
      out_.gain.mid = base / std::max(step_of_scenario(with.mid), 1.0);
      out_.gain.low = std::min(out_.gain.mid, gain_of(recorded, with.slow).low);
      as_recorded = gain_of(recorded, with.fast);
      out_.gain.high = std::max(out_.gain.mid, as_recorded.high);
    }
    double zero_gain = 1, zero_gain_fast_host = 1;
    if (!eligible.empty()) zero_gain = zero_gain_fast_host = gain_of(recorded, free).mid;
    if (!fast_host.empty() && !eligible.empty()) {
      // Before and after with the same host, so that a faster host is no gain by itself.
      recorded.host_factor = with.fast.host_factor = free.host_factor = fast_host;
      zero_gain_fast_host = std::max(zero_gain, gain_of(recorded, free).mid);
      if (!chosen.empty()) {
        const Interval3 fast_gain = gain_of(recorded, with.fast);
        host_matters_ = fast_gain.mid > kHostMatters * as_recorded.mid;
        out_.gain.high = std::max(out_.gain.high, fast_gain.high);
      }
    }
    out_.after_us = {out_.before_us / out_.gain.high, out_.before_us / out_.gain.mid,
                     out_.before_us / out_.gain.low};
    out_.zero_low_us = out_.before_us / std::max(zero_gain_fast_host, 1.0);
    // In the proportion of the replay, so that its own error does not look like a gain.
    const double scale = study_.steps.median_ns / base;
    out_.zero_us = out_.before_us / zero_gain;
    out_.zero_low_us = std::min(out_.zero_low_us, out_.zero_us);
    out_.exposed_transfer_us = out_.before_us - out_.zero_us;
    if (out_.quality.partial_collectives == 0 && out_.quality.collectives > 0) {
      Scenario alone = study_.recorded;
      alone.no_wait = true;
      const double nowait = step_of_scenario(alone);
      out_.nowait_us = us(nowait * scale);
      out_.exposed_wait_us = us((base - nowait) * scale);
    }
  }

  void fill_classes() {
    const double base = study_.replayed_ns, scale = study_.steps.median_ns / base;
    int replays = study_.timeline.observed_ns.size() > kManyPoints ? std::min(4, options_.max_class_replays)
                                                                   : options_.max_class_replays;
    for (const MessageClass& it : classes_) {
      const Collective& first = study_.set.collectives[it.collectives.front()];
      ClassEstimate row;
      row.function = it.function;
      row.dtype = it.dtype;
      row.op = it.op;
      row.bytes = it.bytes;
      row.min_bytes = it.min_bytes;
      row.communicator = it.communicator;
      row.ranks = ranks_of(trace_, study_.set, first);
      row.calls_per_step = static_cast<double>(it.used) / study_.steps.used();
      row.total_us = per_step(it.in_steps.total);
      if (!it.partial && it.timed > 0) row.wait_us = per_step(it.in_steps.wait);
      row.transfer_us = per_step(it.in_steps.transfer);
      row.exposed_us = per_step(it.in_steps.exposed);
      row.share_of_step = row.total_us / out_.before_us;
      row.nccl_us = us(it.median_transfer_ns);
      std::size_t chosen = 0;
      const Verdict* doubt = nullptr;
      bool eligible = false;
      for (const std::int32_t index : it.collectives) {
        chosen += verdicts_[index].chosen ? 1 : 0;
        eligible = eligible || verdicts_[index].eligible;
        if (!verdicts_[index].chosen && doubt == nullptr) doubt = &verdicts_[index];
      }
      row.compressed = 2 * chosen > it.collectives.size();
      if (!row.compressed && doubt != nullptr) row.why_not = doubt->why_not;
      if (eligible && it.median_transfer_ns > 0) {
        Collective typical = first;
        typical.bytes = it.bytes;
        if (const auto time = echo_time(typical, it.median_transfer_ns)) {
          row.echo_us = Interval3{us(time->ns.low), us(time->ns.mid), us(time->ns.high)};
          row.evidence = time->evidence;
        }
      }
      if (it.used > 0 && replays-- > 0) {
        row.exposed_critical_us =
            us((base - step_of_scenario(free_transfer(study_, it.collectives))) * scale);
        row.contribution_us =
            chosen > 0 ? us((base - step_of_scenario(replace(it.collectives).mid)) * scale) : 0.0;
      }
      out_.classes.push_back(std::move(row));
    }
  }

  void fill_communicators() {
    out_.communicators.resize(trace_.communicators.size());
    for (std::size_t i = 0; i < trace_.communicators.size(); ++i) {
      const Communicator& communicator = trace_.communicators[i];
      CommunicatorEstimate& row = out_.communicators[i];
      row.hash = hexadecimal(communicator.hash);
      row.name = communicator.name;
      row.ranks = communicator.ranks;
      row.recorded_ranks = static_cast<int>(std::count_if(communicator.rank_of_process.begin(),
                                                          communicator.rank_of_process.end(),
                                                          [](std::int32_t rank) { return rank >= 0; }));
    }
    for (const MessageClass& it : classes_) {
      if (it.communicator < 0) continue;
      CommunicatorEstimate& row = out_.communicators[it.communicator];
      row.calls_per_step += static_cast<double>(it.used) / study_.steps.used();
      row.total_us += per_step(it.in_steps.total);
      row.exposed_us += per_step(it.in_steps.exposed);
      row.transfer_us += per_step(it.in_steps.transfer);
    }
  }

  void fill_bypass() {
    for (const BypassUse& use : find_bypass(trace_, study_.times, study_.set)) {
      BypassEstimate row;
      row.kernel = trace_.names[use.name].substr(0, kShownName);
      row.framework = use.kind->framework;
      row.how_to_switch_off = use.kind->how_to_switch_off;
      row.calls = use.calls;
      row.total_us = us(use.total_ns) / study_.steps.found;
      out_.bypass.push_back(std::move(row));
    }
  }

  void fill_bound() {
    const CriticalPath path = critical_path(trace_, study_.timeline, study_.steps, study_.set, after_,
                                            simulate(study_.timeline, after_));
    const double total = path.total_ns();
    if (total <= 0) return;
    const std::vector<std::pair<const char*, double>> parts = {
        {"compute", path.compute_ns}, {"transfer", path.transfer_ns}, {"copies", path.copies_ns},
        {"host", path.host_ns},       {"launch", path.launch_ns},     {"unexplained", path.unexplained_ns}};
    for (const auto& [what, spent] : parts) {
      if (spent > 0) out_.critical_path.push_back({what, spent / total});
    }
    std::stable_sort(out_.critical_path.begin(), out_.critical_path.end(),
                     [](const CriticalShare& l, const CriticalShare& r) { return l.share > r.share; });
    static const std::map<std::string, std::string> kSentences = {
        {"compute", "compute kernels"},
        {"transfer", "the exchange itself"},
        {"copies", "copies to and from the device"},
        {"host", "the host, which launches too slowly"},
        {"launch", "latencies of launches and synchronisation"},
        {"unexplained", "waits that the recording does not explain"}};
    const CriticalShare& most = out_.critical_path.front();
    out_.bound = std::string(out_.evidence ? "after compression the step" : "the step") + " is bound by " +
                 kSentences.at(most.what) + " (" + percent(most.share) + " of the critical path)";
  }

  void fill_policy() {
    if (options_.policy) {
      out_.policy = *options_.policy;
      return;
    }
    ProposalInput input;
    std::int64_t evidence = 0;
    for (const Verdict& verdict : verdicts_) {
      input.compressed.push_back(verdict.chosen);
      evidence += verdict.chosen ? 1 : 0;
    }
    input.min_bytes = thresholds_;
    input.codec = options_.codec;
    input.compensation = options_.compensation;
    input.note = "expected step gain " + factor(out_.gain.mid) + " (" + factor(out_.gain.low) + " to " +
                 factor(out_.gain.high) + ", " +
                 (out_.evidence ? evidence_name(*out_.evidence) : "no evidence") + "), from " +
                 std::to_string(evidence) + " recorded all-reduces";
    // A policy that is not expected to help is none.
    if (out_.gain.mid >= 1) out_.policy = propose_policy(trace_, study_, input);
  }

  void warn(std::string text) { out_.warnings.push_back(std::move(text)); }

  void fill_warnings() {
    const EstimateQuality& quality = out_.quality;
    if (quality.identity_error > kWarnFrom)
      warn("the unchanged replay misses the measured step by " + percent(quality.identity_error));
    if (quality.residual_share > kResidualWarn)
      warn(percent(quality.residual_share) + " of the window are waits that the recording does not explain");
    if (quality.contradicted_edges * kContradictedOneIn > quality.collectives)
      warn(std::to_string(quality.contradicted_edges) +
           " dependencies contradict the recorded times and were left out: clocks or matching are not to be "
           "trusted");
    if (host_matters_)
      warn(
          "the step would be bound by the host, whose time was measured while recording and while waiting "
          "for NCCL: it may shrink too; the high gain has the host at the fast end of what was recorded");
    if (out_.steps.variation > kVariesFrom)
      warn("the recorded steps vary by " + percent(out_.steps.variation) +
           " (standard deviation / mean): another run may differ as much");
    if (out_.evidence && out_.steps.used < kFewSteps && study_.steps.source != StepSource::kWindow)
      warn("only " + std::to_string(out_.steps.used) + (out_.steps.used == 1 ? " step was" : " steps were") +
           " used: the interval does not know how steps vary");
    if (trace_.excerpt)
      warn("the profile is an excerpt: " + std::to_string(out_.steps.found) + " of " +
           std::to_string(trace_.excerpt->of_steps) + " recorded steps");
    if (trace_.mixed_commands)
      warn("the profile holds recordings of different commands: they are taken as one job");
    for (const std::string& text : options_.costs_warnings) warn(text);
    if (quality.host_coverage < 0.5)
      warn("host calls were not recorded: gaps between kernels are taken as fixed");
    if (pinned_)
      warn(
          "many kernels start after waits that the host may have caused: the low gain leaves them where they "
          "were");
    if (quality.partial_collectives > 0)
      warn("recorded " + std::to_string(quality.recorded_ranks) + " of " +
           (quality.expected_ranks > 0 ? std::to_string(quality.expected_ranks)
                                       : std::string("an unknown number of")) +
           " ranks in some collectives: waiting is not told from transfer there");
    if (quality.dropped_records > 0)
      warn("the recorder dropped " + std::to_string(quality.dropped_records) + " records");
    if (quality.truncated_frames > 0) warn("the profile was cut by a crash: readable up to there");
    if (quality.invalid_ops > 0)
      warn(std::to_string(quality.invalid_ops) + " device records have unusable times and were left out");
    if (quality.imputed_ops > 0)
      warn(std::to_string(quality.imputed_ops) +
           " collectives have no end time: taken from others of their size");
    if (quality.traced_ratio && *quality.traced_ratio > kPerturbedFrom)
      warn("recording slowed the job down by " + percent(*quality.traced_ratio - 1) +
           ": times are perturbed");
    if (study_.set.contradictory > 0)
      warn(std::to_string(study_.set.contradictory) +
           " calls disagree with other ranks on the size of the same collective and were not matched");
    if (study_.set.calls_without_kernel > 0)
      warn(std::to_string(study_.set.calls_without_kernel) +
           " collective calls have no recorded kernel (CUDA graphs recorded as a whole, or dropped records): "
           "not in the times");
    if (study_.steps.source == StepSource::kWindow)
      warn("no steps were found: the whole recording counts as one; name them with --step");
    if (out_.evidence == Evidence::kModelled)
      warn("no cost table was given: Echo's times are modelled; measure them with `echo-tp bench`");
    if (out_.evidence == Evidence::kExtrapolated)
      warn("some sizes or numbers of ranks lie outside the cost table: extrapolated");
    for (const std::string& text : study_.clocks.warnings) warn(text);
    for (const MessageClass& it : classes_) {
      const auto dtype = compressible_type(it.dtype);
      if (!dtype || !is_all_reduce(it.function) || it.median_transfer_ns <= 0 || it.bytes <= 0) continue;
      const auto table = model_.table_nccl_ns(*dtype, it.ranks, it.bytes);
      if (!table) continue;
      const double ratio = it.median_transfer_ns / *table;
      if (ratio > kTableDiffers || ratio < 1 / kTableDiffers)
        warn("NCCL took " + factor(ratio) + " the time of the cost table at " + format_bytes(it.bytes) +
             ": the table may be of another link or load");
    }
    for (const BypassEstimate& bypass : out_.bypass) warn(bypass_text(bypass));
  }

  static std::string bypass_text(const BypassEstimate& bypass) {
    return std::to_string(bypass.calls) + " kernels " + bypass.kernel + " (" + bypass.framework +
           ") bypass NCCL; to let Echo see them: " + bypass.how_to_switch_off +
           " (this changes performance by itself)";
  }

  void because(const char* code, std::string text) { out_.reasons.push_back({code, std::move(text)}); }

  void fill_reasons() {
    if (out_.gain.mid >= kNoGain) return;
    std::int64_t all_reduces = 0, eligible = 0, chosen = 0, many_ranks = 0, largest = 0;
    std::set<std::string> refused;
    for (std::size_t i = 0; i < verdicts_.size(); ++i) {
      const Collective& collective = study_.set.collectives[i];
      if (!is_all_reduce(call_of(collective).function)) continue;
      ++all_reduces;
      many_ranks += ranks_of(trace_, study_.set, collective) != 1 ? 1 : 0;
      eligible += verdicts_[i].eligible ? 1 : 0;
      chosen += verdicts_[i].chosen ? 1 : 0;
      if (verdicts_[i].eligible) largest = std::max(largest, collective.bytes);
      if (!verdicts_[i].chosen) refused.insert(verdicts_[i].why_not);
    }
    for (const BypassEstimate& bypass : out_.bypass) because("bypass", bypass_text(bypass));
    if (all_reduces == 0 || many_ranks == 0) {
      const bool alone = many_ranks == 0 && (all_reduces > 0 || trace_.processes.size() < 2);
      if (alone && out_.bypass.empty()) {
        because("one_rank", "the job runs on one rank: nothing is exchanged");
      } else {
        because("no_nccl_all_reduce",
                trace_.calls.empty() ? "no collective was recorded" : "no all-reduce went through NCCL");
      }
      return;
    }
    if (chosen == 0 && eligible > 0) {
      std::int64_t from = kNeverBytes;
      for (const auto& [key, bytes] : thresholds_) from = std::min(from, bytes);
      if (model_.has_table() && thresholds_.empty()) {
        because("not_in_table",
                "the cost table says nothing of these data types and numbers of ranks: "
                "measure them with `echo-tp bench`");
      } else if (from != kNeverBytes && largest < from) {
        because("too_small", "messages are too small: at most " + format_bytes(largest) +
                                 ", Echo pays from " + format_bytes(from));
      } else if (!options_.policy && (model_.has_table() || from == kNeverBytes)) {
        because("does_not_pay", "Echo is not 10% faster than NCCL at these sizes on this link");
      }
    }
    if (chosen == 0) {
      for (const std::string& why : refused) {
        if (out_.reasons.size() < 8 && !why.empty() && (eligible == 0 || options_.policy))
          because("not_eligible", why);
      }
    }
    if (eligible > 0 && out_.exposed_transfer_us < (kNoGain - 1) * out_.before_us) {
      const bool host = !out_.critical_path.empty() && out_.critical_path.front().what == "host";
      because("hidden", std::string("the exchange is hidden behind ") + (host ? "the host" : "compute") +
                            ": even a free one would save only " +
                            percent(out_.exposed_transfer_us / out_.before_us) + " of the step");
    }
    if (out_.exposed_wait_us && *out_.exposed_wait_us > 0.1 * out_.before_us)
      because("stragglers", "waiting for the slowest rank costs " +
                                percent(*out_.exposed_wait_us / out_.before_us) +
                                " of the step, which compression can't shrink");
    if (out_.reasons.empty()) because("small", "the exchange is too small a part of the step");
  }

  void fill_assumptions() {
    out_.assumptions = {"host work takes the time that it took in the recording",
                        "kernels keep their durations, GPUs their clocks",
                        "a collective is a barrier and a transfer; only the transfer changes",
                        "shapes, batches and numbers of steps stay as they are"};
    if (out_.evidence)
      out_.assumptions.push_back(
          "the gain's interval spans the spread of the costs and 8 of 10 recorded steps, not what differs "
          "between runs");
    if (out_.steps.used >= kFewSteps && out_.steps.variation <= kVariesFrom)
      out_.assumptions.push_back("the recorded steps are typical (" + std::to_string(out_.steps.used) +
                                 " used, standard deviation / mean " + percent(out_.steps.variation) + ")");
    const bool unknown_op = std::any_of(classes_.begin(), classes_.end(), [](const MessageClass& it) {
      return is_all_reduce(it.function) && it.op.empty();
    });
    if (unknown_op) out_.assumptions.push_back("all-reduces whose operator was not recorded are sums");
    if (!model_.has_table() && out_.evidence)
      out_.assumptions.push_back("modelled: Echo moves " +
                                 percent(wire_share(options_.codec, DataType::kBf16)) +
                                 " of the bytes in the same share of the time, plus 30 us and 6 passes over "
                                 "the message at 2 TB/s; the "
                                 "interval goes from the payload alone to no gain");
  }

  const Trace& trace_;
  const EstimateOptions& options_;
  const Study& study_;
  CostModel model_;
  Estimate out_;
  std::vector<MessageClass> classes_;
  std::vector<Verdict> verdicts_;  // by collective
  std::map<std::pair<DataType, int>, std::int64_t> thresholds_;
  Scenario after_;
  bool pinned_ = false;
  bool host_matters_ = false;  // a faster host would raise the gain
};

}  // namespace

Result<Estimate> estimate(const Trace& trace, const EstimateOptions& options) {
  auto study = study_trace(trace, options.step_regex);
  if (!study) {
    Error error = study.error();
    if (error.where.empty()) error.where = options.profile_label;
    return error;
  }
  if (study->identity_error > kRefuseFrom) {
    return Error{ErrorCode::kInsufficient,
                 "replaying the recording unchanged gives a step of " +
                     std::to_string(std::llround(us(study->replayed_ns))) + " us, but " +
                     std::to_string(std::llround(us(study->steps.median_ns))) +
                     " us were measured: off by more than 10%, so no estimate is made",
                 options.profile_label};
  }
  const bool called = std::any_of(trace.calls.begin(), trace.calls.end(),
                                  [](const CollectiveCall& call) { return is_all_reduce(call.function); });
  const bool timed = std::any_of(
      study->set.collectives.begin(), study->set.collectives.end(), [&](const Collective& collective) {
        return is_all_reduce(trace.calls[collective.call].function) && step_of(*study, collective) >= 0;
      });
  const bool one_rank = std::all_of(trace.communicators.begin(), trace.communicators.end(),
                                    [](const Communicator& it) { return it.ranks == 1; });
  if (called && !timed && !one_rank) {
    return Error{ErrorCode::kInsufficient,
                 "all-reduces were called, but none of their kernels was recorded inside a step",
                 options.profile_label};
  }
  return Estimator(trace, options, *study).run();
}

}  // namespace echotp
