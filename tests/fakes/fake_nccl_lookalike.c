/* SPDX-License-Identifier: Apache-2.0
 * A library that exports an ncclAllReduce but is not NCCL (no pncclAllReduce): nobody may interpose it. */
__attribute__((visibility("default"))) int ncclAllReduce(void) {
  return 4711;
}
