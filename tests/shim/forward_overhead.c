/* SPDX-License-Identifier: Apache-2.0
 * What a forwarded call costs: the same calls of a fake NCCL that does nothing, through the names that a
 * preload takes over and by the pnccl names past it. Run under the preload library; prints a line for each
 * way. Usage: forward_overhead [MOST_NS]: ends with 1 if a way costs more than that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/fakes/fake_nccl.h"

enum { kBatches = 200, kCalls = 500, kBf16 = 9 };
typedef int (*Sum)(const void*, void*, size_t, int, int, void*, void*);

int pncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int pncclGroupStart(void);
int pncclGroupEnd(void);
int pncclAllGather(const void*, void*, size_t, int, void*, void*);

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

typedef struct Times {
  double least, median;
} Times;

/* Time of one pass of BODY, which holds `kCalls` calls of one kind. */
#define MEASURE(times, BODY)                          \
  do {                                                \
    double each[kBatches];                            \
    for (int batch = 0; batch < kBatches; ++batch) {  \
      const double start = now_ns();                  \
      for (int call = 0; call < kCalls; ++call) BODY; \
      each[batch] = (now_ns() - start) / kCalls;      \
    }                                                 \
    qsort(each, kBatches, sizeof each[0], ascending); \
    (times) = (Times){each[0], each[kBatches / 2]};   \
  } while (0)

static int tell(const char* what, Times through, Times past, double most) {
  const double least = through.least - past.least;
  printf("%-28s %6.0f ns a call (median), %6.0f ns at least; the call itself %4.0f ns\n", what,
         through.median - past.median, least, past.median);
  return most > 0 && least > most;
}

int main(int argc, char** argv) {
  const double most = argc > 1 ? atof(argv[1]) : 0;
  ncclUniqueId id;
  void* comm = NULL;
  Times past, through;
  int slow = 0;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 2, id, 0)) return 2;
  Sum found = (Sum)dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), "ncclAllReduce");
  if (!found) return 2;
#define ARGUMENTS (void*)0x1000, (void*)0x2000, 64, kBf16, 0, comm, NULL
  MEASURE(past, pncclAllReduce(ARGUMENTS));
  MEASURE(through, ncclAllReduce(ARGUMENTS));
  slow |= tell("all-reduce, linked", through, past, most);
  MEASURE(through, found(ARGUMENTS));
  slow |= tell("all-reduce, by dlsym", through, past, most);
  MEASURE(past, pncclAllGather((void*)0x1000, (void*)0x2000, 64, kBf16, comm, NULL));
  MEASURE(through, ncclAllGather((void*)0x1000, (void*)0x2000, 64, kBf16, comm, NULL));
  slow |= tell("all-gather, linked", through, past, most);
  MEASURE(past, (pncclGroupStart(), pncclGroupEnd()));
  MEASURE(through, (ncclGroupStart(), ncclGroupEnd()));
  slow |= tell("empty group, linked", through, past, most);
  if (ncclCommDestroy(comm)) return 2;
  return slow;
}
