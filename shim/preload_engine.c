/* SPDX-License-Identifier: Apache-2.0
 * Whether this process is watched at all, and the engine: opened at the first communicator, once. A failure
 * leaves the job with NCCL alone and one line on stderr; so does a fork, silently. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/preload.h"

enum { kUnknown = 0, kOff = 1, kOn = 2 };

static atomic_int g_active;
static _Atomic(const EchoTpEngine*) g_engine;
static atomic_int g_tried;
static pthread_mutex_t g_load_lock = PTHREAD_MUTEX_INITIALIZER;

void echo_tp_say(const char* format, ...) {
  const int saved = errno;
  char line[PATH_MAX + 512] = "echo-tp: ";
  const size_t prefix = strlen(line);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + prefix, sizeof line - prefix - 1, format, arguments);
  va_end(arguments);
  const size_t length = strlen(line);
  line[length] = '\n';
  ssize_t written = write(STDERR_FILENO, line, length + 1);
  (void)written;
  errno = saved;
}

int echo_tp_talkative(void) {
  const char* log = secure_getenv("ECHO_TP_LOG");
  return log && log[0] && strcmp(log, "0") != 0;
}

static int read_environment(void) {
  const char* off = secure_getenv("ECHO_TP");
  if (off && (strcmp(off, "off") == 0 || strcmp(off, "0") == 0)) return kOff;
  const char* policy = secure_getenv("ECHO_TP_POLICY");
  const char* mode = secure_getenv("ECHO_TP_MODE");
  return (policy && policy[0]) || (mode && strcmp(mode, "observe") == 0) ? kOn : kOff;
}

/* Asked as early as a job asks for a symbol, and it must not change when the job edits its environment later.
 */
__attribute__((constructor)) static void settle(void) {
  int unknown = kUnknown;
  atomic_compare_exchange_strong(&g_active, &unknown, read_environment());
}

int echo_tp_active(void) {
  if (atomic_load_explicit(&g_active, memory_order_relaxed) == kUnknown) settle();
  return atomic_load_explicit(&g_active, memory_order_relaxed) == kOn;
}

const EchoTpEngine* echo_tp_engine(void) {
  return atomic_load_explicit(&g_engine, memory_order_acquire);
}

/* CUDA does not survive a fork. A child forked before the engine was loaded starts afresh, as with NCCL
 * itself. */
static void in_forked_child(void) {
  echo_tp_libraries_after_fork();
  echo_tp_comms_after_fork();
  if (atomic_load(&g_tried)) {
    atomic_store(&g_active, kOff);
    atomic_store(&g_engine, NULL);
  }
  g_load_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

void echo_tp_watch_forks(void) {
  static atomic_flag registered = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&registered)) pthread_atfork(NULL, NULL, in_forked_child);
}

/* ECHO_TP_ENGINE, or libecho-tp-engine.so beside this library. */
static void engine_path(char* path, size_t size) {
  const char* given = secure_getenv("ECHO_TP_ENGINE");
  if (given && given[0]) {
    snprintf(path, size, "%s", given);
    return;
  }
  Dl_info ours;
  const char* file = dladdr((void*)(uintptr_t)&engine_path, &ours) && ours.dli_fname ? ours.dli_fname : "";
  const char* slash = strrchr(file, '/');
  snprintf(path, size, "%.*slibecho-tp-engine.so", slash ? (int)(slash + 1 - file) : 0, file);
}

static const EchoTpEngine* open_engine(void) {
  char path[PATH_MAX];
  engine_path(path, sizeof path);
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = dlerror();
    echo_tp_say("forwarding everything to NCCL: the engine can't be opened: %s", reason ? reason : path);
    return NULL;
  }
  const EchoTpEngine* (*open)(uint32_t) =
      (const EchoTpEngine* (*)(uint32_t))echo_tp_real_dlsym(handle, "echo_tp_engine_open");
  if (!open) {
    echo_tp_say("forwarding everything to NCCL: %s is not echo-tp's engine (no echo_tp_engine_open)", path);
    return NULL;
  }
  const EchoTpEngine* engine = open(ECHO_TP_ENGINE_ABI_VERSION);
  if (!engine) return NULL; /* it said why */
  if (engine->version != ECHO_TP_ENGINE_ABI_VERSION || engine->size < sizeof(EchoTpEngine)) {
    echo_tp_say("forwarding everything to NCCL: %s has interface %u, this preload library needs %u", path,
                engine->version, ECHO_TP_ENGINE_ABI_VERSION);
    return NULL;
  }
  if (echo_tp_talkative()) echo_tp_say("engine %s is loaded", path);
  return engine;
}

const EchoTpEngine* echo_tp_load_engine(void) {
  if (atomic_load_explicit(&g_tried, memory_order_acquire)) return echo_tp_engine();
  pthread_mutex_lock(&g_load_lock);
  if (!atomic_load(&g_tried)) {
    const int saved = errno;
    atomic_store_explicit(&g_engine, open_engine(), memory_order_release);
    atomic_store_explicit(&g_tried, 1, memory_order_release);
    errno = saved;
  }
  pthread_mutex_unlock(&g_load_lock);
  return echo_tp_engine();
}
