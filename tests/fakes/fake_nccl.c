/* SPDX-License-Identifier: Apache-2.0
 * A libnccl.so.2 that only records: strong pncclX with a weak alias ncclX, thread-local groups, communicators
 * that are created at the end of the outermost group, non-blocking ones that need a poll. No data moves.
 *   FAKE_NCCL_VERSION   which functions exist (ncclGetVersion's number)
 *   FAKE_NCCL_QUIET     nothing is recorded: calls cost nothing
 *   FAKE_NCCL_NVTX      a range in the domain "NCCL" for every all-reduce and creation, as NCCL has
 *   FAKE_NCCL_FIRST_ID  number of the first communicator, to tell copies apart in a log
 * Environment:
 *   FAKE_NCCL_FAIL_GROUP_END=1  the outermost ncclGroupEnd fails, leaving the handles of its communicators
 * set FAKE_NCCL_QUICK=1           non-blocking creations are already finished when they return
 *   FAKE_NCCL_NONBLOCKING=1     everything is non-blocking, for a reason that no caller can see */
#include "tests/fakes/fake_nccl.h"

#include "tests/fakes/fake_log.h"

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif
#ifndef FAKE_NCCL_FIRST_ID
#define FAKE_NCCL_FIRST_ID 1
#endif

#ifdef FAKE_NCCL_NVTX
#include <nvtx3/nvToolsExt.h>

/* NCCL has guarded statics of C++ here. */
static nvtxDomainHandle_t nvtx_domain;
static pthread_once_t nvtx_once = PTHREAD_ONCE_INIT;
static nvtxStringHandle_t nvtx_names[2];

static void start_nvtx(void) {
  nvtx_domain = nvtxDomainCreateA("NCCL");
  nvtx_names[0] = nvtxDomainRegisterStringA(nvtx_domain, "ncclCommInitRank");
  nvtx_names[1] = nvtxDomainRegisterStringA(nvtx_domain, "ncclAllReduce");
}

static void nvtx_range(int name) {
  pthread_once(&nvtx_once, start_nvtx);
  nvtxEventAttributes_t event;
  memset(&event, 0, sizeof event);
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  event.message.registered = nvtx_names[name];
  nvtxDomainRangePushEx(nvtx_domain, &event);
  nvtxDomainRangePop(nvtx_domain);
}
#else
static void nvtx_range(int name) {
  (void)name;
}
#endif

#define EXPORT __attribute__((visibility("default")))
enum { kSuccess = 0, kUnhandledCudaError = 1, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };

typedef struct {
  int id; /* first: the fake engine reads it through the handle */
  int nranks;
  int rank;
  int blocking;
  int ready;
} Comm;

typedef struct {
  void** slot;
  Comm* comm;
} Deferred;

static int next_id = FAKE_NCCL_FIRST_ID;
static _Thread_local int depth;
static _Thread_local Deferred deferred[32];
static _Thread_local int deferred_count;

/* The call that is being recorded; wrapped by RECORD so that each function names itself once. */
#ifdef FAKE_NCCL_QUIET
#define RECORD(format, ...) ((void)0)
#else
#define RECORD(format, ...) fake_log("nccl%d " format, FAKE_NCCL_VERSION, ##__VA_ARGS__)
#endif

static int id_of(const void* comm) {
  return comm ? ((const Comm*)comm)->id : 0;
}

static int flag(const char* name) {
  const char* text = getenv(name);
  return text && text[0] == '1';
}

static int create(void** slot, int nranks, int rank, int blocking) {
  if (flag("FAKE_NCCL_NONBLOCKING")) blocking = 0;
  const int result = blocking || flag("FAKE_NCCL_QUICK") ? kSuccess : kInProgress;
  Comm* comm = calloc(1, sizeof *comm);
  comm->id = next_id++;
  comm->nranks = nranks;
  comm->rank = rank;
  comm->blocking = blocking;
  comm->ready = result == kSuccess;
  if (depth > 0) {
    *slot = NULL;
    deferred[deferred_count++] = (Deferred){slot, comm};
    return result;
  }
  *slot = comm;
  return result;
}

static int blocking_of(const ncclConfig_t* config, int otherwise) {
  if (!config) return otherwise;
  return config->blocking != 0; /* undefined is INT_MIN: blocking */
}

/* A checksum that notices a wrong convention for the 128 bytes passed by value. */
static unsigned sum_of(const ncclUniqueId* id) {
  unsigned sum = 0;
  for (int i = 0; i < 128; ++i) sum = sum * 31 + (unsigned char)id->internal[i];
  return sum;
}

EXPORT const char* fake_nccl_log(void) {
  return fake_log_buffer;
}
EXPORT void fake_nccl_reset(void) {
  fake_log_used = 0;
  fake_log_buffer[0] = 0;
}

#define DEFINE(name, ...)                                                         \
  EXPORT int pnccl##name(__VA_ARGS__);                                            \
  EXPORT int nccl##name(__VA_ARGS__) __attribute__((weak, alias("pnccl" #name))); \
  int pnccl##name(__VA_ARGS__)

DEFINE(GetVersion, int* version) {
  *version = FAKE_NCCL_VERSION;
  return kSuccess;
}

DEFINE(GetUniqueId, ncclUniqueId* id) {
  for (int i = 0; i < 128; ++i) id->internal[i] = (char)(i * 7 + 1);
  RECORD("GetUniqueId");
  return kSuccess;
}

DEFINE(CommInitRank, void** comm, int nranks, ncclUniqueId id, int rank) {
  nvtx_range(0);
  const int result = create(comm, nranks, rank, 1);
  RECORD("CommInitRank nranks=%d rank=%d id=%08x depth=%d", nranks, rank, sum_of(&id), depth);
  return result;
}

DEFINE(CommInitRankConfig, void** comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const int result = create(comm, nranks, rank, blocking_of(config, 1));
  RECORD("CommInitRankConfig nranks=%d rank=%d id=%08x size=%zu", nranks, rank, sum_of(&id),
         config ? config->size : 0);
  return result;
}

#if FAKE_NCCL_VERSION >= 22304
DEFINE(CommInitRankScalable, void** comm, int nranks, int rank, int nids, ncclUniqueId* ids,
       ncclConfig_t* config) {
  const int result = create(comm, nranks, rank, blocking_of(config, 1));
  RECORD("CommInitRankScalable nranks=%d rank=%d nids=%d id=%08x", nranks, rank, nids, sum_of(ids));
  return result;
}
#endif

DEFINE(CommInitAll, void** comms, int ndev, const int* devlist) {
  for (int i = 0; i < ndev; ++i) create(&comms[i], ndev, i, 1);
  RECORD("CommInitAll ndev=%d devices=%s", ndev, devlist ? "given" : "all");
  return kSuccess;
}

static int child_of(void* parent, int exists, void** child, const ncclConfig_t* config) {
  const Comm* from = parent;
  *child = NULL;
  return exists ? create(child, from ? from->nranks : 2, from ? from->rank : 0,
                         blocking_of(config, from ? from->blocking : 1))
                : kSuccess;
}

DEFINE(CommSplit, void* comm, int color, int key, void** child, ncclConfig_t* config) {
  const int result = child_of(comm, color >= 0, child, config);
  RECORD("CommSplit comm=%d color=%d key=%d", id_of(comm), color, key);
  return result;
}

#if FAKE_NCCL_VERSION >= 22703
DEFINE(CommShrink, void* comm, int* excluded, int count, void** child, ncclConfig_t* config, int flags) {
  const int result = child_of(comm, 1, child, config);
  RECORD("CommShrink comm=%d excluded=%d of=%d flags=%d", id_of(comm), excluded ? excluded[0] : -1, count,
         flags);
  return result;
}
#endif

#if FAKE_NCCL_VERSION >= 22902
DEFINE(CommGrow, void* comm, int nranks, const ncclUniqueId* id, int rank, void** child,
       ncclConfig_t* config) {
  const int result = child_of(comm, 1, child, config);
  RECORD("CommGrow comm=%d nranks=%d id=%s rank=%d", id_of(comm), nranks, id ? "given" : "none", rank);
  return result;
}
#endif

DEFINE(CommFinalize, void* comm) {
  RECORD("CommFinalize comm=%d", id_of(comm));
  return kSuccess;
}

DEFINE(CommDestroy, void* comm) {
  RECORD("CommDestroy comm=%d", id_of(comm));
  free(comm);
  return kSuccess;
}

DEFINE(CommAbort, void* comm) {
  RECORD("CommAbort comm=%d", id_of(comm));
  free(comm);
  return kSuccess;
}

#if FAKE_NCCL_VERSION >= 22807
DEFINE(CommRevoke, void* comm, int flags) {
  RECORD("CommRevoke comm=%d flags=%d", id_of(comm), flags);
  return kSuccess;
}
#endif

#if FAKE_NCCL_VERSION >= 22907
DEFINE(CommSuspend, void* comm, int flags) {
  RECORD("CommSuspend comm=%d flags=%d", id_of(comm), flags);
  return kSuccess;
}
#endif

DEFINE(CommGetAsyncError, void* comm, int* state) {
  Comm* known = comm;
  *state = known->ready ? kSuccess : kInProgress;
  known->ready = 1;
  RECORD("CommGetAsyncError comm=%d state=%d", id_of(comm), *state);
  return kSuccess;
}

DEFINE(CommCount, void* comm, int* count) {
  *count = ((Comm*)comm)->nranks;
  return kSuccess;
}

DEFINE(CommUserRank, void* comm, int* rank) {
  *rank = ((Comm*)comm)->rank;
  return kSuccess;
}

DEFINE(CommCuDevice, void* comm, int* device) {
  *device = ((Comm*)comm)->rank;
  return kSuccess;
}

#if FAKE_NCCL_VERSION >= 21901
DEFINE(CommRegister, void* comm, void* buffer, size_t size, void** handle) {
  *handle = buffer;
  RECORD("CommRegister comm=%d size=%zu", id_of(comm), size);
  return kSuccess;
}
#endif

DEFINE(GroupStart, void) {
  ++depth;
  RECORD("GroupStart depth=%d", depth);
  return kSuccess;
}

static int end_group(const char* name) {
  if (depth == 0) {
    RECORD("%s unmatched", name);
    return kInvalidUsage;
  }
  --depth;
  int result = kSuccess;
  if (depth == 0) {
    for (int i = 0; i < deferred_count; ++i) {
      *deferred[i].slot = deferred[i].comm;
      if (!deferred[i].comm->ready) result = kInProgress;
    }
    if (flag("FAKE_NCCL_FAIL_GROUP_END")) result = kUnhandledCudaError;
    deferred_count = 0;
  }
  RECORD("%s depth=%d result=%d", name, depth, result);
  return result;
}

DEFINE(GroupEnd, void) {
  return end_group("GroupEnd");
}

#if FAKE_NCCL_VERSION >= 22203
DEFINE(GroupSimulateEnd, void* info) {
  if (info) *(float*)info = 1.5f;
  return end_group("GroupSimulateEnd");
}
#endif

#define ENQUEUED(name) RECORD(name " comm=%d count=%zu depth=%d", id_of(comm), count, depth)

DEFINE(AllReduce, const void* send, void* recv, size_t count, int dtype, int op, void* comm, void* stream) {
  nvtx_range(1);
  RECORD("AllReduce comm=%d send=%p recv=%p count=%zu dtype=%d op=%d stream=%p depth=%d", id_of(comm), send,
         recv, count, dtype, op, stream, depth);
  return kSuccess;
}

DEFINE(Broadcast, const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream) {
  RECORD("Broadcast comm=%d send=%p recv=%p count=%zu dtype=%d root=%d stream=%p", id_of(comm), send, recv,
         count, dtype, root, stream);
  return kSuccess;
}

/* As in NCCL, through the PLT: an interposer gets to see it. */
DEFINE(Bcast, void* buffer, size_t count, int dtype, int root, void* comm, void* stream) {
  ENQUEUED("Bcast");
  return ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream);
}

static int (*callback)(void* comm);
EXPORT void fake_nccl_set_callback(int (*function)(void* comm)) {
  callback = function;
}

EXPORT int fake_nccl_calls_broadcast(void* comm) {
  const int result = ncclBroadcast(NULL, NULL, 77, 0, 0, comm, NULL);
  return result == kSuccess ? kSuccess : kInvalidArgument;
}

DEFINE(Reduce, const void* send, void* recv, size_t count, int dtype, int op, int root, void* comm,
       void* stream) {
  RECORD("Reduce comm=%d send=%p recv=%p count=%zu dtype=%d op=%d root=%d stream=%p", id_of(comm), send, recv,
         count, dtype, op, root, stream);
  return callback ? callback(comm) : kSuccess;
}

DEFINE(AllGather, const void* send, void* recv, size_t count, int dtype, void* comm, void* stream) {
  RECORD("AllGather comm=%d send=%p recv=%p count=%zu dtype=%d stream=%p", id_of(comm), send, recv, count,
         dtype, stream);
  return kSuccess;
}

DEFINE(ReduceScatter, const void* send, void* recv, size_t count, int dtype, int op, void* comm,
       void* stream) {
  RECORD("ReduceScatter comm=%d send=%p recv=%p count=%zu dtype=%d op=%d stream=%p", id_of(comm), send, recv,
         count, dtype, op, stream);
  return kSuccess;
}

#if FAKE_NCCL_VERSION >= 22803
DEFINE(AlltoAll, const void* send, void* recv, size_t count, int dtype, void* comm, void* stream) {
  RECORD("AlltoAll comm=%d send=%p recv=%p count=%zu dtype=%d stream=%p", id_of(comm), send, recv, count,
         dtype, stream);
  return kSuccess;
}

DEFINE(Gather, const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream) {
  RECORD("Gather comm=%d send=%p recv=%p count=%zu dtype=%d root=%d stream=%p", id_of(comm), send, recv,
         count, dtype, root, stream);
  return kSuccess;
}

DEFINE(Scatter, const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream) {
  RECORD("Scatter comm=%d send=%p recv=%p count=%zu dtype=%d root=%d stream=%p", id_of(comm), send, recv,
         count, dtype, root, stream);
  return kSuccess;
}
#endif

DEFINE(Send, const void* send, size_t count, int dtype, int peer, void* comm, void* stream) {
  RECORD("Send comm=%d send=%p count=%zu dtype=%d peer=%d stream=%p", id_of(comm), send, count, dtype, peer,
         stream);
  return kSuccess;
}

DEFINE(Recv, void* recv, size_t count, int dtype, int peer, void* comm, void* stream) {
  RECORD("Recv comm=%d recv=%p count=%zu dtype=%d peer=%d stream=%p", id_of(comm), recv, count, dtype, peer,
         stream);
  return kSuccess;
}

/* Stands for a function of a later NCCL that no interposer of today knows. */
DEFINE(FutureThing, int value) {
  RECORD("FutureThing value=%d", value);
  return value + 1;
}
