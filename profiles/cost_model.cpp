// SPDX-License-Identifier: Apache-2.0
// Echo's time from the cost table or from bounds.
#include "profiles/cost_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace echotp {
namespace {

// Widening of intervals for what was not measured: a judgement, not a measurement; documents say
// "extrapolated".
constexpr double kOtherSizeLow = 0.80, kOtherSizeHigh = 1.25;
constexpr double kOtherRanksLow = 0.70, kOtherRanksHigh = 1.40;

// The bounded model: cost that does not depend on the link. Assumed, hence "modelled".
constexpr double kModelFixed_ns = 30'000;  // launches of the staged transport's kernels and collectives
constexpr double kModelPasses = 6;         // times that a message crosses device memory
constexpr double kModelMemory_bytes_per_ns = 2000;  // 2 TB/s

constexpr const char* kTransports[] = {"p2p", "staged"};

bool is_transport(const std::string& name) {
  return std::find(std::begin(kTransports), std::end(kTransports), name) != std::end(kTransports);
}

double share_of_nccl(const CostAt& at) {
  return at.echo_us.median / at.nccl_us.median;
}

// bf16 and fp16 travel alike: either stands in for the other.
std::array<DataType, 2> alike(DataType dtype) {
  if (dtype == DataType::kFp32) return {dtype, dtype};
  return {dtype, dtype == DataType::kBf16 ? DataType::kFp16 : DataType::kBf16};
}

}  // namespace

const char* evidence_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::kMeasured:
      return "measured";
    case Evidence::kExtrapolated:
      return "extrapolated";
    case Evidence::kModelled:
      return "modelled";
  }
  return "modelled";
}

double wire_share(const Codec& codec, DataType dtype) {
  return (codec.bits + 16.0 / codec.group) / (8.0 * element_bytes(dtype));
}

CostModel::CostModel(const CostTable* costs, const Codec& codec, const Compensation& compensation)
    : costs_(costs), codec_(codec), compensation_(compensation) {}

std::optional<int> CostModel::nearest_ranks(DataType dtype, int ranks) const {
  std::optional<int> best;
  const auto distance = [&](int other) { return std::abs(std::log2(other) - std::log2(ranks)); };
  for (const CostEntry& entry : costs_->entries) {
    const bool usable = is_transport(entry.transport) && entry.nccl_us && entry.echo_us && entry.ranks > 1 &&
                        (entry.dtype == alike(dtype)[0] || entry.dtype == alike(dtype)[1]);
    if (usable && (!best || distance(entry.ranks) < distance(*best))) best = entry.ranks;
  }
  return best;
}

const std::optional<CostModel::Measured>& CostModel::measured(DataType dtype, int ranks, std::int64_t bytes) {
  const auto [place, fresh] = known_.try_emplace({dtype, ranks, bytes}, std::nullopt);
  if (!fresh) return place->second;
  const std::optional<int> nearest = nearest_ranks(dtype, ranks);
  if (!nearest) return place->second;
  // Transport "auto" takes the faster one.
  for (const char* transport : kTransports) {
    const auto at = closest(transport, dtype, *nearest, bytes);
    if (at && (!place->second || share_of_nccl(*at) < share_of_nccl(place->second->at)))
      place->second = Measured{*at, *nearest != ranks};
  }
  return place->second;
}

std::optional<CostAt> CostModel::closest(const char* transport, DataType dtype, int ranks,
                                         std::int64_t bytes) const {
  // What changes the time most is given up last: the mode, then the type for one that travels alike, then the
  // format of the estimates and the codec.
  for (const bool same_mode : {true, false}) {
    for (const DataType type : alike(dtype)) {
      for (const bool same_state : {true, false}) {
        for (const bool same_codec : {true, false}) {
          CostQuery query;
          query.ranks = ranks;
          query.transport = transport;
          query.dtype = type;
          if (same_mode) query.compensation = compensation_.mode;
          if (same_state) query.state = compensation_.state;
          if (same_codec) {
            query.group = codec_.group;
            query.bits = codec_.bits;
            query.first_leg_bits = codec_.first_leg_bits;
          }
          if (const auto at = cost_at(*costs_, query, bytes)) return at;
        }
      }
    }
  }
  return std::nullopt;
}

std::optional<EchoTime> CostModel::echo_time(DataType dtype, int ranks, std::int64_t bytes, double nccl_ns) {
  if (bytes <= 0 || ranks < 2 || !(nccl_ns > 0)) return std::nullopt;
  EchoTime out;
  if (!has_table()) {
    const double wire = nccl_ns * wire_share(codec_, dtype);
    const double fixed =
        kModelFixed_ns + kModelPasses * static_cast<double>(bytes) / kModelMemory_bytes_per_ns;
    out.ns = {wire, std::min(nccl_ns, wire + fixed), nccl_ns};
    return out;
  }
  const std::optional<Measured>& found = measured(dtype, ranks, bytes);
  if (!found) return std::nullopt;
  const CostSpread &nccl = found->at.nccl_us, &echo = found->at.echo_us;
  const double fast = echo.p10.value_or(echo.median), slow = echo.p90.value_or(echo.median);
  out.ns.mid = nccl_ns * (echo.median / nccl.median);
  out.ns.low = nccl_ns * (fast / nccl.median);
  out.ns.high = nccl_ns * (slow / nccl.median);
  out.evidence = found->at.extrapolated || found->other_ranks ? Evidence::kExtrapolated : Evidence::kMeasured;
  if (found->other_ranks) {
    out.ns.low *= kOtherRanksLow;
    out.ns.high *= kOtherRanksHigh;
  } else {
    out.ns.low = std::min(out.ns.low, fast * 1000);
    out.ns.high = std::max(out.ns.high, slow * 1000);
  }
  if (found->at.extrapolated) {
    out.ns.low *= kOtherSizeLow;
    out.ns.high *= kOtherSizeHigh;
  }
  out.ns.low = std::min(out.ns.low, out.ns.mid);
  out.ns.high = std::max(out.ns.high, out.ns.mid);
  return out;
}

std::optional<std::int64_t> CostModel::min_bytes(DataType dtype, int ranks) const {
  if (!has_table()) return std::nullopt;
  const std::optional<int> nearest = nearest_ranks(dtype, ranks);
  if (!nearest) return std::nullopt;
  ThresholdQuery query;
  query.min_ranks = query.max_ranks = *nearest;
  query.dtypes = {alike(dtype)[0], alike(dtype)[1]};
  query.codec = codec_;
  query.compensation = compensation_.mode;
  query.transports.assign(std::begin(kTransports), std::end(kTransports));
  return auto_min_bytes(*costs_, query);
}

std::optional<double> CostModel::table_nccl_ns(DataType dtype, int ranks, std::int64_t bytes) {
  if (!has_table()) return std::nullopt;
  const std::optional<Measured>& found = measured(dtype, ranks, bytes);
  if (!found || found->other_ranks || found->at.extrapolated) return std::nullopt;
  return found->at.nccl_us.median * 1000;
}

}  // namespace echotp
