// SPDX-License-Identifier: Apache-2.0
// What our CUDA calls need so that the job does not notice them: the communicator's context for one scope, a
// capture of another thread left unspoilt, and errors that are cleared. And the driver's entry points.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "shim/result.hpp"

namespace echotp {

/// The few driver entry points that we use, found through the runtime: libcuda is never linked.
struct Driver {
  CUresult (*ctx_get_current)(CUcontext*) = nullptr;
  CUresult (*ctx_push_current)(CUcontext) = nullptr;
  CUresult (*ctx_pop_current)(CUcontext*) = nullptr;
  CUresult (*get_error_string)(CUresult, const char**) = nullptr;

  // Memory that can be shared as a file descriptor. Drivers may lack them.
  CUresult (*device_get_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult (*mem_get_granularity)(std::size_t*, const CUmemAllocationProp*,
                                  CUmemAllocationGranularity_flags) = nullptr;
  CUresult (*mem_create)(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*,
                         unsigned long long) = nullptr;
  CUresult (*mem_release)(CUmemGenericAllocationHandle) = nullptr;
  CUresult (*mem_address_reserve)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr,
                                  unsigned long long) = nullptr;
  CUresult (*mem_address_free)(CUdeviceptr, std::size_t) = nullptr;
  CUresult (*mem_map)(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                      unsigned long long) = nullptr;
  CUresult (*mem_unmap)(CUdeviceptr, std::size_t) = nullptr;
  CUresult (*mem_set_access)(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) = nullptr;
  CUresult (*mem_export)(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                         unsigned long long) = nullptr;
  CUresult (*mem_import)(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) = nullptr;

  bool usable() const { return ctx_get_current && ctx_push_current && ctx_pop_current; }
  bool can_share_memory() const {
    return device_get_attribute && mem_get_granularity && mem_create && mem_release && mem_address_reserve &&
           mem_address_free && mem_map && mem_unmap && mem_set_access && mem_export && mem_import;
  }
};

/// Null members where the driver has no such function, or where there is no driver.
const Driver& driver() noexcept;

/// Makes a communicator's CUDA context current for one scope. The job may call NCCL with another device
/// selected; our own CUDA calls must not change what it has selected.
class ScopedContext {
 public:
  explicit ScopedContext(CUcontext context) noexcept {
    CUcontext current = nullptr;
    driver().ctx_get_current(&current);
    pushed_ = current != context && driver().ctx_push_current(context) == CUDA_SUCCESS;
  }
  ~ScopedContext() {
    CUcontext popped = nullptr;
    if (pushed_) driver().ctx_pop_current(&popped);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  bool pushed_ = false;
};

/// While it lives, this thread may allocate although another thread of the job captures in global mode.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// "what: CUDA's text", and the runtime's last error is cleared: the job must not meet our error in its own
/// next call.
Error cuda_error(const char* what, cudaError_t error);
Error cuda_error(const char* what, CUresult error);

}  // namespace echotp
