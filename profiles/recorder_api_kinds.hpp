// SPDX-License-Identifier: Apache-2.0
// CUDA functions that shape a timeline, by CUPTI's callback id. Only these are recorded: whole API traces are
// what makes profiles big and jobs slow.
#pragma once

#include <cupti.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include "profiles/trace.hpp"

namespace echotp::recorder {

struct ApiFunction {
  CUpti_CallbackId id;
  HostApiKind kind;
};

#define ECHOTP_RUNTIME(name, kind)                     \
  ApiFunction {                                        \
    CUPTI_RUNTIME_TRACE_CBID_##name, HostApiKind::kind \
  }
#define ECHOTP_DRIVER(name, kind)                     \
  ApiFunction {                                       \
    CUPTI_DRIVER_TRACE_CBID_##name, HostApiKind::kind \
  }

inline constexpr ApiFunction kRuntimeFunctions[] = {
    ECHOTP_RUNTIME(cudaLaunchKernel_v7000, kLaunch),
    ECHOTP_RUNTIME(cudaLaunchKernel_ptsz_v7000, kLaunch),
    ECHOTP_RUNTIME(cudaLaunchKernelExC_v11060, kLaunch),
    ECHOTP_RUNTIME(cudaLaunchKernelExC_ptsz_v11060, kLaunch),
    ECHOTP_RUNTIME(cudaLaunchCooperativeKernel_v9000, kLaunch),
    ECHOTP_RUNTIME(cudaLaunchCooperativeKernel_ptsz_v9000, kLaunch),
    ApiFunction{505, HostApiKind::kLaunch},  // __cudaLaunchKernel_v13000: CUDA 12 headers have no name for it
    ApiFunction{506, HostApiKind::kLaunch},  // __cudaLaunchKernel_ptsz_v13000
    ECHOTP_RUNTIME(cudaGraphLaunch_v10000, kGraphLaunch),
    ECHOTP_RUNTIME(cudaGraphLaunch_ptsz_v10000, kGraphLaunch),
    ECHOTP_RUNTIME(cudaMemcpy_v3020, kMemcpy),
    ECHOTP_RUNTIME(cudaMemcpy_ptds_v7000, kMemcpy),
    ECHOTP_RUNTIME(cudaMemcpyAsync_v3020, kMemcpy),
    ECHOTP_RUNTIME(cudaMemcpyAsync_ptsz_v7000, kMemcpy),
    ECHOTP_RUNTIME(cudaMemcpy2DAsync_v3020, kMemcpy),
    ECHOTP_RUNTIME(cudaMemcpy2DAsync_ptsz_v7000, kMemcpy),
    ECHOTP_RUNTIME(cudaMemcpyPeer_v4000, kMemcpy),
    ECHOTP_RUNTIME(cudaMemcpyPeerAsync_v4000, kMemcpy),
    ECHOTP_RUNTIME(cudaMemset_v3020, kMemset),
    ECHOTP_RUNTIME(cudaMemset_ptds_v7000, kMemset),
    ECHOTP_RUNTIME(cudaMemsetAsync_v3020, kMemset),
    ECHOTP_RUNTIME(cudaMemsetAsync_ptsz_v7000, kMemset),
    ECHOTP_RUNTIME(cudaEventRecord_v3020, kEventRecord),
    ECHOTP_RUNTIME(cudaEventRecord_ptsz_v7000, kEventRecord),
    ECHOTP_RUNTIME(cudaEventRecordWithFlags_v11010, kEventRecord),
    ECHOTP_RUNTIME(cudaEventRecordWithFlags_ptsz_v11010, kEventRecord),
    ECHOTP_RUNTIME(cudaStreamWaitEvent_v3020, kStreamWaitEvent),
    ECHOTP_RUNTIME(cudaStreamWaitEvent_ptsz_v7000, kStreamWaitEvent),
    ECHOTP_RUNTIME(cudaEventSynchronize_v3020, kEventSynchronize),
    ECHOTP_RUNTIME(cudaStreamSynchronize_v3020, kStreamSynchronize),
    ECHOTP_RUNTIME(cudaStreamSynchronize_ptsz_v7000, kStreamSynchronize),
    ECHOTP_RUNTIME(cudaDeviceSynchronize_v3020, kDeviceSynchronize),
};

inline constexpr ApiFunction kDriverFunctions[] = {
    ECHOTP_DRIVER(cuLaunchKernel, kLaunch),
    ECHOTP_DRIVER(cuLaunchKernel_ptsz, kLaunch),
    ECHOTP_DRIVER(cuLaunchKernelEx, kLaunch),
    ECHOTP_DRIVER(cuLaunchKernelEx_ptsz, kLaunch),
    ECHOTP_DRIVER(cuLaunchCooperativeKernel, kLaunch),
    ECHOTP_DRIVER(cuLaunchCooperativeKernel_ptsz, kLaunch),
    ECHOTP_DRIVER(cuGraphLaunch, kGraphLaunch),
    ECHOTP_DRIVER(cuGraphLaunch_ptsz, kGraphLaunch),
    ECHOTP_DRIVER(cuMemcpyHtoD_v2, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyDtoH_v2, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyDtoD_v2, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyHtoDAsync_v2, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyHtoDAsync_v2_ptsz, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyDtoHAsync_v2, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyDtoHAsync_v2_ptsz, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyDtoDAsync_v2, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyDtoDAsync_v2_ptsz, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyPeerAsync, kMemcpy),
    ECHOTP_DRIVER(cuMemcpyPeerAsync_ptsz, kMemcpy),
    ECHOTP_DRIVER(cuMemsetD8Async, kMemset),
    ECHOTP_DRIVER(cuMemsetD8Async_ptsz, kMemset),
    ECHOTP_DRIVER(cuMemsetD32Async, kMemset),
    ECHOTP_DRIVER(cuMemsetD32Async_ptsz, kMemset),
    ECHOTP_DRIVER(cuEventRecord, kEventRecord),
    ECHOTP_DRIVER(cuEventRecord_ptsz, kEventRecord),
    ECHOTP_DRIVER(cuEventRecordWithFlags, kEventRecord),
    ECHOTP_DRIVER(cuEventRecordWithFlags_ptsz, kEventRecord),
    ECHOTP_DRIVER(cuStreamWaitEvent, kStreamWaitEvent),
    ECHOTP_DRIVER(cuStreamWaitEvent_ptsz, kStreamWaitEvent),
    ECHOTP_DRIVER(cuEventSynchronize, kEventSynchronize),
    ECHOTP_DRIVER(cuStreamSynchronize, kStreamSynchronize),
    ECHOTP_DRIVER(cuStreamSynchronize_ptsz, kStreamSynchronize),
    ECHOTP_DRIVER(cuCtxSynchronize, kDeviceSynchronize),
};

#undef ECHOTP_RUNTIME
#undef ECHOTP_DRIVER

/// The entry of `id`, or null for functions that are not recorded.
template <std::size_t N>
constexpr const ApiFunction* find_function(const ApiFunction (&functions)[N], CUpti_CallbackId id) {
  for (const ApiFunction& function : functions) {
    if (function.id == id) return &function;
  }
  return nullptr;
}

}  // namespace echotp::recorder
