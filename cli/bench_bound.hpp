// SPDX-License-Identifier: Apache-2.0
// BENCH BOUND: the fewest bytes that one rank's device memory must move for one compressed all-reduce, and
// the time that a plain copy of as many bytes takes: what no kernel can beat on that GPU. Pure.
#pragma once

#include <cstdint>

#include "kernels/types.hpp"

namespace echotp {

/// Bytes read and written in one rank's memory for one call.
struct MovedBytes {
  double values = 0;  // send read once, recv written once
  double codes = 0;   // arriving on both legs, written once and read once
  double state = 0;   // error estimates of this rank's roles, read once and written once
  double total() const { return values + codes + state; }
};

/// For a message of `count` elements over `ranks` ranks. With e the element size, b1 and b2 the bits an
/// element takes on the two legs (code, and a 16-bit scale a group), and share = (ranks-1)/ranks:
///   values  2 * e * count
///   codes   2 * share * count * (b1 + b2) / 8
///   state   2 * covered * (estimates * entry + unit), estimates 2 or, when b is 0, 1; entry 4, 2 or 1 bytes;
///           unit 2/group bytes (none for fp32); covered count/ranks for an owner, count for both, 0 for
///           none.
/// Codes that stay in the L2 cache never reach memory: a kernel can then come closer than this counts.
MovedBytes moved_bytes(std::int64_t count, int ranks, DataType dtype, const Codec& codec,
                       const Compensation& compensation);

/// Microseconds to move `bytes` at `copy_gbs` > 0 (1e9 bytes read or written a second).
double bound_us(double bytes, double copy_gbs);

}  // namespace echotp
