// SPDX-License-Identifier: Apache-2.0
// What the bench takes for right: the reference over calls of one pass, on bytes as they lie in memory.
#include <doctest/doctest.h>

#include <cstring>

#include "cli/bench_reference.hpp"

using namespace echotp;

namespace {

RawMessage floats(const std::vector<float>& values) {
  RawMessage raw(values.size() * sizeof(float));
  std::memcpy(raw.data(), values.data(), raw.size());
  return raw;
}

std::vector<float> values_of(const RawMessage& raw) {
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), raw.size());
  return values;
}

}  // namespace

TEST_CASE("bench: constant groups are summed exactly, whatever the compensation") {
  // One code of a constant group is exact; 1 + 3 is a bf16 number.
  const std::vector<std::vector<RawMessage>> inputs(
      2, {floats(std::vector<float>(5000, 1)), floats(std::vector<float>(5000, 3))});
  for (const CompensationMode mode : {CompensationMode::kNone, CompensationMode::kBoth}) {
    const auto outputs = reference_outputs(inputs, 5000, DataType::kFp32, {}, {.mode = mode});
    REQUIRE(outputs.size() == 2);
    for (const RawMessage& raw : outputs) CHECK(values_of(raw) == std::vector<float>(5000, 4));
  }
}

TEST_CASE("bench: the second call of a pass carries the error of the first, unless nothing is compensated") {
  std::vector<float> ramp(64);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = 0.01f * static_cast<float>(i);
  const std::vector<std::vector<RawMessage>> inputs(2, {floats(ramp), floats(ramp)});
  const auto plain = reference_outputs(inputs, 64, DataType::kFp32, {}, {.mode = CompensationMode::kNone});
  CHECK(plain[0] == plain[1]);
  const Compensation drift{.mode = CompensationMode::kDrift, .channels = 32};
  CHECK(reference_outputs(inputs, 64, DataType::kFp32, {}, drift)[1] != plain[1]);
  CHECK(reference_elements(drift) == 100000);
  const auto fed_back = reference_outputs(inputs, 64, DataType::kFp32, {}, {});
  CHECK(fed_back[0] == plain[0]);
  CHECK(fed_back[1] != plain[1]);
}

TEST_CASE("bench: the first difference is an element, not a byte") {
  const RawMessage left = {1, 2, 3, 4, 5, 6};
  RawMessage right = left;
  CHECK(first_difference(left, right, DataType::kBf16) == -1);
  right[3] = 0;
  CHECK(first_difference(left, right, DataType::kBf16) == 1);
  CHECK(first_difference(left, right, DataType::kFp32) == 0);
  right = {1, 2, 3, 4};
  CHECK(first_difference(left, right, DataType::kBf16) == 2);
  CHECK(reference_outputs({}, 1, DataType::kBf16, {}, {}).empty());
}
