// SPDX-License-Identifier: Apache-2.0
// Kernels of the bench programs. None but the copy is inside a measured interval.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cli/bench_kernels.hpp"

namespace echotp {
namespace {

constexpr int kThreads = 256;

__device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

__device__ std::int64_t thread_index() {
  return blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
}
__device__ std::int64_t thread_count() {
  return gridDim.x * static_cast<std::int64_t>(blockDim.x);
}

template <class T>
__device__ T narrow(float value);
template <>
__device__ __nv_bfloat16 narrow(float value) {
  return __float2bfloat16(value);
}
template <>
__device__ __half narrow(float value) {
  return __float2half(value);
}
template <>
__device__ float narrow(float value) {
  return value;
}
__device__ float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ float widen(__half value) {
  return __half2float(value);
}
__device__ float widen(float value) {
  return value;
}

template <class T>
__global__ void fill_normal_kernel(T* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) {
    const std::uint64_t bits = mix(mix(seed) + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ULL);
    const float first = (static_cast<float>(bits >> 40) + 0.5f) * (1.0f / 16777216.0f);
    const float second = static_cast<float>(static_cast<std::uint32_t>(bits)) * (1.0f / 4294967296.0f);
    out[i] = narrow<T>(sqrtf(-2.0f * logf(first)) * cosf(6.2831853f * second));
  }
}

__global__ void __launch_bounds__(kThreads) copy_kernel(uint4* to, const uint4* from, std::int64_t vectors) {
  constexpr int kVectors = 4;  // of a thread, all in flight together
  const std::int64_t base = blockIdx.x * static_cast<std::int64_t>(kVectors * kThreads) + threadIdx.x;
  uint4 values[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (base + i * kThreads < vectors) values[i] = from[base + i * kThreads];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (base + i * kThreads < vectors) to[base + i * kThreads] = values[i];
}

__global__ void hash_kernel(const std::uint16_t* words, std::int64_t count, unsigned long long* hash) {
  unsigned long long sum = 0;  // of mixed words: the order of the threads does not matter
  for (std::int64_t i = thread_index(); i < count; i += thread_count())
    sum += mix((static_cast<std::uint64_t>(i) << 16) + words[i]);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(hash, sum);
}

template <class T>
__global__ void compare_kernel(const T* reference, const T* other, std::int64_t count, BenchDifference* out) {
  double difference = 0.0, squares = 0.0;
  unsigned long long unequal = 0;
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) {
    const float wanted = widen(reference[i]), got = widen(other[i]);
    const double delta = static_cast<double>(got) - wanted;
    difference += delta * delta;
    squares += static_cast<double>(wanted) * wanted;
    if (got != wanted) ++unequal;  // a NaN counts, too
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    difference += __shfl_xor_sync(0xffffffffu, difference, lane);
    squares += __shfl_xor_sync(0xffffffffu, squares, lane);
    unequal += __shfl_xor_sync(0xffffffffu, unequal, lane);
  }
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(&out->difference_squares, difference);
  atomicAdd(&out->reference_squares, squares);
  atomicAdd(&out->unequal, unequal);
}

unsigned blocks_for(std::int64_t count) {
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 2048 ? blocks : 2048);
}

/// Calls `body` with a null pointer of the element type.
template <class Body>
void with_type(DataType dtype, Body body) {
  switch (dtype) {
    case DataType::kBf16:
      return body(static_cast<__nv_bfloat16*>(nullptr));
    case DataType::kFp16:
      return body(static_cast<__half*>(nullptr));
    case DataType::kFp32:
      return body(static_cast<float*>(nullptr));
  }
}

}  // namespace

cudaError_t bench_fill_normal(void* out, std::int64_t count, DataType dtype, std::uint64_t seed,
                              cudaStream_t stream) {
  with_type(dtype, [&]<class T>(T*) {
    fill_normal_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<T*>(out), count, seed);
  });
  return cudaGetLastError();
}

cudaError_t bench_copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
  const std::int64_t vectors = bytes / 16, per_block = 4 * kThreads;
  copy_kernel<<<static_cast<unsigned>((vectors + per_block - 1) / per_block), kThreads, 0, stream>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), vectors);
  return cudaGetLastError();
}

cudaError_t bench_hash(const void* data, std::int64_t bytes, unsigned long long* hash, cudaStream_t stream) {
  hash_kernel<<<blocks_for(bytes / 2), kThreads, 0, stream>>>(static_cast<const std::uint16_t*>(data),
                                                              bytes / 2, hash);
  return cudaGetLastError();
}

cudaError_t bench_compare(const void* reference, const void* other, std::int64_t count, DataType dtype,
                          BenchDifference* out, cudaStream_t stream) {
  with_type(dtype, [&]<class T>(T*) {
    compare_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const T*>(reference),
                                                               static_cast<const T*>(other), count, out);
  });
  return cudaGetLastError();
}

}  // namespace echotp
