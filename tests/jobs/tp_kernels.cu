// SPDX-License-Identifier: Apache-2.0
// Element-wise kernels of the C++ job. One block a row, or a grid-stride loop; fp32 inside.
#include <cmath>

#include "tests/jobs/tp_kernels.hpp"

namespace tpjob {
namespace {

constexpr int kThreads = 256;

__device__ std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

__device__ float normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15ULL) ^ (index * 0xd1342543de82ef95ULL + 1));
  const float first = (static_cast<float>(bits >> 40) + 0.5f) * (1.0f / 16777216.0f);
  const float second = static_cast<float>(static_cast<std::uint32_t>(bits)) * (1.0f / 4294967296.0f);
  return sqrtf(-2.0f * logf(first)) * cosf(6.2831853f * second);
}

/// Sum (or maximum) over the block; every thread gets it.
template <bool kMaximum>
__device__ float over_block(float value) {
  __shared__ float shared[32];
  const auto join = [](float a, float b) { return kMaximum ? fmaxf(a, b) : a + b; };
  for (int lane = 16; lane > 0; lane /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, lane));
  __syncthreads();  // an earlier call's readers are done
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / 32; ++warp) value = join(value, shared[warp]);
  return value;
}

__device__ std::int64_t thread_index() {
  return blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
}
__device__ std::int64_t thread_count() {
  return gridDim.x * static_cast<std::int64_t>(blockDim.x);
}

__global__ void fill_random_kernel(Bf16* out, RandomMatrix matrix) {
  for (std::int64_t i = thread_index(); i < matrix.rows * matrix.columns; i += thread_count()) {
    const std::int64_t row = matrix.first_row + i / matrix.columns;
    const std::int64_t column = matrix.first_column + i % matrix.columns;
    out[i] = __float2bfloat16(matrix.mean +
                              matrix.deviation * normal(matrix.seed, row * matrix.full_columns + column));
  }
}

__global__ void make_input_kernel(Bf16* out, std::int64_t count, std::uint64_t seed,
                                  const DeviceStatus* status) {
  const std::uint64_t step_seed = mix(seed ^ (status->step + 1));
  for (std::int64_t i = thread_index(); i < count; i += thread_count())
    out[i] = __float2bfloat16(normal(step_seed, i));
}

__global__ void add_rms_norm_kernel(Bf16* residual, const Bf16* delta, const Bf16* weight, Bf16* normed,
                                    int hidden) {
  Bf16* row = residual + blockIdx.x * static_cast<std::int64_t>(hidden);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    float value = __bfloat162float(row[i]);
    if (delta != nullptr) {
      row[i] = __float2bfloat16(value +
                                __bfloat162float(delta[blockIdx.x * static_cast<std::int64_t>(hidden) + i]));
      value = __bfloat162float(row[i]);
    }
    sum += value * value;
  }
  const float scale = rsqrtf(over_block<false>(sum) / hidden + 1e-6f);
  Bf16* out = normed + blockIdx.x * static_cast<std::int64_t>(hidden);
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[i] = __float2bfloat16(__bfloat162float(row[i]) * scale * __bfloat162float(weight[i]));
}

__global__ void norm_and_rotate_kernel(Bf16* qkv, const Bf16* weight, int heads, int kv_heads, int head_dim,
                                       int sequence, float rope_base, const DeviceStatus* status) {
  const std::int64_t row = blockIdx.x;
  const int head = blockIdx.y;
  const int half = head_dim / 2;
  const int i = threadIdx.x;
  Bf16* values = qkv + (row * (heads + 2 * kv_heads) + head) * head_dim;
  float low = i < half ? __bfloat162float(values[i]) : 0.0f;
  float high = i < half ? __bfloat162float(values[i + half]) : 0.0f;
  if (weight != nullptr) {
    const Bf16* scales = weight + (head < heads ? 0 : head_dim);
    const float scale = rsqrtf(over_block<false>(low * low + high * high) / head_dim + 1e-6f);
    low *= i < half ? scale * __bfloat162float(scales[i]) : 0.0f;
    high *= i < half ? scale * __bfloat162float(scales[i + half]) : 0.0f;
  }
  if (i >= half) return;
  const double position =
      sequence > 0 ? static_cast<double>(row % sequence) : static_cast<double>(status->position);
  const float angle = static_cast<float>(position) * powf(rope_base, -static_cast<float>(i) / half);
  const float sine = sinf(angle), cosine = cosf(angle);
  values[i] = __float2bfloat16(low * cosine - high * sine);
  values[i + half] = __float2bfloat16(high * cosine + low * sine);
}

__global__ void append_cache_kernel(const Bf16* qkv, Bf16* keys, Bf16* values, int heads, int kv_heads,
                                    int head_dim, int context, const DeviceStatus* status) {
  const std::int64_t row = blockIdx.x;
  const int width = kv_heads * head_dim;
  const Bf16* source = qkv + row * (heads + 2 * kv_heads) * head_dim + heads * head_dim;
  const std::int64_t target = (row * context + static_cast<std::int64_t>(status->position % context)) * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    keys[target + i] = source[i];
    values[target + i] = source[width + i];
  }
}

__global__ void softmax_kernel(Bf16* scores, int columns, bool causal) {
  Bf16* row = scores + blockIdx.x * static_cast<std::int64_t>(columns);
  const int seen = causal ? static_cast<int>(blockIdx.x % columns) + 1 : columns;
  float highest = -INFINITY;
  for (int i = threadIdx.x; i < seen; i += blockDim.x) highest = fmaxf(highest, __bfloat162float(row[i]));
  highest = over_block<true>(highest);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < seen; i += blockDim.x) sum += __expf(__bfloat162float(row[i]) - highest);
  const float scale = 1.0f / over_block<false>(sum);
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    row[i] = __float2bfloat16(i < seen ? __expf(__bfloat162float(row[i]) - highest) * scale : 0.0f);
}

__global__ void silu_multiply_kernel(const Bf16* gate_up, Bf16* out, std::int64_t count, int columns) {
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) {
    const std::int64_t base = i / columns * 2 * columns + i % columns;
    const float gate = __bfloat162float(gate_up[base]);
    out[i] = __float2bfloat16(gate / (1.0f + __expf(-gate)) * __bfloat162float(gate_up[base + columns]));
  }
}

__global__ void hash_bytes_kernel(const std::uint16_t* data, std::int64_t words, unsigned long long* hash) {
  unsigned long long sum = 0;
  for (std::int64_t i = thread_index(); i < words; i += thread_count())
    sum += mix((static_cast<std::uint64_t>(i) << 16) ^ data[i] ^ 0x5bd1e995ULL);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(hash, sum);
}

__global__ void compare_hashes_kernel(const unsigned long long* hashes, int ranks, DeviceStatus* status) {
  bool differ = false;
  for (int i = 1; i < ranks; ++i) differ |= hashes[i] != hashes[0];
  if (differ) ++status->mismatches;
}

__global__ void measure_kernel(const Bf16* hidden, std::int64_t count, double* partial,
                               DeviceStatus* status) {
  __shared__ double sums[kThreads];
  double sum = 0.0;
  unsigned long long nonfinite = 0;
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) {
    const float value = __bfloat162float(hidden[i]);
    if (isfinite(value)) {
      sum += static_cast<double>(value) * value;
    } else {
      ++nonfinite;
    }
  }
  if (nonfinite > 0) atomicAdd(&status->nonfinite, nonfinite);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = sums[0];
}

__global__ void add_partials_kernel(const double* partial, DeviceStatus* status) {
  double sum = 0.0;
  for (int i = 0; i < kPartials; ++i) sum += partial[i];
  status->sum_of_squares = sum;
}

__global__ void advance_kernel(DeviceStatus* status, int context) {
  ++status->step;
  status->position = (status->position + 1) % context;
}

int blocks_for(std::int64_t count) {
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < 4096 ? blocks : 4096);
}

}  // namespace

void fill_random(Bf16* out, const RandomMatrix& matrix, cudaStream_t stream) {
  fill_random_kernel<<<blocks_for(matrix.rows * matrix.columns), kThreads, 0, stream>>>(out, matrix);
}

void make_input(Bf16* out, std::int64_t rows, int hidden, std::uint64_t seed, const DeviceStatus* status,
                cudaStream_t stream) {
  make_input_kernel<<<blocks_for(rows * hidden), kThreads, 0, stream>>>(out, rows * hidden, seed, status);
}

void add_rms_norm(Bf16* residual, const Bf16* delta, const Bf16* weight, Bf16* normed, std::int64_t rows,
                  int hidden, cudaStream_t stream) {
  add_rms_norm_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(residual, delta, weight, normed,
                                                                            hidden);
}

void norm_and_rotate(Bf16* qkv, const Bf16* weight, std::int64_t rows, int heads, int kv_heads, int head_dim,
                     int sequence, float rope_base, const DeviceStatus* status, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(heads + kv_heads));
  const unsigned threads = (head_dim / 2 + 31) / 32 * 32;
  norm_and_rotate_kernel<<<grid, threads, 0, stream>>>(qkv, weight, heads, kv_heads, head_dim, sequence,
                                                       rope_base, status);
}

void append_cache(const Bf16* qkv, Bf16* keys, Bf16* values, int rows, int heads, int kv_heads, int head_dim,
                  int context, const DeviceStatus* status, cudaStream_t stream) {
  append_cache_kernel<<<rows, kThreads, 0, stream>>>(qkv, keys, values, heads, kv_heads, head_dim, context,
                                                     status);
}

void softmax(Bf16* scores, std::int64_t rows, int columns, bool causal, cudaStream_t stream) {
  softmax_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(scores, columns, causal);
}

void silu_multiply(const Bf16* gate_up, Bf16* out, std::int64_t rows, int columns, cudaStream_t stream) {
  silu_multiply_kernel<<<blocks_for(rows * columns), kThreads, 0, stream>>>(gate_up, out, rows * columns,
                                                                            columns);
}

void hash_bytes(const void* data, std::int64_t bytes, unsigned long long* hash, cudaStream_t stream) {
  hash_bytes_kernel<<<blocks_for(bytes / 2), kThreads, 0, stream>>>(static_cast<const std::uint16_t*>(data),
                                                                    bytes / 2, hash);
}

void compare_hashes(const unsigned long long* hashes, int ranks, DeviceStatus* status, cudaStream_t stream) {
  compare_hashes_kernel<<<1, 1, 0, stream>>>(hashes, ranks, status);
}

void measure_hidden(const Bf16* hidden, std::int64_t count, double* partial, DeviceStatus* status,
                    cudaStream_t stream) {
  measure_kernel<<<kPartials, kThreads, 0, stream>>>(hidden, count, partial, status);
  add_partials_kernel<<<1, 1, 0, stream>>>(partial, status);
}

void advance_step(DeviceStatus* status, int context, cudaStream_t stream) {
  advance_kernel<<<1, 1, 0, stream>>>(status, context);
}

}  // namespace tpjob
