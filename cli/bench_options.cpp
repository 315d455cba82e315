// SPDX-License-Identifier: Apache-2.0
// Reads the command line of the bench programs.
#include "cli/bench_options.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "cli/bench_candidates.hpp"
#include "shim/units.hpp"

namespace echotp {
namespace {

constexpr int kLoopbackMaxRanks = 8;

Error bad(std::string_view option, std::string what) {
  return Error{ErrorCode::kBadInput, std::move(what), std::string(option)};
}

std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, rc] = std::from_chars(text.data(), text.data() + text.size(), value);
  return rc == std::errc() && end == text.data() + text.size();
}

// An option without a value; false: it is none of these.
bool read_flag(BenchProgram program, std::string_view name, BenchOptions& options) {
  if (name == "-h" || name == "--help") return options.help = true;
  if (program != BenchProgram::kWorker) return false;
  if (name == "--check") return options.check = true;
  if (name == "--graph") return options.graph = true;
  return false;
}

bool takes_value(BenchProgram program, std::string_view name) {
  for (const std::string_view known :
       {"--sizes", "--policy", "--output", "--dtype", "--iterations", "--warmup", "--budget"})
    if (name == known) return true;
  return name == (program == BenchProgram::kWorker ? "--background" : "--ranks");
}

Status read_whole(std::string_view name, std::string_view value, int low, int high, int& target) {
  if (read_number(value, target) && target >= low && target <= high) return Unit{};
  return bad(name,
             quoted(value) + " is not a number from " + std::to_string(low) + " to " + std::to_string(high));
}

Status read_value(std::string_view name, std::string_view value, BenchOptions& options) {
  if (name == "--policy") {
    options.policy = value;
  } else if (name == "--output") {
    options.output = value;
  } else if (name == "--dtype") {
    if (value != "bf16" && value != "fp16" && value != "fp32")
      return bad(name, "expected bf16, fp16 or fp32");
    options.dtype = value == "bf16" ? DataType::kBf16 : value == "fp16" ? DataType::kFp16 : DataType::kFp32;
  } else if (name == "--background") {
    if (value != "idle" && value != "copy" && value != "collective")
      return bad(name, "expected idle, copy or collective");
    options.background = value == "idle"   ? BenchBackground::kIdle
                         : value == "copy" ? BenchBackground::kCopy
                                           : BenchBackground::kCollective;
  } else if (name == "--budget") {
    if (!read_number(value, options.budget_s) || !(options.budget_s > 0) || options.budget_s > 3600)
      return bad(name, quoted(value) + " is not a number of seconds up to 3600");
  } else if (name == "--ranks") {
    return read_whole(name, value, 2, kLoopbackMaxRanks, options.ranks);
  } else {
    return read_whole(name, value, 1, 100'000, name == "--iterations" ? options.iterations : options.warmup);
  }
  return Unit{};
}

constexpr const char* kWorkerUsage =
    R"(usage: echo-tp-bench-worker --sizes LIST --policy FILE --output FILE [options]      (one process a rank)

Times NCCL's all-reduce against those that the rules of the policy give, each through ncclAllReduce on a communicator of
its own, in turns, and writes the cost table. Run it under `echo-tp bench`, which preloads the shim with the same policy.

  --sizes LIST       message sizes, such as 1MiB,16MiB,64MiB
  --policy FILE      every rule names a communicator and is a candidate
  --output FILE      cost table, written by rank 0
  --dtype TYPE       bf16 (default), fp16 or fp32
  --iterations N     calls of each candidate at a size, at most (default 50)
  --warmup N         calls before them (default 5)
  --budget SECONDS   time for a candidate at a size (default 2.5); at least 20 calls are measured
  --background KIND  idle (default), copy or collective: what else uses the link
  --graph            time replays of CUDA graphs that hold several calls
  --check            compare all ranks' bytes after every call, not only after the first and last ones

Exit code: 0; 1 a failure, or wrong bytes; 2 bad usage; 3 no call was intercepted.
)";

constexpr const char* kLoopbackUsage =
    R"(usage: echo-tp-bench-loopback --ranks N --sizes LIST --policy FILE --output FILE [options]

Times the fused all-reduce with all ranks in one launch on one GPU, without NCCL and without a link, against what the
memory allows, for every method (codec and compensation) of the policy's rules.

  --ranks N          2 to 8
  --sizes LIST       bytes of a message on each rank, such as 64MiB,256MiB
  --policy FILE      every rule is a candidate
  --output FILE      the document
  --dtype TYPE       bf16 (default), fp16 or fp32
  --iterations N     calls of each candidate at a size, at most (default 50)
  --warmup N         calls before them (default 5)
  --budget SECONDS   time for a candidate at a size (default 2.5); at least 20 calls are measured

Exit code: 0; 1 a failure, or wrong bytes; 2 bad usage.
)";

}  // namespace

const char* background_name(BenchBackground background) {
  switch (background) {
    case BenchBackground::kIdle:
      return "idle";
    case BenchBackground::kCopy:
      return "copy";
    case BenchBackground::kCollective:
      return "collective";
  }
  return "?";
}

Result<std::vector<std::int64_t>> read_bench_sizes(std::string_view list, int element) {
  std::vector<std::int64_t> sizes;
  for (const std::string_view word : split_list(list)) {
    const auto bytes = parse_bytes(word);
    if (!bytes || *bytes <= 0)
      return bad("--sizes",
                 quoted(word) + " is not a size; expected " + kSizeForm + ", several with commas between");
    if (*bytes % element != 0)
      return bad("--sizes", quoted(word) + " is not a whole number of elements of " +
                                std::to_string(element) + " bytes");
    sizes.push_back(*bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::string bench_usage(BenchProgram program) {
  return program == BenchProgram::kWorker ? kWorkerUsage : kLoopbackUsage;
}

Result<BenchOptions> read_bench_options(BenchProgram program, int argc, char** argv) {
  BenchOptions options;
  std::string_view sizes;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (read_flag(program, name, options)) {
      if (options.help) return options;
      continue;
    }
    if (!takes_value(program, name)) return bad(name, "unknown option; --help lists them");
    if (i + 1 == argc) return bad(name, "needs a value");
    const std::string_view value = argv[++i];
    if (name == "--sizes") {
      sizes = value;
    } else if (const Status status = read_value(name, value, options); !status) {
      return status.error();
    }
  }
  if (sizes.empty()) return bad("--sizes", "missing; expected a list such as 1MiB,64MiB");
  if (options.policy.empty()) return bad("--policy", "missing; expected a file name");
  if (options.output.empty()) return bad("--output", "missing; expected a file name");
  if (program == BenchProgram::kLoopback && options.ranks == 0)
    return bad("--ranks", "missing; expected a number from 2 to " + std::to_string(kLoopbackMaxRanks));
  auto list = read_bench_sizes(sizes, element_bytes(options.dtype));
  if (!list) return list.error();
  options.sizes = *std::move(list);
  return options;
}

}  // namespace echotp
