/* SPDX-License-Identifier: Apache-2.0
 * What the small jobs of the interposition tests do with NCCL. Compiled into every kind of user (linked,
 * plugin, dlopen), so that the calls come from that user's own object. Each scenario returns 0, or the line
 * that failed. */
#ifndef ECHO_TP_TESTS_INTERPOSE_SCENARIOS_H
#define ECHO_TP_TESTS_INTERPOSE_SCENARIOS_H

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/fakes/fake_log.h"
#include "tests/fakes/fake_nccl.h"

/* How this user reaches NCCL: null where its library has no such function. */
typedef struct Api {
#define API_MEMBER(name, parameters, arguments, since) int(*name) parameters;
  FAKE_NCCL_FUNCTIONS(API_MEMBER)
  int (*calls_broadcast)(void* comm);
  void (*set_callback)(int (*function)(void* comm));
} Api;

#define TRY(expression)                                                       \
  do {                                                                        \
    const int tried = (expression);                                           \
    if (tried != 0) {                                                         \
      fprintf(stderr, "line %d: %s gave %d\n", __LINE__, #expression, tried); \
      return __LINE__;                                                        \
    }                                                                         \
  } while (0)
#define EXPECT(condition) TRY(!(condition))

static void* const kStream = (void*)0x5000;
static char* const kSend = (char*)0x1000;
static char* const kRecv = (char*)0x2000;
enum { kInProgressResult = 7, kBf16 = 9 };

static ncclConfig_t make_config(void) {
  ncclConfig_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.magic = 0xcafebeef;
  config.version = 22809;
  config.blocking = INT_MIN;
  return config;
}

static int make(const Api* nccl, void** comm) {
  ncclUniqueId id;
  TRY(nccl->GetUniqueId(&id));
  TRY(nccl->CommInitRank(comm, 2, id, 1));
  EXPECT(*comm != NULL);
  return 0;
}

static int sum(const Api* nccl, void* comm, size_t count) {
  return nccl->AllReduce(kSend, kRecv, count, kBf16, 0, comm, kStream);
}

/* Every function once, with arguments that differ from each other. */
static int scenario_all(const Api* nccl) {
  void* comm = NULL;
  int state = -1;
  void* handle = NULL;
  TRY(make(nccl, &comm));
  TRY(nccl->AllReduce(kSend, kRecv, 1001, kBf16, 3, comm, kStream));
  TRY(nccl->Broadcast(kSend, kRecv, 1002, 1, 5, comm, kStream));
  TRY(nccl->Bcast(kSend, 1003, 1, 5, comm, kStream));
  TRY(nccl->Reduce(kSend, kRecv, 1004, 1, 3, 5, comm, kStream));
  TRY(nccl->AllGather(kSend, kRecv, 1005, 1, comm, kStream));
  TRY(nccl->ReduceScatter(kSend, kRecv, 1006, 1, 3, comm, kStream));
  if (nccl->AlltoAll) {
    TRY(nccl->AlltoAll(kSend, kRecv, 1007, 1, comm, kStream));
    TRY(nccl->Gather(kSend, kRecv, 1008, 1, 5, comm, kStream));
    TRY(nccl->Scatter(kSend, kRecv, 1009, 1, 5, comm, kStream));
  }
  TRY(nccl->Send(kSend, 1010, 1, 6, comm, kStream));
  TRY(nccl->Recv(kRecv, 1011, 1, 6, comm, kStream));
  TRY(nccl->CommGetAsyncError(comm, &state));
  fake_log("user state=%d", state);
  if (nccl->CommRegister) TRY(nccl->CommRegister(comm, kSend, 4096, &handle));
  EXPECT(nccl->FutureThing(41) == 42);
  TRY(nccl->CommFinalize(comm));
  TRY(nccl->CommDestroy(comm));
  return 0;
}

static int scenario_two_comms(const Api* nccl) {
  void* a = NULL;
  void* b = NULL;
  TRY(make(nccl, &a));
  TRY(make(nccl, &b));
  TRY(sum(nccl, a, 1));
  TRY(sum(nccl, b, 2));
  TRY(nccl->CommDestroy(a));
  TRY(nccl->CommDestroy(b));
  return 0;
}

static int scenario_refused(const Api* nccl) {
  void* comm = (void*)1;
  ncclUniqueId id;
  TRY(nccl->GetUniqueId(&id));
  const int result = nccl->CommInitRank(&comm, 2, id, 0);
  fake_log("user result=%d comm=%s", result, comm ? "set" : "null");
  TRY(nccl->GroupStart());
  comm = (void*)1;
  TRY(nccl->CommInitRank(&comm, 2, id, 0));
  const int ended = nccl->GroupEnd();
  fake_log("user group result=%d comm=%s", ended, comm ? "set" : "null");
  return 0;
}

/* A config at the very end of a page: one byte too many is a crash. `size` bytes of it are readable. */
static ncclConfig_t* config_at_end(size_t size, const ncclConfig_t* from) {
  char* pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_NONE) != 0) return NULL;
  ncclConfig_t* config = (ncclConfig_t*)(void*)(pages + 4096 - size);
  memcpy(config, from, size);
  memcpy(config, &size, sizeof size);
  return config;
}

static int scenario_config(const Api* nccl) {
  void* comm = NULL;
  ncclUniqueId id;
  TRY(nccl->GetUniqueId(&id));
  ncclConfig_t config = make_config();
  config.commName = "TP0";
  const ncclConfig_t before = config;
  TRY(nccl->CommInitRankConfig(&comm, 4, id, 2, &config));
  EXPECT(memcmp(&before, &config, sizeof config) == 0);
  TRY(nccl->CommDestroy(comm));
  TRY(nccl->CommInitRankConfig(&comm, 4, id, 2, NULL));
  TRY(nccl->CommDestroy(comm));
  config.commName = "from 2.26";
  config.version = 22602; /* had other members at that place */
  TRY(nccl->CommInitRankConfig(&comm, 4, id, 2, &config));
  TRY(nccl->CommDestroy(comm));
  ncclConfig_t* old = config_at_end(offsetof(ncclConfig_t, commName), &before);
  EXPECT(old != NULL);
  TRY(nccl->CommInitRankConfig(&comm, 4, id, 2, old));
  TRY(nccl->CommDestroy(comm));
  if (nccl->CommInitRankScalable) {
    config = before;
    config.commName = "scalable";
    TRY(nccl->CommInitRankScalable(&comm, 4, 2, 1, &id, &config));
    TRY(nccl->CommDestroy(comm));
  }
  return 0;
}

static int until_ready(const Api* nccl, void* comm) {
  int state = kInProgressResult;
  for (int i = 0; i < 10 && state == kInProgressResult; ++i) TRY(nccl->CommGetAsyncError(comm, &state));
  return state;
}

static int scenario_nonblocking(const Api* nccl) {
  void* comm = NULL;
  void* child = NULL;
  ncclUniqueId id;
  TRY(nccl->GetUniqueId(&id));
  ncclConfig_t config = make_config();
  config.blocking = 0;
  const int unfinished = getenv("FAKE_NCCL_QUICK") ? 0 : kInProgressResult;
  EXPECT(nccl->CommInitRankConfig(&comm, 2, id, 0, &config) == unfinished);
  TRY(until_ready(nccl, comm));
  EXPECT(nccl->CommSplit(comm, 0, 0, &child, NULL) == unfinished); /* as its parent */
  TRY(until_ready(nccl, child));
  TRY(nccl->CommDestroy(child));
  ncclConfig_t undefined = make_config();
  TRY(nccl->CommSplit(comm, 0, 0, &child, &undefined)); /* NCCL's default: blocking */
  TRY(nccl->CommDestroy(child));
  TRY(nccl->GroupStart());
  EXPECT(nccl->CommInitRankConfig(&child, 2, id, 0, &config) == unfinished);
  EXPECT(nccl->GroupEnd() == unfinished);
  TRY(until_ready(nccl, child));
  TRY(nccl->CommDestroy(child));
  TRY(nccl->CommDestroy(comm));
  return 0;
}

/* Non-blocking for a reason that the caller can't see; only the result tells. */
static int scenario_in_progress(const Api* nccl) {
  void* comm = NULL;
  ncclUniqueId id;
  TRY(nccl->GetUniqueId(&id));
  EXPECT(nccl->CommInitRank(&comm, 2, id, 0) == kInProgressResult);
  TRY(until_ready(nccl, comm));
  TRY(nccl->CommDestroy(comm));
  TRY(nccl->GroupStart());
  EXPECT(nccl->CommInitRank(&comm, 2, id, 0) == kInProgressResult);
  EXPECT(nccl->GroupEnd() == kInProgressResult);
  TRY(until_ready(nccl, comm));
  TRY(nccl->CommDestroy(comm));
  return 0;
}

static int scenario_group_one(const Api* nccl) {
  void* comm = NULL;
  ncclUniqueId id;
  char name[8] = "TP7";
  ncclConfig_t config = make_config();
  config.commName = name;
  TRY(nccl->GetUniqueId(&id));
  TRY(nccl->GroupStart());
  TRY(nccl->GroupStart());
  TRY(nccl->CommInitRankConfig(&comm, 2, id, 0, &config));
  memset(name, 'x', sizeof name - 1); /* the job may reuse it at once */
  TRY(nccl->GroupEnd());
  fake_log("user inner end, comm=%s", comm ? "set" : "null");
  TRY(nccl->GroupEnd());
  EXPECT(comm != NULL);
  TRY(nccl->GroupStart()); /* now known to the engine */
  TRY(sum(nccl, comm, 5));
  TRY(nccl->GroupEnd());
  TRY(nccl->CommDestroy(comm));
  return 0;
}

static int scenario_group_two(const Api* nccl) {
  void* comms[2] = {NULL, NULL};
  ncclUniqueId id;
  TRY(nccl->GetUniqueId(&id));
  TRY(nccl->GroupStart());
  TRY(nccl->CommInitRank(&comms[0], 2, id, 0));
  TRY(nccl->CommInitRank(&comms[1], 2, id, 1));
  TRY(nccl->GroupEnd());
  /* A second group, after the engine was loaded: a creation in it is announced as other work. */
  void* third = NULL;
  TRY(nccl->GroupStart());
  TRY(sum(nccl, comms[0], 9));
  TRY(nccl->CommInitRank(&third, 2, id, 0));
  TRY(nccl->GroupEnd());
  TRY(nccl->CommDestroy(third));
  TRY(nccl->CommDestroy(comms[0]));
  TRY(nccl->CommDestroy(comms[1]));
  return 0;
}

static int scenario_group_fails(const Api* nccl) {
  void* comm = NULL;
  ncclUniqueId id;
  TRY(nccl->GetUniqueId(&id));
  TRY(nccl->GroupStart());
  TRY(nccl->CommInitRank(&comm, 2, id, 0));
  EXPECT(nccl->GroupEnd() == 1);
  EXPECT(nccl->GroupEnd() == 5); /* unmatched: NCCL's own answer */
  return 0;
}

/* The engine is loaded by another thread while this one has a group open. */
static void* make_in_thread(void* nccl) {
  void* comm = NULL;
  return make(nccl, &comm) == 0 ? comm : NULL;
}

static int scenario_group_before_engine(const Api* nccl) {
  pthread_t thread;
  void* comm = NULL;
  TRY(nccl->GroupStart());
  TRY(pthread_create(&thread, NULL, make_in_thread, (void*)(uintptr_t)nccl));
  TRY(pthread_join(thread, &comm));
  EXPECT(comm != NULL);
  TRY(nccl->GroupStart());
  TRY(sum(nccl, comm, 11)); /* in a group that the engine doesn't know: must not be run at once by it */
  TRY(nccl->GroupEnd());
  TRY(nccl->GroupEnd());
  TRY(nccl->GroupStart());
  TRY(sum(nccl, comm, 12));
  TRY(nccl->GroupEnd());
  TRY(nccl->CommDestroy(comm));
  return 0;
}

static int scenario_simulate(const Api* nccl) {
  void* comm = NULL;
  float estimate = 0;
  TRY(make(nccl, &comm));
  TRY(nccl->GroupStart());
  TRY(sum(nccl, comm, 21));
  TRY(nccl->GroupSimulateEnd(&estimate));
  EXPECT(estimate == 1.5f);
  TRY(nccl->GroupStart());
  TRY(sum(nccl, comm, 22));
  TRY(nccl->GroupEnd());
  TRY(nccl->CommDestroy(comm));
  return 0;
}

static int scenario_init_all(const Api* nccl) {
  void* comms[3] = {NULL, NULL, NULL};
  TRY(nccl->CommInitAll(comms, 3, NULL));
  for (int i = 0; i < 3; ++i) TRY(nccl->CommDestroy(comms[i]));
  return 0;
}

static int scenario_split(const Api* nccl) {
  void* comm = NULL;
  void* child = (void*)1;
  TRY(make(nccl, &comm));
  TRY(nccl->CommSplit(comm, -1, 0, &child, NULL));
  EXPECT(child == NULL);
  ncclConfig_t config = make_config();
  config.commName = "half";
  TRY(nccl->CommSplit(comm, 3, 4, &child, &config));
  TRY(nccl->CommDestroy(child));
  TRY(nccl->CommDestroy(comm));
  return 0;
}

static int scenario_reshape(const Api* nccl) {
  void* comm = NULL;
  void* child = NULL;
  int excluded[1] = {1};
  ncclUniqueId id;
  TRY(make(nccl, &comm));
  TRY(nccl->CommShrink(comm, excluded, 1, &child, NULL, 0));
  TRY(nccl->CommDestroy(child));
  TRY(nccl->CommShrink(comm, excluded, 1, &child, NULL, 1));
  TRY(nccl->CommDestroy(child));
  if (nccl->CommGrow) {
    TRY(nccl->GetUniqueId(&id));
    TRY(nccl->CommGrow(comm, 3, &id, -1, &child, NULL));
    TRY(nccl->CommDestroy(child));
    TRY(nccl->CommGrow(NULL, 3, &id, 2, &child, NULL)); /* a new rank has no parent */
    TRY(nccl->CommDestroy(child));
  }
  if (nccl->CommSuspend) TRY(nccl->CommSuspend(comm, 1));
  TRY(nccl->CommRevoke(comm, 0));
  TRY(nccl->CommAbort(comm));
  TRY(nccl->CommDestroy(NULL));
  return 0;
}

static const Api* callback_api;
static int call_back(void* comm) {
  return callback_api->Send(kSend, 33, 1, 0, comm, kStream);
}

static int scenario_inside(const Api* nccl) {
  void* comm = NULL;
  TRY(make(nccl, &comm));
  TRY(nccl->Bcast(kSend, 31, 1, 0, comm, kStream)); /* calls ncclBroadcast inside NCCL */
  TRY(nccl->calls_broadcast(comm));                 /* so does this, and it isn't wrapped */
  callback_api = nccl;
  nccl->set_callback(call_back); /* code outside NCCL that NCCL calls: its calls are NCCL's too */
  TRY(nccl->Reduce(kSend, kRecv, 32, 1, 0, 0, comm, kStream));
  TRY(nccl->CommDestroy(comm));
  return 0;
}

static int scenario_fork(const Api* nccl) {
  void* comm = NULL;
  TRY(make(nccl, &comm));
  const pid_t child = fork();
  if (child == 0) {
    void* own = NULL;
    int failed = sum(nccl, comm, 41) || make(nccl, &own) || sum(nccl, own, 42) || nccl->CommDestroy(comm);
    _exit(failed ? 1 : 0);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  TRY(sum(nccl, comm, 43));
  TRY(nccl->CommDestroy(comm));
  return 0;
}

/* As vLLM does: fork first, then every process makes its communicator. */
static int scenario_fork_first(const Api* nccl) {
  TRY(nccl->GroupStart()); /* the preload has been at work before the fork */
  TRY(nccl->GroupEnd());
  const pid_t child = fork();
  if (child == 0) {
    void* own = NULL;
    _exit(make(nccl, &own) || sum(nccl, own, 51) ? 1 : 0);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}

typedef struct Launch {
  const Api* nccl;
  void* comm;
  int result;
} Launch;

static void* launch_in_thread(void* data) {
  Launch* launch = data;
  launch->result = sum(launch->nccl, launch->comm, 61);
  return NULL;
}

/* A watchdog aborts while another thread hangs in a launch. */
static int scenario_abort(const Api* nccl) {
  Launch launch = {nccl, NULL, -1};
  pthread_t thread;
  TRY(make(nccl, &launch.comm));
  TRY(pthread_create(&thread, NULL, launch_in_thread, &launch));
  const struct timespec pause = {0, 100 * 1000000L};
  nanosleep(&pause, NULL);
  TRY(nccl->CommAbort(launch.comm));
  TRY(pthread_join(thread, NULL));
  fake_log("user launch result=%d", launch.result);
  return 0;
}

/* Two threads make the process's first communicators at once. */
static int scenario_threads(const Api* nccl) {
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) TRY(pthread_create(&threads[i], NULL, make_in_thread, (void*)(uintptr_t)nccl));
  for (int i = 0; i < 4; ++i) {
    void* comm = NULL;
    TRY(pthread_join(threads[i], &comm));
    EXPECT(comm != NULL);
  }
  return 0;
}

static int scenario_many_calls(const Api* nccl) {
  void* comms[2] = {NULL, NULL};
  for (int i = 0; i < 2; ++i) TRY(make(nccl, &comms[i]));
  for (int i = 0; i < 50; ++i) TRY(sum(nccl, comms[i % 2], (size_t)i));
  for (int i = 0; i < 2; ++i) TRY(nccl->CommDestroy(comms[i]));
  return 0;
}

/* No exit handler runs. */
static int scenario_killed(const Api* nccl) {
  void* comm = NULL;
  TRY(make(nccl, &comm));
  TRY(sum(nccl, comm, 81));
  raise(SIGKILL);
  return 0;
}

static int scenario_error_of_other(const Api* nccl) {
  void* comm = NULL;
  TRY(make(nccl, &comm));
  fake_log("user result=%d", nccl->AllGather(kSend, kRecv, 71, 1, comm, kStream));
  return 0;
}

static int run_scenario_of(const Api* nccl, const char* name) {
#define SCENARIO(function) \
  if (strcmp(name, #function) == 0) return scenario_##function(nccl)
  SCENARIO(all);
  SCENARIO(two_comms);
  SCENARIO(refused);
  SCENARIO(config);
  SCENARIO(nonblocking);
  SCENARIO(in_progress);
  SCENARIO(group_one);
  SCENARIO(group_two);
  SCENARIO(group_fails);
  SCENARIO(group_before_engine);
  SCENARIO(simulate);
  SCENARIO(init_all);
  SCENARIO(split);
  SCENARIO(reshape);
  SCENARIO(inside);
  SCENARIO(fork);
  SCENARIO(fork_first);
  SCENARIO(abort);
  SCENARIO(threads);
  SCENARIO(many_calls);
  SCENARIO(killed);
  SCENARIO(error_of_other);
  fprintf(stderr, "no scenario %s\n", name);
  return 2;
}

#endif
