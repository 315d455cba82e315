// SPDX-License-Identifier: Apache-2.0
// The compensator's element functions, put together for one group as the kernels do, against the scalar
// reference.
#include "kernels/compensator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/codec.hpp"
#include "kernels/reference.hpp"
#include "kernels/tile.hpp"

using namespace echotp;

namespace {

/// State of one group, as stored.
struct StoredGroup {
  std::vector<float> fast32, slow32;
  std::vector<std::uint16_t> fast16, slow16;
  std::vector<std::int8_t> fast8, slow8;
  std::uint16_t unit = 0;
};

struct Outcome {
  std::vector<std::uint8_t> codes;
  std::uint16_t scale = 0;
  std::vector<std::uint32_t> output;
};

/// One compensated rounding of one group, written with the functions under test.
Outcome model(const Compensation& how, DataType dtype, bool owner, bool pass_start,
              const std::vector<float>& x, StoredGroup& state) {
  const int group = static_cast<int>(x.size());
  const float unit = how.state == StateFormat::kFp32 ? 1.0f : bf16_to_float(state.unit);
  const Coefficients k = scaled(coefficients(how), unit);
  std::vector<float> fast(group), slow(group), u(group);
  std::uint32_t top = 0;
  for (int i = 0; i < group; ++i) {
    if (!pass_start) {
      if (how.state == StateFormat::kFp32) fast[i] = state.fast32[i], slow[i] = state.slow32[i];
      if (how.state == StateFormat::kFp16) {
        fast[i] = fp16_to_float(state.fast16[i]);
        slow[i] = fp16_to_float(state.slow16[i]);
      }
      if (how.state == StateFormat::kInt8) fast[i] = state.fast8[i], slow[i] = state.slow8[i];
    }
    top = std::max(top, float_bits(x[i]) & 0x7FFFFFFFu);
  }
  for (int i = 0; i < group; ++i) {
    const float c = how.b != 0 ? correction(k, fast[i], slow[i]) : correction(k, fast[i]);
    u[i] = corrected(x[i], clamp_symmetric(c, bits_float(top)));
  }
  Outcome result;
  result.codes.resize(group / 2);
  const bool finite = encode_group(u.data(), group, result.codes.data(), &result.scale);
  std::vector<float> decoded(group);
  decode_group(result.codes.data(), result.scale, group, decoded.data());
  float largest = 0;
  for (int i = 0; i < group; ++i) {
    result.output.push_back(element_from_float(dtype, decoded[i]));
    const float seen = owner ? element_to_float(dtype, result.output[i]) : decoded[i];
    const float residual = usable_residual(sub_rn(u[i], seen));
    fast[i] = follow_fast(k, how.bf == 0, fast[i], residual);
    slow[i] = how.b != 0 ? follow_slow(k, slow[i], residual) : 0.0f;
    largest = std::max({largest, std::fabs(fast[i]), std::fabs(slow[i])});
  }
  if (!finite && !pass_start) return result;
  if (!finite) {
    fast.assign(group, 0);
    slow.assign(group, 0);
    largest = 0;
  }
  state.unit = how.state == StateFormat::kFp32 ? 0 : state_unit(how.state, largest);
  const float inverse = state_inverse(state.unit);
  for (int i = 0; i < group; ++i) {
    if (how.state == StateFormat::kFp32) state.fast32[i] = fast[i], state.slow32[i] = slow[i];
    if (how.state == StateFormat::kFp16) {
      state.fast16[i] = state_to_fp16(fast[i], inverse);
      state.slow16[i] = state_to_fp16(slow[i], inverse);
    }
    if (how.state == StateFormat::kInt8) {
      state.fast8[i] = static_cast<std::int8_t>(state_to_int8(fast[i], inverse));
      state.slow8[i] = static_cast<std::int8_t>(state_to_int8(slow[i], inverse));
    }
  }
  return result;
}

/// A group of the kind number `kind`, from ordinary to hostile.
std::vector<float> make_group(std::mt19937_64& random, int group, int kind) {
  std::normal_distribution<float> normal;
  std::vector<float> x(group);
  for (float& value : x) value = normal(random);
  switch (kind) {
    case 1:
      x[random() % group] = 3000;
      break;
    case 2:
      x.assign(group, 0);
      break;
    case 3:
      for (float& value : x) value *= 1e-31f;
      break;
    case 4:
      for (float& value : x) value *= 1e38f;
      break;
    case 5:
      x[random() % group] = std::numeric_limits<float>::quiet_NaN();
      break;
    case 6:
      x[random() % group] = -std::numeric_limits<float>::infinity();
      break;
    case 7:
      x[0] = kFloatMax, x[1] = -kFloatMax;
      break;
    case 8:
      for (float& value : x) value *= 60000;
      break;
    case 9:
      for (float& value : x) value *= 1e-39f;
      break;
    case 10:
      x.assign(group, -1.5f);
      break;
    default:
      break;
  }
  return x;
}

}  // namespace

TEST_CASE(
    "owner and sender roundings equal the reference bit for bit, over many calls of all kinds of groups") {
  std::mt19937_64 random(11);
  for (DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    for (StateFormat format : {StateFormat::kFp32, StateFormat::kFp16, StateFormat::kInt8}) {
      for (float b : {0.0f, 0.1f}) {
        for (bool owner : {true, false}) {
          CAPTURE(static_cast<int>(dtype));
          CAPTURE(static_cast<int>(format));
          CAPTURE(b);
          CAPTURE(owner);
          ReferenceSetup setup;
          setup.ranks = owner ? 1 : 2;  // of two ranks, rank 1 sends tile 0
          setup.dtype = dtype;
          setup.codec.group = b == 0 ? 32 : 64;
          setup.compensation = {CompensationMode::kBoth, 1.0f - b, b == 0 ? 0.0f : 0.25f, b, 0.9f, format};
          setup.capacity = kTileElements;
          ReferenceAllReduce reference(setup);
          const int group = setup.codec.group;
          const int groups = 12;
          std::vector<StoredGroup> state(groups);
          for (StoredGroup& g : state) {
            g.fast32.assign(group, 7), g.slow32.assign(group, -7);
            g.fast16.assign(group, 7), g.slow16.assign(group, 7);
            g.fast8.assign(group, 7), g.slow8.assign(group, -7);
          }
          for (int call = 0; call < 40; ++call) {
            const bool pass_start = call % 16 == 0;
            std::vector<std::uint32_t> elements;
            std::vector<std::vector<float>> x(groups);
            for (int g = 0; g < groups; ++g) {
              x[g] = make_group(random, group,
                                call % 4 == 3 ? static_cast<int>(random() % 11) : g % 11 * (g > 6));
              for (float& value : x[g]) {
                elements.push_back(ReferenceAllReduce::bits_of(dtype, value));
                value = ReferenceAllReduce::value_of(dtype, elements.back());
              }
            }
            std::vector<std::vector<std::uint32_t>> send(setup.ranks, elements);
            reference.call(send, pass_start);
            const std::vector<std::uint8_t>& wire = owner ? reference.gathered() : reference.outbox(1);
            const ReferenceState& want = reference.state(owner ? 0 : 1);
            for (int g = 0; g < groups; ++g) {
              CAPTURE(call);
              CAPTURE(g);
              const Outcome got = model(setup.compensation, dtype, owner, pass_start, x[g], state[g]);
              REQUIRE(std::memcmp(got.codes.data(), wire.data() + g * group / 2, group / 2) == 0);
              const std::size_t at = tile_code_bytes(setup.codec.bits) + g * 2;
              REQUIRE(got.scale == (wire[at] | (wire[at + 1] << 8)));
              for (int i = 0; i < group; ++i) {
                const int e = g * group + i;
                if (owner) REQUIRE(got.output[i] == reference.output(0)[e]);
                if (format == StateFormat::kFp32) {
                  REQUIRE(float_bits(state[g].fast32[i]) == float_bits(want.fast32[e]));
                  if (b != 0) REQUIRE(float_bits(state[g].slow32[i]) == float_bits(want.slow32[e]));
                }
                if (format == StateFormat::kFp16) {
                  REQUIRE(state[g].fast16[i] == want.fast16[e]);
                  if (b != 0) REQUIRE(state[g].slow16[i] == want.slow16[e]);
                }
                if (format == StateFormat::kInt8) {
                  REQUIRE(state[g].fast8[i] == want.fast8[e]);
                  if (b != 0) REQUIRE(state[g].slow8[i] == want.slow8[e]);
                }
              }
              if (format != StateFormat::kFp32) REQUIRE(state[g].unit == want.unit[g]);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a correction is limited to the group's largest magnitude and never makes an Inf") {
  CHECK(clamp_symmetric(5.0f, 2.0f) == 2.0f);
  CHECK(clamp_symmetric(-5.0f, 2.0f) == -2.0f);
  CHECK(clamp_symmetric(1.5f, 2.0f) == 1.5f);
  CHECK(std::signbit(clamp_symmetric(-0.0f, 0.0f)));
  CHECK(corrected(kFloatMax, 3e38f) == kFloatMax);
  CHECK(corrected(-kFloatMax, -3e38f) == -kFloatMax);
  CHECK(std::isinf(corrected(std::numeric_limits<float>::infinity(), -1.0f)));
}

TEST_CASE("hand-made corrections and updates") {
  const Coefficients k =
      coefficients({CompensationMode::kBoth, 0.75f, 0.5f, 0.25f, 0.75f, StateFormat::kInt8});
  CHECK(correction(k, 1.0f, -2.0f) == 0.25f);
  CHECK(correction(scaled(k, 0.5f), 2.0f, -4.0f) == 0.25f);  // the same in units of a half
  CHECK(correction(k, 1.0f) == 0.75f);
  CHECK(follow_fast(k, false, 2.0f, 3.0f) == 2.5f);
  CHECK(follow_fast(scaled(k, 0.5f), false, 4.0f, 3.0f) == 2.5f);
  CHECK(follow_fast(k, true, 9.0f, 0.5f) == 0.5f);
  CHECK(follow_slow(k, 1.0f, 2.0f) == 1.25f);
  CHECK(usable_residual(-std::numeric_limits<float>::infinity()) == 0.0f);
  CHECK(usable_residual(-2.0f) == -2.0f);
}

TEST_CASE("estimates of channels follow the mean error, and stay where there is none") {
  CHECK(follow_drift(1.0f, 0.5f, -6.0f, 3) == 0.0f);
  CHECK(follow_drift(1.0f, 0.25f, 8.0f, 4) == 1.5f);
  CHECK(follow_drift(1.5f, 0.5f, 0.0f, 0) == 1.5f);
  CHECK(follow_drift(1.5f, 0.5f, std::numeric_limits<float>::infinity(), 2) == 1.5f);
  CHECK(follow_drift(kFloatMax, 1.0f, kFloatMax, 1) == kFloatMax);
  // 1/3 of 1 is no float: the mean is rounded once, and once more with the estimate.
  CHECK(follow_drift(1.0f, 0.5f, 1.0f, 3) == std::fmaf(0.5f, 1.0f / 3.0f, 1.0f));
  CHECK(drift_error(2.0f, -0.5f) == 2.5f);
  CHECK(drift_error(2.0f, std::numeric_limits<float>::quiet_NaN()) == 0.0f);
  CHECK(drift_error(kFloatMax, -kFloatMax) == 0.0f);
}

TEST_CASE("stored estimates: largest entry fills the range, error at most half a unit, zero stays zero") {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 2000; ++round) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 120) - 80);
    std::vector<float> v(32);
    float largest = 0;
    for (float& value : v) value = normal(random) * size, largest = std::max(largest, std::fabs(value));
    const std::uint16_t unit8 = state_unit(StateFormat::kInt8, largest);
    const std::uint16_t unit16 = state_unit(StateFormat::kFp16, largest);
    const float u8 = bf16_to_float(unit8);
    const float u16 = bf16_to_float(unit16);
    for (float value : v) {
      const auto q = static_cast<std::int8_t>(state_to_int8(value, state_inverse(unit8)));
      REQUIRE(std::abs(static_cast<int>(q)) <= 127);
      REQUIRE(std::fabs(static_cast<float>(q) * u8 - value) <= 0.5001f * u8);
      const std::uint16_t h = state_to_fp16(value, state_inverse(unit16));
      REQUIRE(std::fabs(fp16_to_float(h) * u16 - value) <=
              0x1p-11f * 1.01f * std::fabs(value) + 0x1p-25f * u16);
    }
    REQUIRE(largest / u8 >= 125.9f);
  }
  CHECK(state_unit(StateFormat::kInt8, 0.0f) == 0);
  CHECK(state_unit(StateFormat::kFp16, 0.9e-30f) == 0);
  CHECK(state_inverse(0) == 0.0f);
  CHECK(static_cast<std::int8_t>(state_to_int8(123.0f, 0.0f)) == 0);
}
