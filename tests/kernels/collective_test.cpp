// SPDX-License-Identifier: Apache-2.0
// The whole collective on the reference: replicas, bounds, quality, resets, shapes, chunks, stale state,
// poison.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference.hpp"
#include "kernels/tile.hpp"
#include "tests/kernels/simulation.hpp"

using namespace echotp;
using namespace echotp::test;

namespace {

ReferenceSetup make_setup(int ranks, std::int64_t count, StateFormat format = StateFormat::kFp32) {
  ReferenceSetup setup;
  setup.ranks = ranks;
  setup.compensation.state = format;
  setup.capacity = tile_count(count) * kTileElements;
  return setup;
}

Compensation error_feedback(StateFormat format = StateFormat::kFp32) {
  return {CompensationMode::kBoth, 1.0f, 0.0f, 0.0f, 0.9f, format};
}

float scale_at(const std::vector<std::uint8_t>& wire, const Codec& codec, int ranks, std::int64_t count,
               std::int64_t i) {
  const std::int64_t tile = i / kTileElements;
  const std::int64_t at = tile % ranks * segment_bytes(count, ranks, codec, Leg::kSecond) +
                          tile / ranks * tile_bytes(codec, Leg::kSecond) + tile_code_bytes(codec.bits) +
                          i % kTileElements / codec.group * 2;
  return ReferenceAllReduce::value_of(DataType::kBf16,
                                      static_cast<std::uint32_t>(wire[at] | (wire[at + 1] << 8)));
}

}  // namespace

TEST_CASE("tile geometry, worked out by hand") {
  CHECK(tile_count(1) == 1);
  CHECK(tile_count(2048) == 1);
  CHECK(tile_count(2049) == 2);
  CHECK(tile_bytes(Codec{4, 32}, Leg::kFirst) == 1152);
  CHECK(tile_bytes(Codec{4, 64}, Leg::kSecond) == 1088);
  CHECK(tile_bytes(Codec{4, 128}, Leg::kFirst) == 1056);
  CHECK(tile_bytes(Codec{4, 32, 8}, Leg::kFirst) == 2176);
  CHECK(tile_bytes(Codec{4, 32, 8}, Leg::kSecond) == 1152);
  CHECK(wire_bytes(4 * 2048, 2, Codec{4, 32, 8}) == 2 * (2176 + 1152));
  CHECK(segment_tiles(7 * 2048, 3) == 3);
  CHECK(wire_bytes(7 * 2048, 3, Codec{4, 32}) == 2 * 2 * 3 * 1152);
}

TEST_CASE("all ranks hold the same bits, in every mode, for every number of ranks") {
  std::mt19937_64 random(1);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (CompensationMode mode :
         {CompensationMode::kNone, CompensationMode::kOwner, CompensationMode::kBoth}) {
      const std::int64_t count = 5000;
      ReferenceSetup setup = make_setup(ranks, count);
      setup.compensation.mode = mode;
      ReferenceAllReduce all(setup);
      for (int call = 0; call < 3; ++call) {
        all.call(gaussian(random, setup.dtype, ranks, count), call == 0);
        for (int p = 1; p < ranks; ++p) REQUIRE(all.output(p) == all.output(0));
      }
    }
  }
}

TEST_CASE("a golden call of two ranks") {
  // Rank 1 sends tile 0 as 8 * (1 + the index mod 8 / 8): the extremum 15 gives scale -1.875. The owner adds
  // its own -1.
  ReferenceSetup setup = make_setup(2, 32);
  setup.compensation.mode = CompensationMode::kNone;
  ReferenceAllReduce all(setup);
  Bits send(2);
  for (int i = 0; i < 32; ++i) {
    send[0].push_back(ReferenceAllReduce::bits_of(DataType::kBf16, -1.0f));
    send[1].push_back(ReferenceAllReduce::bits_of(DataType::kBf16, static_cast<float>(8 + i % 8)));
  }
  all.call(send, true);
  const std::vector<std::uint8_t>& box = all.outbox(1);
  CHECK(box[1024] == 0xF0);  // -1.875 is 0xBFF0
  CHECK(box[1025] == 0xBF);
  // 8/-1.875 = -4.27 -> -4, 9: -4.8 -> -5, 10: -5.33 -> -5, 11: -5.87 -> -6, 12: -6.4 -> -6, 13: -6.93 -> -7,
  // 14: -7.47 -> -7, 15: -8. Elements 0 and 2 come first, then 4 and 6, 1 and 3, 5 and 7.
  CHECK(box[0] == 0x34);
  CHECK(box[1] == 0x12);
  CHECK(box[2] == 0x23);
  CHECK(box[3] == 0x01);
  // Sums: 6.5 8.375 8.375 10.25 10.25 12.125 12.125 14; scale 14/-8 = -1.75; codes -4 -5 -5 -6 -6 -7 -7 -8.
  CHECK(all.gathered()[0] == 0x34);
  CHECK(ReferenceAllReduce::value_of(DataType::kBf16, all.output(0)[0]) == 7.0f);
  CHECK(ReferenceAllReduce::value_of(DataType::kBf16, all.output(1)[7]) == 14.0f);
}

TEST_CASE("single call: error within the steps, quality of a Gaussian sum") {
  std::mt19937_64 random(2);
  const int ranks = 4;
  const std::int64_t count = 65536;
  const struct {
    int group;
    double least_db;
  } cases[] = {{32, 18.5}, {64, 17.7}, {128, 17.0}};
  for (const auto& c : cases) {
    ReferenceSetup setup = make_setup(ranks, count);
    setup.dtype = DataType::kFp32;
    setup.codec.group = c.group;
    ReferenceAllReduce all(setup);
    const Bits send = gaussian(random, setup.dtype, ranks, count);
    all.call(send, true);
    const std::vector<double> exact = exact_sum(setup.dtype, send);
    const std::vector<double> got = values(setup.dtype, all.output(0));
    CHECK(sqnr_db(exact, got) > c.least_db);
    CHECK(sqnr_db(exact, got) < c.least_db + 1.0);
    int beyond_half = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      double steps = std::fabs(scale_at(all.gathered(), setup.codec, ranks, count, i));
      for (int p = 0; p < ranks; ++p) {
        if (p != i / kTileElements % ranks)
          steps += std::fabs(scale_at(all.outbox(p), setup.codec, ranks, count, i));
      }
      REQUIRE(std::fabs(got[i] - exact[i]) <= 1.04 * steps);
      beyond_half += std::fabs(got[i] - exact[i]) > 0.5 * steps;
    }
    CHECK(beyond_half < count / 1000);
  }
}

TEST_CASE("the owner's own partial is not rounded: one rounding less than ranks") {
  // Two ranks, rank 1 sends zeros: in tile 0 only the owner's rounding is left, in tile 1 both partials are
  // rounded.
  std::mt19937_64 random(3);
  const std::int64_t count = 2 * 2048;
  ReferenceSetup setup = make_setup(2, count);
  setup.dtype = DataType::kFp32;
  Bits send = gaussian(random, setup.dtype, 2, count);
  std::fill(send[1].begin(), send[1].end(), 0u);
  ReferenceAllReduce all(setup);
  all.call(send, true);
  const std::vector<double> exact = exact_sum(setup.dtype, send);
  const std::vector<double> got = values(setup.dtype, all.output(0));
  for (int i = 0; i < 2048; ++i) {
    REQUIRE(std::fabs(got[i] - exact[i]) <=
            1.04 * std::fabs(scale_at(all.gathered(), setup.codec, 2, count, i)));
  }
  CHECK(sqnr_db({exact.begin(), exact.begin() + 2048}, {got.begin(), got.begin() + 2048}) > 20.5);
}

TEST_CASE("pass start equals a fresh process; without it the history shows") {
  for (StateFormat format : {StateFormat::kFp32, StateFormat::kFp16, StateFormat::kInt8}) {
    std::mt19937_64 random(4);
    const std::int64_t count = 3 * 2048 + 100;
    const ReferenceSetup setup = make_setup(3, count, format);
    ReferenceAllReduce used(setup);
    ReferenceAllReduce continued(setup);
    for (int call = 0; call < 4; ++call) {
      const Bits send = gaussian(random, setup.dtype, 3, count);
      used.call(send, call == 0);
      continued.call(send, call == 0);
    }
    ReferenceAllReduce fresh(setup);
    bool differs = false;
    for (int call = 0; call < 4; ++call) {
      const Bits send = gaussian(random, setup.dtype, 3, count);
      used.call(send, call == 0);
      fresh.call(send, call == 0);
      continued.call(send, false);
      REQUIRE(used.output(0) == fresh.output(0));
      REQUIRE(used.outbox(1) == fresh.outbox(1));
      differs = differs || continued.output(0) != fresh.output(0);
    }
    CHECK(differs);
  }
}

TEST_CASE("a direction of its own: calls on another state leave the first one's results alone") {
  std::mt19937_64 random(5);
  const std::int64_t count = 4096;
  const ReferenceSetup setup = make_setup(2, count);
  ReferenceAllReduce forward(setup), backward(setup), alone(setup), shared(setup);
  bool differs = false;
  for (int call = 0; call < 4; ++call) {
    const Bits activations = gaussian(random, setup.dtype, 2, count);
    const Bits gradients = gaussian(random, setup.dtype, 2, count, 1e-4);
    forward.call(activations, call == 0);
    backward.call(gradients, call == 0);
    alone.call(activations, call == 0);
    shared.call(activations, call == 0);
    differs = differs || shared.output(0) != alone.output(0);
    shared.call(gradients, false);
    REQUIRE(forward.output(0) == alone.output(0));
  }
  CHECK(differs);
}

TEST_CASE("sizes may change, and a row's result does not depend on other rows, whatever they hold") {
  std::mt19937_64 random(6);
  const std::int64_t large = 6 * 2048;
  const std::int64_t small = 2048 + 512;
  const ReferenceSetup setup = make_setup(2, large);
  ReferenceAllReduce clean(setup), dirty(setup);
  for (int call = 0; call < 5; ++call) {
    const std::int64_t count = call % 2 == 0 ? large : small;
    Bits send = gaussian(random, setup.dtype, 2, count);
    clean.call(send, call == 0);
    for (std::int64_t i = small; i < count; ++i) send[1][i] = i % 3 == 0 ? 0x7FC0 : 0x7F00;
    dirty.call(send, call == 0);
    for (std::int64_t i = 0; i < small; ++i) REQUIRE(clean.output(1)[i] == dirty.output(1)[i]);
  }
  CHECK(dirty.nonfinite_groups() > 0);
}

TEST_CASE("chunks equal the whole") {
  std::mt19937_64 random(7);
  const int ranks = 3;
  const std::int64_t chunk = 2 * ranks * kTileElements;
  const std::int64_t count = 2 * chunk + 777;
  for (StateFormat format : {StateFormat::kFp32, StateFormat::kInt8}) {
    const ReferenceSetup setup = make_setup(ranks, count, format);
    ReferenceAllReduce whole(setup), parts(setup);
    for (int call = 0; call < 3; ++call) {
      const Bits send = gaussian(random, setup.dtype, ranks, count);
      whole.call(send, call == 0);
      std::vector<std::uint32_t> joined;
      for (std::int64_t first = 0; first < count; first += chunk) {
        Bits part(ranks);
        for (int p = 0; p < ranks; ++p) {
          part[p].assign(send[p].begin() + first, send[p].begin() + std::min(first + chunk, count));
        }
        parts.call(part, call == 0, first);
        joined.insert(joined.end(), parts.output(1).begin(), parts.output(1).end());
      }
      REQUIRE(joined == whole.output(1));
    }
  }
}

TEST_CASE("drift: a golden pair of calls, over a pass border") {
  // Two ranks, 64 channels, two tokens, fp32. Rank 0 owns everything; rank 1 sends.
  ReferenceSetup setup = make_setup(2, 0);
  setup.dtype = DataType::kFp32;
  setup.compensation.mode = CompensationMode::kDrift;
  setup.compensation.channels = 64;
  ReferenceAllReduce all(setup);
  // Every group has -8 in it, so a step is 1. Channels 1 and 33 lie off the grid by 0.25.
  std::vector<float> x(128, 1.0f);
  for (int i = 0; i < 128; i += 32) x[i] = -8, x[i + 1] = 1.25f;
  Bits send(2, std::vector<std::uint32_t>(128, 0));
  for (int i = 0; i < 128; ++i) send[1][i] = ReferenceAllReduce::bits_of(setup.dtype, x[i]);
  all.call(send, true);
  CHECK(all.state(1).as_sender.estimate[1] == 0.125f);
  CHECK(all.state(1).as_sender.estimate[33] == 0.125f);
  CHECK(all.state(1).as_sender.estimate[0] == 0.0f);
  CHECK(all.state(1).as_owner.estimate[1] == 0.0f);  // owns nothing of this message
  CHECK(all.state(0).as_owner.estimate[1] == 0.0f);  // what arrives is on the grid
  CHECK(ReferenceAllReduce::value_of(setup.dtype, all.output(0)[1]) == 1.0f);
  all.call(send, true);
  CHECK(all.state(1).as_sender.estimate[1] == 0.25f);
  all.call(send, false);  // 1.25 + 0.25 is half way: to the even code, 2
  CHECK(ReferenceAllReduce::value_of(setup.dtype, all.output(1)[1]) == 2.0f);
  CHECK(all.state(1).as_sender.estimate[1] == -0.125f);
  // A message that is not whole tokens: no correction, and the estimates stay.
  for (auto& rank : send) rank.resize(127);
  all.call(send, false);
  CHECK(ReferenceAllReduce::value_of(setup.dtype, all.output(1)[1]) == 1.0f);
  CHECK(all.state(1).as_sender.estimate[1] == -0.125f);
}

TEST_CASE("drift: ranks agree, chunks change nothing but the order of sums, NaN leaves no trace") {
  std::mt19937_64 random(17);
  for (int ranks : {1, 3, 8}) {
    ReferenceSetup setup = make_setup(ranks, 0);
    setup.compensation.mode = CompensationMode::kDrift;
    setup.compensation.channels = 96;
    const std::int64_t chunk = ranks * kTileElements;
    const std::int64_t count = (2 * chunk + 96 * 5) / 96 * 96;
    ReferenceAllReduce whole(setup), parts(setup);
    for (int call = 0; call < 4; ++call) {
      Bits send = gaussian(random, setup.dtype, ranks, count);
      if (call == 2) send[0][5] = 0x7FC0;
      whole.call(send, call == 0);
      for (int p = 1; p < ranks; ++p) REQUIRE(whole.output(p) == whole.output(0));
      for (std::int64_t first = 0; first < count; first += chunk) {
        Bits part(ranks);
        for (int p = 0; p < ranks; ++p) {
          part[p].assign(send[p].begin() + first, send[p].begin() + std::min(first + chunk, count));
        }
        parts.call(part, call == 0, first, count);
      }
      for (int p = 0; p < ranks; ++p) {
        for (std::size_t c = 0; c < 96; ++c) {
          REQUIRE(std::isfinite(whole.state(p).as_owner.estimate[c]));
          // A difference in the last bit of an estimate may change a code; few do.
          CHECK(parts.state(p).as_owner.estimate[c] ==
                doctest::Approx(whole.state(p).as_owner.estimate[c]).epsilon(0.01).scale(0.1));
        }
      }
    }
  }
}

TEST_CASE("elements beyond the state's capacity go uncompensated") {
  std::mt19937_64 random(8);
  const std::int64_t count = 4 * 2048;
  ReferenceSetup setup = make_setup(2, count);
  setup.capacity = 2 * 2048;
  ReferenceSetup plain = setup;
  plain.compensation.mode = CompensationMode::kNone;
  ReferenceAllReduce half(setup), none(plain);
  bool differs = false;
  for (int call = 0; call < 3; ++call) {
    const Bits send = gaussian(random, setup.dtype, 2, count);
    half.call(send, call == 0);
    none.call(send, call == 0);
    for (std::int64_t i = 0; i < count; ++i) {
      if (i >= 2 * 2048) REQUIRE(half.output(0)[i] == none.output(0)[i]);
      if (i < 2 * 2048) differs = differs || half.output(0)[i] != none.output(0)[i];
    }
  }
  CHECK(differs);
}

TEST_CASE("stale state: bounded by the group's own size, gone within two calls") {
  for (StateFormat format : {StateFormat::kFp32, StateFormat::kFp16}) {
    std::mt19937_64 random(9);
    const int ranks = 4;
    const std::int64_t count = 4 * 2048;
    ReferenceSetup setup = make_setup(ranks, count, format);
    setup.dtype = DataType::kFp32;
    setup.compensation = error_feedback(format);
    ReferenceAllReduce all(setup);
    for (int p = 0; p < ranks; ++p) {
      for (std::int64_t i = 0; i < count; ++i) {
        const bool negative = (i * 7 + p) % 3 == 0;
        if (format == StateFormat::kFp32) all.state(p).fast32[i] = negative ? -1e6f : 1e6f;
        if (format == StateFormat::kFp16) all.state(p).fast16[i] = negative ? 0xBC00 : 0x3C00;
      }
      for (auto& unit : all.state(p).unit) unit = 0x4974;  // about 1e6
    }
    double quality = 0;
    for (int call = 0; call < 3; ++call) {
      const Bits send = gaussian(random, setup.dtype, ranks, count);
      all.call(send, false);
      const std::vector<double> exact = exact_sum(setup.dtype, send);
      const std::vector<double> got = values(setup.dtype, all.output(0));
      quality = sqnr_db(exact, got);
      for (std::int64_t g = 0; g < count; g += 32) {
        double steps = 0;
        const auto owner = static_cast<int>(g / kTileElements % ranks);
        double largest_sum = 0;
        for (int p = 0; p < ranks; ++p) {
          double largest = 0;
          for (std::int64_t i = g; i < g + 32; ++i) {
            largest = std::max(
                largest,
                std::fabs(static_cast<double>(ReferenceAllReduce::value_of(setup.dtype, send[p][i]))));
          }
          if (p != owner) steps += largest / 8;
          largest_sum += p == owner ? largest : 2 * largest;
        }
        steps += largest_sum / 8;
        for (std::int64_t i = g; i < g + 32; ++i) {
          REQUIRE(std::isfinite(got[i]));
          REQUIRE(std::fabs(got[i] - exact[i]) <= 10.1 * steps);
        }
      }
      if (call == 0) CHECK(quality < 5);
    }
    CHECK(quality > 14.5);  // error feedback in its steady state: 18.9 - 3 dB
  }
}

TEST_CASE("NaN and Inf: the group is NaN on every rank, the rest is untouched, the next call is clean") {
  std::mt19937_64 random(10);
  for (DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    const std::int64_t count = 2 * 2048;
    ReferenceSetup setup = make_setup(2, count, StateFormat::kInt8);
    setup.dtype = dtype;
    ReferenceAllReduce hit(setup), clean(setup);
    for (int call = 0; call < 3; ++call) {
      Bits send = gaussian(random, dtype, 2, count);
      clean.call(send, call == 0);
      if (call == 1) {
        send[0][70] = ReferenceAllReduce::bits_of(dtype, std::numeric_limits<float>::quiet_NaN());
        send[1][2048 + 40] = ReferenceAllReduce::bits_of(dtype, std::numeric_limits<float>::infinity());
        send[1][100] = ReferenceAllReduce::bits_of(dtype, -std::numeric_limits<float>::infinity());
      }
      hit.call(send, call == 0);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t group = i / 32;
        const bool poisoned = group == 2 || group == (2048 + 40) / 32 || group == 3;
        const bool is_nan = std::isnan(ReferenceAllReduce::value_of(dtype, hit.output(0)[i]));
        if (call == 1) REQUIRE(is_nan == poisoned);
        if (call != 1) REQUIRE_FALSE(is_nan);
        if (!poisoned) REQUIRE(hit.output(1)[i] == clean.output(1)[i]);
      }
    }
    CHECK(hit.nonfinite_groups() == 3);
  }
}

TEST_CASE("codes of 8 bits on either leg: ranks agree, and the last call of a pass pays the pass's debt") {
  double quality[2][2] = {};
  for (const int first : {4, 8}) {
    for (const int second : {4, 8}) {
      ReferenceSetup setup;
      setup.ranks = 3;
      setup.codec = {.bits = second, .group = 32, .first_leg_bits = first};
      setup.compensation = {CompensationMode::kBoth, 1, 0, 0, 0.9f, StateFormat::kFp32};
      setup.capacity = 8 * kTileElements;
      ReferenceAllReduce all(setup);
      std::mt19937_64 random(12);
      std::vector<double> error(7 * kTileElements + 99, 0.0);
      std::vector<double> exact;
      for (int call = 0; call < 3; ++call) {
        if (call == 2) all.set_bits(8, 8);
        const Bits send = gaussian(random, setup.dtype, 3, static_cast<std::int64_t>(error.size()));
        all.call(send, call == 0);
        for (int p = 1; p < 3; ++p) CHECK(all.output(p) == all.output(0));
        exact = exact_sum(setup.dtype, send);
        const std::vector<double> got = values(setup.dtype, all.output(0));
        for (std::size_t i = 0; i < error.size(); ++i) error[i] += got[i] - exact[i];
        if (call == 0) quality[first / 8][second / 8] = sqnr_db(exact, got);
      }
      // All that three calls did wrong is what the last one rounded.
      CHECK(20 * std::log10(rms(exact) / rms(error)) > 40);
    }
  }
  CHECK(quality[0][0] > 18.5);
  CHECK(quality[1][0] > quality[0][0] + 1);
  CHECK(quality[0][1] > quality[0][0] + 0.5);
  CHECK(quality[1][1] > 40);
}

TEST_CASE("average: the owner scales before it rounds") {
  std::mt19937_64 random(12);
  const std::int64_t count = 4 * 2048;
  ReferenceSetup setup = make_setup(4, count);
  setup.post_scale = 0.25f;
  ReferenceAllReduce all(setup);
  const Bits send = gaussian(random, setup.dtype, 4, count);
  all.call(send, true);
  std::vector<double> exact = exact_sum(setup.dtype, send);
  for (double& value : exact) value /= 4;
  CHECK(sqnr_db(exact, values(setup.dtype, all.output(2))) > 18.4);
}
