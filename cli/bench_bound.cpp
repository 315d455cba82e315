// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_bound.hpp"

#include "kernels/tile.hpp"

namespace echotp {
namespace {

double entry_bytes(StateFormat format) {
  switch (format) {
    case StateFormat::kFp32:
      return 4;
    case StateFormat::kFp16:
      return 2;
    case StateFormat::kInt8:
      return 1;
  }
  return 4;
}

// Share of the elements whose rounding error this rank remembers.
double covered_share(CompensationMode mode, int ranks) {
  switch (mode) {
    case CompensationMode::kNone:
      return 0;
    case CompensationMode::kOwner:
      return 1.0 / ranks;
    case CompensationMode::kBoth:
      return 1;
    case CompensationMode::kDrift:
      return 0;  // one estimate a channel: next to nothing
  }
  return 0;
}

}  // namespace

MovedBytes moved_bytes(std::int64_t count, int ranks, DataType dtype, const Codec& codec,
                       const Compensation& compensation) {
  const auto elements = static_cast<double>(count);
  const double scale_bits = 16.0 / codec.group;
  const double bits = leg_bits(codec, Leg::kFirst) + leg_bits(codec, Leg::kSecond) + 2 * scale_bits;
  const double unit = compensation.state == StateFormat::kFp32 ? 0 : 2.0 / codec.group;
  const double estimates = compensation.b == 0 ? 1 : 2;
  MovedBytes out;
  out.values = 2 * element_bytes(dtype) * elements;
  out.codes = 2 * elements * (ranks - 1) / ranks * bits / 8;
  out.state = 2 * elements * covered_share(compensation.mode, ranks) *
              (estimates * entry_bytes(compensation.state) + unit);
  return out;
}

double bound_us(double bytes, double copy_gbs) {
  return bytes / (copy_gbs * 1e3);
}

}  // namespace echotp
