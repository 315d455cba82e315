// SPDX-License-Identifier: Apache-2.0
// The estimate as a document.
#include "profiles/estimate.hpp"
#include "profiles/json_values.hpp"
#include "shim/policy_json.hpp"

namespace echotp {
namespace {

Json interval(const Interval3& value, int digits) {
  return Json{{"low", rounded(value.low, digits)},
              {"mid", rounded(value.mid, digits)},
              {"high", rounded(value.high, digits)}};
}

Json evidence(const std::optional<Evidence>& value) {
  return value ? Json(evidence_name(*value)) : Json(nullptr);
}

Json class_json(const ClassEstimate& row) {
  return Json{{"function", row.function},
              {"dtype", known(row.dtype)},
              {"op", known(row.op)},
              {"bytes", known(row.bytes, 0)},
              {"min_bytes", known(row.min_bytes, 0)},
              {"communicator", known(row.communicator, 0)},
              {"ranks", known(row.ranks, 1)},
              {"calls_per_step", rounded(row.calls_per_step)},
              {"total_us", rounded(row.total_us)},
              {"wait_us", rounded(row.wait_us)},
              {"transfer_us", rounded(row.transfer_us)},
              {"exposed_us", rounded(row.exposed_us)},
              {"exposed_critical_us", rounded(row.exposed_critical_us)},
              {"share_of_step", rounded(row.share_of_step, 6)},
              {"nccl_us", row.nccl_us > 0 ? rounded(row.nccl_us) : Json(nullptr)},
              {"echo_us", row.echo_us ? interval(*row.echo_us, 3) : Json(nullptr)},
              {"evidence", evidence(row.evidence)},
              {"compressed", row.compressed},
              {"why_not", known(row.why_not)},
              {"contribution_us", rounded(row.contribution_us)}};
}

Json quality_json(const EstimateQuality& quality) {
  return Json{{"identity_error", rounded(quality.identity_error, 6)},
              {"residual_share", rounded(quality.residual_share, 6)},
              {"host_coverage", rounded(quality.host_coverage, 6)},
              {"dropped_records", quality.dropped_records},
              {"truncated_frames", quality.truncated_frames},
              {"invalid_ops", quality.invalid_ops},
              {"imputed_ops", quality.imputed_ops},
              {"contradicted_edges", quality.contradicted_edges},
              {"inferred_edges", quality.inferred_edges},
              {"collectives", quality.collectives},
              {"partial_collectives", quality.partial_collectives},
              {"recorded_ranks", quality.recorded_ranks},
              {"expected_ranks", known(quality.expected_ranks, 1)},
              {"tiers", quality.tiers},
              {"traced_ratio", rounded(quality.traced_ratio, 6)},
              {"max_clock_offset_us", rounded(quality.max_clock_offset_us)}};
}

}  // namespace

std::string estimate_json(const Estimate& estimate) {
  Json out;
  out["schema"] = "echo-tp/estimate/1";
  out["generator"] = generator();
  out["inputs"] = Json{{"profile", known(estimate.profile_label)}, {"costs", known(estimate.costs_label)}};
  out["steps"] = Json{{"source", estimate.steps.source},
                      {"name", known(estimate.steps.name)},
                      {"found", estimate.steps.found},
                      {"used", estimate.steps.used},
                      {"measured_us", rounded(estimate.steps.measured_us)},
                      {"variation", rounded(estimate.steps.variation, 6)}};
  out["result"] = Json{{"before_us", rounded(estimate.before_us)},
                       {"replayed_us", rounded(estimate.replayed_us)},
                       {"after_us", interval(estimate.after_us, 3)},
                       {"gain", interval(estimate.gain, 6)},
                       {"zero_us", rounded(estimate.zero_us)},
                       {"zero_low_us", rounded(estimate.zero_low_us)},
                       {"nowait_us", rounded(estimate.nowait_us)},
                       {"exposed_transfer_us", rounded(estimate.exposed_transfer_us)},
                       {"exposed_wait_us", rounded(estimate.exposed_wait_us)},
                       {"evidence", evidence(estimate.evidence)}};
  out["reasons"] = Json::array();
  for (const NoGainReason& reason : estimate.reasons)
    out["reasons"].push_back(Json{{"code", reason.code}, {"text", reason.text}});
  out["bound"] = known(estimate.bound);
  out["critical_path"] = Json::array();
  for (const CriticalShare& share : estimate.critical_path)
    out["critical_path"].push_back(Json{{"what", share.what}, {"share", rounded(share.share, 6)}});
  out["classes"] = Json::array();
  for (const ClassEstimate& row : estimate.classes) out["classes"].push_back(class_json(row));
  out["communicators"] = Json::array();
  for (const CommunicatorEstimate& row : estimate.communicators) {
    out["communicators"].push_back(Json{{"hash", row.hash},
                                        {"name", known(row.name)},
                                        {"ranks", known(row.ranks, 1)},
                                        {"recorded_ranks", row.recorded_ranks},
                                        {"calls_per_step", rounded(row.calls_per_step)},
                                        {"total_us", rounded(row.total_us)},
                                        {"exposed_us", rounded(row.exposed_us)},
                                        {"transfer_us", rounded(row.transfer_us)}});
  }
  out["bypass"] = Json::array();
  for (const BypassEstimate& row : estimate.bypass) {
    out["bypass"].push_back(Json{{"kernel", row.kernel},
                                 {"framework", row.framework},
                                 {"how_to_switch_off", row.how_to_switch_off},
                                 {"calls", row.calls},
                                 {"total_us", rounded(row.total_us)}});
  }
  // The policy's own writer, so that what is proposed here is what --policy-out writes.
  out["policy"] = Json::parse(policy_json(estimate.policy), nullptr, false);
  out["quality"] = quality_json(estimate.quality);
  out["assumptions"] = estimate.assumptions;
  out["warnings"] = estimate.warnings;
  return text_of(out);
}

}  // namespace echotp
