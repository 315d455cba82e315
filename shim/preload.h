/* SPDX-License-Identifier: Apache-2.0
 * What the files of the preload library share: C, libc alone, loaded into every process of a job (bash and
 * python included). Nothing here runs, allocates or prints before the job's first NCCL call. NCCL's types are
 * declared locally, by their stable ABI, so that no NCCL or CUDA header is needed and every NCCL version
 * fits. */
#ifndef ECHO_TP_SHIM_PRELOAD_H
#define ECHO_TP_SHIM_PRELOAD_H

#include <stddef.h>
#include <stdint.h>

#include "shim/engine_abi.h"

/* ncclResult_t, as far as the preload returns or reads it. */
enum { kNcclSuccess = 0, kNcclSystemError = 2, kNcclInProgress = 7 };

/* ncclUniqueId: 128 bytes, passed by value (in memory on x86-64), so its size is part of the calling
 * convention. */
typedef struct NcclUniqueId {
  char bytes[128];
} NcclUniqueId;

/* Unpack a parenthesised list of wrappers.def: alone, or after another argument. */
#define ECHO_TP_LIST(...) __VA_ARGS__
#define ECHO_TP_REST(...) __VA_OPT__(, ) __VA_ARGS__

/* Index of every wrapped function: kCommInitRank, ... */
typedef enum Function {
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) k##name,
#include "shim/wrappers.def"
  kFunctionCount
} Function;

/* Type of every wrapped function: CommInitRankFunction, ... */
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) typedef int name##Function parameters;
#include "shim/wrappers.def"

enum {
  kMaxLibraries = 8, /* NCCL copies in one process that can be told apart */
  kThunkSets = 4     /* of these, the first ones whose functions can be handed out by dlsym */
};

/* One copy of NCCL in the process. Written once, then only read. */
typedef struct Library {
  EchoTpNccl nccl;
  int index;              /* in the table of libraries */
  const char* base;       /* lowest mapped address of the object that defines its functions: its identity */
  int (*simulate)(void*); /* the real ncclGroupSimulateEnd, null before NCCL 2.22 */
  void* real[kFunctionCount];
} Library;

/* Who calls an exported function through the PLT. */
typedef struct Caller {
  Library* nccl; /* null: no NCCL anywhere */
  int exact;   /* found through the caller's own dependencies, so certainly the one that it was linked with */
  int is_nccl; /* the caller is that NCCL library itself */
} Caller;

/* preload_library.c */

/* The NCCL library that the code at `address` was linked with. Lock-free once an object has been seen. */
Caller echo_tp_caller(const void* address);
/* The library whose object contains `function`; null if that object is not NCCL or the table is full. */
Library* echo_tp_library_at(const void* function);
/* The library of a thunk set that was handed out. */
Library* echo_tp_library_number(int index);
/* Index of a wrapped function by its full name ("ncclAllReduce"), -1 for any other. */
int echo_tp_function_index(const char* name);
/* Full name of a wrapped function. */
const char* echo_tp_function_name(Function function);
/* libc's own dlsym (or the next preload's hook); null only if there is none. */
void* echo_tp_real_dlsym(void* handle, const char* name);

/* preload_engine.c */

/* 1 if this process is to be watched: ECHO_TP is not "off", and a policy is given or the mode is observe. */
int echo_tp_active(void);
/* The engine if it is loaded and this process is not a forked child; else null. */
const EchoTpEngine* echo_tp_engine(void);
/* Loads the engine at the first call; null for ever after a failure, which is reported in one line. */
const EchoTpEngine* echo_tp_load_engine(void);
/* From the first wrapped call on, a fork after the engine was loaded turns the child into a pure forwarder.
 */
void echo_tp_watch_forks(void);
/* 1 if ECHO_TP_LOG asks for more lines. */
int echo_tp_talkative(void);
/* One line "echo-tp: ..." on stderr, in one write. Keeps errno. */
void echo_tp_say(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* preload_comms.c */

/* Remembers a communicator until echo_tp_forget: the library that it belongs to and whether it is blocking.
 */
void echo_tp_remember(void* comm, Library* library, int nonblocking);
/* Before the pointer may be reused. Unknown pointers are ignored. */
void echo_tp_forget(void* comm);
/* The library of a communicator, or `otherwise` if it is unknown. */
Library* echo_tp_library_of(void* comm, Library* otherwise);
/* Whether a child without a config is non-blocking: what its parent is. Unknown: blocking. */
int echo_tp_is_nonblocking(void* comm);
/* In a forked child: drops a lock that another thread may have held. */
void echo_tp_comms_after_fork(void);
void echo_tp_libraries_after_fork(void);

/* preload.c: the functions handed out by dlsym, one set a library. */
extern void* const echo_tp_thunks[kThunkSets][kFunctionCount];

#endif
