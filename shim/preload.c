/* SPDX-License-Identifier: Apache-2.0
 * The preload library: one function for every NCCL function of wrappers.def. Each forwards to the real one of
 * the right NCCL copy and, once the engine is loaded, tells it what engine_abi.h asks for. Every function has
 * two faces: the exported nccl name (callers through the PLT) and a thunk for each NCCL copy (callers through
 * dlsym). */
#define _GNU_SOURCE
#include "shim/preload.h"

#include <stdlib.h>
#include <string.h>

/* A communicator whose creation completes at the end of the open group. */
typedef struct Pending {
  struct Pending* next;
  Library* library;
  void** slot; /* where the job gets it: valid until the group has ended, as for NCCL */
  int nonblocking;
  int has_name;
  char name[256];
} Pending;

/* State of one thread: a few words, in the static TLS block that a preloaded library always gets. */
typedef struct Thread {
  Pending* pending;
  void* simulate_info;
  const Library* simulate_library;
  uint16_t depth[kMaxLibraries]; /* open groups; NCCL counts them in every copy by itself */
  uint8_t inside;       /* in the real NCCL or in the engine: what comes back from there is not the job's */
  uint8_t engine_group; /* 1 + index of the library whose open group the engine knows; 0: none */
} Thread;
static _Thread_local Thread t_thread __attribute__((tls_model("initial-exec")));

#define REAL(library, name) ((name##Function*)(library)->real[k##name])
#define GUARDED(call)         \
  __extension__({             \
    ++t_thread.inside;        \
    const int guarded = call; \
    --t_thread.inside;        \
    guarded;                  \
  })

/* The engine, for a call that is enqueued: null if the group that the call belongs to is unknown to the
 * engine, either because it was opened before the engine was loaded or because it is another NCCL copy's. */
static const EchoTpEngine* engine_for(const Library* library) {
  if (t_thread.engine_group ? t_thread.engine_group != library->index + 1
                            : t_thread.depth[library->index] > 0)
    return NULL;
  return echo_tp_engine();
}

/* --- configuration */

/* The first members of ncclConfig_t, the same in every version; commName came with 2.27.3. Only read, never
 * copied. */
typedef struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
  int traffic_class;
  const char* comm_name;
} Config;
_Static_assert(offsetof(Config, blocking) == 16 && offsetof(Config, comm_name) == 48,
               "ncclConfig_t's layout");

static int config_reaches(const Config* config, size_t end) {
  return config && config->size >= end && config->magic == 0xcafebeefu;
}

static const char* config_name(const void* given) {
  const Config* config = given;
  if (!config_reaches(config, offsetof(Config, comm_name) + sizeof config->comm_name)) return NULL;
  return config->version >= 22703 ? config->comm_name : NULL;
}

/* NCCL_COMM_BLOCKING overrides every config; without a value in the config NCCL blocks. */
static int config_nonblocking(const void* given, int otherwise) {
  const char* forced = secure_getenv("NCCL_COMM_BLOCKING");
  if (forced && (strcmp(forced, "0") == 0 || strcmp(forced, "1") == 0)) return forced[0] == '0';
  const Config* config = given;
  if (!config) return otherwise;
  return config_reaches(config, offsetof(Config, blocking) + sizeof config->blocking) &&
         config->blocking == 0;
}

/* --- creation */

/* Tells the engine about a finished communicator. A refusal of the engine becomes the job's own error. */
static int announce(Library* library, void** slot, EchoTpCreated how, const char* name) {
  void* comm = *slot;
  if (!comm) return kNcclSuccess; /* NCCL_SPLIT_NOCOLOR */
  echo_tp_remember(comm, library, how == ECHO_TP_CREATED_NONBLOCKING);
  const EchoTpEngine* engine = echo_tp_engine();
  if (!engine) return kNcclSuccess;
  const int result = GUARDED(engine->comm_created(&library->nccl, comm, how, name));
  if (result != kNcclSuccess) {
    echo_tp_forget(comm);
    *slot = NULL;
  }
  return result;
}

static int before_creation(Library* library, void* parent) {
  echo_tp_load_engine();
  /* A communicator from nowhere is no business of those in the group: their other ranks may not see it. */
  const EchoTpEngine* engine = parent && t_thread.depth[library->index] > 0 ? engine_for(library) : NULL;
  return engine ? GUARDED(engine->other(&library->nccl, parent, ECHO_TP_OTHER_CREATE, 0)) : kNcclSuccess;
}

static int after_creation(Library* library, int result, void** slot, int nonblocking, const char* name) {
  if (!slot || (result != kNcclSuccess && result != kNcclInProgress)) return result;
  if (t_thread.depth[library->index] > 0) {
    Pending* pending = calloc(1, sizeof *pending);
    if (!pending) return result; /* stays unknown to the engine, which forwards what it doesn't know */
    pending->library = library;
    pending->slot = slot;
    pending->nonblocking = nonblocking;
    if (name) {
      pending->has_name = 1;
      strncpy(pending->name, name, sizeof pending->name - 1);
    }
    Pending** last = &t_thread.pending;
    while (*last) last = &(*last)->next;
    *last = pending;
    return result;
  }
  if (result == kNcclInProgress) nonblocking = 1;
  const int ours =
      announce(library, slot, nonblocking ? ECHO_TP_CREATED_NONBLOCKING : ECHO_TP_CREATED_BLOCKING, name);
  return ours != kNcclSuccess ? ours : result;
}

/* The outermost group of `library` has ended with `result`. */
static int finish_group(Library* library, int result) {
  const int good = result == kNcclSuccess || result == kNcclInProgress;
  int count = 0;
  for (const Pending* pending = t_thread.pending; pending; pending = pending->next)
    count += pending->library == library;
  Pending** link = &t_thread.pending;
  while (count > 0 && *link) {
    Pending* pending = *link;
    if (pending->library != library) {
      link = &pending->next;
      continue;
    }
    *link = pending->next;
    if (good) {
      EchoTpCreated how = count > 1 ? ECHO_TP_CREATED_MANY : ECHO_TP_CREATED_BLOCKING;
      /* One non-blocking communicator makes the whole group non-blocking. */
      if (pending->nonblocking || result == kNcclInProgress) how = ECHO_TP_CREATED_NONBLOCKING;
      const int ours = announce(library, pending->slot, how, pending->has_name ? pending->name : NULL);
      if (ours != kNcclSuccess) result = ours;
    }
    free(pending);
  }
  return result;
}

static int do_CommInitRank(Library* library, void** comm, int nranks, NcclUniqueId id, int rank) {
  int result = before_creation(library, NULL);
  if (result != kNcclSuccess) return result;
  result = GUARDED(REAL(library, CommInitRank)(comm, nranks, id, rank));
  return after_creation(library, result, comm, config_nonblocking(NULL, 0), NULL);
}

static int do_CommInitRankConfig(Library* library, void** comm, int nranks, NcclUniqueId id, int rank,
                                 void* config) {
  int result = before_creation(library, NULL);
  if (result != kNcclSuccess) return result;
  result = GUARDED(REAL(library, CommInitRankConfig)(comm, nranks, id, rank, config));
  return after_creation(library, result, comm, config_nonblocking(config, 0), config_name(config));
}

static int do_CommInitRankScalable(Library* library, void** comm, int nranks, int rank, int nids,
                                   NcclUniqueId* ids, void* config) {
  int result = before_creation(library, NULL);
  if (result != kNcclSuccess) return result;
  result = GUARDED(REAL(library, CommInitRankScalable)(comm, nranks, rank, nids, ids, config));
  return after_creation(library, result, comm, config_nonblocking(config, 0), config_name(config));
}

static int do_CommInitAll(Library* library, void** comms, int ndev, const int* devlist) {
  int result = before_creation(library, NULL);
  if (result != kNcclSuccess) return result;
  result = GUARDED(REAL(library, CommInitAll)(comms, ndev, devlist));
  if (result != kNcclSuccess || !comms) return result;
  for (int i = 0; i < ndev; ++i) {
    const int ours = t_thread.depth[library->index] > 0
                         ? after_creation(library, result, &comms[i], config_nonblocking(NULL, 0), NULL)
                         : announce(library, &comms[i], ECHO_TP_CREATED_MANY, NULL);
    if (ours != kNcclSuccess) result = ours;
  }
  return result;
}

static int do_CommSplit(Library* library, void* comm, int color, int key, void** child, void* config) {
  int result = before_creation(library, comm);
  if (result != kNcclSuccess) return result;
  const int nonblocking = config_nonblocking(config, echo_tp_is_nonblocking(comm));
  result = GUARDED(REAL(library, CommSplit)(comm, color, key, child, config));
  return after_creation(library, result, child, nonblocking, config_name(config));
}

static int do_CommShrink(Library* library, void* comm, int* excluded, int excluded_count, void** child,
                         void* config, int flags) {
  enum { kShrinkAbort = 1 };
  int result = before_creation(library, comm);
  if (result != kNcclSuccess) return result;
  const int nonblocking = config_nonblocking(config, echo_tp_is_nonblocking(comm));
  const EchoTpEngine* engine = echo_tp_engine();
  if (engine && comm && (flags & kShrinkAbort)) {
    ++t_thread.inside;
    engine->comm_ending(comm, 1);
    --t_thread.inside;
  }
  result = GUARDED(REAL(library, CommShrink)(comm, excluded, excluded_count, child, config, flags));
  return after_creation(library, result, child, nonblocking, config_name(config));
}

static int do_CommGrow(Library* library, void* comm, int nranks, const NcclUniqueId* id, int rank,
                       void** child, void* config) {
  int result = before_creation(library, comm);
  if (result != kNcclSuccess) return result;
  const int nonblocking = config_nonblocking(config, echo_tp_is_nonblocking(comm));
  result = GUARDED(REAL(library, CommGrow)(comm, nranks, id, rank, child, config));
  return after_creation(library, result, child, nonblocking, config_name(config));
}

/* --- end and errors */

/* Never waits for another thread of ours when `abort` is set: the job's watchdog calls it while a launch
 * hangs. */
static void before_ending(Library* library, void* comm, int abort) {
  const EchoTpEngine* engine = echo_tp_engine();
  if (!engine || !comm) return;
  ++t_thread.inside;
  /* What the open group still holds for this communicator goes to NCCL now; any kind of other work asks for
   * that. */
  if (!abort && t_thread.engine_group == library->index + 1)
    engine->other(&library->nccl, comm, ECHO_TP_OTHER_CREATE, 0);
  engine->comm_ending(comm, abort);
  --t_thread.inside;
}

static int do_CommFinalize(Library* library, void* comm) {
  before_ending(library, comm, 0);
  return GUARDED(REAL(library, CommFinalize)(comm));
}

static int do_CommDestroy(Library* library, void* comm) {
  before_ending(library, comm, 0);
  echo_tp_forget(comm);
  return GUARDED(REAL(library, CommDestroy)(comm));
}

static int do_CommAbort(Library* library, void* comm) {
  before_ending(library, comm, 1);
  echo_tp_forget(comm);
  return GUARDED(REAL(library, CommAbort)(comm));
}

static int do_CommRevoke(Library* library, void* comm, int flags) {
  before_ending(library, comm, 1);
  return GUARDED(REAL(library, CommRevoke)(comm, flags));
}

/* A suspended communicator gives up its memory: it stays with NCCL from then on, also after it is resumed. */
static int do_CommSuspend(Library* library, void* comm, int flags) {
  before_ending(library, comm, 0);
  return GUARDED(REAL(library, CommSuspend)(comm, flags));
}

static int do_CommGetAsyncError(Library* library, void* comm, int* state) {
  const int result = GUARDED(REAL(library, CommGetAsyncError)(comm, state));
  const EchoTpEngine* engine = echo_tp_engine();
  if (engine && result == kNcclSuccess && state) {
    ++t_thread.inside;
    engine->async_error(comm, state);
    --t_thread.inside;
  }
  return result;
}

/* --- groups */

/* A group that was opened before the engine was loaded stays unknown to it until its outermost end: the
 * engine sees starts and ends in pairs only. */
static int do_GroupStart(Library* library) {
  const uint8_t mine = (uint8_t)(library->index + 1);
  uint16_t* depth = &t_thread.depth[library->index];
  const EchoTpEngine* engine = echo_tp_engine();
  int result;
  if (engine && (t_thread.engine_group == mine || (t_thread.engine_group == 0 && *depth == 0))) {
    result = GUARDED(engine->group_start(&library->nccl));
    if (result == kNcclSuccess) t_thread.engine_group = mine;
  } else {
    result = GUARDED(REAL(library, GroupStart)());
  }
  if (result == kNcclSuccess) ++*depth;
  return result;
}

static int end_group(Library* library, const EchoTpNccl* nccl, int (*real_end)(void)) {
  uint16_t* depth = &t_thread.depth[library->index];
  if (*depth == 0) return GUARDED(real_end()); /* NCCL reports the misuse */
  const EchoTpEngine* engine = echo_tp_engine();
  const int ours = engine && t_thread.engine_group == library->index + 1;
  const int result = ours ? GUARDED(engine->group_end(nccl)) : GUARDED(real_end());
  --*depth;
  if (*depth > 0) return result;
  if (ours) t_thread.engine_group = 0;
  return finish_group(library, result);
}

static int do_GroupEnd(Library* library) {
  return end_group(library, &library->nccl, (int (*)(void))library->real[kGroupEnd]);
}

static int simulate_end(void) {
  return t_thread.simulate_library->simulate(t_thread.simulate_info);
}

/* It ends the group without launching anything. The engine ends its own half through the same door, after
 * what it holds was handed to NCCL, so that the simulation counts it. */
static int do_GroupSimulateEnd(Library* library, void* info) {
  t_thread.simulate_info = info;
  t_thread.simulate_library = library;
  const EchoTpEngine* engine = echo_tp_engine();
  if (engine && t_thread.engine_group == library->index + 1) {
    const int result = GUARDED(engine->other(&library->nccl, NULL, ECHO_TP_OTHER_CREATE, 0));
    if (result != kNcclSuccess) return result;
  }
  EchoTpNccl nccl = library->nccl;
  nccl.group_end = simulate_end;
  return end_group(library, &nccl, simulate_end);
}

/* --- collectives */

static int do_AllReduce(Library* library, const void* send, void* recv, size_t count, int dtype, int op,
                        void* comm, void* stream) {
  const EchoTpEngine* engine = engine_for(library);
  if (!engine) return GUARDED(REAL(library, AllReduce)(send, recv, count, dtype, op, comm, stream));
  return GUARDED(engine->all_reduce(&library->nccl, send, recv, count, dtype, op, comm, stream));
}

static int before_other(Library* library, void* comm, EchoTpOther kind, size_t count) {
  const EchoTpEngine* engine = engine_for(library);
  return engine ? GUARDED(engine->other(&library->nccl, comm, kind, count)) : kNcclSuccess;
}

#define ECHO_TP_DETECT(name, parameters, arguments, communicator, kind)              \
  static int do_##name(Library* library ECHO_TP_REST parameters) {                   \
    const int result = before_other(library, communicator, kind, count);             \
    return result != kNcclSuccess ? result : GUARDED(REAL(library, name) arguments); \
  }
#include "shim/wrappers.def"

/* --- the two faces */

static int missing(const Library* library, Function function) {
  if (library)
    echo_tp_say("%s is not in %s (NCCL %d)", echo_tp_function_name(function), library->nccl.path,
                library->nccl.version);
  else
    echo_tp_say("%s was called, but no NCCL library is loaded or found: set ECHO_TP_REAL_NCCL to its path",
                echo_tp_function_name(function));
  return kNcclSystemError;
}

#define ECHO_TP_WRAP(name, parameters, arguments, communicator)                                       \
  __attribute__((visibility("default"))) int nccl##name parameters {                                  \
    const Caller caller = echo_tp_caller(__builtin_return_address(0));                                \
    Library* library = caller.exact ? caller.nccl : echo_tp_library_of(communicator, caller.nccl);    \
    if (!library || !library->real[k##name]) return missing(library, k##name);                        \
    if (caller.is_nccl || t_thread.inside || !echo_tp_active()) return REAL(library, name) arguments; \
    return do_##name(library ECHO_TP_REST arguments);                                                 \
  }
#include "shim/wrappers.def"

/* thunk_<set>_<name>: as above, for the library that was found when dlsym answered. */
#define THUNK(set, name, parameters, arguments)                                     \
  static int thunk_##set##_##name parameters {                                      \
    Library* library = echo_tp_library_number(set);                                 \
    if (!library->real[k##name]) return missing(library, k##name);                  \
    if (t_thread.inside || !echo_tp_active()) return REAL(library, name) arguments; \
    return do_##name(library ECHO_TP_REST arguments);                               \
  }
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) \
  THUNK(0, name, parameters, arguments)                         \
  THUNK(1, name, parameters, arguments)                         \
  THUNK(2, name, parameters, arguments)                         \
  THUNK(3, name, parameters, arguments)
#include "shim/wrappers.def"

void* const echo_tp_thunks[kThunkSets][kFunctionCount] = {
    {
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) (void*)thunk_0_##name,
#include "shim/wrappers.def"
    },
    {
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) (void*)thunk_1_##name,
#include "shim/wrappers.def"
    },
    {
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) (void*)thunk_2_##name,
#include "shim/wrappers.def"
    },
    {
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) (void*)thunk_3_##name,
#include "shim/wrappers.def"
    },
};
