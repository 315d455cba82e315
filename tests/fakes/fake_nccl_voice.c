// SPDX-License-Identifier: Apache-2.0
// See fake_nccl_voice.h. A shared object of its own, as libnccl is: it has NVTX tables of its own.
#include "fake_nccl_voice.h"

#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
#define STATIC_IDS (1u << 24)

// The event descriptors as NCCL allocates them: the largest member decides the size.
typedef struct {
  uint64_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      bool graphCaptured;
      int groupDepth;
    } groupApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graphCaptured;
    } collApi;
    struct {
      void* stream;
    } kernelLaunch;
    char room[96];
  } u;
} DescriptorV5;

typedef struct {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      uint64_t seqNumber;
      const char* func;
      void const* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
    } coll;
    char room[96];
  } u;
} DescriptorV4;

typedef struct {
  const char* name;
  int (*init)(void** context, uint64_t commId, int* mask, const char* commName, int nNodes, int nranks,
              int rank, void* log);
  int (*startEvent)(void* context, void** handle, DescriptorV5* descriptor);
  int (*stopEvent)(void* handle);
  int (*recordEventState)(void* handle, int state, void* args);
  int (*finalize)(void* context);
} PluginV5;

typedef struct {
  const char* name;
  int (*init)(void** context, int* mask, const char* commName, uint64_t commHash, int nNodes, int nranks,
              int rank, void* log);
  int (*startEvent)(void* context, void** handle, DescriptorV4* descriptor);
  int (*stopEvent)(void* handle);
  int (*recordEventState)(void* handle, int state, void* args);
  int (*finalize)(void* context);
} PluginV4;

struct VoiceComm {
  uint64_t hash;
  int version;
  int nvtx;
  PluginV5* v5;
  PluginV4* v4;
  void* context;
  int mask;
};

typedef struct {
  uint64_t comm;
  size_t bytes;
  int op;
} ReducePayload;

typedef struct {
  uint64_t newcomm;
  int nranks;
  int myrank;
  int cudaDev;
} InitPayload;

// NCCL has guarded statics of C++ here.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static nvtxDomainHandle_t domain;
static __thread int group_depth;
static __thread void* group_handle;
static __thread struct {
  size_t count;
  const char* datatype;
} queued[16];
static __thread int queued_count;

EXPORT int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}

static void start_nvtx(void) {
  static int done;
  if (done) return;
  done = 1;
  domain = nvtxDomainCreateA("NCCL");
  const nvtxPayloadEnum_t ops[] = {
      {"Sum", 0, 0}, {"Product", 1, 0}, {"Max", 2, 0}, {"Min", 3, 0}, {"Avg", 4, 0}};
  nvtxPayloadEnumAttr_t enumeration = {0};
  enumeration.fieldMask = 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5;
  enumeration.entries = ops;
  enumeration.numEntries = 5;
  enumeration.sizeOfEnum = 4;
  enumeration.schemaId = STATIC_IDS + 20;
  nvtxPayloadEnumRegister(domain, &enumeration);
}

static void register_schema(uint64_t id, const nvtxPayloadSchemaEntry_t* entries, size_t count, size_t size) {
  nvtxPayloadSchemaAttr_t attr = {0};
  attr.fieldMask = 1u << 2 | 1u << 4 | 1u << 5 | 1u << 6 | 1u << 8;
  attr.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
  attr.entries = entries;
  attr.numEntries = count;
  attr.payloadStaticSize = size;
  attr.schemaId = id;
  nvtxPayloadSchemaRegister(domain, &attr);
}

static nvtxEventAttributes_t named(nvtxStringHandle_t name) {
  nvtxEventAttributes_t event = {0};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  event.message.registered = name;
  return event;
}

static void load_plugin(VoiceComm* comm, const char* name, int ranks, int rank) {
  void* library = dlopen(getenv("NCCL_PROFILER_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  if (!library) abort();
  if (comm->version == 5) {
    comm->v5 = (PluginV5*)dlsym(library, "ncclProfiler_v5");
    comm->v5->init(&comm->context, comm->hash, &comm->mask, name, 1, ranks, rank, NULL);
  } else {
    comm->v4 = (PluginV4*)dlsym(library, "ncclProfiler_v4");
    comm->v4->init(&comm->context, &comm->mask, name, comm->hash, 1, ranks, rank, NULL);
  }
}

EXPORT VoiceComm* voice_comm_init(uint64_t hash, const char* name, int ranks, int rank, int plugin_version,
                                  int nvtx) {
  static nvtxPayloadSchemaEntry_t entries[4];
  static nvtxStringHandle_t text;
  VoiceComm* comm = calloc(1, sizeof *comm);
  comm->hash = hash;
  comm->version = plugin_version;
  comm->nvtx = nvtx;
  if (nvtx) {
    pthread_mutex_lock(&lock);
    start_nvtx();
    if (!text) {
      entries[0].type = NVTX_PAYLOAD_ENTRY_TYPE_UINT64, entries[0].name = "NCCL communicator ID";
      entries[1].type = NVTX_PAYLOAD_ENTRY_TYPE_INT, entries[1].name = "No. of ranks",
      entries[1].offset = offsetof(InitPayload, nranks);
      entries[2].type = NVTX_PAYLOAD_ENTRY_TYPE_INT, entries[2].name = "Rank",
      entries[2].offset = offsetof(InitPayload, myrank);
      entries[3].type = NVTX_PAYLOAD_ENTRY_TYPE_INT, entries[3].name = "CUDA device",
      entries[3].offset = offsetof(InitPayload, cudaDev);
      register_schema(STATIC_IDS + 0, entries, 4, sizeof(InitPayload));
      text = nvtxDomainRegisterStringA(domain, "ncclCommInitRank");
    }
    pthread_mutex_unlock(&lock);
    const nvtxEventAttributes_t event = named(text);
    nvtxDomainRangePushEx(domain, &event);
  }
  if (plugin_version) load_plugin(comm, name, ranks, rank);
  if (nvtx) {
    const InitPayload payload = {hash, ranks, rank, 0};
    const nvtxPayloadData_t data = {STATIC_IDS + 0, sizeof payload, &payload};
    nvtxRangePopPayload(domain, &data, 1);
  }
  return comm;
}

static void group_api_start(VoiceComm* comm, int captured) {
  if (!comm->v5 || !(comm->mask & 256) || group_handle) return;
  DescriptorV5 d = {0};
  d.type = 256;
  d.u.groupApi.graphCaptured = captured;
  comm->v5->startEvent(comm->context, &group_handle, &d);
  if (group_handle) comm->v5->recordEventState(group_handle, 23, NULL);
}

static void announced_launch(VoiceComm* comm, VoiceLaunch launch, void* user) {
  void* handle = NULL;
  if (comm->mask & 2048) {
    DescriptorV5 d = {0};
    d.type = 2048;
    comm->v5->startEvent(comm->context, &handle, &d);
  }
  if (launch) launch(user);
  if (handle) comm->v5->stopEvent(handle);
}

static void group_launch(VoiceComm* comm, VoiceLaunch launch, void* user) {
  if (comm->v5) {
    if (group_handle) comm->v5->recordEventState(group_handle, 24, NULL);
    announced_launch(comm, launch, user);
    if (group_handle) comm->v5->stopEvent(group_handle);
    group_handle = NULL;
  } else {
    if (launch) launch(user);
    if (comm->v4) {
      void* group = NULL;
      DescriptorV4 d = {0};
      d.type = 1;
      comm->v4->startEvent(comm->context, &group, &d);
      for (int i = 0; i < queued_count; ++i) {
        void* handle = NULL;
        DescriptorV4 c = {0};
        c.type = 2;
        c.u.coll.func = "AllReduce";
        c.u.coll.count = queued[i].count;
        c.u.coll.datatype = queued[i].datatype;
        comm->v4->startEvent(comm->context, &handle, &c);
        if (handle) comm->v4->stopEvent(handle);
      }
      if (group) comm->v4->stopEvent(group);
    }
  }
  queued_count = 0;
}

EXPORT void voice_group_start(VoiceComm* comm) {
  static nvtxStringHandle_t text;
  if (comm->nvtx) {
    if (!text) text = nvtxDomainRegisterStringA(domain, "ncclGroupStart");
    const nvtxEventAttributes_t event = named(text);
    nvtxDomainRangePushEx(domain, &event);
  }
  ++group_depth;
  if (comm->nvtx) nvtxDomainRangePop(domain);
}

EXPORT void voice_group_end(VoiceComm* comm, VoiceLaunch launch, void* user) {
  static nvtxStringHandle_t text;
  if (comm->nvtx) {
    if (!text) text = nvtxDomainRegisterStringA(domain, "ncclGroupEnd");
    const nvtxEventAttributes_t event = named(text);
    nvtxDomainRangePushEx(domain, &event);
  }
  if (--group_depth == 0) group_launch(comm, launch, user);
  if (comm->nvtx) nvtxDomainRangePop(domain);
}

EXPORT void voice_group_end_many(VoiceComm* const* comms, int count, VoiceLaunch launch, void* const* users) {
  static nvtxStringHandle_t text;
  if (!text) text = nvtxDomainRegisterStringA(domain, "ncclGroupEnd");
  const nvtxEventAttributes_t event = named(text);
  nvtxDomainRangePushEx(domain, &event);
  --group_depth;
  for (int i = 0; i < count; ++i) announced_launch(comms[i], launch, users[i]);
  if (group_handle) comms[0]->v5->stopEvent(group_handle);
  group_handle = NULL;
  queued_count = 0;
  nvtxDomainRangePop(domain);
}

EXPORT void voice_all_reduce(VoiceComm* comm, size_t count, const char* datatype, size_t size, int op,
                             void* stream, int captured, VoiceLaunch launch, void* user) {
  static nvtxPayloadSchemaEntry_t entries[3];
  static nvtxStringHandle_t text;
  const ReducePayload payload = {comm->hash, count * size, op};
  const nvtxPayloadData_t data = {STATIC_IDS + 5, sizeof payload, &payload};
  if (comm->nvtx) {
    pthread_mutex_lock(&lock);
    if (!text) {
      entries[0].type = NVTX_PAYLOAD_ENTRY_TYPE_UINT64, entries[0].name = "NCCL communicator ID";
      entries[1].type = NVTX_PAYLOAD_ENTRY_TYPE_SIZE, entries[1].name = "Message size [bytes]",
      entries[1].offset = offsetof(ReducePayload, bytes);
      entries[2].type = STATIC_IDS + 20, entries[2].name = "Reduction operation",
      entries[2].offset = offsetof(ReducePayload, op);
      register_schema(STATIC_IDS + 5, entries, 3, sizeof(ReducePayload));
      text = nvtxDomainRegisterStringA(domain, "ncclAllReduce");
    }
    pthread_mutex_unlock(&lock);
    nvtxEventAttributes_t event = named(text);
    event.payloadType = NVTX_PAYLOAD_TYPE_EXT;
    event.reserved0 = 1;
    event.payload.ullValue = (uint64_t)(uintptr_t)&data;
    nvtxDomainRangePushEx(domain, &event);
  }
  group_api_start(comm, captured);
  if (comm->v5 && (comm->mask & 512)) {
    void* handle = NULL;
    DescriptorV5 d = {0};
    d.type = 512;
    d.parentObj = group_handle;
    d.u.collApi.func = "AllReduce";
    d.u.collApi.count = count;
    d.u.collApi.datatype = datatype;
    d.u.collApi.stream = stream;
    d.u.collApi.graphCaptured = captured;
    comm->v5->startEvent(comm->context, &handle, &d);
    if (handle) comm->v5->stopEvent(handle);
  }
  if (queued_count < 16) {
    queued[queued_count].count = count;
    queued[queued_count++].datatype = datatype;
  }
  if (group_depth == 0) group_launch(comm, launch, user);
  if (comm->nvtx) nvtxDomainRangePop(domain);
}

EXPORT int voice_activation_mask(const VoiceComm* comm) {
  return comm->mask;
}
