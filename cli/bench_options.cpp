// SPDX-License-Identifier: Apache-2.0
// Reads the bench worker's command line.
#include "cli/bench_options.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "shim/units.hpp"

namespace echotp {
namespace {

Error bad(std::string_view option, std::string what) {
  return Error{ErrorCode::kBadInput, std::move(what), std::string(option)};
}

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, rc] = std::from_chars(text.data(), text.data() + text.size(), value);
  return rc == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<std::vector<std::int64_t>> read_bench_sizes(std::string_view list, int element) {
  std::vector<std::int64_t> sizes;
  for (std::size_t start = 0; start <= list.size();) {
    const std::size_t comma = std::min(list.find(',', start), list.size());
    const std::string_view word = list.substr(start, comma - start);
    const auto bytes = parse_bytes(word);
    const std::string quoted = "'" + std::string(word) + "'";
    if (!bytes || *bytes <= 0)
      return bad("--sizes",
                 quoted + " is not a size; expected " + kSizeForm + ", several with commas between");
    if (*bytes % element != 0)
      return bad("--sizes",
                 quoted + " is not a whole number of elements of " + std::to_string(element) + " bytes");
    sizes.push_back(*bytes);
    start = comma + 1;
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::string bench_usage() {
  return R"(usage: echo-tp-bench-worker --sizes LIST --output FILE [options]      (one process a rank)

Times NCCL's all-reduce (A) against the one that the process would call anyway (B: Echo's under `echo-tp bench`), in
turns, for each message size, and writes the cost table.

  --sizes LIST      message sizes, such as 1MiB,16MiB,64MiB
  --output FILE     cost table, written by rank 0
  --dtype TYPE      bf16 (default), fp16 or fp32
  --iterations N    pairs of calls a size, at most (default 50)
  --warmup N        pairs before them (default 5)
  --budget SECONDS  time for one size (default 2.5); at least 5 pairs are measured
  --check           compare all ranks' bytes after every call of B, not only after the first
  --label JSON      object with transport, codec and compensation of the entries

Exit code: 0; 1 a failure, or ranks held different bytes; 2 bad usage; 3 no call of B was intercepted.
)";
}

Result<BenchOptions> read_bench_options(int argc, char** argv) {
  BenchOptions options;
  std::string_view sizes;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "-h" || name == "--help") {
      options.help = true;
      return options;
    }
    if (name == "--check") {
      options.check = true;
      continue;
    }
    if (name != "--sizes" && name != "--output" && name != "--dtype" && name != "--iterations" &&
        name != "--warmup" && name != "--budget" && name != "--label")
      return bad(name, "unknown option; --help lists them");
    if (i + 1 == argc) return bad(name, "needs a value");
    const std::string_view value = argv[++i];
    if (name == "--sizes") {
      sizes = value;
    } else if (name == "--output") {
      options.output = value;
    } else if (name == "--label") {
      options.label = value;
    } else if (name == "--dtype") {
      if (value == "bf16") {
        options.dtype = DataType::kBf16;
      } else if (value == "fp16") {
        options.dtype = DataType::kFp16;
      } else if (value == "fp32") {
        options.dtype = DataType::kFp32;
      } else {
        return bad(name, "expected bf16, fp16 or fp32");
      }
    } else if (name == "--budget") {
      if (!read_number(value, options.budget_s) || !(options.budget_s > 0) || options.budget_s > 3600)
        return bad(name, "'" + std::string(value) + "' is not a number of seconds up to 3600");
    } else {
      int& target = name == "--iterations" ? options.iterations : options.warmup;
      if (!read_number(value, target) || target < 1 || target > 100000)
        return bad(name, "'" + std::string(value) + "' is not a number from 1 to 100000");
    }
  }
  if (sizes.empty()) return bad("--sizes", "missing; expected a list such as 1MiB,64MiB");
  if (options.output.empty()) return bad("--output", "missing; expected a file name");
  auto list = read_bench_sizes(sizes, element_bytes(options.dtype));
  if (!list) return list.error();
  options.sizes = *std::move(list);
  return options;
}

}  // namespace echotp
