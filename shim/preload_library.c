/* SPDX-License-Identifier: Apache-2.0
 * Finds the real NCCL: of a PLT caller through the caller's own handle (RTLD_NEXT is blind to RTLD_LOCAL,
 * which is how Python loads everything), of a dlsym result through the object that contains it. The functions
 * are bound by their pnccl names, which can't resolve to us. No lock is held around a call into the loader.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/preload.h"

/* libc's dlsym, read by the assembly; a plain dlsym in our own sources would come back to ourselves. */
void* echo_tp_next_dlsym __attribute__((visibility("hidden")));

static const char* const kNames[kFunctionCount] = {
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) "nccl" #name,
#include "shim/wrappers.def"
};

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static Library g_libraries[kMaxLibraries];
static atomic_int g_library_count;

/* A mapped object: program or shared library. */
typedef struct Object {
  const char* start;
  const char* end;
  char name[PATH_MAX]; /* as the loader knows it; empty for the main program */
} Object;

/* Callers already seen. Entries are appended, never changed; the object stays mapped because we keep its
 * handle. */
typedef struct KnownCaller {
  const char* start;
  const char* end;
  Caller caller;
} KnownCaller;
enum { kMaxKnownCallers = 64 };
static KnownCaller g_callers[kMaxKnownCallers];
static atomic_int g_caller_count;

void echo_tp_libraries_after_fork(void) {
  g_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

Library* echo_tp_library_number(int index) {
  return &g_libraries[index];
}

const char* echo_tp_function_name(Function function) {
  return kNames[function];
}

int echo_tp_function_index(const char* name) {
  for (int i = 0; i < kFunctionCount; ++i)
    if (strcmp(name, kNames[i]) == 0) return i;
  return -1;
}

void echo_tp_resolve_dlsym(void) {
  void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (!found) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  echo_tp_next_dlsym = found;
}

void* echo_tp_real_dlsym(void* handle, const char* name) {
  if (!echo_tp_next_dlsym) echo_tp_resolve_dlsym();
  if (!echo_tp_next_dlsym) return NULL;
  return ((void* (*)(void*, const char*))echo_tp_next_dlsym)(handle, name);
}

typedef struct ObjectQuery {
  const char* address;
  Object* found;
} ObjectQuery;

static int match_object(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  ObjectQuery* query = data;
  const char* start = (const char*)UINTPTR_MAX;
  const char* end = NULL;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
    if (segment->p_type != PT_LOAD) continue;
    const char* from = (const char*)(info->dlpi_addr + segment->p_vaddr);
    if (from < start) start = from;
    if (from + segment->p_memsz > end) end = from + segment->p_memsz;
  }
  if (query->address < start || query->address >= end) return 0;
  query->found->start = start;
  query->found->end = end;
  snprintf(query->found->name, sizeof query->found->name, "%s", info->dlpi_name ? info->dlpi_name : "");
  return 1;
}

/* The object that contains `address`; 0 for generated code. */
static int find_object(const void* address, Object* object) {
  ObjectQuery query = {address, object};
  return dl_iterate_phdr(match_object, &query);
}

static int is_ours(const void* address) {
  Object ours, other;
  return find_object((const void*)(uintptr_t)&is_ours, &ours) && find_object(address, &other) &&
         ours.start == other.start;
}

/* A handle of an object that is already loaded. Kept: it pins the object, so that what we cache stays true.
 */
static void* handle_of(const Object* object) {
  return object->name[0] ? dlopen(object->name, RTLD_NOLOAD | RTLD_LAZY) : dlopen(NULL, RTLD_LAZY);
}

static Library* known_library(const char* base) {
  const int count = atomic_load_explicit(&g_library_count, memory_order_acquire);
  for (int i = 0; i < count; ++i)
    if (g_libraries[i].base == base) return &g_libraries[i];
  return NULL;
}

/* `name` if the object itself defines it, by its pnccl twin when there is one. */
static void* own_symbol(void* handle, const Object* object, const char* name) {
  char twin[64];
  snprintf(twin, sizeof twin, "p%s", name);
  const char* const tries[2] = {twin, name};
  for (int i = 0; i < 2; ++i) {
    const char* found = echo_tp_real_dlsym(handle, tries[i]);
    if (found >= object->start && found < object->end) return (void*)found;
  }
  return NULL;
}

static Library* register_library(const Object* object, void* handle) {
  Library* known = known_library(object->start);
  if (known) return known;
  Library fresh;
  memset(&fresh, 0, sizeof fresh);
  fresh.base = object->start;
  for (int i = 0; i < kFunctionCount; ++i) fresh.real[i] = own_symbol(handle, object, kNames[i]);
  fresh.nccl.all_reduce = (AllReduceFunction*)fresh.real[kAllReduce];
  fresh.nccl.all_gather = (AllGatherFunction*)fresh.real[kAllGather];
  fresh.nccl.send = (SendFunction*)fresh.real[kSend];
  fresh.nccl.recv = (RecvFunction*)fresh.real[kRecv];
  fresh.nccl.group_start = (int (*)(void))fresh.real[kGroupStart];
  fresh.nccl.group_end = (int (*)(void))fresh.real[kGroupEnd];
  fresh.nccl.comm_count = (int (*)(void*, int*))own_symbol(handle, object, "ncclCommCount");
  fresh.nccl.comm_user_rank = (int (*)(void*, int*))own_symbol(handle, object, "ncclCommUserRank");
  fresh.nccl.comm_cu_device = (int (*)(void*, int*))own_symbol(handle, object, "ncclCommCuDevice");
  fresh.nccl.comm_get_async_error = (int (*)(void*, int*))fresh.real[kCommGetAsyncError];
  fresh.nccl.comm_abort = (int (*)(void*))fresh.real[kCommAbort];
  fresh.simulate = (int (*)(void*))fresh.real[kGroupSimulateEnd];
  int (*version)(int*) = (int (*)(int*))own_symbol(handle, object, "ncclGetVersion");
  if (version) version(&fresh.nccl.version);
  fresh.nccl.path = object->name[0] ? strdup(object->name) : realpath("/proc/self/exe", NULL);
  if (!fresh.nccl.path) fresh.nccl.path = "(main program)";

  pthread_mutex_lock(&g_lock);
  Library* library = known_library(object->start);
  const int count = atomic_load(&g_library_count);
  if (!library && count < kMaxLibraries) {
    fresh.index = count;
    g_libraries[count] = fresh;
    library = &g_libraries[count];
    atomic_store_explicit(&g_library_count, count + 1, memory_order_release);
  }
  pthread_mutex_unlock(&g_lock);
  return library;
}

/* The NCCL library that a lookup through `handle` reaches, by `name`; our own functions don't count. */
static Library* library_through(void* handle, const char* name, Object* object) {
  const void* found = echo_tp_real_dlsym(handle, name);
  if (!found || !find_object(found, object)) return NULL;
  if (is_ours(found)) return NULL;
  Library* known = known_library(object->start);
  if (known) return known;
  void* own = handle_of(object);
  return own ? register_library(object, own) : NULL;
}

Library* echo_tp_library_at(const void* function) {
  Object object;
  if (!find_object(function, &object)) return NULL;
  Library* library = known_library(object.start);
  if (library) return library;
  void* handle = handle_of(&object);
  const char* twin = handle ? echo_tp_real_dlsym(handle, "pncclAllReduce") : NULL;
  if (twin >= object.start && twin < object.end) library = register_library(&object, handle);
  dlerror(); /* a failed search of ours must not be read as the caller's */
  return library;
}

/* Names of all loaded objects; opened one by one afterwards, since dlopen inside dl_iterate_phdr can
 * deadlock. */
typedef struct NameList {
  char** names;
  int count;
} NameList;

static int collect_name(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  NameList* list = data;
  if (!info->dlpi_name || !info->dlpi_name[0]) return 0;
  char** grown = realloc(list->names, (size_t)(list->count + 1) * sizeof *grown);
  if (!grown) return 1;
  list->names = grown;
  grown[list->count] = strdup(info->dlpi_name);
  if (grown[list->count]) ++list->count;
  return 0;
}

/* Any loaded object that defines pncclAllReduce; *copies counts them. */
static Library* any_loaded_library(int* copies) {
  NameList list = {NULL, 0};
  dl_iterate_phdr(collect_name, &list);
  Library* first = NULL;
  *copies = 0;
  for (int i = 0; i < list.count; ++i) {
    void* handle = dlopen(list.names[i], RTLD_NOLOAD | RTLD_LAZY);
    const void* found = handle ? echo_tp_real_dlsym(handle, "pncclAllReduce") : NULL;
    Object object;
    if (found && find_object(found, &object) && strcmp(object.name, list.names[i]) == 0) {
      Library* library = register_library(&object, handle);
      ++*copies;
      if (!first) first = library;
    } else if (handle) {
      dlclose(handle);
    }
    free(list.names[i]);
  }
  free(list.names);
  return first;
}

/* What to use when the caller's own dependencies hold no NCCL. A guess is never silent. */
static Library* fallback_library(const Object* caller) {
  int copies = 0;
  Object object;
  Library* library = any_loaded_library(&copies);
  if (!library) {
    const char* path = secure_getenv("ECHO_TP_REAL_NCCL");
    const char* const tries[2] = {path && path[0] ? path : NULL, "libnccl.so.2"};
    for (int i = 0; i < 2 && !library; ++i) {
      void* handle = tries[i] ? dlopen(tries[i], RTLD_LAZY | RTLD_LOCAL) : NULL;
      if (handle) library = library_through(handle, "pncclAllReduce", &object);
    }
    copies = 2;
  }
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (library && (copies > 1 || echo_tp_talkative()) && !atomic_flag_test_and_set(&said))
    echo_tp_say("%s calls NCCL but isn't linked with it: using %s, version %d",
                caller->name[0] ? caller->name : "the program", library->nccl.path, library->nccl.version);
  return library;
}

static int is_nccl_file(const char* path) {
  const char* slash = strrchr(path, '/');
  return strncmp(slash ? slash + 1 : path, "libnccl", 7) == 0;
}

Caller echo_tp_caller(const void* address) {
  const char* at = (const char*)address - 1; /* a call may be the last instruction of its object */
  const int count = atomic_load_explicit(&g_caller_count, memory_order_acquire);
  for (int i = 0; i < count; ++i)
    if (at >= g_callers[i].start && at < g_callers[i].end) return g_callers[i].caller;

  echo_tp_watch_forks();
  Caller caller = {NULL, 0, 0};
  Object object = {NULL, NULL, "generated code"};
  Object found;
  const int mapped = find_object(at, &object);
  if (mapped) {
    void* handle = handle_of(&object);
    if (handle) {
      caller.nccl = library_through(handle, "pncclAllReduce", &found);
      /* A replacement without pnccl names; the second way passes over ourselves in the global scope. */
      if (!caller.nccl) caller.nccl = library_through(handle, "ncclAllReduce", &found);
      if (!caller.nccl && !object.name[0]) caller.nccl = library_through(RTLD_NEXT, "ncclAllReduce", &found);
    }
  }
  caller.exact = caller.nccl != NULL;
  if (!caller.nccl) caller.nccl = fallback_library(&object);
  caller.is_nccl = caller.nccl && caller.nccl->base == object.start && is_nccl_file(object.name);
  dlerror();
  if (!mapped || !caller.nccl) return caller;

  pthread_mutex_lock(&g_lock);
  const int now = atomic_load(&g_caller_count);
  if (now < kMaxKnownCallers) {
    g_callers[now] = (KnownCaller){object.start, object.end, caller};
    atomic_store_explicit(&g_caller_count, now + 1, memory_order_release);
  }
  pthread_mutex_unlock(&g_lock);
  return caller;
}

/* Whether somebody else than us defines `name` for a caller: further on in the global scope, or among the
 * caller's own dependencies. When the answer is no, dlerror() says so. */
static int exists_without_us(const char* name, const void* caller) {
  if (echo_tp_real_dlsym(RTLD_NEXT, name)) return 1;
  Object object;
  void* handle = find_object((const char*)caller - 1, &object) ? handle_of(&object) : NULL;
  const void* found = handle ? echo_tp_real_dlsym(handle, name) : NULL;
  const int exists = found && !is_ours(found);
  if (handle) dlclose(handle);
  if (!exists) echo_tp_real_dlsym(RTLD_NEXT, name); /* last, for dlerror() */
  return exists;
}

/* Called by the assembly for names that begin with "nccl": our function; null to let libc answer; or
 * kNoSuchFunction. A job asks for a function to learn whether its NCCL has it, so ours must not stand in for
 * one that is missing there. */
void* echo_tp_dlsym_ours(void* handle, const char* name, const void* caller) {
  void* const kNoSuchFunction = (void*)-1;
  const int function = echo_tp_function_index(name);
  if (function < 0) return NULL;
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT)
    return exists_without_us(name, caller) ? NULL : kNoSuchFunction;
  const void* found = echo_tp_real_dlsym(handle, name);
  if (!found) return NULL;
  if (is_ours(found)) return exists_without_us(name, caller) ? NULL : kNoSuchFunction;
  if (!echo_tp_active()) return NULL;
  echo_tp_watch_forks();
  const Library* library = echo_tp_library_at(found);
  if (!library) return NULL;
  if (library->index >= kThunkSets) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
      echo_tp_say("more than %d copies of NCCL in one process: not watching %s", kThunkSets,
                  library->nccl.path);
    return NULL;
  }
  return echo_tp_thunks[library->index][function];
}
