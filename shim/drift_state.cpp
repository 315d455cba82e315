// SPDX-License-Identifier: Apache-2.0
#include "shim/drift_state.hpp"

#include <algorithm>

namespace echotp {

std::int64_t drift_state_bytes(int channels) noexcept {
  return std::int64_t{2} * channels * static_cast<std::int64_t>(2 * sizeof(float) + sizeof(std::uint32_t));
}

DriftState::~DriftState() {
  for (const Set& set : sets_) {
    if (set.memory && !kept_) cudaFree(set.memory);
  }
}

DriftView DriftState::provide(std::int64_t count, const Compensation& compensation,
                              std::optional<std::int64_t> max_bytes, bool capturing,
                              cudaStream_t stream) noexcept {
  if (!compensable(compensation, count)) return {};
  const int channels = compensation.channels;
  // Sets are never given back, so the first free one comes after all that are in use.
  const auto found = std::find_if(sets_.begin(), sets_.end(), [&](const Set& set) {
    return set.channels == channels || set.channels == 0;
  });
  if (found == sets_.end()) return {};
  if (found->channels == 0) {
    const std::int64_t bytes = drift_state_bytes(channels);
    if (capturing || refused_ || (max_bytes && bytes_ + bytes > *max_bytes)) return {};
    void* memory = nullptr;
    cudaError_t error = cudaMallocAsync(&memory, static_cast<std::size_t>(bytes), stream);
    if (error == cudaSuccess) {
      error = cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), stream);
      if (error != cudaSuccess) cudaFreeAsync(memory, stream);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();
      refused_ = true;
      return {};
    }
    *found = {channels, memory};
    bytes_ += bytes;
  }
  DriftView view;
  view.channels = channels;
  view.estimate = static_cast<float*>(found->memory);
  view.sum = view.estimate + 2 * static_cast<std::int64_t>(channels);
  view.tokens = reinterpret_cast<std::uint32_t*>(view.sum + 2 * static_cast<std::int64_t>(channels));
  return view;
}

}  // namespace echotp
