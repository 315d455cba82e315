/* SPDX-License-Identifier: Apache-2.0
 * The C interface between the preload library (C, libc alone, in every process) and the engine (opened when
 * the first communicator is created). Both come from one build; `version` guards against a stale file.
 *
 * NCCL's types appear as plain C types, so that the preload needs no CUDA or NCCL header: enums are int,
 * handles are void*, ncclUniqueId stays with the preload. */
#ifndef ECHO_TP_SHIM_ENGINE_ABI_H
#define ECHO_TP_SHIM_ENGINE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ECHO_TP_ENGINE_ABI_VERSION 1u

/* The real functions of one NCCL library, bound by their pnccl names. Any of them may be null in an old
 * version. */
typedef struct EchoTpNccl {
  const char* path; /* of the library that holds them */
  int version;      /* ncclGetVersion */
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, void*);
  int (*all_gather)(const void*, void*, size_t, int, void*, void*);
  int (*send)(const void*, size_t, int, int, void*, void*);
  int (*recv)(void*, size_t, int, int, void*, void*);
  int (*group_start)(void);
  int (*group_end)(void);
  int (*comm_count)(void*, int*);
  int (*comm_user_rank)(void*, int*);
  int (*comm_cu_device)(void*, int*);
  int (*comm_get_async_error)(void*, int*);
  int (*comm_abort)(void*);
} EchoTpNccl;

/* How a communicator came to be. */
typedef enum EchoTpCreated {
  ECHO_TP_CREATED_BLOCKING = 0,    /* returned ready, outside any group, one for this process */
  ECHO_TP_CREATED_NONBLOCKING = 1, /* config said blocking = 0 */
  ECHO_TP_CREATED_MANY = 2         /* ncclCommInitAll, or several in one group */
} EchoTpCreated;

/* Kinds of enqueued work other than all-reduce; the engine only needs to know that it happened. */
typedef enum EchoTpOther {
  ECHO_TP_OTHER_BROADCAST = 0,
  ECHO_TP_OTHER_REDUCE,
  ECHO_TP_OTHER_ALL_GATHER,
  ECHO_TP_OTHER_REDUCE_SCATTER,
  ECHO_TP_OTHER_ALL_TO_ALL,
  ECHO_TP_OTHER_GATHER,
  ECHO_TP_OTHER_SCATTER,
  ECHO_TP_OTHER_SEND,
  ECHO_TP_OTHER_RECV,
  ECHO_TP_OTHER_CREATE, /* a communicator is being created inside the group */
  ECHO_TP_OTHER_COUNT
} EchoTpOther;

/* Entry points of the engine. None throws, none exits; each returns what NCCL's own function returns. */
typedef struct EchoTpEngine {
  uint32_t size;    /* sizeof(EchoTpEngine) */
  uint32_t version; /* ECHO_TP_ENGINE_ABI_VERSION */

  /* A communicator exists (after the real call, or after the ncclGroupEnd that completed it). `name` may be
   * null. May exchange a record with all ranks over it. Returns ncclSuccess, or an error that the job's own
   * call must return (a rank without the shim: the communicator was aborted). */
  int (*comm_created)(const EchoTpNccl* nccl, void* comm, EchoTpCreated how, const char* name);

  /* Before the real ncclCommDestroy, ncclCommFinalize, ncclCommAbort, ncclCommRevoke ... `abort` != 0: wake
   * our kernels first. */
  void (*comm_ending)(void* comm, int abort);

  /* Replaces ncclAllReduce: decides, then compresses or calls nccl->all_reduce. */
  int (*all_reduce)(const EchoTpNccl* nccl, const void* send, void* recv, size_t count, int dtype, int op,
                    void* comm, void* stream);

  /* Before any other enqueue on `comm` reaches the real NCCL. Hands over the held all-reduces that `comm` has
   * in the open group first (null: those of all communicators), unless it is a send or receive. */
  int (*other)(const EchoTpNccl* nccl, void* comm, EchoTpOther kind, size_t count);

  /* Replace ncclGroupStart and ncclGroupEnd; they call the real ones. */
  int (*group_start)(const EchoTpNccl* nccl);
  int (*group_end)(const EchoTpNccl* nccl);

  /* After the real ncclCommGetAsyncError answered *state: puts our own error there if NCCL has none. */
  void (*async_error)(void* comm, int* state);
} EchoTpEngine;

/* The one symbol that the engine exports. Null: not to be used (and the engine said why on stderr, once). */
const EchoTpEngine* echo_tp_engine_open(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
#endif
