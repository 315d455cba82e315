// SPDX-License-Identifier: Apache-2.0
// The votes of the peer transport: ranks as threads, who meet at a barrier for every exchange. Whatever fails
// wherever, all ranks must come to the same answer.
#include "shim/p2p_setup.hpp"

#include <doctest/doctest.h>

#include <barrier>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "shim/setup.hpp"

namespace {

using namespace echotp;

/// One thing that goes wrong.
struct Fault {
  int rank = -1;
  int step = 0;          // 1 offer, 2 connect, 3 window, 4 import, 5 test
  unsigned in_ways = 3;  // bit w: with P2pWay w
  bool hopeless = false;
};

class FakeRank final : public P2pRank {
 public:
  FakeRank(int rank, Fault fault) : rank_(rank), fault_(fault) {}
  Status offer(const P2pNeeds&, P2pRecord& mine) noexcept override {
    mine.ways = 3;
    mine.most_ctas = 64;
    mine.resident_ctas = 132;
    mine.gpu_uuid[0] = static_cast<std::uint8_t>(rank_);
    return step(1);
  }
  Status connect(const P2pTerms&, std::span<const P2pRecord>, double) noexcept override { return step(2); }
  Status open_window(P2pWay way, P2pRecord& mine) noexcept override {
    way_ = way;
    mine.window_bytes = 100 + rank_;
    return step(3);
  }
  Status import_windows(std::span<const P2pRecord> all, double) noexcept override {
    for (std::size_t peer = 0; peer < all.size(); ++peer)
      if (all[peer].window_bytes != 100 + static_cast<std::int64_t>(peer))
        return Error{ErrorCode::kSystem, "mixed up", ""};
    return step(4);
  }
  Status self_test(double) noexcept override { return step(5); }
  void settle(bool agreed) noexcept override { settled += agreed ? 1 : 100; }
  void close_windows() noexcept override { ++closed; }

  int settled = 0;
  int closed = 0;

 private:
  Status step(int which) const {
    if (rank_ != fault_.rank || which != fault_.step) return Unit{};
    if (which >= 3 && (fault_.in_ways >> static_cast<unsigned>(way_) & 1) == 0) return Unit{};
    return Error{fault_.hopeless ? ErrorCode::kInsufficient : ErrorCode::kSystem, "broken", ""};
  }
  int rank_;
  Fault fault_;
  P2pWay way_ = P2pWay::kVmm;
};

struct Run {
  std::vector<P2pOutcome> outcomes;
  std::vector<int> closed, settled;
};

Run run_ranks(int ranks, Fault fault) {
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<P2pRecord> wire(count);
  std::barrier meeting(ranks);
  Run run{std::vector<P2pOutcome>(count), std::vector<int>(count), std::vector<int>(count)};
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      FakeRank mine(static_cast<int>(rank), fault);
      const Gather gather = [&](std::span<const std::byte> one, std::span<std::byte> all) -> Status {
        std::memcpy(&wire[rank], one.data(), one.size());
        meeting.arrive_and_wait();
        std::memcpy(all.data(), wire.data(), all.size());
        meeting.arrive_and_wait();
        return Unit{};
      };
      P2pNeeds needs;
      needs.wanted = true;
      const auto outcome = set_up_p2p(mine, gather, needs, ranks, 10);
      if (outcome) run.outcomes[rank] = *outcome;
      run.closed[rank] = mine.closed;
      run.settled[rank] = mine.settled;
    });
  for (std::thread& thread : threads) thread.join();
  return run;
}

}  // namespace

TEST_CASE("p2p set-up: all ranks take the first way that works everywhere") {
  for (const int ranks : {2, 3, 8}) {
    const Run run = run_ranks(ranks, {});
    for (const P2pOutcome& outcome : run.outcomes) {
      CHECK(outcome.way == P2pWay::kVmm);
      CHECK(outcome.why_not.empty());
    }
  }
}

TEST_CASE("p2p set-up: whatever fails on one rank, all come to the same answer and know why") {
  for (const int ranks : {2, 3})
    for (int rank = 0; rank < ranks; ++rank)
      for (int step = 1; step <= 5; ++step)
        for (const unsigned in_ways : {1u, 2u, 3u})
          for (const bool hopeless : {false, true}) {
            const Run run = run_ranks(ranks, {rank, step, in_ways, hopeless});
            std::optional<P2pWay> expected;
            if (step >= 3 && (in_ways & 1) == 0) expected = P2pWay::kVmm;
            if (step >= 3 && in_ways == 1 && !hopeless) expected = P2pWay::kIpc;
            CAPTURE(rank);
            CAPTURE(step);
            CAPTURE(in_ways);
            CAPTURE(hopeless);
            for (std::size_t other = 0; other < run.outcomes.size(); ++other) {
              CHECK(run.outcomes[other].way == expected);
              CHECK(run.outcomes[other].why_not == run.outcomes[0].why_not);
              CHECK(run.closed[other] == run.closed[0]);
              CHECK(run.settled[other] == (expected ? 1 : 100));
            }
            if (expected != P2pWay::kVmm)
              CHECK(run.outcomes[0].why_not.find("rank " + std::to_string(rank) + ": broken") !=
                    std::string::npos);
          }
}

TEST_CASE("p2p set-up: terms follow from the records alone") {
  std::vector<P2pRecord> records(4);
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    records[rank].ways = 3;
    records[rank].most_ctas = 48;
    records[rank].resident_ctas = 132;
    records[rank].gpu_uuid[0] = static_cast<std::uint8_t>(rank);
  }
  const auto terms = [&] { return agree_on_terms(records, 8); };
  REQUIRE(terms());
  CHECK(terms()->layout == FusedLayout{4, 48, 8});
  CHECK(!terms()->same_gpu);
  records[2].most_ctas = 5;
  CHECK(terms()->layout.ctas == 5);
  records[2].most_ctas = 48;
  records[3].gpu_uuid[0] = 0;  // shares the GPU of rank 0
  CHECK(terms()->same_gpu);
  CHECK(terms()->layout.ctas == 48);
  records[0].resident_ctas = records[3].resident_ctas = 60;
  CHECK(terms()->layout.ctas == 26);  // an eighth of a GPU that ranks share is left to others
  records[3].resident_ctas = 1;
  REQUIRE(!terms());
  CHECK(terms().error().what.find("rank 3") != std::string::npos);
  records[3].resident_ctas = 60;
  records[1].ways = 1;
  CHECK((terms()->ways & 3) == 1);
  records[2].ways = 2;
  CHECK(!terms());
  records[2].ways = 3;
  records[1].boot = 99;
  REQUIRE(!terms());
  CHECK(terms().error().what.find("rank 1 is on another host") != std::string::npos);
}

TEST_CASE(
    "p2p set-up: the policy wants it for communicators that some rule fits, with the widest of their codes") {
  Policy policy;
  policy.rules.resize(3);
  policy.rules[0].match.communicator_name = "TP*";
  policy.rules[0].transport = TransportChoice::kP2p;
  policy.rules[0].max_ctas = 20;
  policy.rules[1].match.min_ranks = 4;
  policy.rules[1].max_ctas = 10;
  policy.rules[1].pass.last_call_bits = 8;
  policy.rules[2].transport = TransportChoice::kStaged;
  policy.rules[2].codec.bits = 8;
  const P2pNeeds tp2 = p2p_needs(policy, 2, "TP0");
  CHECK(tp2.wanted);
  CHECK(tp2.asked_for);
  CHECK(tp2.bits == 4);
  CHECK(tp2.max_ctas == 20);
  const P2pNeeds tp4 = p2p_needs(policy, 4, "TP0");
  CHECK(tp4.bits == 8);
  CHECK(tp4.max_ctas == 10);
  const P2pNeeds dp4 = p2p_needs(policy, 4, "DP");
  CHECK(dp4.wanted);
  CHECK(!dp4.asked_for);
  CHECK(!p2p_needs(policy, 2, "DP").wanted);
  CHECK(!p2p_needs(policy, 9, "TP0").wanted);
  policy.rules[1].match.min_bytes = std::numeric_limits<std::int64_t>::max();  // "auto" without gain
  CHECK(!p2p_needs(policy, 4, "DP").wanted);
}

TEST_CASE("p2p set-up: a rank at another step is not taken for one that agrees") {
  std::vector<P2pRecord> records(2);
  for (P2pRecord& record : records) {
    record.ok = 1;
    record.step = 7;
  }
  CHECK(!first_no(records, 7));
  records[1].step = 6;
  CHECK(first_no(records, 7));
  records[1].step = 7;
  records[1].magic = 0;
  CHECK(first_no(records, 7));
}
