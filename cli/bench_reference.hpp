// SPDX-License-Identifier: Apache-2.0
// BENCH REFERENCE: the bytes that a candidate must produce, from the scalar reference. Pure, on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/types.hpp"

namespace echotp {

/// Size of the message that every candidate is compared at: odd, so that the last tile is partial.
inline constexpr std::int64_t kReferenceElements = 100'003;

/// The size for a method: the same, or as many whole tokens as fit.
constexpr std::int64_t reference_elements(const Compensation& compensation) {
  if (compensation.mode != CompensationMode::kDrift || compensation.channels <= 0) return kReferenceElements;
  return kReferenceElements / compensation.channels * compensation.channels;
}
/// Calls of one pass: the second and third carry the error estimates of those before.
inline constexpr int kReferenceCalls = 3;

/// Raw elements as they lie in memory, [count * element size] bytes.
using RawMessage = std::vector<std::uint8_t>;

/// What every rank holds after each of the calls of one pass. inputs[call][rank] are what the ranks send; of
/// each the first `count` elements are the message. The operator is the sum. All ranks end with the same
/// bytes: checked, an empty answer if not.
std::vector<RawMessage> reference_outputs(const std::vector<std::vector<RawMessage>>& inputs,
                                          std::int64_t count, DataType dtype, const Codec& codec,
                                          const Compensation& compensation);

/// Index of the first element in which two messages of one size differ; -1: they are the same bytes.
std::int64_t first_difference(const RawMessage& left, const RawMessage& right, DataType dtype);

}  // namespace echotp
