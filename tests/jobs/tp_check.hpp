// SPDX-License-Identifier: Apache-2.0
// CHECKS of the C++ job: every CUDA, cuBLAS and NCCL result is looked at; the first failure ends the process
// with one line. The launcher then ends the other ranks.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace tpjob {

/// Rank that error messages name; set once at the start.
inline int g_rank = 0;

[[noreturn]] inline void fail(const char* what, const char* why) {
  std::fprintf(stderr, "tp-job[rank %d]: %s: %s\n", g_rank, what, why);
  std::exit(1);
}

inline void check(cudaError_t rc, const char* what) {
  if (rc != cudaSuccess) fail(what, cudaGetErrorString(rc));
}
inline void check(cublasStatus_t rc, const char* what) {
  if (rc != CUBLAS_STATUS_SUCCESS) fail(what, cublasGetStatusString(rc));
}
inline void check(ncclResult_t rc, const char* what) {
  if (rc != ncclSuccess) fail(what, ncclGetErrorString(rc));
}

/// Device memory of `count` elements; ends the process when there is none. Freed by the end of the process: a
/// job allocates once.
template <class T>
T* device_array(std::size_t count, const char* what) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)), what);
  return static_cast<T*>(memory);
}

}  // namespace tpjob
