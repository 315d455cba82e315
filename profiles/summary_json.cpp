// SPDX-License-Identifier: Apache-2.0
// The summary as a document.
#include "profiles/json_values.hpp"
#include "profiles/summary.hpp"

namespace echotp {

std::string summary_json(const ProfileSummary& summary) {
  Json out;
  out["schema"] = "echo-tp/summary/1";
  out["generator"] = generator();
  out["steps"] = Json{{"source", known(summary.step_source)},
                      {"found", summary.steps_found},
                      {"used", summary.steps_used},
                      {"step_us", rounded(summary.step_us)}};
  out["window_us"] = rounded(summary.window_us);
  out["collectives"] = summary.collectives;
  out["partial_collectives"] = summary.partial_collectives;
  out["rows"] = Json::array();
  for (const SummaryRow& row : summary.rows) {
    out["rows"].push_back(Json{{"function", row.function},
                               {"dtype", known(row.dtype)},
                               {"op", known(row.op)},
                               {"bytes", known(row.bytes, 0)},
                               {"min_bytes", known(row.min_bytes, 0)},
                               {"ranks", known(row.ranks, 1)},
                               {"calls", row.calls},
                               {"unseen", row.unseen},
                               {"total_us", rounded(row.total_us)},
                               {"wait_us", rounded(row.wait_us)},
                               {"transfer_us", rounded(row.transfer_us)},
                               {"exposed_us", rounded(row.exposed_us)},
                               {"exposed_critical_us", rounded(row.exposed_critical_us)},
                               {"share_of_step", rounded(row.share_of_step, 6)}});
  }
  out["processes"] = Json::array();
  for (const SummaryProcess& process : summary.processes) {
    out["processes"].push_back(Json{{"rank", known(process.rank, 0)},
                                    {"pid", known(process.pid, 0)},
                                    {"host", known(process.host)},
                                    {"gpu", known(process.gpu)},
                                    {"calls", process.calls},
                                    {"device_ops", process.device_ops},
                                    {"notes", process.notes}});
  }
  out["bypass"] = Json::array();
  for (const SummaryBypass& bypass : summary.bypass) {
    out["bypass"].push_back(Json{{"kernel", bypass.kernel},
                                 {"framework", bypass.framework},
                                 {"how_to_switch_off", bypass.how_to_switch_off},
                                 {"calls", bypass.calls},
                                 {"total_us", rounded(bypass.total_us)}});
  }
  out["notes"] = summary.notes;
  return text_of(out);
}

}  // namespace echotp
