// SPDX-License-Identifier: Apache-2.0
// Kernels of graph-job: plain, one thread an element.
#include <cuda_bf16.h>

#include "tests/jobs/graph_kernels.hpp"

namespace graphjob {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t place() {
  return blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
}

unsigned blocks(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

__global__ void fill_kernel(Bf16* to, std::int64_t count, std::uint64_t seed) {
  const std::int64_t i = place();
  if (i >= count) return;
  const std::uint64_t bits = mix(seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(i));
  to[i] = __bfloat16_as_ushort(__float2bfloat16(static_cast<float>(bits >> 40) / (1 << 23) - 1.0f));
}

__global__ void fingerprint_kernel(const Bf16* values, std::int64_t count, std::uint64_t salt,
                                   unsigned long long* sum) {
  const std::int64_t i = place();
  if (i >= count) return;
  atomicAdd(sum, mix((static_cast<std::uint64_t>(i) << 16 | values[i]) + mix(salt + 1)));
}

__global__ void widen_kernel(const Bf16* from, float* to, std::int64_t count) {
  const std::int64_t i = place();
  if (i < count) to[i] = __bfloat162float(__ushort_as_bfloat16(from[i]));
}

}  // namespace

cudaError_t fill(Bf16* to, std::int64_t count, std::uint64_t seed, cudaStream_t stream) {
  fill_kernel<<<blocks(count), kThreads, 0, stream>>>(to, count, seed);
  return cudaGetLastError();
}

cudaError_t fingerprint(const Bf16* values, std::int64_t count, std::uint64_t salt, unsigned long long* sum,
                        cudaStream_t stream) {
  fingerprint_kernel<<<blocks(count), kThreads, 0, stream>>>(values, count, salt, sum);
  return cudaGetLastError();
}

cudaError_t widen(const Bf16* from, float* to, std::int64_t count, cudaStream_t stream) {
  widen_kernel<<<blocks(count), kThreads, 0, stream>>>(from, to, count);
  return cudaGetLastError();
}

}  // namespace graphjob
