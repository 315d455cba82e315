/* SPDX-License-Identifier: Apache-2.0
 * An engine that only records what the preload library tells it and forwards. Environment:
 *   FAKE_ENGINE_REFUSE=1        echo_tp_engine_open says why and returns null
 *   FAKE_ENGINE_ABI=N           claims interface N
 *   FAKE_ENGINE_FAIL_CREATE=N   comm_created returns N
 *   FAKE_ENGINE_FAIL_OTHER=N    other returns N
 *   FAKE_ENGINE_ASYNC=N         async_error puts N there
 *   FAKE_ENGINE_HANG=1          all_reduce waits until its communicator is aborted (20 s at most)
 *   FAKE_ENGINE_OPEN_MS=N       echo_tp_engine_open takes that long
 *   FAKE_ENGINE_CREATE_MS=N     comm_created takes that long */
#include <stdatomic.h>
#include <time.h>

#include "shim/engine_abi.h"
#include "tests/fakes/fake_log.h"

static atomic_int aborted;
static _Thread_local int depth;

static int number(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : 0;
}

static int id_of(const void* comm) {
  return comm ? *(const int*)comm : 0;
}

static void pause_ms(int ms) {
  struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
  nanosleep(&time, NULL);
}

static int comm_created(const EchoTpNccl* nccl, void* comm, EchoTpCreated how, const char* name) {
  static const char* const hows[] = {"blocking", "nonblocking", "many"};
  int count = 0;
  nccl->comm_count(comm, &count);
  fake_log("engine comm_created comm=%d how=%s name=%s nccl=%d ranks=%d", id_of(comm), hows[how],
           name ? name : "-", nccl->version, count);
  pause_ms(number("FAKE_ENGINE_CREATE_MS"));
  return number("FAKE_ENGINE_FAIL_CREATE");
}

static void comm_ending(void* comm, int abort) {
  fake_log("engine comm_ending comm=%d abort=%d", id_of(comm), abort);
  if (abort) atomic_store(&aborted, 1);
}

static int all_reduce(const EchoTpNccl* nccl, const void* send, void* recv, size_t count, int dtype, int op,
                      void* comm, void* stream) {
  fake_log("engine all_reduce comm=%d count=%zu dtype=%d op=%d nccl=%d", id_of(comm), count, dtype, op,
           nccl->version);
  for (int i = 0; i < 2000 && number("FAKE_ENGINE_HANG"); ++i) {
    if (atomic_load(&aborted)) {
      fake_log("engine all_reduce was aborted");
      return 6;
    }
    pause_ms(10);
  }
  return nccl->all_reduce(send, recv, count, dtype, op, comm, stream);
}

static int other(const EchoTpNccl* nccl, void* comm, EchoTpOther kind, size_t count) {
  fake_log("engine other comm=%d kind=%d count=%zu nccl=%d", id_of(comm), (int)kind, count, nccl->version);
  return number("FAKE_ENGINE_FAIL_OTHER");
}

static int group_start(const EchoTpNccl* nccl) {
  fake_log("engine group_start depth=%d", ++depth);
  return nccl->group_start();
}

static int group_end(const EchoTpNccl* nccl) {
  fake_log("engine group_end depth=%d", --depth);
  return nccl->group_end();
}

static void async_error(void* comm, int* state) {
  fake_log("engine async_error comm=%d state=%d", id_of(comm), *state);
  if (number("FAKE_ENGINE_ASYNC")) *state = number("FAKE_ENGINE_ASYNC");
}

static EchoTpEngine engine = {sizeof(EchoTpEngine), ECHO_TP_ENGINE_ABI_VERSION,
                              comm_created,         comm_ending,
                              all_reduce,           other,
                              group_start,          group_end,
                              async_error};

__attribute__((visibility("default"))) const EchoTpEngine* echo_tp_engine_open(uint32_t abi_version) {
  fake_log("engine open abi=%u", abi_version);
  pause_ms(number("FAKE_ENGINE_OPEN_MS"));
  if (number("FAKE_ENGINE_REFUSE")) {
    fprintf(stderr, "echo-tp: the fake engine refuses\n");
    return NULL;
  }
  if (getenv("FAKE_ENGINE_ABI")) engine.version = (uint32_t)number("FAKE_ENGINE_ABI");
  return &engine;
}
