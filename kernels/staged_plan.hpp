// SPDX-License-Identifier: Apache-2.0
// Host side shared by the staged kernels: checks the arguments, works out the geometry, launches.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>

#include "kernels/params.hpp"
#include "kernels/warp.cuh"

namespace echotp::device {

inline bool aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// cudaSuccess, or why these arguments can't be run: cudaErrorInvalidValue (a number or a missing pointer) or
/// cudaErrorMisalignedAddress (wire buffers and state are 16-byte aligned, send and recv element-aligned).
cudaError_t check_arguments(const StagedArgs& args, Phase phase) noexcept;

/// Geometry of a launch; items is 0 when there is nothing to do.
Geometry make_geometry(const StagedArgs& args, Phase phase) noexcept;

/// How the estimates are kept for this phase: kNone when the mode leaves this role alone or there is no
/// state.
Memory memory_of(const StagedArgs& args, Phase phase) noexcept;

using Kernel = void (*)(StagedArgs, Geometry);

/// Position of a kernel in a table of all variants: by width of the codes (4 bits on both legs, or others),
/// then element type, then none, fast x 3 formats, dual x 3 formats. Mode drift, which has no formats, comes
/// after all of these.
inline constexpr int kVariants = 7;
inline constexpr int kTypes = 3;
inline constexpr int kElementVariants = 2 * kTypes * kVariants;
inline int width_variant_of(const Codec& codec) noexcept {
  return codec.bits == 4 && codec.first_leg_bits == 4 ? 0 : 1;
}
inline int state_variant_of(Memory memory, StateFormat format) noexcept {
  return memory == Memory::kNone ? 0 : 1 + (memory == Memory::kDual ? 3 : 0) + static_cast<int>(format);
}
inline int variant_of(const Codec& codec, DataType dtype, Memory memory, StateFormat format) noexcept {
  const int type = width_variant_of(codec) * kTypes + static_cast<int>(dtype);
  return memory == Memory::kDrift ? kElementVariants + type
                                  : type * kVariants + state_variant_of(memory, format);
}
using VariantTable = const Kernel[kElementVariants + 2 * kTypes];

/// Launches one kernel over geometry.items, `grid_rows` times. Uses no last-error state of the caller.
cudaError_t launch(Kernel kernel, const StagedArgs& args, const Geometry& geometry, unsigned grid_rows,
                   cudaStream_t stream) noexcept;

/// Checks the arguments of quantise or reduce and launches the variant that they ask for.
cudaError_t launch(VariantTable& kernels, const StagedArgs& args, Phase phase, cudaStream_t stream) noexcept;

/// Mode drift: after a chunk's elements of `role` were rounded, adds up their errors by channel; after the
/// last chunk the estimates follow.
cudaError_t launch_drift(const StagedArgs& args, Role role, cudaStream_t stream) noexcept;

/// Loads kernels on the current device.
template <class AnyKernel, int N>
cudaError_t load(const AnyKernel (&kernels)[N]) noexcept {
  for (const AnyKernel kernel : kernels) {
    cudaFuncAttributes attributes{};
    const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t load_quantise_kernels() noexcept;
cudaError_t load_reduce_kernels() noexcept;
cudaError_t load_decode_kernels() noexcept;
cudaError_t load_drift_kernel() noexcept;

}  // namespace echotp::device

/// The variants of kernel template KERNEL, in the order of variant_of().
#define ECHO_TP_VARIANTS(KERNEL, TYPE, FOUR)                 \
  KERNEL<TYPE, Memory::kNone, StateFormat::kFp32, FOUR>,     \
      KERNEL<TYPE, Memory::kFast, StateFormat::kFp32, FOUR>, \
      KERNEL<TYPE, Memory::kFast, StateFormat::kFp16, FOUR>, \
      KERNEL<TYPE, Memory::kFast, StateFormat::kInt8, FOUR>, \
      KERNEL<TYPE, Memory::kDual, StateFormat::kFp32, FOUR>, \
      KERNEL<TYPE, Memory::kDual, StateFormat::kFp16, FOUR>, \
      KERNEL<TYPE, Memory::kDual, StateFormat::kInt8, FOUR>
#define ECHO_TP_TYPES(KERNEL, FOUR)                                                                 \
  ECHO_TP_VARIANTS(KERNEL, DataType::kBf16, FOUR), ECHO_TP_VARIANTS(KERNEL, DataType::kFp16, FOUR), \
      ECHO_TP_VARIANTS(KERNEL, DataType::kFp32, FOUR)
#define ECHO_TP_DRIFT_VARIANTS(KERNEL, FOUR)                             \
  KERNEL<DataType::kBf16, Memory::kDrift, StateFormat::kFp32, FOUR>,     \
      KERNEL<DataType::kFp16, Memory::kDrift, StateFormat::kFp32, FOUR>, \
      KERNEL<DataType::kFp32, Memory::kDrift, StateFormat::kFp32, FOUR>
#define ECHO_TP_ALL_VARIANTS(KERNEL)                                                               \
  ECHO_TP_TYPES(KERNEL, true), ECHO_TP_TYPES(KERNEL, false), ECHO_TP_DRIFT_VARIANTS(KERNEL, true), \
      ECHO_TP_DRIFT_VARIANTS(KERNEL, false)
