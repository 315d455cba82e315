/* SPDX-License-Identifier: Apache-2.0
 * The preload's side table of communicators. ncclComm_t itself is never replaced. Two facts a communicator:
 * its library (for callers that can't be told apart by address) and whether it blocks (inherited by children
 * that are split off without a config). Read only on those paths, never on the way of an ordinary all-reduce.
 */
#include <pthread.h>
#include <stdlib.h>

#include "shim/preload.h"

typedef struct Entry {
  void* comm; /* null: free */
  Library* library;
  int nonblocking;
} Entry;

enum { kEntriesPerBlock = 64 };
typedef struct Block {
  Entry entries[kEntriesPerBlock];
  struct Block* next;
} Block;

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static Block g_first;

void echo_tp_comms_after_fork(void) {
  g_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* The entry of `comm` (null: any free one). The caller holds the lock. */
static Entry* find(void* comm) {
  for (Block* block = &g_first; block; block = block->next)
    for (int i = 0; i < kEntriesPerBlock; ++i)
      if (block->entries[i].comm == comm) return &block->entries[i];
  return NULL;
}

void echo_tp_remember(void* comm, Library* library, int nonblocking) {
  if (!comm) return;
  pthread_mutex_lock(&g_lock);
  Entry* entry = find(comm);
  if (!entry) entry = find(NULL);
  if (!entry) {
    Block* block = calloc(1, sizeof *block);
    if (block) {
      block->next = g_first.next;
      g_first.next = block;
      entry = &block->entries[0];
    }
  }
  if (entry) *entry = (Entry){comm, library, nonblocking};
  pthread_mutex_unlock(&g_lock);
}

void echo_tp_forget(void* comm) {
  if (!comm) return;
  pthread_mutex_lock(&g_lock);
  Entry* entry = find(comm);
  if (entry) entry->comm = NULL;
  pthread_mutex_unlock(&g_lock);
}

Library* echo_tp_library_of(void* comm, Library* otherwise) {
  if (!comm) return otherwise;
  pthread_mutex_lock(&g_lock);
  const Entry* entry = find(comm);
  Library* library = entry ? entry->library : otherwise;
  pthread_mutex_unlock(&g_lock);
  return library;
}

int echo_tp_is_nonblocking(void* comm) {
  if (!comm) return 0;
  pthread_mutex_lock(&g_lock);
  const Entry* entry = find(comm);
  const int nonblocking = entry ? entry->nonblocking : 0;
  pthread_mutex_unlock(&g_lock);
  return nonblocking;
}
