// SPDX-License-Identifier: Apache-2.0
// Command line of the bench worker. `echo-tp bench` writes it; people may too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/types.hpp"
#include "shim/result.hpp"

namespace echotp {

/// What one rank of a bench measures.
struct BenchOptions {
  std::vector<std::int64_t> sizes;  // bytes of a message, whole elements, ascending
  DataType dtype = DataType::kBf16;
  int iterations = 50;    // pairs of calls a size, at most
  int warmup = 5;         // pairs before them, at least 1
  double budget_s = 2.5;  // time for one size; fewer iterations when they would take longer (never under 5)
  std::string output;     // cost table, written by rank 0
  bool check = false;     // compare the ranks' bytes after every call, not only after the first
  std::string label = "{}";  // JSON object with transport, codec and compensation of the entries
  bool help = false;
};

std::string bench_usage();

/// The sizes of a list such as "1MiB,64MiB", ascending, each once; all whole elements of `element` bytes.
Result<std::vector<std::int64_t>> read_bench_sizes(std::string_view list, int element);

/// Reads the command line; the label's text is checked when the document is made.
Result<BenchOptions> read_bench_options(int argc, char** argv);

}  // namespace echotp
