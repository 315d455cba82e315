// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_memory.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace echotp {
namespace {

// cuda.h's types, by the driver's stable ABI.
using Handle = unsigned long long;
struct AllocationProperties {
  int type = 1;           // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 1;   // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
  int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int location_id = 0;
  void* win32 = nullptr;
  std::array<unsigned char, 8> flags{};
};
static_assert(sizeof(AllocationProperties) == 32 && offsetof(AllocationProperties, win32) == 16);

struct Driver {
  int (*error_text)(int, const char**) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*can_access_peer)(int*, int, int) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*release)(int) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*alloc)(std::uint64_t*, std::size_t) = nullptr;
  int (*free)(std::uint64_t) = nullptr;
  int (*ipc_handle)(void*, std::uint64_t) = nullptr;
  int (*granularity)(std::size_t*, const AllocationProperties*, int) = nullptr;
  int (*create)(Handle*, std::size_t, const AllocationProperties*, unsigned long long) = nullptr;
  int (*export_handle)(void*, Handle, int, unsigned long long) = nullptr;
  int (*release_handle)(Handle) = nullptr;
};

template <class F>
void bind(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
}

Driver bind_driver(void* library) {
  Driver cuda;
  bind(library, "cuGetErrorString", cuda.error_text);
  bind(library, "cuDeviceGetAttribute", cuda.attribute);
  bind(library, "cuDeviceCanAccessPeer", cuda.can_access_peer);
  bind(library, "cuDeviceGet", cuda.get);
  bind(library, "cuDevicePrimaryCtxRetain", cuda.retain);
  bind(library, "cuDevicePrimaryCtxRelease_v2", cuda.release);
  bind(library, "cuCtxPushCurrent_v2", cuda.push);
  bind(library, "cuCtxPopCurrent_v2", cuda.pop);
  bind(library, "cuMemAlloc_v2", cuda.alloc);
  bind(library, "cuMemFree_v2", cuda.free);
  bind(library, "cuIpcGetMemHandle", cuda.ipc_handle);
  bind(library, "cuMemGetAllocationGranularity", cuda.granularity);
  bind(library, "cuMemCreate", cuda.create);
  bind(library, "cuMemExportToShareableHandle", cuda.export_handle);
  bind(library, "cuMemRelease", cuda.release_handle);
  return cuda;
}

Attempt failed(const Driver& cuda, const char* what, int rc) {
  const char* text = nullptr;
  if (!cuda.error_text || cuda.error_text(rc, &text) != 0 || !text) text = "unknown error";
  return {false, std::string(what) + ": " + text + " (" + std::to_string(rc) + ")"};
}

Attempt not_tried(const char* why) {
  return {std::nullopt, why};
}

Attempt try_ipc(const Driver& cuda) {
  if (!cuda.alloc || !cuda.free || !cuda.ipc_handle) return not_tried("the driver has no such functions");
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  std::uint64_t memory = 0;
  if (const int rc = cuda.alloc(&memory, kBytes); rc != 0)
    return {std::nullopt, failed(cuda, "cuMemAlloc of 2 MiB", rc).problem};
  std::array<unsigned char, 64> handle{};  // CUipcMemHandle
  const int rc = cuda.ipc_handle(handle.data(), memory);
  cuda.free(memory);
  return rc == 0 ? Attempt{true, ""} : failed(cuda, "cuIpcGetMemHandle", rc);
}

Attempt try_vmm(const Driver& cuda, int device, int ordinal) {
  constexpr int kVmmSupported = 102, kFdSupported = 103;  // CU_DEVICE_ATTRIBUTE_...
  int vmm = 0, fd_handles = 0;
  if (!cuda.granularity || !cuda.create || !cuda.export_handle || !cuda.release_handle || !cuda.attribute)
    return not_tried("the driver has no such functions");
  if (cuda.attribute(&vmm, kVmmSupported, device) != 0 || vmm == 0 ||
      cuda.attribute(&fd_handles, kFdSupported, device) != 0 || fd_handles == 0)
    return {false, "the device does not support it"};
  AllocationProperties properties;
  properties.location_id = ordinal;
  std::size_t bytes = 0;
  if (const int rc = cuda.granularity(&bytes, &properties, 0); rc != 0)
    return failed(cuda, "cuMemGetAllocationGranularity", rc);
  Handle memory = 0;
  if (const int rc = cuda.create(&memory, bytes, &properties, 0); rc != 0)
    return failed(cuda, "cuMemCreate", rc);
  int file = -1;
  const int rc = cuda.export_handle(&file, memory, properties.handle_types, 0);
  if (file >= 0) ::close(file);
  cuda.release_handle(memory);
  return rc == 0 ? Attempt{true, ""} : failed(cuda, "cuMemExportToShareableHandle", rc);
}

}  // namespace

MemorySharing probe_memory_sharing(void* library, int device, int ordinal, int count) {
  const Driver cuda = bind_driver(library);
  MemorySharing out;
  for (int other = 0; other < count && cuda.get && cuda.can_access_peer; ++other) {
    int peer = 0, can = 0;
    if (other != ordinal && cuda.get(&peer, other) == 0 && cuda.can_access_peer(&can, device, peer) == 0 &&
        can)
      out.peers.push_back(other);
  }
  out.ipc = out.vmm = not_tried("the driver has no such functions");
  if (!cuda.retain || !cuda.release || !cuda.push || !cuda.pop) return out;
  void* context = nullptr;
  if (const int rc = cuda.retain(&context, device); rc != 0) {
    out.ipc = out.vmm = {std::nullopt, failed(cuda, "no context", rc).problem};
    return out;
  }
  if (const int rc = cuda.push(context); rc != 0) {
    out.ipc = out.vmm = {std::nullopt, failed(cuda, "no context", rc).problem};
  } else {
    out.ipc = try_ipc(cuda);
    out.vmm = try_vmm(cuda, device, ordinal);
    cuda.pop(&context);
  }
  cuda.release(device);
  return out;
}

}  // namespace echotp
