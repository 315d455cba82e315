// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_reference.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/reference.hpp"

namespace echotp {
namespace {

std::vector<std::uint32_t> to_words(const RawMessage& raw, std::int64_t count, DataType dtype) {
  const auto size = static_cast<std::size_t>(element_bytes(dtype));
  std::vector<std::uint32_t> words(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < words.size(); ++i)
    std::memcpy(&words[i], &raw[i * size], size);  // little endian
  return words;
}

RawMessage to_raw(const std::vector<std::uint32_t>& words, DataType dtype) {
  const auto size = static_cast<std::size_t>(element_bytes(dtype));
  RawMessage raw(words.size() * size);
  for (std::size_t i = 0; i < words.size(); ++i) std::memcpy(&raw[i * size], &words[i], size);
  return raw;
}

}  // namespace

std::vector<RawMessage> reference_outputs(const std::vector<std::vector<RawMessage>>& inputs,
                                          std::int64_t count, DataType dtype, const Codec& codec,
                                          const Compensation& compensation) {
  if (inputs.empty() || inputs.front().empty()) return {};

  const int ranks = static_cast<int>(inputs.front().size());
  ReferenceSetup setup{.ranks = ranks, .dtype = dtype, .codec = codec, .compensation = compensation};
  if (compensation.mode != CompensationMode::kNone) setup.capacity = tile_count(count) * kTileElements;
  ReferenceAllReduce reference(setup);
  std::vector<RawMessage> outputs;
  for (std::size_t call = 0; call < inputs.size(); ++call) {
    std::vector<std::vector<std::uint32_t>> send;
    for (const RawMessage& raw : inputs[call]) send.push_back(to_words(raw, count, dtype));
    reference.call(send, call == 0);
    for (int rank = 1; rank < ranks; ++rank)
      if (reference.output(rank) != reference.output(0)) return {};
    outputs.push_back(to_raw(reference.output(0), dtype));
  }
  return outputs;
}

std::int64_t first_difference(const RawMessage& left, const RawMessage& right, DataType dtype) {
  const auto differ = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  if (differ.first == left.end() && differ.second == right.end()) return -1;
  return (differ.first - left.begin()) / element_bytes(dtype);
}

}  // namespace echotp
