/* SPDX-License-Identifier: Apache-2.0
 * COVERAGE: whether all-reduces reach NCCL without passing the shim. Two parties count in every process, into
 * one small file of the run's folder that both map: the engine what it forwards, and the witness (witness.c),
 * which needs no interposition, what NCCL says it was called with. A mapped file keeps the last call of a
 * process that is killed or leaves by _exit. */
#ifndef ECHO_TP_SHIM_COVERAGE_H
#define ECHO_TP_SHIM_COVERAGE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ECHO_TP_COVERAGE_MAGIC "echotpC1"

/* The file's content. Counters are added to atomically, by several threads. */
typedef struct EchoTpCoverage {
  char magic[8];            /* ECHO_TP_COVERAGE_MAGIC, without a terminating zero */
  int64_t pid;              /* of the process that counts */
  int64_t listening;        /* 1: the witness has heard NCCL */
  int64_t nccl_all_reduces; /* calls of ncclAllReduce that NCCL itself reported */
  int64_t forwarded;        /* of those, what the engine handed over */
  int64_t compressed;       /* all-reduces that NCCL never got */
} EchoTpCoverage;

/* Maps `<folder>/coverage-<host>-<pid>`, made if it is not there. Null if that can't be done; the mapping
 * stays for good. */
EchoTpCoverage* echo_tp_coverage_open(const char* folder);

static inline void echo_tp_coverage_add(int64_t* counter) {
  __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif
#endif
