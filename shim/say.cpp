// SPDX-License-Identifier: Apache-2.0
#include "shim/say.hpp"

#include <cstdarg>
#include <cstdio>

namespace echotp {

void say(int rank, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (rank >= 0)
    std::fprintf(stderr, "echo-tp[rank %d]: %s\n", rank, line);
  else
    std::fprintf(stderr, "echo-tp: %s\n", line);
}

}  // namespace echotp
