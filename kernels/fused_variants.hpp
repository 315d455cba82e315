// SPDX-License-Identifier: Apache-2.0
// The variants of the fused kernel, one file an element type because they take long to compile.
#pragma once

#include "kernels/fused_kernel.cuh"
#include "kernels/staged_plan.hpp"

namespace echotp::device {

using FusedKernel = void (*)(FusedLaunch);

/// By width of the codes, then state, as in variant_of().
using FusedKernels = FusedKernel[2 * kVariants];

const FusedKernels& fused_kernels_bf16() noexcept;
const FusedKernels& fused_kernels_fp16() noexcept;
const FusedKernels& fused_kernels_fp32() noexcept;

/// Loads a variant on the current device and lets it have all of an SM's shared memory.
cudaError_t prepare_fused_kernel(FusedKernel kernel) noexcept;

/// Works out the launch of `ranks` ranks (1, or all of a loopback) from their arguments, which have been
/// checked.
FusedLaunch make_fused_launch(const FusedArgs* args, int ranks) noexcept;

/// Launches any variant of the kernel for `ranks` ranks. Fits its shared memory to the device.
cudaError_t launch_fused_kernel(FusedKernel kernel, FusedLaunch& launch, int ranks,
                                cudaStream_t stream) noexcept;

}  // namespace echotp::device
