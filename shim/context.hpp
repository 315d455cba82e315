// SPDX-License-Identifier: Apache-2.0
// Makes a communicator's CUDA context current for one scope. The job may call NCCL with another device
// selected; our own CUDA calls must not change what it has selected.
#pragma once

#include <cuda.h>

namespace echotp {

/// The few driver entry points that we use, found through the runtime: libcuda is never linked.
struct Driver {
  CUresult (*ctx_get_current)(CUcontext*) = nullptr;
  CUresult (*ctx_push_current)(CUcontext) = nullptr;
  CUresult (*ctx_pop_current)(CUcontext*) = nullptr;
  bool usable() const { return ctx_get_current && ctx_push_current && ctx_pop_current; }
};

/// Null members when there is no driver.
const Driver& driver() noexcept;

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

}  // namespace echotp
