// SPDX-License-Identifier: Apache-2.0
// Reads the command line of the C++ job. One line for everything that is wrong with it.
#include "tests/jobs/tp_options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

namespace tpjob {
namespace {

const std::array<Shape, 3> kPresets{{
    {"qwen3-8b", 4096, 32, 8, 128, 12288, 36, true, 1.0e6f},
    {"llama3-8b", 4096, 32, 8, 128, 14336, 32, false, 5.0e5f},
    {"tiny", 256, 8, 4, 32, 512, 2, true, 1.0e4f},
}};
constexpr int kDefaultLayers = 4;  // a whole depth is a matter of --layers: the default fits a short session

Error bad(std::string_view option, std::string what) {
  return Error{ErrorCode::kBadInput, std::move(what), std::string(option)};
}

bool read_number(std::string_view text, std::int64_t& value) {
  const auto [end, rc] = std::from_chars(text.data(), text.data() + text.size(), value);
  return rc == std::errc() && end == text.data() + text.size();
}

struct IntOption {
  std::string_view name;
  int* value;
  int lowest;
  int highest;
};

Result<Options> check(Options options, int ranks) {
  const Shape& shape = options.shape;
  if (shape.heads % ranks != 0 || shape.kv_heads % ranks != 0 || shape.intermediate % ranks != 0)
    return bad("--preset", shape.name + " has " + std::to_string(shape.heads) + " heads, " +
                               std::to_string(shape.kv_heads) + " key-value heads and " +
                               std::to_string(shape.intermediate) +
                               " intermediate columns: all must be divisible by the ranks, " +
                               std::to_string(ranks));
  if (options.sequence == 0) options.sequence = std::min(options.tokens, 2048);
  if (options.tokens % options.sequence != 0)
    return bad("--tokens", "must be a multiple of the sequence length " + std::to_string(options.sequence) +
                               "; --sequence sets it");
  if (options.graph && options.mode == Mode::kPrefill)
    return bad("--graph", "captures the decode step; add --mode decode or both");
  return options;
}

}  // namespace

std::string usage() {
  return R"(usage: tp-job [options]      (one process a rank: share/launch-ranks.sh N tp-job ...)

Tensor-parallel decoder blocks: cuBLAS products in bf16, NCCL all-reduces after attention and MLP, random weights that
depend on the seed alone: any number of ranks computes the same function.

  --preset NAME        qwen3-8b (default), llama3-8b or tiny
  --layers N           decoder blocks (default 4; tiny 2)
  --tokens T           rows of a prefill step (default 8192; an all-reduce moves T * hidden * 2 bytes)
  --sequence S         length of one sequence in the prefill (default 2048, or T when shorter)
  --decode-tokens D    sequences that a decode step advances by one token (default 64)
  --context C          positions in the cache of each of them (default 1024)
  --mode MODE          prefill (default), decode or both (a step is then one prefill and one decode)
  --steps N --warmup N measured (default 10) and unmeasured (default 3) steps
  --graph              replay the decode step as a CUDA graph
  --verify-ranks       after every all-reduce compare all ranks' bytes; a difference ends the job with 1
  --check-finite       NaN or Inf in the hidden states ends the job with 1
  --seed N             of the weights and inputs (default 1)
  --dump FILE          rank 0 writes the last hidden states, raw bf16
)";
}

Result<Options> read_options(int argc, char** argv, int ranks) {
  Options options;
  options.shape = kPresets[0];
  int layers = 0;
  const std::array<IntOption, 8> numbers{{{"--layers", &layers, 1, 1000},
                                          {"--tokens", &options.tokens, 1, 1 << 20},
                                          {"--sequence", &options.sequence, 1, 1 << 15},
                                          {"--decode-tokens", &options.decode_tokens, 1, 1 << 14},
                                          {"--context", &options.context, 1, 1 << 15},
                                          {"--steps", &options.steps, 1, 1 << 20},
                                          {"--warmup", &options.warmup, 0, 1 << 20}}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "-h" || name == "--help") {
      options.help = true;
      return options;
    }
    if (name == "--graph" || name == "--verify-ranks" || name == "--check-finite") {
      (name == "--graph"          ? options.graph
       : name == "--verify-ranks" ? options.verify_ranks
                                  : options.check_finite) = true;
      continue;
    }
    const auto* number = std::find_if(numbers.begin(), numbers.end(),
                                      [&](const IntOption& option) { return option.name == name; });
    const bool text = name == "--preset" || name == "--mode" || name == "--seed" || name == "--dump";
    if (number == numbers.end() && !text) return bad(name, "unknown option; --help lists them");
    if (i + 1 == argc) return bad(name, "needs a value");
    const std::string_view value = argv[++i];
    std::int64_t parsed = 0;
    if (number != numbers.end()) {
      if (!read_number(value, parsed) || parsed < number->lowest || parsed > number->highest)
        return bad(name, "'" + std::string(value) + "' is not a number from " +
                             std::to_string(number->lowest) + " to " + std::to_string(number->highest));
      *number->value = static_cast<int>(parsed);
    } else if (name == "--preset") {
      const auto* preset = std::find_if(kPresets.begin(), kPresets.end(),
                                        [&](const Shape& shape) { return shape.name == value; });
      if (preset == kPresets.end()) return bad(name, "expected qwen3-8b, llama3-8b or tiny");
      options.shape = *preset;
    } else if (name == "--mode") {
      if (value == "prefill") {
        options.mode = Mode::kPrefill;
      } else if (value == "decode") {
        options.mode = Mode::kDecode;
      } else if (value == "both") {
        options.mode = Mode::kBoth;
      } else {
        return bad(name, "expected prefill, decode or both");
      }
    } else if (name == "--seed") {
      if (!read_number(value, parsed) || parsed < 0) return bad(name, "expected a number from 0");
      options.seed = static_cast<std::uint64_t>(parsed);
    } else {
      options.dump = value;
    }
  }
  options.shape.layers = layers > 0 ? layers : std::min(options.shape.layers, kDefaultLayers);
  return check(std::move(options), ranks);
}

}  // namespace tpjob
