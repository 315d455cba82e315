// SPDX-License-Identifier: Apache-2.0
// COSTS: the cost table that `bench` measured: NCCL against Echo by message size. Read by the policy
// (threshold "auto") and by estimate (time at a size). Pure but for reading the file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/types.hpp"
#include "shim/policy.hpp"
#include "shim/result.hpp"

namespace echotp {

/// One measured duration in microseconds. Unknown is unset.
struct CostSpread {
  double median = 0;  // > 0
  std::optional<double> p10 = {};
  std::optional<double> p90 = {};
  std::optional<std::int64_t> samples = {};
};

/// One message size on one number of ranks, by one candidate: transport, codec and compensation.
struct CostEntry {
  int ranks = 2;
  DataType dtype = DataType::kBf16;
  std::int64_t bytes = 0;  // of the message, > 0
  std::string transport = "staged";
  Codec codec = {};
  Compensation compensation;
  std::string background = "idle";                                 // what else used the link
  std::optional<double> background_nccl_gbs, background_echo_gbs;  // its rate beside the calls of each
  std::optional<CostSpread> nccl_us;
  std::optional<CostSpread> echo_us;
  std::optional<std::int64_t> wire_bytes;
  std::optional<bool> bytes_equal;     // all ranks held the same bytes
  std::optional<std::string> why_not;  // there is no time for Echo: the reason
};

/// Where the table was measured. Unknown is unset.
struct CostEnvironment {
  std::optional<std::string> gpu, driver, cuda, nccl, host, link;
  std::map<std::string, std::string> nccl_env;
};

struct CostTable {
  CostEnvironment environment;
  std::optional<std::string> background_path;  // between what the background moved its bytes
  std::optional<double> background_alone_gbs;  // its rate with no calls beside it
  std::vector<CostEntry> entries;
};

/// Reads a document of schema echo-tp/costs/1. Unknown keys are ignored.
Result<CostTable> read_costs(const std::string& path);
Result<CostTable> parse_costs(std::string_view text, const std::string& file_label);

/// Which entries a question is about. Unset: any.
struct CostQuery {
  int ranks = 2;
  std::string transport = "staged";
  std::optional<CompensationMode> compensation = {};
  std::optional<DataType> dtype = {};
  std::optional<int> group = {};  // of the codec
  std::optional<StateFormat> state = {};
  std::optional<int> bits = {}, first_leg_bits = {};  // of the codec
};

/// Time at one message size, in microseconds.
struct CostAt {
  CostSpread nccl_us;
  CostSpread echo_us;
  bool extrapolated = false;  // outside the measured sizes
};

/// Time of NCCL and of Echo for a message of `bytes` > 0: linear between the measured sizes on logarithmic
/// scales, never falling with the size. Below the smallest size its time is kept; above the largest the last
/// slope (0 to 1) goes on. Nothing if the table has no entry with both times for this question.
std::optional<CostAt> cost_at(const CostTable& table, const CostQuery& query, std::int64_t bytes);

/// What a threshold or a transport "auto" is resolved for.
struct ThresholdQuery {
  int min_ranks = 2;
  int max_ranks = 64;
  std::vector<DataType> dtypes = {};  // empty: any
  Codec codec = {};
  CompensationMode compensation = CompensationMode::kBoth;
  std::vector<std::string> transports = {"staged"};  // the fastest of these at a size counts
};

/// Echo must be this much faster before "auto" compresses: NCCL's time over Echo's.
inline constexpr double kAutoMinGain = 1.10;

/// A threshold that no message reaches.
inline constexpr std::int64_t kNeverBytes = INT64_MAX;

/// The smallest measured size from which Echo's gain is kAutoMinGain or more at that and every larger
/// measured size; over several rank counts the largest of their thresholds. kNeverBytes if one of them shows
/// no such size. Entries of the same data type, codec and compensation mode are used where there are any,
/// else all of that transport; where several share a size the worst counts. Nothing if the table has no entry
/// of these transports within the ranks.
std::optional<std::int64_t> auto_min_bytes(const CostTable& table, const ThresholdQuery& query);

/// Which transport is the faster one from which size on, by number of ranks: compared at every size that the
/// table has of both, among the entries that auto_min_bytes would use. Ranks without such a size have no
/// step. Comparisons of numbers as they stand in the file alone: every host finds the same.
std::vector<TransportStep> transport_steps(const CostTable& table, const ThresholdQuery& query);

}  // namespace echotp
