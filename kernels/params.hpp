// SPDX-License-Identifier: Apache-2.0
// Arguments of the kernels: plain structs, every field documented. Device pointers; nothing is owned.
#pragma once

#include <cstdint>

#include "kernels/tile.hpp"
#include "kernels/types.hpp"

namespace echotp {

/// The two things that a rank does to elements: rounds those of other owners, and reduces its own.
enum class Role : std::uint8_t { kSender, kOwner };

/// The estimates of mode drift of one (communicator, direction). Null `estimate` means: no correction.
struct DriftView {
  int channels = 0;
  float* estimate = nullptr;        // [2][channels] by Role
  float* sum = nullptr;             // [2][channels] of the errors of the message so far
  std::uint32_t* tokens = nullptr;  // [2][channels] that it is a sum of
  float* error = nullptr;           // [elements of the chunk in whole tiles] scratch: input - decoded
};

/// The error estimates of one (communicator, direction). Element i of a message uses entry i, whichever role
/// (sender or owner) this rank has for it; the roles never overlap. Null `fast` means: no state, no
/// correction.
struct StateView {
  void* fast = nullptr;           // [capacity] fp32, fp16 or int8 by StateFormat
  void* slow = nullptr;           // [capacity]; may be null when b == 0
  std::uint16_t* unit = nullptr;  // [capacity/group] bf16 unit of a group's entries; null for fp32
  std::int64_t capacity = 0;  // elements, a multiple of kTileElements; elements beyond it go uncompensated
  DriftView drift = {};       // of mode drift, which uses nothing else of this
};

/// Counts that the kernels add to; the host reads them when it writes a receipt. Mapped host memory.
struct DeviceCounters {
  unsigned long long nonfinite_groups = 0;  // groups that held a NaN or Inf and became NaN on every rank
};

/// One chunk of one staged all-reduce on one rank. A chunk starts at a multiple of ranks * kTileElements
/// elements.
struct StagedArgs {
  const void* send = nullptr;  // [count] elements of `dtype`, element-aligned only; start of the chunk
  void* recv = nullptr;        // [count], may equal send; start of the chunk
  std::int64_t count = 0;      // elements of this chunk
  std::int64_t first = 0;      // index of the chunk's first element in the message; selects the state entries
  std::int64_t message = 0;    // elements of the message; only mode drift asks
  int rank = 0;
  int ranks = 1;
  DataType dtype = DataType::kBf16;
  Codec codec;
  Compensation compensation;
  float post_scale = 1.0f;  // the owner multiplies the sum by this before it rounds: 1 for sum, 1/P for avg
  bool pass_start =
      false;  // treat the state as zero: first call of a pass. A kernel argument, so graphs bake it
  StateView state;
  std::uint8_t* outbox = nullptr;  // [ranks][segment_bytes]: what goes to each owner; own row unused
  const std::uint8_t* inbox =
      nullptr;  // [ranks][segment_bytes]: what each rank sent to this owner; own row unused
  std::uint8_t* gathered = nullptr;  // [ranks][segment_bytes]: reduced segments; this rank writes its own row
  DeviceCounters* counters = nullptr;  // may be null
};

}  // namespace echotp
