// SPDX-License-Identifier: Apache-2.0
// Mode drift, after quantise and after reduce: the errors that they left are added up by channel, and the
// estimates follow the mean once the message is through.
#include "kernels/launch.hpp"
#include "kernels/staged_plan.hpp"

namespace echotp::device {
namespace {

/// A warp sums one run of 32 channels: every load is 128 neighbouring bytes.
constexpr int kChannelsPerBlock = kWarpThreads;
/// Loads that a thread has in flight.
constexpr int kRowsAtOnce = 8;

struct DriftRows {
  std::int64_t first;  // row of the message in which the chunk begins
  std::int64_t rows;   // that the chunk touches
  std::int64_t run;    // rows of a run
};

__global__ void __launch_bounds__(kWarpThreads* kDriftRuns)
    drift_kernel(const __grid_constant__ StagedArgs args, const __grid_constant__ DriftRows chunk,
                 Role role) {
  __shared__ float run_sums[kDriftRuns][kChannelsPerBlock];
  __shared__ std::uint32_t run_tokens[kDriftRuns][kChannelsPerBlock];
  const DriftView& drift = args.state.drift;
  const std::uint32_t lane = threadIdx.x % kWarpThreads;
  const std::uint32_t run = threadIdx.x / kWarpThreads;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kChannelsPerBlock + lane;
  const auto ranks = static_cast<std::uint32_t>(args.ranks);
  const auto rank = static_cast<std::uint32_t>(args.rank);

  float sum = 0.0f;
  std::uint32_t tokens = 0;
  const std::int64_t end = min((run + 1) * chunk.run, chunk.rows);
#pragma unroll 1
  for (std::int64_t row = run * chunk.run; row < end; row += kRowsAtOnce) {
    float errors[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const std::int64_t element = (chunk.first + row + i) * drift.channels + channel - args.first;
      const bool exists = row + i < end && element >= 0 && element < args.count;
      const bool own = static_cast<std::uint32_t>(element / kTileElements) % ranks == rank;
      const bool counts = exists && own == (role == Role::kOwner);
      // Adding zero is adding nothing: a sum that begins at +0 never becomes -0.
      errors[i] = counts ? drift.error[element] : 0.0f;
      tokens += counts ? 1u : 0u;
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) sum = __fadd_rn(sum, errors[i]);
  }
  run_sums[run][lane] = sum;
  run_tokens[run][lane] = tokens;
  __syncthreads();
  if (run != 0) return;

  const std::int64_t at = channel + (role == Role::kOwner ? drift.channels : 0);
  const bool begins = args.first == 0;
  float total = begins ? 0.0f : drift.sum[at];
  std::uint32_t total_tokens = begins ? 0u : drift.tokens[at];
#pragma unroll 1
  for (int i = 0; i < kDriftRuns; ++i) {
    total = __fadd_rn(total, run_sums[i][lane]);
    total_tokens += run_tokens[i][lane];
  }
  if (args.first + args.count < args.message) {
    drift.sum[at] = total;
    drift.tokens[at] = total_tokens;
  } else {
    drift.estimate[at] = follow_drift(drift.estimate[at], args.compensation.gain, total, total_tokens);
  }
}

}  // namespace

cudaError_t load_drift_kernel() noexcept {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(drift_kernel));
}

cudaError_t launch_drift(const StagedArgs& args, Role role, cudaStream_t stream) noexcept {
  const std::int64_t channels = args.state.drift.channels;
  DriftRows chunk{};
  chunk.first = args.first / channels;
  chunk.rows = (args.first + args.count - 1) / channels - chunk.first + 1;
  chunk.run = (chunk.rows + kDriftRuns - 1) / kDriftRuns;
  void* parameters[] = {const_cast<StagedArgs*>(&args), &chunk, &role};
  return cudaLaunchKernel(reinterpret_cast<const void*>(drift_kernel),
                          dim3(static_cast<unsigned>(channels / kChannelsPerBlock)),
                          dim3(kWarpThreads * kDriftRuns), parameters, 0, stream);
}

}  // namespace echotp::device
