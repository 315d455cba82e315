// SPDX-License-Identifier: Apache-2.0
#include "shim/p2p_setup.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "shim/setup.hpp"

namespace echotp {

namespace {

/// A step may take this long: less than the vote after it waits, so that a rank that waited for a dead peer
/// until the end can still say so.
double step_timeout(double timeout_s) {
  return std::min(20.0, timeout_s / 4);
}

std::string text_of(std::span<const char> field) {
  return std::string(field.data(), strnlen(field.data(), field.size()));
}

Error no(std::string why) {
  return {ErrorCode::kSystem, std::move(why), ""};
}

/// The steps of one communicator.
class Steps {
 public:
  Steps(P2pRank& rank, const Gather& gather, int ranks, double timeout_s)
      : rank_(rank),
        gather_(gather),
        timeout_s_(step_timeout(timeout_s)),
        records_(static_cast<std::size_t>(ranks)) {}

  Result<P2pOutcome> run(const P2pNeeds& needs) {
    const std::optional<P2pWay> way = find_way(needs);
    if (broken_) return *broken_;
    rank_.settle(way.has_value());
    return P2pOutcome{way, why_not_};
  }

 private:
  std::optional<P2pWay> find_way(const P2pNeeds& needs) {
    if (!vote(rank_.offer(needs, mine_))) return std::nullopt;
    const Result<P2pTerms> terms = agree_on_terms(records_, needs.bits);
    if (!terms) return refuse(terms.error().what), std::nullopt;
    if (!vote(rank_.connect(*terms, records_, timeout_s_))) return std::nullopt;
    for (const P2pWay way : kP2pWays) {
      if ((terms->ways >> static_cast<unsigned>(way) & 1) == 0) continue;
      label_ = std::string(p2p_way_name(way)) + ": ";
      if (try_way(way)) return way;
      if (broken_) return std::nullopt;
      rank_.close_windows();
      if (hopeless_) break;
    }
    exchange(Unit{});  // everybody has closed the windows of the others
    return std::nullopt;
  }

  bool try_way(P2pWay way) {
    return vote(rank_.open_window(way, mine_)) && vote(rank_.import_windows(records_, timeout_s_)) &&
           vote(rank_.self_test(timeout_s_));
  }

  /// Gathers the records; false if the ranks can't talk.
  bool exchange(const Status& step) {
    mine_.step = ++step_;
    mine_.ok = static_cast<bool>(step);
    mine_.hopeless = !step && step.error().code == ErrorCode::kInsufficient;
    set_text(mine_.why_not, step ? "" : step.error().text());
    const std::span<const P2pRecord> one(&mine_, 1);
    if (Status talked = gather_(std::as_bytes(one), std::as_writable_bytes(std::span(records_))); !talked) {
      broken_ = talked.error();
      return false;
    }
    return true;
  }

  /// One exchange: true if the step went well everywhere.
  bool vote(const Status& step) {
    if (!exchange(step)) return false;
    const auto why = first_no(records_, step_);
    if (!why) return true;
    hopeless_ = std::any_of(records_.begin(), records_.end(),
                            [](const P2pRecord& record) { return record.ok == 0 && record.hopeless != 0; });
    refuse(*why);
    return false;
  }

  void refuse(const std::string& why) { why_not_ += (why_not_.empty() ? "" : "; ") + label_ + why; }

  P2pRank& rank_;
  const Gather& gather_;
  double timeout_s_;
  std::vector<P2pRecord> records_;
  P2pRecord mine_;
  std::uint32_t step_ = 0;
  std::string label_;
  std::string why_not_;
  bool hopeless_ = false;
  std::optional<Error> broken_;
};

}  // namespace

const char* p2p_way_name(P2pWay way) noexcept {
  return way == P2pWay::kVmm ? "vmm" : "ipc";
}

P2pNeeds p2p_needs(const Policy& policy, int ranks, std::string_view name) {
  P2pNeeds needs;
  if (ranks < 2 || ranks > kFusedMaxRanks) return needs;
  for (const PolicyRule& rule : policy.rules) {
    const PolicyMatch& match = rule.match;
    if (!allows_p2p(rule) || ranks < match.min_ranks || ranks > match.max_ranks ||
        match.p2p_min_bytes.value_or(match.min_bytes) == std::numeric_limits<std::int64_t>::max() ||
        (!match.communicator_name.empty() && !glob_matches(match.communicator_name, name)))
      continue;
    needs.wanted = true;
    needs.asked_for |= rule.transport == TransportChoice::kP2p;
    needs.bits = std::max(needs.bits, widest_bits(rule));
    if (rule.max_ctas) needs.max_ctas = std::min(*rule.max_ctas, needs.max_ctas.value_or(*rule.max_ctas));
  }
  return needs;
}

std::optional<std::string> first_no(std::span<const P2pRecord> records, std::uint32_t step) {
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const P2pRecord& record = records[rank];
    const std::string who = "rank " + std::to_string(rank);
    if (record.magic != P2pRecord::kMagic || record.step != step)
      return who + " is at another step of the set-up";
    if (record.ok == 0) return who + ": " + text_of(record.why_not);
  }
  return std::nullopt;
}

Result<P2pTerms> agree_on_terms(std::span<const P2pRecord> records, int bits) {
  P2pTerms terms;
  terms.layout.ranks = static_cast<int>(records.size());
  terms.layout.bits = bits;
  terms.layout.ctas = std::numeric_limits<int>::max();
  terms.ways = ~0u;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const P2pRecord& record = records[rank];
    if (record.boot != records[0].boot)
      return no("rank " + std::to_string(rank) + " is on another host than rank 0");
    terms.ways &= record.ways;
    const auto on_gpu = std::count_if(records.begin(), records.end(), [&](const P2pRecord& other) {
      return std::memcmp(other.gpu_uuid, record.gpu_uuid, sizeof record.gpu_uuid) == 0;
    });
    terms.same_gpu |= on_gpu > 1;
    // Ranks that share a GPU wait for each other there, so all their kernels have to fit at the same time,
    // and beside them whatever else of the job spins on an SM, such as a collective on another stream.
    const int shared = on_gpu > 1 ? record.resident_ctas * 7 / 8 : record.resident_ctas;
    terms.layout.ctas = std::min({terms.layout.ctas, record.most_ctas,
                                  shared / static_cast<int>(std::max<std::ptrdiff_t>(on_gpu, 1))});
    if (terms.layout.ctas < 1)
      return no("the GPU of rank " + std::to_string(rank) + " can't run a kernel of each of its " +
                std::to_string(on_gpu) + " ranks at the same time");
  }
  if ((terms.ways & 3u) == 0) return no("the ranks allow no common way of sharing memory");
  return terms;
}

Result<P2pOutcome> set_up_p2p(P2pRank& rank, const Gather& gather, const P2pNeeds& needs, int ranks,
                              double timeout_s) {
  return Steps(rank, gather, ranks, timeout_s).run(needs);
}

}  // namespace echotp
