// SPDX-License-Identifier: Apache-2.0
// The table of a profile.
#include "profiles/summary.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "profiles/study.hpp"
#include "synthetic_trace.hpp"

namespace echotp {
namespace {

using test::overlapped_job;
using test::serial_job;

bool notes(const ProfileSummary& it, const std::string& part) {
  return std::any_of(it.notes.begin(), it.notes.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

TEST_CASE("a serial job's exchange is exposed whole; an overlapped one's is not") {
  auto serial = serial_job({.ranks = 2, .layers = 10, .steps = 8, .jitter = 0.2});
  const ProfileSummary it = summarise(serial.trace());
  REQUIRE(it.rows.size() == 1);
  const SummaryRow& row = it.rows[0];
  CHECK(row.function == "AllReduce");
  CHECK(row.bytes == 16 << 20);
  CHECK(row.ranks == 2);
  CHECK(row.calls == 80);  // each once, not once a rank
  CHECK(row.unseen == 0);
  CHECK(*row.transfer_us == doctest::Approx(80 * 80).epsilon(0.01));
  CHECK(*row.wait_us > 80 * 2);
  CHECK(*row.total_us == doctest::Approx(*row.wait_us + *row.transfer_us).epsilon(0.01));
  CHECK(*row.exposed_us == doctest::Approx(*row.total_us));
  CHECK(*row.exposed_critical_us == doctest::Approx(80 * 80).epsilon(0.03));
  CHECK(*it.step_us == doctest::Approx(serial.truth_us()).epsilon(0.01));
  CHECK(*row.share_of_step == doctest::Approx(*row.total_us / 8 / *it.step_us).epsilon(0.03));
  CHECK(it.steps_found == 8);

  auto overlapped = overlapped_job({.ranks = 2, .layers = 10}, [](int, int) { return 60.0; });
  const ProfileSummary beside = summarise(overlapped.trace());
  CHECK(*beside.rows[0].exposed_us < 0.4 * *beside.rows[0].total_us);
}

TEST_CASE("no device times: calls are counted, times are unset") {
  auto job = serial_job({.ranks = 2, .layers = 3, .steps = 4});
  Trace& trace = job.trace();
  trace.device_ops.clear();
  for (CollectiveCall& call : trace.calls) call.ops.clear();
  trace.processes[1].notes = {"CUPTI is in use by \"other\""};
  trace.processes[1].complete = false;
  const ProfileSummary it = summarise(trace);
  REQUIRE(it.rows.size() == 1);
  CHECK(it.rows[0].calls == 12);
  CHECK(it.rows[0].unseen == 12);
  CHECK_FALSE(it.rows[0].total_us.has_value());
  CHECK_FALSE(it.step_us.has_value());
  CHECK(it.processes[1].notes.size() == 2);
  const auto document = nlohmann::json::parse(summary_json(it));
  CHECK(document["schema"] == "echo-tp/summary/1");
  CHECK(document["rows"][0]["total_us"].is_null());
  CHECK(document["rows"][0]["bytes"] == 16 << 20);
}

TEST_CASE("an empty profile, a profile without NCCL, missing ranks") {
  CHECK(notes(summarise(Trace{}), "no process"));
  auto job = serial_job({.ranks = 2});
  Trace none = job.trace();
  none.calls.clear();
  for (DeviceOp& op : none.device_ops) op.call = -1;
  const ProfileSummary without = summarise(none);
  CHECK(notes(without, "no collective went through NCCL"));
  CHECK(without.rows.empty());
  Trace part = job.trace();
  part.communicators[0].ranks = 8;
  const ProfileSummary missing = summarise(part);
  CHECK(notes(missing, "2 of 8 ranks"));
  CHECK_FALSE(missing.rows[0].wait_us.has_value());
  CHECK(missing.partial_collectives == missing.collectives);
}

TEST_CASE("indices that point outside of the profile are an error, never a crash") {
  for (int which = 0; which < 5; ++which) {
    auto job = serial_job({.ranks = 2, .layers = 2, .steps = 2});
    Trace& trace = job.trace();
    if (which == 0) trace.device_ops[3].process = 2;
    if (which == 1) trace.device_ops[3].name = 99;
    if (which == 2) trace.calls[1].ops = {-1};
    if (which == 3) trace.calls[1].communicator = 1;
    if (which == 4) trace.ranges[0].process = -1;
    CAPTURE(which);
    CHECK(notes(summarise(trace), "inconsistent"));
    CHECK_FALSE(check_trace(trace));
  }
}

TEST_CASE("many sizes are pooled, and nothing is lost") {
  test::SyntheticJob job(2);
  for (int i = 0; i < 200; ++i) {
    job.kernel(7, "gemm", [](int) { return 10.0; });
    job.collective(7, "AllReduce", 1000 + 16 * i, 20);
  }
  const ProfileSummary it = summarise(job.trace());
  CHECK(it.rows.size() < 10);
  std::int64_t calls = 0;
  for (const SummaryRow& row : it.rows) {
    calls += row.calls;
    CHECK(row.min_bytes <= row.bytes);
  }
  CHECK(calls == 200);
}

}  // namespace
}  // namespace echotp
