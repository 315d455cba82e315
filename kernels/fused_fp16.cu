// SPDX-License-Identifier: Apache-2.0
// The fused kernels for fp16 messages.
#include "kernels/fused_variants.hpp"

namespace echotp::device {

constexpr FusedKernels kFusedFp16 = {ECHO_TP_VARIANTS(fused_kernel, DataType::kFp16, true),
                                     ECHO_TP_VARIANTS(fused_kernel, DataType::kFp16, false)};

const FusedKernels& fused_kernels_fp16() noexcept {
  return kFusedFp16;
}

}  // namespace echotp::device
