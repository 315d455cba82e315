// SPDX-License-Identifier: Apache-2.0
// The plan of a fuzz run: that it is the same for the same seed, exact in every type, and draws everything.
#include "tests/gpu/fuzz/fuzz_plan.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

using namespace echotp::fuzz;

namespace {
constexpr Limits kLimits{3, 3, 4096};

std::vector<Batch> draw_many(std::uint64_t seed, int count) {
  Random random(seed);
  std::vector<Batch> out;
  std::uint64_t id = 0;
  for (int i = 0; i < count; ++i) {
    out.push_back(draw(random, kLimits, id));
    id += out.back().calls.size();
  }
  return out;
}
}  // namespace

TEST_CASE("fuzz plan: the same seed draws the same calls, another seed others") {
  const auto text = [](std::uint64_t seed) {
    std::string all;
    for (const Batch& batch : draw_many(seed, 50))
      for (const Call& call : batch.calls) all += describe(call) + "\n";
    return all;
  };
  CHECK(text(7) == text(7));
  CHECK(text(7) != text(8));
}

TEST_CASE("fuzz plan: everything is drawn, groups are whole, a capture has one stream") {
  std::set<std::pair<Kind, Type>> kinds;
  std::set<std::pair<Op, Type>> ops;
  std::set<int> communicators, streams;
  int captured = 0, grouped = 0, empty = 0, resplit = 0;
  for (const Batch& batch : draw_many(1, 4000)) {
    REQUIRE_FALSE(batch.calls.empty());
    REQUIRE(batch.group_ends.back() == static_cast<int>(batch.calls.size()));
    int begin = 0;
    for (const int end : batch.group_ends) {
      CHECK(end > begin);
      grouped += end - begin > 1;
      begin = end;
    }
    captured += batch.captured;
    resplit += batch.resplit;
    for (const Call& call : batch.calls) {
      kinds.insert({call.kind, call.type});
      if (call.kind == Kind::kAllReduce) ops.insert({call.op, call.type});
      communicators.insert(call.communicator);
      streams.insert(call.stream);
      empty += call.count == 0;
      CHECK(call.count * bytes_of(call.type) <= kLimits.most_bytes);
      if (batch.captured) CHECK(call.stream == batch.calls[0].stream);
    }
  }
  CHECK(kinds.size() == 6 * 10);
  CHECK(ops.size() == 4 * 10 + 2 * 4);  // average and pre-multiplied: floating point alone
  CHECK(communicators.size() == 3);
  CHECK(streams.size() == 3);
  CHECK(captured > 0);
  CHECK(grouped > 0);
  CHECK(empty > 0);
  CHECK(resplit > 0);
}

TEST_CASE("fuzz plan: every input and every result is exact in its type, whatever the order of summation") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const Batch& batch : draw_many(static_cast<std::uint64_t>(ranks), 300)) {
      for (Call call : batch.calls) {
        if (call.op == Op::kAvg && ranks == 3) continue;
        call.count = std::min<std::size_t>(call.count, 64);
        alignas(8) char buffer[8];
        const auto exact = [&](double value) {
          store(call.type, buffer, 0, value);
          return load(call.type, buffer, 0) == value;
        };
        double sum_of_sizes = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          for (std::size_t i = 0; i < send_count(call, ranks); ++i) {
            const int value = input(call, 1, rank, i, ranks);
            CHECK(exact(value));
            CHECK(std::abs(value) <= 8);
            if (i == 0) sum_of_sizes += std::abs(value);
          }
          for (std::size_t i = 0; i < receive_count(call, ranks); ++i) {
            double want = 0;
            if (!expected(call, 1, rank, i, ranks, want)) break;
            CAPTURE(describe(call));
            CHECK(exact(want));
          }
        }
        if (call.op == Op::kSum) CHECK(exact(sum_of_sizes));  // no partial sum is larger
      }
    }
  }
}

TEST_CASE("fuzz plan: inputs differ by rank, replay and call") {
  Call call;
  call.count = 1000;
  int by_rank = 0, by_replay = 0, by_id = 0;
  Call other = call;
  other.id = 1;
  for (std::size_t i = 0; i < call.count; ++i) {
    by_rank += input(call, 0, 0, i, 2) != input(call, 0, 1, i, 2);
    by_replay += input(call, 0, 0, i, 2) != input(call, 1, 0, i, 2);
    by_id += input(call, 0, 0, i, 2) != input(other, 0, 0, i, 2);
  }
  CHECK(by_rank > 800);
  CHECK(by_replay > 800);
  CHECK(by_id > 800);
}

TEST_CASE("fuzz plan: what may be compressed, and how wrong it may be") {
  Call call;
  call.count = 32768;
  CHECK(may_compress(call, 65536, 2));
  CHECK_FALSE(may_compress(call, 65537, 2));
  CHECK_FALSE(may_compress(call, 65536, 1));
  call.op = Op::kMax;
  CHECK_FALSE(may_compress(call, 65536, 2));
  call.op = Op::kSum;
  const Bound bound = bound_of(call, 4);
  CHECK(bound.largest < 4 * 8);  // less than the largest result: garbage is noticed
  CHECK(bound.rms < 2 * 4.9);    // less than the results themselves: sums of 4 uniform numbers of -8 to 8
  call.op = Op::kAvg;
  CHECK(bound_of(call, 4).largest == doctest::Approx(bound.largest / 4));
}
