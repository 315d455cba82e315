// SPDX-License-Identifier: Apache-2.0
#include "shim/peer_memory.hpp"

#include <fcntl.h>

#include "shim/context.hpp"

namespace echotp {

namespace {

/// Memory of cudaMalloc comes in blocks of this size: a window that fills its blocks shares none with anybody
/// else's data.
constexpr std::int64_t kIpcGranularity = std::int64_t{2} << 20;

constexpr std::int64_t round_up(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

CUmemAllocationProp shareable_on(int device) noexcept {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  return wanted;
}

/// The current device and its granularity.
Status find_device(int& device, std::size_t& granularity) noexcept {
  if (!driver().can_share_memory())
    return Error{ErrorCode::kSystem, "the driver can't share memory as file descriptors", ""};
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
    return cuda_error("cudaGetDevice", error);
  const CUmemAllocationProp wanted = shareable_on(device);
  const CUresult error =
      driver().mem_get_granularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (error != CUDA_SUCCESS) return cuda_error("cuMemGetAllocationGranularity", error);
  return Unit{};
}

}  // namespace

Status MappedRange::map(CUmemGenericAllocationHandle memory, std::int64_t bytes, std::size_t granularity,
                        int device) noexcept {
  const Driver& cuda = driver();
  bytes_ = static_cast<std::size_t>(bytes);
  const char* what = "cuMemAddressReserve";
  CUresult error = cuda.mem_address_reserve(&address_, bytes_, granularity, 0, 0);
  if (error == CUDA_SUCCESS) {
    what = "cuMemMap";
    error = cuda.mem_map(address_, bytes_, 0, memory, 0);
    mapped_ = error == CUDA_SUCCESS;
  } else {
    address_ = 0;
  }
  cuda.mem_release(memory);  // the mapping keeps it
  if (error == CUDA_SUCCESS) {
    what = "cuMemSetAccess";
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    error = cuda.mem_set_access(address_, bytes_, &access, 1);
  }
  if (error == CUDA_SUCCESS) return Unit{};
  unmap();
  return cuda_error(what, error);
}

void MappedRange::unmap() noexcept {
  if (address_ == 0) return;
  if (mapped_) driver().mem_unmap(address_, bytes_);
  driver().mem_address_free(address_, bytes_);
  address_ = 0;
  mapped_ = false;
}

Status OwnWindow::create(P2pWay way, std::int64_t bytes, cudaStream_t stream) noexcept {
  free();
  if (Status created = way == P2pWay::kVmm ? create_vmm(bytes) : create_ipc(bytes); !created) {
    free();
    return created;
  }
  cudaError_t error = cudaMemsetAsync(data(), 0, static_cast<std::size_t>(bytes_), stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) return Unit{};
  free();
  return cuda_error("clearing the window", error);
}

Status OwnWindow::create_vmm(std::int64_t bytes) noexcept {
  int device = 0;
  std::size_t granularity = 0;
  if (Status found = find_device(device, granularity); !found) return found;
  int supported = 0;
  if (driver().device_get_attribute(&supported,
                                    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                    device) != CUDA_SUCCESS ||
      supported == 0)
    return Error{ErrorCode::kSystem, "the GPU can't share memory as file descriptors", ""};
  bytes_ = round_up(bytes, static_cast<std::int64_t>(granularity));
  const CUmemAllocationProp wanted = shareable_on(device);
  CUmemGenericAllocationHandle memory{};
  CUresult error = driver().mem_create(&memory, static_cast<std::size_t>(bytes_), &wanted, 0);
  if (error != CUDA_SUCCESS) return cuda_error("cuMemCreate", error);
  int fd = -1;
  error = driver().mem_export(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (error != CUDA_SUCCESS) {
    driver().mem_release(memory);
    return cuda_error("cuMemExportToShareableHandle", error);
  }
  fd_ = UniqueFd(fd);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return range_.map(memory, bytes_, granularity, device);
}

Status OwnWindow::create_ipc(std::int64_t bytes) noexcept {
  bytes_ = round_up(bytes, kIpcGranularity);
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes_));
  if (error != cudaSuccess) return cuda_error("allocating the window", error);
  ipc_ = static_cast<std::uint8_t*>(memory);
  error = cudaIpcGetMemHandle(&handle_, memory);
  if (error != cudaSuccess) return cuda_error("cudaIpcGetMemHandle", error);
  return Unit{};
}

void OwnWindow::free() noexcept {
  range_.unmap();
  fd_.reset();
  if (ipc_ && cudaFree(ipc_) != cudaSuccess) cudaGetLastError();
  ipc_ = nullptr;
  bytes_ = 0;
}

Status PeerWindow::open(int fd, std::int64_t bytes) noexcept {
  close();
  int device = 0;
  std::size_t granularity = 0;
  if (Status found = find_device(device, granularity); !found) return found;
  CUmemGenericAllocationHandle memory{};
  // The driver takes the number of a descriptor in a pointer, and leaves the descriptor open.
  void* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));
  const CUresult error = driver().mem_import(&memory, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (error != CUDA_SUCCESS) return cuda_error("cuMemImportFromShareableHandle", error);
  return range_.map(memory, bytes, granularity, device);
}

Status PeerWindow::open(const cudaIpcMemHandle_t& handle) noexcept {
  close();
  const cudaError_t error = cudaIpcOpenMemHandle(&ipc_, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error == cudaSuccess) return Unit{};
  ipc_ = nullptr;
  return cuda_error("cudaIpcOpenMemHandle", error);
}

void PeerWindow::close() noexcept {
  range_.unmap();
  if (ipc_ && cudaIpcCloseMemHandle(ipc_) != cudaSuccess) cudaGetLastError();
  ipc_ = nullptr;
}

}  // namespace echotp
