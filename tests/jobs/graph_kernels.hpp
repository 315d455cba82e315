// SPDX-License-Identifier: Apache-2.0
// Kernels of graph-job: inputs out of a number, fingerprints of results. Asynchronous on the given stream;
// they return what the launch returned.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>

namespace graphjob {

/// The bits of a bfloat16.
using Bf16 = std::uint16_t;

inline float to_float(Bf16 bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

#ifdef __CUDACC__
#define GRAPHJOB_BOTH __host__ __device__
#else
#define GRAPHJOB_BOTH
#endif

/// A mixer of 64 bits, the same on the host and on the GPU.
GRAPHJOB_BOTH inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// `count` values in [-1, 1) that differ by seed and place.
cudaError_t fill(Bf16* to, std::int64_t count, std::uint64_t seed, cudaStream_t stream);

/// Adds a fingerprint of `count` values and their places to *sum; `salt` tells messages apart.
cudaError_t fingerprint(const Bf16* values, std::int64_t count, std::uint64_t salt, unsigned long long* sum,
                        cudaStream_t stream);

/// Copies `count` values as fp32.
cudaError_t widen(const Bf16* from, float* to, std::int64_t count, cudaStream_t stream);

}  // namespace graphjob
