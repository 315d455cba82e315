// SPDX-License-Identifier: Apache-2.0
#include "shim/pass_tracker.hpp"

#include <doctest/doctest.h>

using namespace echotp;

TEST_CASE("passes: forward and backward threads have separate passes, and each switch opens one") {
  PassTracker tracker;
  const PassRule rule;
  const auto place = [&](std::uint64_t thread) {
    return tracker.place(rule, thread, 100, DataType::kBf16, 0);
  };
  CHECK(place(1).pass_start);
  CHECK_FALSE(place(1).pass_start);
  PassPosition backward = place(2);
  CHECK(backward.direction == 1);
  CHECK(backward.pass_start);
  CHECK_FALSE(place(2).pass_start);
  PassPosition forward = place(1);  // the next step
  CHECK(forward.direction == 0);
  CHECK(forward.pass_start);
  CHECK(tracker.passes() == 3);
}

TEST_CASE("passes: direction none keeps one state whoever calls") {
  PassTracker tracker;
  PassRule rule;
  rule.direction = DirectionSource::kNone;
  CHECK(tracker.place(rule, 1, 100, DataType::kBf16, 0).pass_start);
  const PassPosition second = tracker.place(rule, 2, 100, DataType::kBf16, 0);
  CHECK(second.direction == 0);
  CHECK_FALSE(second.pass_start);
}

TEST_CASE("passes: a change of count, type or capture opens a pass") {
  PassTracker tracker;
  const PassRule rule;
  CHECK(tracker.place(rule, 1, 100, DataType::kBf16, 0).pass_start);
  CHECK(tracker.place(rule, 1, 101, DataType::kBf16, 0).pass_start);
  CHECK(tracker.place(rule, 1, 101, DataType::kFp16, 0).pass_start);
  CHECK(tracker.place(rule, 1, 101, DataType::kFp16, 9).pass_start);
  CHECK_FALSE(tracker.place(rule, 1, 101, DataType::kFp16, 9).pass_start);
  CHECK(tracker.place(rule, 1, 101, DataType::kFp16, 0).pass_start);
}

TEST_CASE("passes: the last call is counted by what all ranks see alike") {
  PassTracker tracker;
  PassRule rule;
  const auto last = [&](std::uint64_t thread, std::int64_t count, std::uint64_t capture) {
    return tracker.place(rule, thread, count, DataType::kBf16, capture).last_call;
  };
  CHECK_FALSE(last(1, 100, 0));  // calls unknown
  rule.calls = 3;
  rule.resync = {"all_gather", "send"};
  tracker.other_collective(rule, "all_gather");
  CHECK_FALSE(last(1, 100, 0));
  CHECK_FALSE(last(2, 100, 5));  // neither the thread nor the capture counts: ranks may differ in them
  CHECK(last(1, 100, 0));
  CHECK_FALSE(last(1, 100, 0));
  CHECK_FALSE(last(1, 100, 0));
  tracker.other_collective(rule, "send");  // some ranks only
  CHECK(last(1, 100, 0));
  CHECK_FALSE(last(1, 100, 0));
  CHECK_FALSE(last(1, 200, 0));  // another size is another pass
  CHECK_FALSE(last(1, 200, 0));
  CHECK(last(1, 200, 0));
  rule.calls = 1;
  CHECK(last(1, 200, 0));
}
