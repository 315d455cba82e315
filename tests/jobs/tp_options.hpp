// SPDX-License-Identifier: Apache-2.0
// OPTIONS of the C++ job: the model's shape, what one step does, and which checks run.
#pragma once

#include <cstdint>
#include <string>

#include "shim/result.hpp"

namespace tpjob {

using echotp::Error;
using echotp::ErrorCode;
using echotp::Result;

/// Shape of a decoder. Linear layers without biases; `qk_norm` as in Qwen3.
struct Shape {
  std::string name;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int intermediate = 0;
  int layers = 0;
  bool qk_norm = false;
  float rope_base = 10000.0f;
};

enum class Mode { kPrefill, kDecode, kBoth };

struct Options {
  Shape shape;
  int tokens = 8192;       // rows of a prefill step
  int sequence = 0;        // length of one sequence in the prefill; tokens is a multiple of it
  int decode_tokens = 64;  // rows of a decode step: sequences decoded together
  int context = 1024;      // positions in every decode sequence's cache
  int steps = 10;
  int warmup = 3;
  Mode mode = Mode::kPrefill;
  bool graph = false;         // replay the decode step as a CUDA graph
  bool verify_ranks = false;  // compare the bytes of every all-reduce's output over the ranks
  bool check_finite = false;
  std::uint64_t seed = 1;
  std::string dump;  // rank 0 writes the last hidden states (raw bf16) there; empty: not
  bool help = false;
};

/// Text for --help.
std::string usage();

/// Reads the command line. `ranks` must divide the heads and the intermediate size.
Result<Options> read_options(int argc, char** argv, int ranks);

}  // namespace tpjob
