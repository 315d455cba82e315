// SPDX-License-Identifier: Apache-2.0
#include "shim/context.hpp"

#include <string>
#include <type_traits>

namespace echotp {

const Driver& driver() noexcept {
  static const Driver loaded = [] {
    Driver found;
    const auto entry = [](const char* name, auto& pointer) {
      void* symbol = nullptr;
      cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
      const cudaError_t error =
          cudaGetDriverEntryPointByVersion(name, &symbol, 12000, cudaEnableDefault, &status);
#else
      const cudaError_t error = cudaGetDriverEntryPoint(name, &symbol, cudaEnableDefault, &status);
#endif
      if (error == cudaSuccess && status == cudaDriverEntryPointSuccess)
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(symbol);
      else if (error != cudaSuccess)
        cudaGetLastError();
    };
    entry("cuCtxGetCurrent", found.ctx_get_current);
    entry("cuCtxPushCurrent", found.ctx_push_current);
    entry("cuCtxPopCurrent", found.ctx_pop_current);
    entry("cuGetErrorString", found.get_error_string);
    entry("cuDeviceGetAttribute", found.device_get_attribute);
    entry("cuMemGetAllocationGranularity", found.mem_get_granularity);
    entry("cuMemCreate", found.mem_create);
    entry("cuMemRelease", found.mem_release);
    entry("cuMemAddressReserve", found.mem_address_reserve);
    entry("cuMemAddressFree", found.mem_address_free);
    entry("cuMemMap", found.mem_map);
    entry("cuMemUnmap", found.mem_unmap);
    entry("cuMemSetAccess", found.mem_set_access);
    entry("cuMemExportToShareableHandle", found.mem_export);
    entry("cuMemImportFromShareableHandle", found.mem_import);
    return found;
  }();
  return loaded;
}

Error cuda_error(const char* what, cudaError_t error) {
  cudaGetLastError();
  return {ErrorCode::kSystem, std::string(what) + ": " + cudaGetErrorString(error), ""};
}

Error cuda_error(const char* what, CUresult error) {
  const char* text = nullptr;
  if (!driver().get_error_string || driver().get_error_string(error, &text) != CUDA_SUCCESS) text = nullptr;
  return {ErrorCode::kSystem,
          std::string(what) + ": " + (text ? text : "CUDA error " + std::to_string(static_cast<int>(error))),
          ""};
}

}  // namespace echotp
