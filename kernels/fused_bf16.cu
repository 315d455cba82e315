// SPDX-License-Identifier: Apache-2.0
// The fused kernels for bf16 messages.
#include "kernels/fused_variants.hpp"

namespace echotp::device {

constexpr FusedKernels kFusedBf16 = {ECHO_TP_VARIANTS(fused_kernel, DataType::kBf16, true),
                                     ECHO_TP_VARIANTS(fused_kernel, DataType::kBf16, false)};

const FusedKernels& fused_kernels_bf16() noexcept {
  return kFusedBf16;
}

}  // namespace echotp::device
