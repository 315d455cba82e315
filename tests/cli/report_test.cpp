// SPDX-License-Identifier: Apache-2.0
// Texts and pages for people.
#include <doctest/doctest.h>

#include "cli/report_html.hpp"
#include "cli/report_text.hpp"

using namespace echotp;

namespace {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Estimate answer() {
  Estimate out;
  out.profile_label = "job.echoprof";
  out.steps = {"ranges", "step", 10, 8, 1000, 0.01};
  out.before_us = 1000;
  out.replayed_us = 1000;
  out.after_us = {500, 520, 560};
  out.gain = {1.79, 1.92, 2.0};
  out.zero_us = out.zero_low_us = 400;
  out.evidence = Evidence::kMeasured;
  ClassEstimate row;
  row.function = "AllReduce";
  row.dtype = "bf16";
  row.bytes = row.min_bytes = 4 << 20;
  row.compressed = true;
  out.classes.push_back(row);
  return out;
}

}  // namespace

TEST_CASE("html: the five characters are escaped, control characters are gone") {
  CHECK(html_escaped("<a href=\"x\">&'\033") == "&lt;a href=&quot;x&quot;&gt;&amp;&#39;?");
}

TEST_CASE("an estimate says its gain, its interval and where the numbers come from") {
  const std::string text = estimate_text(answer(), false);
  CHECK(holds(text, "1.92x (1.79x to 2.00x), predicted, from measured costs"));
  CHECK(holds(text, "with Echo"));
  const std::string page = estimate_html(answer());
  CHECK(holds(page, "1.92x"));
  CHECK(holds(page, "predicted, from measured costs"));
}

TEST_CASE("a free transfer is a limit only for the host as recorded, and both limits are shown") {
  Estimate estimate = answer();
  CHECK_FALSE(holds(estimate_text(estimate, false), "at its fastest"));
  estimate.zero_low_us = 300;
  for (const std::string& text : {estimate_text(estimate, false), estimate_html(estimate)}) {
    CHECK(holds(text, "the most, with the host as recorded; 300 us with the host at its fastest"));
    CHECK_FALSE(holds(text, "any compression"));
  }
}

TEST_CASE("the check of the replay is not sold as accuracy, and what is unexplained is said") {
  Estimate estimate = answer();
  estimate.quality.residual_share = 0.125;
  const std::string text = estimate_text(estimate, false), page = estimate_html(estimate);
  CHECK(holds(text, "proves nothing of the prediction; 12.5% of the recorded time"));
  CHECK(holds(page, "proves nothing of the prediction"));
  CHECK(holds(page, "12.5%"));
}

TEST_CASE("operators have their column") {
  Estimate estimate = answer();
  estimate.classes[0].op = "premul";
  CHECK(holds(estimate_text(estimate, false), "premul"));
  CHECK(holds(estimate_html(estimate), "premul"));
}

TEST_CASE("without any collective neither costs nor ranks are spoken of") {
  Estimate estimate = answer();
  estimate.evidence.reset();
  estimate.classes.clear();
  const std::string text = estimate_text(estimate, false);
  CHECK(holds(text, "no collective recorded"));
  for (const char* part : {"costs", "0 ranks", "transfer free"}) CHECK_FALSE(holds(text, part));
  CHECK_FALSE(holds(estimate_html(estimate), "costs"));
}

TEST_CASE("without costs it is said that they are modelled") {
  Estimate estimate = answer();
  estimate.evidence = Evidence::kModelled;
  CHECK(holds(estimate_text(estimate, false), "modelled, not measured"));
  CHECK(holds(estimate_html(estimate), "modelled, not measured"));
}

TEST_CASE("no gain has its reason and no step time with Echo") {
  Estimate estimate = answer();
  estimate.evidence.reset();
  estimate.reasons.push_back({"hidden", "the exchange is hidden behind compute"});
  const std::string text = estimate_text(estimate, false);
  CHECK_FALSE(holds(text, "with Echo"));
  CHECK(holds(text, "No gain, because\n  - the exchange is hidden behind compute"));
  CHECK(holds(estimate_html(estimate), "No gain"));
}

TEST_CASE("names of the job reach neither terminal nor page raw") {
  Estimate estimate = answer();
  estimate.profile_label = "<b>\033[2J";
  estimate.classes[0].why_not = "<i>\033";
  estimate.classes[0].compressed = false;
  estimate.warnings.push_back("<u>\033");
  CHECK_FALSE(holds(estimate_text(estimate, false), "\033"));
  const std::string page = estimate_html(estimate);
  for (const char* raw : {"\033", "<b>", "<i>", "<u>"}) CHECK_FALSE(holds(page, raw));
}

TEST_CASE("bandwidths are those of the uncompressed message") {
  CostTable table;
  CostEntry entry;
  entry.ranks = 4;
  entry.bytes = 1'000'000'000;
  entry.nccl_us = CostSpread{1e6, 0.9e6, 1.1e6, 20};  // 1 GB in 1 s
  entry.echo_us = CostSpread{0.5e6};
  table.entries.push_back(entry);
  const std::string text = costs_text(table);
  CHECK(holds(text, "2.00x"));
  // algbw 1 and 2 GB/s; busbw 2 * 3 / 4 of that.
  CHECK(holds(text, " 1           2         1.5           3"));
}

TEST_CASE("unequal results of the ranks stand out") {
  CostTable table;
  CostEntry entry;
  entry.bytes = 1024;
  entry.bytes_equal = false;
  table.entries.push_back(entry);
  CHECK(holds(costs_text(table), "NO"));
}
