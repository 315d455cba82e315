// SPDX-License-Identifier: Apache-2.0
// COST MODEL: how long an all-reduce would take with Echo, given how long NCCL's transfer took in the job.
// From a measured cost table by the ratio Echo / NCCL at that size; without a table from bounds. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "kernels/types.hpp"
#include "shim/costs.hpp"

namespace echotp {

/// Three values in rising order; mid is the central one.
struct Interval3 {
  double low = 0;
  double mid = 0;
  double high = 0;
};

/// Where a replacement time comes from, best first.
enum class Evidence : std::uint8_t { kMeasured, kExtrapolated, kModelled };

/// "measured", "extrapolated", "modelled".
const char* evidence_name(Evidence evidence);

/// Time of one call with Echo.
struct EchoTime {
  Interval3 ns;
  Evidence evidence = Evidence::kModelled;
};

/// Bytes on the wire over bytes of the message: 4.5 / 16 for 4 bits in groups of 32 and bf16.
double wire_share(const Codec& codec, DataType dtype);

class CostModel {
 public:
  /// `costs` may be null: the bounded model. It must outlive this object.
  CostModel(const CostTable* costs, const Codec& codec, const Compensation& compensation);

  /// Time with Echo of a call whose transfer took `nccl_ns` > 0 with NCCL. Nothing if the table has no entry
  /// that says anything of this data type. The central value is nccl_ns times the table's ratio; the interval
  /// also spans the table's absolute times and the spread of its samples. Of two transports the faster one
  /// counts. Sizes or numbers of ranks outside the table are kExtrapolated and widen the interval. Without a
  /// table: between what the payload alone allows and no gain at all.
  std::optional<EchoTime> echo_time(DataType dtype, int ranks, std::int64_t bytes, double nccl_ns);

  /// Smallest size from which Echo is at least 10% faster at all larger sizes, by the table at `ranks`, or at
  /// the nearest number of ranks that it has. kNeverBytes: it never is. Nothing without a table or entry.
  std::optional<std::int64_t> min_bytes(DataType dtype, int ranks) const;

  /// NCCL's time in the table in nanoseconds, for comparison with the job; nothing if it is not in there.
  std::optional<double> table_nccl_ns(DataType dtype, int ranks, std::int64_t bytes);

  bool has_table() const { return costs_ != nullptr; }

 private:
  struct Measured {
    CostAt at;
    bool other_ranks = false;
  };
  const std::optional<Measured>& measured(DataType dtype, int ranks, std::int64_t bytes);
  std::optional<int> nearest_ranks(DataType dtype, int ranks) const;
  /// Time by the entries of one transport that are most like the question.
  std::optional<CostAt> closest(const char* transport, DataType dtype, int ranks, std::int64_t bytes) const;

  const CostTable* costs_;
  Codec codec_;
  Compensation compensation_;
  std::map<std::tuple<DataType, int, std::int64_t>, std::optional<Measured>> known_;
};

}  // namespace echotp
