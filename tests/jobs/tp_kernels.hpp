// SPDX-License-Identifier: Apache-2.0
// The element-wise kernels of the C++ job: random fill, norms, rotary positions, softmax, activation, checks.
// Simple, correct, bandwidth-bound. Row-major bf16 arrays; every function launches on `stream` and returns at
// once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tpjob {

using Bf16 = __nv_bfloat16;

/// What the kernels tell the host; one per process, in device memory.
struct DeviceStatus {
  unsigned long long step = 0;        // increases by one per step; selects the input
  unsigned long long mismatches = 0;  // all-reduces whose output differed between ranks
  unsigned long long nonfinite = 0;   // NaN or Inf in the hidden states of the last step
  unsigned long long position = 0;    // where decode writes its cache
  double sum_of_squares = 0.0;        // of the hidden states of the last step
};

/// A [rows][columns] window, at (first_row, first_column), of a random matrix with `full_columns` columns:
/// normal with mean `mean` and deviation `deviation`. An element depends on the seed and its place in the
/// full matrix alone.
struct RandomMatrix {
  std::uint64_t seed;
  std::int64_t rows, columns, first_row, first_column, full_columns;
  float mean, deviation;
};
void fill_random(Bf16* out, const RandomMatrix& matrix, cudaStream_t stream);

/// Hidden states [rows][hidden] of the current step: normal, different in every step (status->step).
void make_input(Bf16* out, std::int64_t rows, int hidden, std::uint64_t seed, const DeviceStatus* status,
                cudaStream_t stream);

/// residual += delta (when not null); normed = RMSNorm(residual) * weight.
void add_rms_norm(Bf16* residual, const Bf16* delta, const Bf16* weight, Bf16* normed, std::int64_t rows,
                  int hidden, cudaStream_t stream);

/// In qkv [rows][(heads + 2 kv_heads) * head_dim]: RMSNorm of every query and key head (when `weight` is not
/// null: query weights, then key weights, head_dim each) and rotary positions: row % sequence, or
/// status->position when sequence is 0.
void norm_and_rotate(Bf16* qkv, const Bf16* weight, std::int64_t rows, int heads, int kv_heads, int head_dim,
                     int sequence, float rope_base, const DeviceStatus* status, cudaStream_t stream);

/// Copies the new keys and values of each row into its cache [rows][context][kv_heads * head_dim].
void append_cache(const Bf16* qkv, Bf16* keys, Bf16* values, int rows, int heads, int kv_heads, int head_dim,
                  int context, const DeviceStatus* status, cudaStream_t stream);

/// Softmax over each of `rows` rows of `columns` scores, in place. Causal: row r sees columns 0 to r %
/// columns.
void softmax(Bf16* scores, std::int64_t rows, int columns, bool causal, cudaStream_t stream);

/// out = silu(gate) * up, with gate_up [rows][2 * columns] holding gate then up.
void silu_multiply(const Bf16* gate_up, Bf16* out, std::int64_t rows, int columns, cudaStream_t stream);

/// Adds to *hash (zero it first) a 64-bit hash of `bytes` bytes (a multiple of 2): order-independent sum over
/// mixed words.
void hash_bytes(const void* data, std::int64_t bytes, unsigned long long* hash, cudaStream_t stream);

/// Counts a mismatch when the `ranks` gathered hashes are not all equal.
void compare_hashes(const unsigned long long* hashes, int ranks, DeviceStatus* status, cudaStream_t stream);

/// Sum of squares (same bits in every run) and number of non-finite elements of the hidden states, into
/// `status`. `partial` holds kPartials doubles.
inline constexpr int kPartials = 1024;
void measure_hidden(const Bf16* hidden, std::int64_t count, double* partial, DeviceStatus* status,
                    cudaStream_t stream);

/// Ends a step: status->step and status->position advance.
void advance_step(DeviceStatus* status, int context, cudaStream_t stream);

}  // namespace tpjob
