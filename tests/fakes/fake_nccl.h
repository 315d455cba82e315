/* SPDX-License-Identifier: Apache-2.0
 * NCCL's interface as far as the fake implements it, by ABI and without NCCL's header, so that jobs for tests
 * build anywhere. Enums are int; communicators and streams are void*. */
#ifndef ECHO_TP_TESTS_FAKE_NCCL_H
#define ECHO_TP_TESTS_FAKE_NCCL_H

#include <stddef.h>

typedef struct {
  char internal[128];
} ncclUniqueId;

/* The layout of 2.28; older versions are prefixes of it (`size` says how much is there). */
typedef struct {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
} ncclConfig_t;

/* F(name, parameters, arguments, since): every function of the fake and the version that brought it. */
#define FAKE_NCCL_FUNCTIONS(F)                                                                              \
  F(GetVersion, (int* version), (version), 21800)                                                           \
  F(GetUniqueId, (ncclUniqueId * id), (id), 21800)                                                          \
  F(CommInitRank, (void** comm, int nranks, ncclUniqueId id, int rank), (comm, nranks, id, rank), 21800)    \
  F(CommInitRankConfig, (void** comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config),         \
    (comm, nranks, id, rank, config), 21800)                                                                \
  F(CommInitRankScalable,                                                                                   \
    (void** comm, int nranks, int rank, int nids, ncclUniqueId* ids, ncclConfig_t* config),                 \
    (comm, nranks, rank, nids, ids, config), 22304)                                                         \
  F(CommInitAll, (void** comms, int ndev, const int* devlist), (comms, ndev, devlist), 21800)               \
  F(CommSplit, (void* comm, int color, int key, void** child, ncclConfig_t* config),                        \
    (comm, color, key, child, config), 21801)                                                               \
  F(CommShrink, (void* comm, int* excluded, int count, void** child, ncclConfig_t* config, int flags),      \
    (comm, excluded, count, child, config, flags), 22703)                                                   \
  F(CommGrow,                                                                                               \
    (void* comm, int nranks, const ncclUniqueId* id, int rank, void** child, ncclConfig_t* config),         \
    (comm, nranks, id, rank, child, config), 22902)                                                         \
  F(CommFinalize, (void* comm), (comm), 21800)                                                              \
  F(CommDestroy, (void* comm), (comm), 21800)                                                               \
  F(CommAbort, (void* comm), (comm), 21800)                                                                 \
  F(CommRevoke, (void* comm, int flags), (comm, flags), 22807)                                              \
  F(CommSuspend, (void* comm, int flags), (comm, flags), 22907)                                             \
  F(CommGetAsyncError, (void* comm, int* state), (comm, state), 21800)                                      \
  F(CommCount, (void* comm, int* count), (comm, count), 21800)                                              \
  F(CommUserRank, (void* comm, int* rank), (comm, rank), 21800)                                             \
  F(CommCuDevice, (void* comm, int* device), (comm, device), 21800)                                         \
  F(CommRegister, (void* comm, void* buffer, size_t size, void** handle), (comm, buffer, size, handle),     \
    21901)                                                                                                  \
  F(GroupStart, (void), (), 21800)                                                                          \
  F(GroupEnd, (void), (), 21800)                                                                            \
  F(GroupSimulateEnd, (void* info), (info), 22203)                                                          \
  F(AllReduce, (const void* send, void* recv, size_t count, int dtype, int op, void* comm, void* stream),   \
    (send, recv, count, dtype, op, comm, stream), 21800)                                                    \
  F(Broadcast, (const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream), \
    (send, recv, count, dtype, root, comm, stream), 21800)                                                  \
  F(Bcast, (void* buffer, size_t count, int dtype, int root, void* comm, void* stream),                     \
    (buffer, count, dtype, root, comm, stream), 21800)                                                      \
  F(Reduce,                                                                                                 \
    (const void* send, void* recv, size_t count, int dtype, int op, int root, void* comm, void* stream),    \
    (send, recv, count, dtype, op, root, comm, stream), 21800)                                              \
  F(AllGather, (const void* send, void* recv, size_t count, int dtype, void* comm, void* stream),           \
    (send, recv, count, dtype, comm, stream), 21800)                                                        \
  F(ReduceScatter,                                                                                          \
    (const void* send, void* recv, size_t count, int dtype, int op, void* comm, void* stream),              \
    (send, recv, count, dtype, op, comm, stream), 21800)                                                    \
  F(AlltoAll, (const void* send, void* recv, size_t count, int dtype, void* comm, void* stream),            \
    (send, recv, count, dtype, comm, stream), 22803)                                                        \
  F(Gather, (const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream),    \
    (send, recv, count, dtype, root, comm, stream), 22803)                                                  \
  F(Scatter, (const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream),   \
    (send, recv, count, dtype, root, comm, stream), 22803)                                                  \
  F(Send, (const void* send, size_t count, int dtype, int peer, void* comm, void* stream),                  \
    (send, count, dtype, peer, comm, stream), 21800)                                                        \
  F(Recv, (void* recv, size_t count, int dtype, int peer, void* comm, void* stream),                        \
    (recv, count, dtype, peer, comm, stream), 21800)                                                        \
  F(FutureThing, (int value), (value), 21800)

#define FAKE_NCCL_DECLARE(name, parameters, arguments, since) int nccl##name parameters;
FAKE_NCCL_FUNCTIONS(FAKE_NCCL_DECLARE)

/* Of the fake alone. */
const char* fake_nccl_log(void); /* every call so far, one a line, in order */
void fake_nccl_reset(void);      /* forgets them */
int fake_nccl_calls_broadcast(void* comm);
void fake_nccl_set_callback(int (*function)(void* comm));
/* called inside ncclReduce, as plugins are */ /* NCCL's own code calls ncclBroadcast through its PLT */

#endif
