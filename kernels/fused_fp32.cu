// SPDX-License-Identifier: Apache-2.0
// The fused kernels for fp32 messages.
#include "kernels/fused_variants.hpp"

namespace echotp::device {

constexpr FusedKernels kFusedFp32 = {ECHO_TP_VARIANTS(fused_kernel, DataType::kFp32, true),
                                     ECHO_TP_VARIANTS(fused_kernel, DataType::kFp32, false)};

const FusedKernels& fused_kernels_fp32() noexcept {
  return kFusedFp32;
}

}  // namespace echotp::device
