// SPDX-License-Identifier: Apache-2.0
// A CUPTI that records what a test tells it to: kernels, copies, events, launches, graph nodes, drops and
// refusals. Has the real functions' names and the real records' layouts, so that the recorder runs unchanged
// on a machine without a GPU.
//   FAKE_CUPTI_HOLDER=<name>  another tool holds the subscription
//   FAKE_CUPTI_ERROR=<n>      cuptiSubscribe answers n
#include "fake_cupti.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  size_t struct_size;
  const char* name;
  char* old_name;
  size_t old_size;
} SubscribeParams;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUpti_CallbackFunc callback;
static void* callback_user;
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static uint8_t* buffer;
static size_t buffer_size;
static size_t buffer_used;
static size_t dropped;
static int enabled_kinds[128];

EXPORT CUptiResult CUPTIAPI cuptiGetVersion(uint32_t* version) {
  *version = 130001;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char** text) {
  static char buffer_text[32];
  snprintf(buffer_text, sizeof buffer_text, "FAKE_ERROR_%d", (int)result);
  *text = buffer_text;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc function,
                                           void* user) {
  *subscriber = (CUpti_SubscriberHandle)&lock;
  callback = function;
  callback_user = user;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiSubscribe_v2(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc function,
                                              void* user, CUpti_SubscriberParams* given) {
  SubscribeParams* params = (SubscribeParams*)given;
  const char* holder = getenv("FAKE_CUPTI_HOLDER");
  const char* error = getenv("FAKE_CUPTI_ERROR");
  if (holder) {
    if (params && params->old_name) snprintf(params->old_name, params->old_size, "%s", holder);
    return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  }
  if (error) return (CUptiResult)atoi(error);
  return cuptiSubscribe(subscriber, function, user);
}

EXPORT CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  (void)subscriber;
  callback = NULL;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                                CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  (void)enable, (void)subscriber, (void)domain, (void)id;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc ask,
                                                           CUpti_BuffersCallbackCompleteFunc give) {
  request = ask;
  complete = give;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  enabled_kinds[kind] = 1;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  enabled_kinds[kind] = 0;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, uint8_t enable) {
  (void)id, (void)enable;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityEnableDriverApi(CUpti_CallbackId id, uint8_t enable) {
  (void)id, (void)enable;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiSetThreadIdType(CUpti_ActivityThreadIdType type) {
  (void)type;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiGetTimestamp(uint64_t* timestamp) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  *timestamp = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiGetGraphNodeId(CUgraphNode node, uint64_t* id) {
  *id = (uint64_t)(uintptr_t)node;
  return CUPTI_SUCCESS;
}

static void deliver(void) {
  uint8_t* full = buffer;
  const size_t size = buffer_size;
  const size_t used = buffer_used;
  buffer = NULL;
  buffer_used = 0;
  if (full) complete(NULL, 0, full, size, used);
}

EXPORT CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  pthread_mutex_lock(&lock);
  deliver();
  pthread_mutex_unlock(&lock);
  return CUPTI_SUCCESS;
}

static size_t record_size(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT:
      return sizeof(CUpti_ActivityCudaEvent2);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return sizeof(CUpti_ActivitySynchronization2);
    case CUPTI_ACTIVITY_KIND_DEVICE:
      return sizeof(CUpti_ActivityDevice5);
    default:
      return 0;
  }
}

EXPORT CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t* from, size_t valid, CUpti_Activity** record) {
  uint8_t* next = *record ? (uint8_t*)*record + record_size((*record)->kind) : from;
  if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity*)next;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream,
                                                              size_t* count) {
  (void)context, (void)stream;
  pthread_mutex_lock(&lock);
  *count = dropped;
  dropped = 0;
  pthread_mutex_unlock(&lock);
  return CUPTI_SUCCESS;
}

// --- what tests call
// ---------------------------------------------------------------------------------------------------

static void append(CUpti_ActivityKind kind, void* record) {
  const size_t size = record_size(kind);
  pthread_mutex_lock(&lock);
  if (request && enabled_kinds[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) {
    if (buffer && buffer_used + size > buffer_size) deliver();
    if (!buffer) {
      size_t max_records = 0;
      request(&buffer, &buffer_size, &max_records);
      buffer_used = 0;
    }
    memcpy(buffer + buffer_used, record, size);
    buffer_used += size;
  }
  pthread_mutex_unlock(&lock);
}

EXPORT void fake_cupti_kernel(const char* name, uint64_t start, uint64_t end, uint32_t stream,
                              uint32_t correlation, uint64_t node) {
  CUpti_ActivityKernel10 record;
  memset(&record, 0, sizeof record);
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = name;
  record.start = start;
  record.end = end;
  record.streamId = stream;
  record.correlationId = correlation;
  record.graphNodeId = node;
  append(record.kind, &record);
}

EXPORT void fake_cupti_copy(uint64_t bytes, uint64_t start, uint64_t end, uint32_t stream,
                            uint32_t correlation) {
  CUpti_ActivityMemcpy6 record;
  memset(&record, 0, sizeof record);
  record.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  record.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  record.bytes = bytes;
  record.start = start;
  record.end = end;
  record.streamId = stream;
  record.correlationId = correlation;
  append(record.kind, &record);
}

EXPORT void fake_cupti_api(int driver, uint32_t id, uint64_t start, uint64_t end, uint32_t thread,
                           uint32_t correlation) {
  CUpti_ActivityAPI record;
  memset(&record, 0, sizeof record);
  record.kind = driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
  record.cbid = id;
  record.start = start;
  record.end = end;
  record.threadId = thread;
  record.correlationId = correlation;
  append(record.kind, &record);
}

EXPORT void fake_cupti_event(uint32_t stream, uint32_t event, uint64_t sync, uint32_t correlation) {
  CUpti_ActivityCudaEvent2 record;
  memset(&record, 0, sizeof record);
  record.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
  record.streamId = stream;
  record.eventId = event;
  record.cudaEventSyncId = sync;
  record.correlationId = correlation;
  append(record.kind, &record);
}

EXPORT void fake_cupti_wait(uint32_t stream, uint32_t event, uint64_t sync, uint64_t start, uint64_t end,
                            uint32_t correlation) {
  CUpti_ActivitySynchronization2 record;
  memset(&record, 0, sizeof record);
  record.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  record.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT;
  record.streamId = stream;
  record.cudaEventId = event;
  record.cudaEventSyncId = sync;
  record.start = start;
  record.end = end;
  record.correlationId = correlation;
  append(record.kind, &record);
}

EXPORT void fake_cupti_device(uint32_t id, const char* name) {
  CUpti_ActivityDevice5 record;
  memset(&record, 0, sizeof record);
  record.kind = CUPTI_ACTIVITY_KIND_DEVICE;
  record.id = id;
  record.name = name;
  for (int i = 0; i < 16; ++i) record.uuid.bytes[i] = (char)(i + 1);
  append(record.kind, &record);
}

EXPORT void fake_cupti_drop(size_t count) {
  pthread_mutex_lock(&lock);
  dropped += count;
  pthread_mutex_unlock(&lock);
}

EXPORT void fake_cupti_launch(const char* kernel, uint32_t correlation, int enter) {
  CUpti_CallbackData data;
  memset(&data, 0, sizeof data);
  data.callbackSite = enter ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  data.symbolName = kernel;
  data.correlationId = correlation;
  if (callback)
    callback(callback_user, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, &data);
}

EXPORT void fake_cupti_graph_node(uint64_t node, uint64_t origin) {
  CUpti_GraphData graph;
  CUpti_ResourceData resource;
  memset(&graph, 0, sizeof graph);
  memset(&resource, 0, sizeof resource);
  graph.node = (CUgraphNode)(uintptr_t)node;
  graph.originalNode = (CUgraphNode)(uintptr_t)origin;
  resource.resourceDescriptor = &graph;
  if (!callback) return;
  callback(callback_user, CUPTI_CB_DOMAIN_RESOURCE,
           origin ? CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED : CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, &resource);
}
