/* SPDX-License-Identifier: Apache-2.0
 * A library that calls NCCL without being linked with it, as plugins do that trust their host to have loaded
 * it. */
#include "tests/fakes/fake_nccl.h"

__attribute__((visibility("default"))) int loose_use(void* comm) {
  const int result = ncclAllReduce((void*)0x1000, (void*)0x2000, 8, 9, 0, comm, (void*)0x5000);
  return result != 0 ? result : ncclCommDestroy(comm);
}

__attribute__((visibility("default"))) int loose_group_start(void) {
  const int result = ncclGroupStart();
  return result;
}
