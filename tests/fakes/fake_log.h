/* SPDX-License-Identifier: Apache-2.0
 * One log for all fakes of a process: every line goes to a buffer of the fake that writes it and, if FAKE_LOG
 * names a file, is appended there, so that the order between NCCL, engine and job is kept over processes too.
 */
#ifndef ECHO_TP_TESTS_FAKE_LOG_H
#define ECHO_TP_TESTS_FAKE_LOG_H

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char fake_log_buffer[1 << 16];
static size_t fake_log_used;
static pthread_mutex_t fake_log_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((format(printf, 1, 2), unused)) static void fake_log(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
  line[length++] = '\n';
  pthread_mutex_lock(&fake_log_lock);
  if (fake_log_used + (size_t)length < sizeof fake_log_buffer) {
    memcpy(fake_log_buffer + fake_log_used, line, (size_t)length);
    fake_log_used += (size_t)length;
    fake_log_buffer[fake_log_used] = 0;
  }
  const char* path = getenv("FAKE_LOG");
  const int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
  if (file >= 0) {
    if (write(file, line, (size_t)length) != length) perror("FAKE_LOG");
    close(file);
  }
  pthread_mutex_unlock(&fake_log_lock);
}

#endif
