/* SPDX-License-Identifier: Apache-2.0
 * Somebody else's preload library: wraps puts and finds the next one by dlsym(RTLD_NEXT), which works only if
 * libc sees this library as the caller. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "tests/fakes/fake_log.h"

__attribute__((visibility("default"))) int puts(const char* text) {
  int (*next)(const char*) = (int (*)(const char*))dlsym(RTLD_NEXT, "puts");
  Dl_info info;
  fake_log("other puts next=%s",
           next && next != puts && dladdr((void*)next, &info) && strstr(info.dli_fname, "libc.so") ? "libc"
                                                                                                   : "WRONG");
  return next && next != puts ? next(text) : -1;
}
