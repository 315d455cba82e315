// SPDX-License-Identifier: Apache-2.0
// Makes a recording small enough to share: trace-excerpt IN OUT [FIRST COUNT] keeps COUNT whole steps from
// step FIRST on (counted from 0), marks the file as an excerpt, and leaves folders out of the command line.
#include <cstdio>
#include <cstdlib>

#include "profiles/excerpt.hpp"
#include "profiles/trace_file.hpp"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 5) {
    std::fprintf(stderr, "usage: trace-excerpt IN OUT [FIRST COUNT]\n");
    return 2;
  }
  const auto failed = [](const echotp::Error& error) {
    std::fprintf(stderr, "trace-excerpt: %s\n", error.text().c_str());
    return 1;
  };
  echotp::Result<echotp::Trace> trace = echotp::read_profile(argv[1]);
  if (trace && argc == 5) trace = echotp::excerpt_of_steps(*trace, std::atoi(argv[3]), std::atoi(argv[4]));
  if (!trace) return failed(trace.error());
  echotp::strip_folders(*trace);
  if (const echotp::Status written = echotp::write_profile(*trace, argv[2]); !written)
    return failed(written.error());
  return 0;
}
