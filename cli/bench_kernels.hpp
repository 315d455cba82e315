// SPDX-License-Identifier: Apache-2.0
// Kernels of the bench worker: random data, a plain copy, a hash of a result, the difference of
// two results.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.hpp"

namespace echotp {

/// How two results differ. Device memory, zeroed before the call.
struct BenchDifference {
  double difference_squares = 0;  // sum of (other - reference)^2
  double reference_squares = 0;
  unsigned long long unequal = 0;  // elements that differ in at least one bit
};

/// Fills `count` elements with normal numbers (mean 0, deviation 1) that depend on `seed` and the place.
cudaError_t bench_fill_normal(void* out, std::int64_t count, DataType dtype, std::uint64_t seed,
                              cudaStream_t stream);

/// Copies `bytes` bytes, all in one pass over the device; 16-byte aligned, a multiple of 16.
cudaError_t bench_copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream);

/// Adds a 64-bit hash of `bytes` bytes (even) to *hash, zeroed before; the same in every run.
cudaError_t bench_hash(const void* data, std::int64_t bytes, unsigned long long* hash, cudaStream_t stream);

/// Adds how `other` differs from `reference` to *out.
cudaError_t bench_compare(const void* reference, const void* other, std::int64_t count, DataType dtype,
                          BenchDifference* out, cudaStream_t stream);

}  // namespace echotp
