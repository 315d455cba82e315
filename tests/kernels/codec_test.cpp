// SPDX-License-Identifier: Apache-2.0
// The codec against hand-made vectors and against plain arithmetic: layout, extremes, poison, conversions.
#include "kernels/codec.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/reference.hpp"
#include "kernels/tile.hpp"

using namespace echotp;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Encoded {
  std::vector<std::uint8_t> codes;
  std::uint16_t scale = 0;
  bool finite = false;
  std::vector<float> decoded;
};

Encoded round_trip(const std::vector<float>& u) {
  const int group = static_cast<int>(u.size());
  Encoded result;
  result.codes.resize(u.size() / 2);
  result.decoded.resize(u.size());
  result.finite = encode_group(u.data(), group, result.codes.data(), &result.scale);
  decode_group(result.codes.data(), result.scale, group, result.decoded.data());
  return result;
}

}  // namespace

TEST_CASE("nibble layout and scales of a hand-made group") {
  // -8..7 twice: the extremum is -8, the scale 1, the codes are the values, stored + 8; of every eight, the
  // even ones in the lower 16 bits, the odd ones in the upper.
  std::vector<float> u;
  for (int i = 0; i < 32; ++i) u.push_back(static_cast<float>(i % 16 - 8));
  const Encoded got = round_trip(u);
  CHECK(got.scale == 0x3F80);
  const std::vector<std::uint8_t> want = {0x20, 0x64, 0x31, 0x75, 0xA8, 0xEC, 0xB9, 0xFD,
                                          0x20, 0x64, 0x31, 0x75, 0xA8, 0xEC, 0xB9, 0xFD};
  CHECK(got.codes == want);
  CHECK(got.decoded == u);
}

TEST_CASE("a positive extremum gets a negative scale") {
  // Scale 4/-8 = -0.5 (0xBF00): 4 -> -8 -> nibble 0; 1 -> -2 -> 6; -3.5 -> 7 -> 15; -3.6 -> 7.2 -> 15; 0.25
  // -> -0.5, a tie -> 0 -> 8; 0.75 -> -1.5, a tie -> -2 -> 6.
  std::vector<float> u(32, 0.0f);
  u[0] = 4.0f;
  u[1] = 1.0f;
  u[2] = -3.5f;
  u[3] = -3.6f;
  u[4] = 0.25f;
  u[5] = 0.75f;
  const Encoded got = round_trip(u);
  CHECK(got.scale == 0xBF00);
  CHECK(got.codes[0] == 0xF0);  // elements 0 and 2
  CHECK(got.codes[1] == 0x88);  // 4 and 6
  CHECK(got.codes[2] == 0xF6);  // 1 and 3
  CHECK(got.codes[3] == 0x86);  // 5 and 7
  CHECK(got.decoded[0] == 4.0f);
  CHECK(got.decoded[2] == -3.5f);
}

TEST_CASE("equal magnitudes of both signs: the negative one is the extremum, in any order") {
  std::vector<float> u(32, 0.0f);
  u[3] = 2.0f;
  u[9] = -2.0f;
  const Encoded one = round_trip(u);
  std::swap(u[3], u[9]);
  const Encoded other = round_trip(u);
  CHECK(one.scale == 0x3E80);  // -2 / -8 = 0.25
  CHECK(other.scale == one.scale);
  CHECK(one.decoded[9] == -2.0f);
  CHECK(one.decoded[3] == 1.75f);  // the end that lacks a step
}

TEST_CASE("scale rounds to bf16, ties to even") {
  std::vector<float> u(32, 0.0f);
  u[0] = -8.0f * (1.0f + 0x1p-8f);  // halfway between 1 and 1 + 2^-7
  CHECK(round_trip(u).scale == 0x3F80);
  u[0] = -8.0f * (1.0f + 3 * 0x1p-8f);
  CHECK(round_trip(u).scale == 0x3F82);
}

TEST_CASE("zero and tiny groups travel as exact zero") {
  for (float value : {0.0f, -0.0f, 1e-38f, -1e-40f, 7.9e-30f}) {
    const Encoded got = round_trip(std::vector<float>(64, value));
    CHECK(got.finite);
    CHECK(got.scale == 0);
    CHECK(std::all_of(got.codes.begin(), got.codes.end(), [](int byte) { return byte == 0x88; }));
    CHECK(std::all_of(got.decoded.begin(), got.decoded.end(),
                      [](float x) { return x == 0.0f && !std::signbit(x); }));
  }
  CHECK(round_trip(std::vector<float>(32, 8.1e-30f)).scale != 0);
}

TEST_CASE("one NaN or Inf anywhere poisons the whole group") {
  for (float poison : {kNan, kInf, -kInf, -kNan}) {
    for (int at : {0, 1, 17, 31}) {
      std::vector<float> u(32, 1.0f);
      u[at] = poison;
      const Encoded got = round_trip(u);
      CHECK_FALSE(got.finite);
      CHECK(got.scale == 0x7FC0);
      CHECK(std::all_of(got.codes.begin(), got.codes.end(), [](int byte) { return byte == 0xFF; }));
      CHECK(std::all_of(got.decoded.begin(), got.decoded.end(), [](float x) { return std::isnan(x); }));
    }
  }
}

TEST_CASE("the largest values stay finite") {
  for (float value : {3e38f, -3e38f, 0x1.FEp127f, -0x1.FEp127f, kFloatMax, -kFloatMax}) {
    std::vector<float> u(32, 0.0f);
    u[5] = value;
    u[6] = -value;
    const Encoded got = round_trip(u);
    CHECK(got.finite);
    for (float x : got.decoded) CHECK(std::isfinite(x));
    CHECK(std::fabs(got.decoded[5] / value - 1) < 0.13);
    CHECK(std::fabs(std::min(got.decoded[5], got.decoded[6]) + std::fabs(value)) <=
          std::fabs(value) * 0x1p-7f);
  }
}

TEST_CASE(
    "round trip: error at most half a step and what the reciprocal is off by, a step at the short end") {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 3000; ++round) {
    const int group = 32 << (round % 3);
    std::vector<float> u(group);
    for (float& x : u) x = normal(random);
    if (round % 5 == 1) u[random() % group] *= 1000;          // one outlier
    if (round % 5 == 2) std::fill(u.begin(), u.end(), u[0]);  // constant
    if (round % 5 == 3)
      for (float& x : u) x = std::ldexp(x, static_cast<int>(random() % 60) - 30);
    if (round % 5 == 4)
      for (float& x : u) x *= 1e-25f;
    const Encoded got = round_trip(u);
    const double scale = bf16_to_float(got.scale);
    const double step = std::fabs(scale);
    double largest = 0;
    for (int i = 0; i < group; ++i) {
      const double error = std::fabs(static_cast<double>(u[i]) - got.decoded[i]);
      const double steps = u[i] / scale;
      // The bound of encode(), but for the roundings of this line.
      const double bound =
          steps > 7.5 * 256 / 257 ? std::max(steps - 7, 0.5 + steps / 257) : 0.5 + std::fabs(steps) / 257;
      REQUIRE(error <= step * bound * (1 + 1e-12));
      largest = std::max(largest, std::fabs(static_cast<double>(u[i])));
    }
    REQUIRE(std::fabs(step * 8 - largest) <= 8 * step * 0x1p-8);
  }
}

TEST_CASE("4-bit codes: the reciprocal of every scale is a normal bf16 within 1/257 of it") {
  for (int bits = 0; bits < 65536; ++bits) {
    const float scale = bf16_to_float(static_cast<std::uint16_t>(bits));
    const float extremum = -8 * scale;
    if (!(std::fabs(scale) >= kScaleTiny && std::fabs(scale) <= 0x1.FEp124f)) continue;
    const GroupScale got = group_scale(extremum, code_width(4));
    REQUIRE(got.finite);
    REQUIRE(got.bits == bits);
    REQUIRE((float_bits(got.inverse) & 0xFFFFu) == 0);
    REQUIRE(std::fabs(got.inverse) >= 0x1p-126f);
    REQUIRE(std::isfinite(got.inverse));
    REQUIRE(std::fabs(static_cast<double>(got.inverse) * scale - 1) <= 1.0 / 257);
  }
}

TEST_CASE(
    "4-bit codes: rounding in bf16 pairs gives the same codes, for every bf16 element and mantissa of a "
    "scale") {
  // What a bf16 fma with one rounding does, on doubles: x * inverse is exact, and so is the sum unless the
  // product is too small to matter.
  const auto pair_code = [](float x, float inverse) {
    const double sum = static_cast<double>(x) * inverse + 136;
    const double unit = sum < 128 ? 0.5 : 1.0;  // of bf16 from 64 and from 128 on
    return std::min(std::nearbyint(sum / unit) * unit, 143.0) - 136;
  };
  const CodeWidth width = code_width(4);
  for (const int exponent : {-99, -1, 0, 124}) {
    for (int mantissa = 128; mantissa < 256; ++mantissa) {
      const float scale = std::ldexp(static_cast<float>(mantissa), exponent - 7);
      const float inverse = group_scale(-8 * scale, width).inverse;
      for (int bits = 0; bits < 65536; ++bits) {
        const float x = bf16_to_float(static_cast<std::uint16_t>(bits));
        if (!(std::fabs(x) <= 8 * scale)) continue;  // beyond the extremum
        const double want = code_of(encode(x, inverse, width), width);
        if (pair_code(x, inverse) != want) FAIL(x << " / " << scale);
      }
    }
  }
}

TEST_CASE("4-bit codes: eight of them, packed from floats and from bf16 pairs, unpacked in pairs") {
  for (std::uint32_t low = 0; low < 65536; ++low) {
    // All combinations of four codes, once in the even and once in the odd elements; others in the rest.
    for (const bool odd : {false, true}) {
      const std::uint32_t others = (low * 40503u + 12345u) & 0xFFFFu;
      float encoded[8];
      std::uint32_t pairs = 0;
      std::uint32_t want = 0;
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t even_code = ((odd ? others : low) >> (4 * i)) & 0xFu;
        const std::uint32_t odd_code = ((odd ? low : others) >> (4 * i)) & 0xFu;
        encoded[2 * i] = code_width(4).magic + static_cast<float>(even_code) - 8;
        encoded[2 * i + 1] = code_width(4).magic + static_cast<float>(odd_code) - 8;
        // bf16 128 + stored, twice.
        pairs += (0x43004300u + even_code + (odd_code << 16)) << (4 * i);
        want |= (even_code << (4 * nibble_of(2 * i))) | (odd_code << (4 * nibble_of(2 * i + 1)));
      }
      const std::uint32_t word = pack_nibbles(encoded);
      REQUIRE(word == want);
      REQUIRE(pairs - 0x43004300u * 0x1111u == word);
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t pair = (word >> (4 * i)) & 0x000F000Fu;
        REQUIRE(static_cast<float>(pair & 0xFFFFu) == encoded[2 * i] - code_width(4).magic + 8);
        REQUIRE(static_cast<float>(pair >> 16) == encoded[2 * i + 1] - code_width(4).magic + 8);
      }
    }
  }
}

TEST_CASE("decoding any stored byte never fails and a NaN scale always decodes to NaN") {
  for (int nibble = 0; nibble < 16; ++nibble) {
    CHECK(std::isnan(decode(nibble, bf16_to_float(0x7FC0), 4)));
    CHECK(float_bits(decode(nibble, bf16_to_float(0x7FC0), 4)) == 0x7FFFFFFFu);
    CHECK(decode(nibble, 0.5f, 4) == 0.5f * static_cast<float>(nibble - 8));
  }
}

TEST_CASE("bits an element: 4 plus 16 a group") {
  for (int group : {32, 64, 128}) {
    CHECK(tile_bytes(Codec{4, group}, Leg::kSecond) * 8.0 / kTileElements ==
          doctest::Approx(4 + 16.0 / group));
  }
}

TEST_CASE("gradients: relative quality does not depend on the size of the numbers") {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  double quality[3] = {};
  const float factors[3] = {1.0f, 1e-7f, 1e4f};
  std::vector<float> base(1 << 16);
  for (float& x : base) x = normal(random);
  for (int f = 0; f < 3; ++f) {
    double signal = 0;
    double noise = 0;
    for (std::size_t start = 0; start < base.size(); start += 32) {
      std::vector<float> u(base.begin() + static_cast<long>(start),
                           base.begin() + static_cast<long>(start) + 32);
      for (float& x : u) x *= factors[f];
      const Encoded got = round_trip(u);
      for (int i = 0; i < 32; ++i) {
        signal += static_cast<double>(u[i]) * u[i];
        noise += std::pow(static_cast<double>(u[i]) - got.decoded[i], 2);
      }
    }
    quality[f] = 10 * std::log10(signal / noise);
  }
  CHECK(quality[0] > 20.8);  // 21.3 dB expected of one rounding
  CHECK(std::fabs(quality[1] - quality[0]) < 0.1);
  CHECK(std::fabs(quality[2] - quality[0]) < 0.1);
}

TEST_CASE("16-bit conversions agree with arithmetic on doubles") {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    for (DataType type : {DataType::kBf16, DataType::kFp16}) {
      const float want = ReferenceAllReduce::value_of(type, half);
      const float got = element_to_float(type, half);
      if (std::isnan(want)) {
        REQUIRE(std::isnan(got));
        REQUIRE(element_from_float(type, got) == 0x7FFFu);
        continue;
      }
      REQUIRE(float_bits(got) == float_bits(want));
      REQUIRE(element_from_float(type, got) == half);
    }
  }
  std::mt19937_64 random(3);
  const auto check = [](float x) {
    REQUIRE(float_to_bf16(x) == ReferenceAllReduce::bits_of(DataType::kBf16, x));
    REQUIRE(float_to_fp16(x) == ReferenceAllReduce::bits_of(DataType::kFp16, x));
    if (std::isfinite(x) && std::fabs(x) <= 0x1p126f) {
      const float up = bf16_to_float(float_to_bf16_up(std::fabs(x)));
      REQUIRE(up >= std::fabs(x));
      REQUIRE((up == 0 ||
               bf16_to_float(static_cast<std::uint16_t>(float_to_bf16_up(std::fabs(x)) - 1)) < std::fabs(x)));
    }
  };
  for (int i = 0; i < 400000; ++i) check(bits_float(static_cast<std::uint32_t>(random())));
  for (int i = 0; i < 400000; ++i) {  // the range of fp16, its denormals and its overflow
    const auto exponent = static_cast<std::uint32_t>(100 + random() % 46);
    check(bits_float((exponent << 23) | static_cast<std::uint32_t>(random() & 0x807FFFFFu)));
  }
  for (int bits = 0; bits < 65535; ++bits) {  // exact halfway points
    const float low = fp16_to_float(static_cast<std::uint16_t>(bits));
    const float high = fp16_to_float(static_cast<std::uint16_t>(bits + 1));
    if (std::isfinite(low) && std::isfinite(high)) check((low + high) / 2);
  }
  for (float x : {65519.996f, 65520.0f, -65520.0f, kFloatMax, kInf, -kInf, 0x1p-149f, 0x1p-25f, -0x1p-25f})
    check(x);
}

namespace {

/// The 8-bit codec as arithmetic on doubles.
void check_bytes(const std::vector<float>& u) {
  std::vector<std::uint8_t> codes(u.size());
  std::vector<float> decoded(u.size());
  std::uint16_t bits = 0;
  REQUIRE(encode_group(u.data(), static_cast<int>(u.size()), codes.data(), &bits, 8));
  decode_group(codes.data(), bits, static_cast<int>(u.size()), decoded.data(), 8);
  const double step = std::fabs(bf16_to_float(bits));
  for (std::size_t i = 0; i < u.size(); ++i) {
    // Half a step; at the clipped end a whole one and what the scale's own rounding moves the extremum by.
    REQUIRE(std::fabs(decoded[i] - static_cast<double>(u[i])) <= step * 1.26);
    if (std::fabs(u[i]) < 127.25 * step && codes[i] != 255)
      REQUIRE(std::fabs(decoded[i] - static_cast<double>(u[i])) <= step * 0.5001);
  }
}

}  // namespace

TEST_CASE("codec, 8 bits: golden vector") {
  std::vector<float> u(32, 0.0f);
  u[0] = 128.0f, u[1] = -127.0f, u[2] = 1.5f, u[3] = 2.5f, u[4] = -128.0f, u[5] = -0.4f;
  std::uint8_t codes[32];
  std::uint16_t scale = 0;
  REQUIRE(encode_group(u.data(), 32, codes, &scale, 8));
  CHECK(bf16_to_float(scale) == 1.0f);  // the negative one of two equal extrema decides: -128 / -128
  CHECK(codes[0] == 255);               // clipped to 127
  CHECK(codes[1] == 1);
  CHECK(codes[2] == 130);  // ties to even
  CHECK(codes[3] == 130);
  CHECK(codes[4] == 0);
  CHECK(codes[5] == 128);
}

TEST_CASE("codec, 8 bits: error at most half a step, over all magnitudes") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int exponent = -92; exponent < 126; ++exponent) {
    std::vector<float> u(64);
    for (float& value : u) value = std::ldexp(std::clamp(normal(random), -3.0f, 3.0f), exponent);
    check_bytes(u);
  }
}

TEST_CASE("codec, 8 bits: the reference puts the same bytes on the wire") {
  std::mt19937_64 random(6);
  std::normal_distribution<float> normal;
  for (const int group : {32, 64, 128}) {
    ReferenceSetup setup;
    setup.ranks = 2;
    setup.dtype = DataType::kFp32;
    setup.codec = {.bits = 4, .group = group, .first_leg_bits = 8};
    setup.compensation.mode = CompensationMode::kNone;
    ReferenceAllReduce all(setup);
    std::vector<float> u(2 * kTileElements);
    for (std::size_t i = 0; i < u.size(); ++i)
      u[i] = std::ldexp(normal(random), static_cast<int>(i / group % 250) - 125);
    std::vector<std::vector<std::uint32_t>> send(2);
    for (const float x : u) send[0].push_back(float_bits(x)), send[1].push_back(0);
    all.call(send, true);
    // Rank 0 sends tile 1 to rank 1.
    const std::uint8_t* tile = all.outbox(0).data() + tile_bytes(setup.codec, Leg::kFirst);
    for (int start = 0; start < kTileElements; start += group) {
      std::vector<std::uint8_t> codes(group);
      std::uint16_t scale = 0;
      encode_group(u.data() + kTileElements + start, group, codes.data(), &scale, 8);
      REQUIRE(std::equal(codes.begin(), codes.end(), tile + start));
      const std::uint8_t* at = tile + tile_code_bytes(8) + start / group * 2;
      REQUIRE((at[0] | at[1] << 8) == scale);
    }
  }
}

TEST_CASE("codec, 8 bits: zero, tiny, huge, NaN and Inf groups") {
  std::vector<std::uint8_t> codes(32);
  std::uint16_t scale = 1;
  CHECK(encode_group(std::vector<float>(32, -0.0f).data(), 32, codes.data(), &scale, 8));
  CHECK(scale == 0);
  CHECK(codes[7] == 128);
  CHECK(encode_group(std::vector<float>(32, 1e-30f).data(), 32, codes.data(), &scale, 8));
  CHECK(scale == 0);
  for (const float huge : {3e38f, -3e38f, 0x1.FEp127f}) {
    std::vector<float> u(32, huge);
    u[1] = -huge;
    u[2] = huge / 3;
    std::vector<float> decoded(32);
    REQUIRE(encode_group(u.data(), 32, codes.data(), &scale, 8));
    decode_group(codes.data(), scale, 32, decoded.data(), 8);
    for (int i = 0; i < 3; ++i) {
      CHECK(std::isfinite(decoded[i]));
      CHECK(decoded[i] == doctest::Approx(u[i]).epsilon(0.01));
    }
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max()}) {
    std::vector<float> u(32, 1.0f);
    u[9] = bad;
    CHECK_FALSE(encode_group(u.data(), 32, codes.data(), &scale, 8));
    CHECK(scale == kScaleNan);
    CHECK(std::isnan(decode(codes[0], bf16_to_float(scale), 8)));
  }
}
