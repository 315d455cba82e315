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

/// Who feeds its rounding error back, and how: nobody; the owner of a segment, element by element; the owner
/// and every sender likewise; or all of them channel by channel, averaged over the tokens of a message.
enum class CompensationMode : std::uint8_t { kNone, kOwner, kBoth, kDrift };

/// How the two error estimates are kept between calls.
enum class StateFormat : std::uint8_t { kFp32, kFp16, kInt8 };

/// correction = a*fast + b*slow; fast' = bf*fast + (1-bf)*r; slow' = bs*slow + (1-bs)*r, with r the residual
/// of one rounding (input + correction - decoded). Bounded over any number of calls if and only if a + b = 1
/// (the transfer function of the accumulated error has its zero at DC only then).
///
/// kDrift keeps one estimate a channel instead, and keeps it over passes: element i of a message belongs to
/// channel i mod `channels`, correction = estimate, estimate' = estimate + gain * mean over the message's
/// tokens of (input - decoded). That takes away the error that every token of a channel has in common, which
/// alone grows faster than the square root of the calls.
struct Compensation {
  CompensationMode mode = CompensationMode::kBoth;
  float a = 0.9f;
  float bf = 0.0f;
  float b = 0.1f;
  float bs = 0.9f;
  StateFormat state = StateFormat::kInt8;
  int channels = 0;  // kDrift only: a positive multiple of the codec's group
  float gain = 0.5f;
  bool operator==(const Compensation&) const = default;
};

/// Whether only the staged transport can run it: the estimates of a channel need all of a message's tokens.
/// Equal on all ranks, because it asks the policy alone.
constexpr bool staged_only(const Compensation& compensation) {
  return compensation.mode == CompensationMode::kDrift;
}

/// Whether a message of `count` elements can be compensated: with kDrift it consists of whole tokens.
constexpr bool compensable(const Compensation& compensation, std::int64_t count) {
  return compensation.mode != CompensationMode::kDrift ||
         (compensation.channels > 0 && count % compensation.channels == 0);
}

}  // namespace echotp
