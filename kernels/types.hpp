// SPDX-License-Identifier: Apache-2.0
// The choices that every part of the collective shares: element type, codec, compensation. Plain values, no
// CUDA.
#pragma once

#include <cstdint>

namespace echotp {

/// Element type of a message. Only these can be compressed.
enum class DataType : std::uint8_t { kBf16, kFp16, kFp32 };

/// Bytes of one element.
constexpr int element_bytes(DataType type) {
  return type == DataType::kFp32 ? 4 : 2;
}

/// How values travel. `bits` is the width of a code (4 or 8) of what an owner sends to all, `group` the
/// number of neighbouring elements that share one bf16 scale (32, 64 or 128), `first_leg_bits` the width of
/// what senders send to owners.
struct Codec {
  int bits = 4;
  int group = 32;
  int first_leg_bits = 4;
  bool operator==(const Codec&) const = default;
};

/// Who feeds its rounding error back: nobody, the owner of a segment, or the owner and every sender.
enum class CompensationMode : std::uint8_t { kNone, kOwner, kBoth };

/// How the two error estimates are kept between calls.
enum class StateFormat : std::uint8_t { kFp32, kFp16, kInt8 };

/// correction = a*fast + b*slow; fast' = bf*fast + (1-bf)*r; slow' = bs*slow + (1-bs)*r, with r the residual
/// of one rounding (input + correction - decoded). Bounded over any number of calls if and only if a + b = 1
/// (the transfer function of the accumulated error has its zero at DC only then).
struct Compensation {
  CompensationMode mode = CompensationMode::kBoth;
  float a = 0.9f;
  float bf = 0.0f;
  float b = 0.1f;
  float bs = 0.9f;
  StateFormat state = StateFormat::kInt8;
  bool operator==(const Compensation&) const = default;
};

}  // namespace echotp
