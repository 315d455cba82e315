/* SPDX-License-Identifier: Apache-2.0
 * A job that is linked with NCCL (DT_NEEDED), as a program or as a plugin: `program SCENARIO`, or
 * run_scenario(name) of the plugin. Its calls go through its own PLT or GOT. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "tests/shim/interpose_scenarios.h"

#ifndef FAKE_NCCL_VERSION /* of the NCCL that this is linked with */
#define FAKE_NCCL_VERSION 22809
#endif

__attribute__((visibility("default"))) int run_scenario(const char* name) {
  Api nccl;
#define TAKE(name, parameters, arguments, since) nccl.name = (since) <= FAKE_NCCL_VERSION ? nccl##name : NULL;
  FAKE_NCCL_FUNCTIONS(TAKE)
  nccl.calls_broadcast = fake_nccl_calls_broadcast;
  nccl.set_callback = fake_nccl_set_callback;
  return run_scenario_of(&nccl, name) == 0 ? 0 : 1;
}

#ifdef INTERPOSE_PROGRAM
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  puts("hello");
  return run_scenario(argv[1]);
}
#endif
