/* SPDX-License-Identifier: Apache-2.0
 * Opens the coverage file of a process. */
#define _GNU_SOURCE
#include "shim/coverage.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The whole content is written under another name first: what is mapped has its blocks, so that a full disk
 * can't become a SIGBUS, and nobody sees a file that is still too short. */
static void make_file(const char* path) {
  char fresh[PATH_MAX + 32];
  snprintf(fresh, sizeof fresh, "%s.new%ld", path, (long)syscall(SYS_gettid));
  const int file = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  EchoTpCoverage content;
  memset(&content, 0, sizeof content);
  memcpy(content.magic, ECHO_TP_COVERAGE_MAGIC, sizeof content.magic);
  content.pid = getpid();
  const int whole = write(file, &content, sizeof content) == (ssize_t)sizeof content;
  close(file);
  /* The other party may have been first: then its file is the one. */
  if (whole && link(fresh, path) != 0) { /* no links here, or it exists: opening tells */
  }
  unlink(fresh);
}

EchoTpCoverage* echo_tp_coverage_open(const char* folder) {
  if (!folder || !folder[0]) return NULL;
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0) return NULL;
  for (char* c = host; *c; ++c)
    if (*c <= ' ' || *c == '/' || *c >= 0x7f) *c = '_';
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s/coverage-%s-%ld", folder, host, (long)getpid());
  if (length < 0 || length >= (int)sizeof path) return NULL;
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) {
    make_file(path);
    file = open(path, O_RDWR | O_CLOEXEC);
  }
  if (file < 0) return NULL;
  void* mapped = lseek(file, 0, SEEK_END) >= (off_t)sizeof(EchoTpCoverage)
                     ? mmap(NULL, sizeof(EchoTpCoverage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                     : MAP_FAILED;
  close(file);
  return mapped == MAP_FAILED ? NULL : mapped;
}
