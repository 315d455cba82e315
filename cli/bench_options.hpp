// SPDX-License-Identifier: Apache-2.0
// Command line of the bench programs: the worker (one process a rank) and the loopback (all ranks on one
// GPU). `echo-tp bench` writes it; people may too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/types.hpp"
#include "shim/result.hpp"

namespace echotp {

/// What else uses the link while calls are timed: nothing, copies between GPUs (or a GPU and the host), or
/// NCCL's send and receive.
enum class BenchBackground : std::uint8_t { kIdle, kCopy, kCollective };

/// "idle", "copy", "collective".
const char* background_name(BenchBackground background);

struct BenchOptions {
  std::vector<std::int64_t> sizes;  // bytes of a message, whole elements, ascending
  DataType dtype = DataType::kBf16;
  int iterations = 50;  // calls of each candidate at a size, at most
  int warmup = 5;       // calls before them, at least 1
  double budget_s =
      2.5;  // time for a candidate at a size; fewer calls when they would take longer (not under 20)
  std::string policy;  // its rules are the candidates
  std::string output;  // the document
  bool help = false;
  // Of the worker alone.
  bool check = false;  // compare the ranks' bytes after every call, not only after the first and last ones
  bool graph = false;  // time replays of captured calls
  BenchBackground background = BenchBackground::kIdle;
  // Of the loopback alone.
  int ranks = 0;  // 2 to 8
};

enum class BenchProgram : std::uint8_t { kWorker, kLoopback };

std::string bench_usage(BenchProgram program);

/// The sizes of a list such as "1MiB,64MiB", ascending, each once; all whole elements of `element` bytes.
Result<std::vector<std::int64_t>> read_bench_sizes(std::string_view list, int element);

/// Reads the command line; the policy's text is read by the program itself.
Result<BenchOptions> read_bench_options(BenchProgram program, int argc, char** argv);

}  // namespace echotp
