/* SPDX-License-Identifier: Apache-2.0
 * The driver entry points that doctor tries, for two GPUs that reach each other. It keeps count of what is
 * held. FAKE_CUDA_REFUSE=NAME  that function answers 999 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int held; /* contexts, allocations, handles */

EXPORT int fake_cuda_held(void);
EXPORT int fake_cuda_held(void) {
  return held;
}

static int refuses(const char* name) {
  const char* refused = getenv("FAKE_CUDA_REFUSE");
  return refused && strcmp(refused, name) == 0 ? 999 : 0;
}

/* Success that takes (1) or gives back (-1) something, or nothing (0). */
#define ANSWER(name, change)           \
  do {                                 \
    const int refused = refuses(name); \
    if (!refused) held += change;      \
    return refused;                    \
  } while (0)

#define FUNCTION(name, ...)     \
  EXPORT int name(__VA_ARGS__); \
  EXPORT int name(__VA_ARGS__)

FUNCTION(cuGetErrorString, int rc, const char** text) {
  *text = rc == 999 ? "refused for the test" : "fine";
  return 0;
}
FUNCTION(cuDeviceGet, int* device, int ordinal) {
  *device = 10 + ordinal;
  return 0;
}
FUNCTION(cuDeviceGetAttribute, int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 102 || attribute == 103;
  ANSWER("cuDeviceGetAttribute", 0);
}
FUNCTION(cuDeviceCanAccessPeer, int* can, int device, int peer) {
  *can = device != peer;
  ANSWER("cuDeviceCanAccessPeer", 0);
}
FUNCTION(cuDevicePrimaryCtxRetain, void** context, int device) {
  *context = &held;
  (void)device;
  ANSWER("cuDevicePrimaryCtxRetain", 1);
}
FUNCTION(cuDevicePrimaryCtxRelease_v2, int device) {
  (void)device;
  ANSWER("cuDevicePrimaryCtxRelease_v2", -1);
}
FUNCTION(cuCtxPushCurrent_v2, void* context) {
  (void)context;
  ANSWER("cuCtxPushCurrent_v2", 1);
}
FUNCTION(cuCtxPopCurrent_v2, void** context) {
  *context = &held;
  ANSWER("cuCtxPopCurrent_v2", -1);
}
FUNCTION(cuMemAlloc_v2, unsigned long long* memory, size_t bytes) {
  *memory = bytes;
  ANSWER("cuMemAlloc_v2", 1);
}
FUNCTION(cuMemFree_v2, unsigned long long memory) {
  (void)memory;
  ANSWER("cuMemFree_v2", -1);
}
FUNCTION(cuIpcGetMemHandle, void* handle, unsigned long long memory) {
  (void)memory;
  memset(handle, 1, 64);
  ANSWER("cuIpcGetMemHandle", 0);
}
FUNCTION(cuMemGetAllocationGranularity, size_t* bytes, const int* properties, int option) {
  (void)option;
  *bytes = 2u << 20;
  if (properties[0] != 1 || properties[1] != 1 || properties[2] != 1) return 1;
  ANSWER("cuMemGetAllocationGranularity", 0);
}
FUNCTION(cuMemCreate, unsigned long long* memory, size_t bytes, const int* properties,
         unsigned long long flags) {
  *memory = 7;
  if (bytes != 2u << 20 || properties[3] != 1 || flags != 0) return 1;
  ANSWER("cuMemCreate", 1);
}
FUNCTION(cuMemExportToShareableHandle, int* file, unsigned long long memory, int type,
         unsigned long long flags) {
  if (memory != 7 || type != 1 || flags != 0) return 1;
  if (!refuses("cuMemExportToShareableHandle")) *file = dup(2);
  ANSWER("cuMemExportToShareableHandle", 0);
}
FUNCTION(cuMemRelease, unsigned long long memory) {
  (void)memory;
  ANSWER("cuMemRelease", -1);
}
