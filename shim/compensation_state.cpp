// SPDX-License-Identifier: Apache-2.0
#include "shim/compensation_state.hpp"

namespace echotp {

namespace {

constexpr std::int64_t kAlign = 256;
constexpr std::int64_t align_up(std::int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

constexpr std::int64_t entry_bytes(StateFormat format) {
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

struct Layout {
  std::int64_t slow = 0;
  std::int64_t unit = 0;
  std::int64_t total = 0;
};

Layout layout(std::int64_t capacity, const Codec& codec, const Compensation& compensation) {
  const std::int64_t array = align_up(capacity * entry_bytes(compensation.state));
  Layout result;
  result.slow = array;
  result.unit = compensation.b != 0.0f ? 2 * array : array;
  result.total =
      result.unit + (compensation.state == StateFormat::kFp32 ? 0 : align_up(capacity / codec.group * 2));
  return result;
}

}  // namespace

std::int64_t state_bytes(std::int64_t capacity, const Codec& codec, const Compensation& compensation) {
  return layout(capacity, codec, compensation).total;
}

CompensationState::~CompensationState() {
  if (memory_ && !kept_) cudaFree(memory_);
}

void CompensationState::drop(cudaStream_t stream) noexcept {
  if (memory_ && !kept_) cudaFreeAsync(memory_, stream);
  memory_ = nullptr;
  bytes_ = capacity_ = 0;
  kept_ = false;
}

StateView CompensationState::provide(std::int64_t count, const Codec& codec, const Compensation& compensation,
                                     std::optional<std::int64_t> max_bytes, bool capturing,
                                     cudaStream_t stream, bool& fresh) noexcept {
  if (compensation.mode == CompensationMode::kNone) return {};
  const std::int64_t wanted = tile_count(count) * kTileElements;
  const std::int64_t wanted_bytes = state_bytes(wanted, codec, compensation);
  if (max_bytes && wanted_bytes > *max_bytes) return {};
  const bool same_shape = codec_.group == codec.group && compensation_.state == compensation.state &&
                          (compensation_.b != 0.0f) == (compensation.b != 0.0f);
  if (!memory_ || !same_shape || wanted > capacity_) {
    if (capturing || (refused_ && wanted_bytes >= refused_bytes_)) return {};
    drop(stream);
    if (cudaMallocAsync(&memory_, static_cast<std::size_t>(wanted_bytes), stream) != cudaSuccess) {
      cudaGetLastError();
      memory_ = nullptr;
      refused_ = true;
      refused_bytes_ = wanted_bytes;
      return {};
    }
    bytes_ = wanted_bytes;
    capacity_ = wanted;
    codec_ = codec;
    fresh = true;
  }
  if (!(compensation_ == compensation)) fresh = true;
  compensation_ = compensation;
  const Layout offsets = layout(capacity_, codec_, compensation_);
  auto* base = static_cast<std::uint8_t*>(memory_);
  StateView view;
  view.fast = base;
  view.slow = compensation.b != 0.0f ? base + offsets.slow : nullptr;
  view.unit = compensation.state == StateFormat::kFp32
                  ? nullptr
                  : reinterpret_cast<std::uint16_t*>(base + offsets.unit);
  view.capacity = capacity_;
  return view;
}

}  // namespace echotp
