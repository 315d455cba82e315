// SPDX-License-Identifier: Apache-2.0
// What the accumulated error does over many calls: the telescoping identity, growth with depth, theory's
// ratios, and the negative controls that must grow.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "kernels/depth.hpp"
#include "kernels/reference.hpp"
#include "kernels/tile.hpp"
#include "tests/kernels/simulation.hpp"

using namespace echotp;
using namespace echotp::test;

namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kCount = 4 * 2048;

Compensation both(float a, float bf, float b, float bs, StateFormat format = StateFormat::kFp32) {
  return {CompensationMode::kBoth, a, bf, b, bs, format};
}
const Compensation kEf = both(1, 0, 0, 0.9f);
const Compensation kDual = both(0.9f, 0, 0.1f, 0.9f);
const Compensation kSmooth = both(0.75f, 0.25f, 0.25f, 0.9f);
const Compensation kLoco = both(1, 0.8f, 0, 0.9f);
const Compensation kNone = {CompensationMode::kNone, 1, 0, 0, 0.9f, StateFormat::kFp32};

ReferenceSetup make_setup(const Compensation& how, DataType dtype = DataType::kFp32,
                          std::int64_t count = kCount) {
  ReferenceSetup setup;
  setup.ranks = kRanks;
  setup.dtype = dtype;
  setup.compensation = how;
  setup.capacity = tile_count(count) * kTileElements;
  return setup;
}

/// The accumulated error after each of the calls, by its number.
std::map<int, double> accumulated_rms(const ReferenceSetup& setup, bool heavy, int calls, unsigned seed = 1) {
  const std::vector<double> error =
      accumulated_error({.collective = setup,
                         .activations = heavy ? Activations::kHeavyTailed : Activations::kGaussian,
                         .elements = setup.capacity,
                         .calls = calls,
                         .seed = seed});
  std::map<int, double> result;
  for (int call = 1; call <= calls; ++call) result[call] = error[static_cast<std::size_t>(call - 1)];
  return result;
}

double growth(const ReferenceSetup& setup, bool heavy) {
  const std::map<int, double> rms = accumulated_rms(setup, heavy, 128);
  return rms.at(128) / rms.at(8);
}

}  // namespace

TEST_CASE("telescoping: the accumulated error plus the weighted states of all quantisers is zero") {
  for (const Compensation& how : {kEf, kDual, kSmooth}) {
    for (DataType dtype : {DataType::kFp32, DataType::kBf16}) {
      CAPTURE(how.a);
      ReferenceSetup setup = make_setup(how, dtype, 2 * 2048);
      setup.codec.first_leg_bits = dtype == DataType::kBf16 ? 8 : 4;
      setup.ranks = 2;
      std::mt19937_64 random(3);
      ReferenceAllReduce all(setup);
      const auto count = static_cast<std::size_t>(setup.capacity);
      std::vector<double> error(count, 0.0);
      std::vector<double> total(count, 0.0);
      for (int call = 1; call <= 256; ++call) {
        const Bits send = gaussian(random, dtype, setup.ranks, setup.capacity);
        all.call(send, call == 1);
        const std::vector<double> exact = exact_sum(dtype, send);
        for (std::size_t i = 0; i < count; ++i) {
          error[i] += ReferenceAllReduce::value_of(dtype, all.output(0)[i]) - exact[i];
          total[i] += std::fabs(exact[i]);
        }
        if (call != 1 && call != 2 && call != 17 && call != 128 && call != 256) continue;
        double worst = 0;
        for (std::size_t i = 0; i < count; ++i) {
          double sum = error[i];
          for (int p = 0; p < setup.ranks; ++p) {
            sum += how.a * static_cast<double>(all.state(p).fast32[i]) / (1 - how.bf);
            if (how.b != 0) sum += how.b * static_cast<double>(all.state(p).slow32[i]) / (1 - how.bs);
          }
          worst = std::max(worst, std::fabs(sum) / (total[i] + 1));
        }
        CHECK(worst < 1e-5);
        // The identity means something: the states themselves are as large as the error.
        CHECK(rms(error) > 0.05);
      }
    }
  }
}

TEST_CASE("telescoping with int8 state holds up to the rounding of the state") {
  ReferenceSetup setup = make_setup(kEf, DataType::kFp32, 4 * 2048);
  setup.compensation.state = StateFormat::kInt8;
  std::mt19937_64 random(4);
  ReferenceAllReduce all(setup);
  std::vector<double> error(static_cast<std::size_t>(setup.capacity), 0.0);
  const int calls = 64;
  for (int call = 1; call <= calls; ++call) {
    const Bits send = gaussian(random, setup.dtype, kRanks, setup.capacity);
    all.call(send, call == 1);
    const std::vector<double> exact = exact_sum(setup.dtype, send);
    for (std::size_t i = 0; i < error.size(); ++i) {
      error[i] += ReferenceAllReduce::value_of(setup.dtype, all.output(0)[i]) - exact[i];
    }
  }
  const double largest_step = 5.0 / 8;
  for (std::size_t i = 0; i < error.size(); ++i) {
    double sum = error[i];
    for (int p = 0; p < kRanks; ++p) {
      const double unit = ReferenceAllReduce::value_of(DataType::kBf16, all.state(p).unit[i / 32]);
      sum += all.state(p).fast8[i] * unit;
    }
    REQUIRE(std::fabs(sum) < kRanks * calls * largest_step / 254);
  }
}

TEST_CASE("growth with depth: bounded with compensation, growing without") {
  for (bool heavy : {false, true}) {
    CAPTURE(heavy);
    CHECK(growth(make_setup(kEf), heavy) < 1.15);
    CHECK(growth(make_setup(kDual), heavy) < 1.2);
    CHECK(growth(make_setup(kSmooth), heavy) < 1.35);
    CHECK(growth(make_setup(kNone), heavy) > 3.5);
  }
}

TEST_CASE("8 bits: a first leg of 8 bits needs the owner's estimates alone, and 8 bits both ways are finer") {
  ReferenceSetup rs8 = make_setup(kDual);
  rs8.codec.first_leg_bits = 8;
  rs8.compensation.mode = CompensationMode::kOwner;
  for (const bool heavy : {false, true}) {
    const std::map<int, double> owner = accumulated_rms(rs8, heavy, 128);
    const std::map<int, double> both4 = accumulated_rms(make_setup(kDual), heavy, 128);
    CAPTURE(heavy);
    CHECK(owner.at(8) < 0.85 * both4.at(8));
    CHECK(owner.at(128) / owner.at(8) < 1.5);
    ReferenceSetup both8 = make_setup(kDual);
    both8.codec.bits = both8.codec.first_leg_bits = 8;
    const std::map<int, double> fine = accumulated_rms(both8, heavy, 128);
    CHECK(fine.at(128) < both4.at(128) / 10);
    CHECK(fine.at(128) / fine.at(8) < 1.2);
  }
}

TEST_CASE(
    "depth: bounded for every number of ranks and every group, and coarser groups cost what they should") {
  double last[3][3] = {};
  for (int r = 0; r < 3; ++r) {
    for (int g = 0; g < 3; ++g) {
      ReferenceSetup setup = make_setup(kDual);
      setup.ranks = 2 << r;
      setup.codec.group = 32 << g;
      CAPTURE(setup.ranks);
      CAPTURE(setup.codec.group);
      const std::map<int, double> compensated = accumulated_rms(setup, true, 128);
      CHECK(compensated.at(128) / compensated.at(8) < 1.25);
      last[r][g] = compensated.at(128);
      setup.compensation = kNone;
      const std::map<int, double> plain = accumulated_rms(setup, true, 128);
      CHECK(plain.at(128) / plain.at(8) > 3.5);
      CHECK(plain.at(128) > 10 * last[r][g]);
    }
  }
  for (int r = 0; r < 3; ++r) {
    CHECK(last[r][1] / last[r][0] > 1.2);
    CHECK(last[r][2] / last[r][1] > 1.2);
  }
  CHECK(last[2][0] < 1.3 * last[0][0]);  // hardly any worse with more ranks
}

TEST_CASE("negative controls: the schemes that are not bounded fail the bound") {
  CHECK(growth(make_setup(both(1.0f, 0, 0.2f, 0.9f)), false) > 1.3);  // a + b = 1.2
  Compensation owner = kDual;
  owner.mode = CompensationMode::kOwner;
  CHECK(growth(make_setup(owner), false) > 1.3);
  CHECK(growth(make_setup(owner), true) > 1.3);
  ReferenceSetup output_error = make_setup(both(0.7f, 0.5f, 0.3f, 0.95f));
  output_error.output_error_feedback = true;
  CHECK(growth(output_error, false) > 1.3);
}

TEST_CASE("theory: accumulated error of a stationary Gaussian stream relative to one rounding") {
  const struct {
    Compensation how;
    double ratio;
  } cases[] = {{kEf, 1.01}, {kDual, 1.03}, {kSmooth, 1.19}, {kLoco, 1.67}};
  for (const auto& c : cases) {
    CAPTURE(c.ratio);
    const std::map<int, double> rms = accumulated_rms(make_setup(c.how), false, 128);
    CHECK(rms.at(128) / rms.at(1) == doctest::Approx(c.ratio).epsilon(0.05));
  }
  const std::map<int, double> none = accumulated_rms(make_setup(kNone), false, 128);
  CHECK(none.at(128) / none.at(1) == doctest::Approx(std::sqrt(128.0)).epsilon(0.05));
}

TEST_CASE("int8 and fp16 states are as good as fp32") {
  for (const Compensation& how : {kEf, kDual}) {
    for (bool heavy : {false, true}) {
      const double exact = accumulated_rms(make_setup(how), heavy, 64).at(64);
      for (StateFormat format : {StateFormat::kFp16, StateFormat::kInt8}) {
        Compensation stored = how;
        stored.state = format;
        CAPTURE(static_cast<int>(format));
        CHECK(accumulated_rms(make_setup(stored), heavy, 64).at(64) < 1.03 * exact);
      }
    }
  }
}

TEST_CASE("drift: takes away what grows faster than a random walk, and only that") {
  ReferenceSetup drift = make_setup(kNone, DataType::kFp32, 32 * 1024);
  drift.compensation.mode = CompensationMode::kDrift;
  drift.compensation.channels = 1024;
  ReferenceSetup none = make_setup(kNone, DataType::kFp32, 32 * 1024);
  const double plain = accumulated_rms(none, true, 128).at(128);
  const std::map<int, double> drifting = accumulated_rms(drift, true, 128);
  // Without it the error of small channels beside an outlier is the same in every call and adds up; what is
  // left is a random walk.
  const double walk = accumulated_rms(none, true, 1).at(1) * std::sqrt(128.0);
  CHECK(plain > 1.5 * walk);
  CHECK(drifting.at(128) < 0.65 * plain);
  CHECK(drifting.at(128) < 1.25 * walk);
  CHECK(drifting.at(128) > 0.8 * walk);
  // Nothing to take away from a Gaussian.
  const double gaussian_plain = accumulated_rms(none, false, 64).at(64);
  CHECK(accumulated_rms(drift, false, 64).at(64) == doctest::Approx(gaussian_plain).epsilon(0.05));
}

TEST_CASE("depth: the published table of a Gaussian stream, within 5%") {
  // 4 ranks, groups of 32, codes -7 to 7: accumulated error after 1, 8, 32 and 128 calls.
  const struct {
    const char* name;
    Compensation how;
    int first_leg_bits;
    double error[4];
  } rows[] = {
      {"none", kNone, 4, {.129, .363, .730, 1.46}},
      {"owner", {CompensationMode::kOwner, 1, 0, 0, 0.9f, StateFormat::kFp32}, 4, {.129, .258, .482, .947}},
      {"ef", kEf, 4, {.129, .131, .130, .130}},
      {"ef, int8", both(1, 0, 0, 0.9f, StateFormat::kInt8), 4, {.129, .130, .130, .129}},
      {"both", kDual, 4, {.129, .132, .132, .133}},
      {"smooth", kSmooth, 4, {.129, .151, .153, .154}},
      {"one slow estimate", kLoco, 4, {.129, .213, .215, .216}},
      {"8 bits to the owner",
       {CompensationMode::kOwner, 1, 0, 0, 0.9f, StateFormat::kFp32},
       8,
       {.097, .099, .100, .110}},
  };
  const int depths[] = {1, 8, 32, 128};
  for (const auto& row : rows) {
    ReferenceSetup setup = make_setup(row.how, DataType::kFp32, 2 * kCount);
    setup.codec.first_leg_bits = row.first_leg_bits;
    setup.symmetric_range = true;
    const std::map<int, double> error = accumulated_rms(setup, false, 128);
    CAPTURE(row.name);
    for (int i = 0; i < 4; ++i) {
      CAPTURE(depths[i]);
      CHECK(error.at(depths[i]) == doctest::Approx(row.error[i]).epsilon(0.05));
    }
    // The codec's own range, -8 to 7, has the same growth and a smaller error: 18.9 dB instead of 17.8.
    setup.symmetric_range = false;
    if (row.how == kNone || row.how == kEf) {
      const double finer = accumulated_rms(setup, false, 8).at(8);
      CHECK(finer / error.at(8) == doctest::Approx(std::pow(10, -1.1 / 20)).epsilon(0.03));
    }
  }
}
