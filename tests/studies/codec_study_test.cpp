// SPDX-License-Identifier: Apache-2.0
// The study's collective against the scalar reference, and its two extra roundings against what they promise.
#include "tests/studies/codec_study.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "kernels/reference.hpp"
#include "tests/kernels/simulation.hpp"

using namespace echotp;

namespace {

study::Recording record(bool heavy, int ranks, int calls, std::int64_t elements) {
  std::mt19937_64 random(11);
  study::Recording recording;
  recording.ranks = ranks;
  for (int call = 0; call < calls; ++call) {
    const test::Bits bits = heavy ? test::heavy_tailed(random, DataType::kBf16, ranks, elements)
                                  : test::gaussian(random, DataType::kBf16, ranks, elements);
    auto& to = recording.calls.emplace_back();
    for (const auto& rank : bits) to.emplace_back(rank.begin(), rank.end());
  }
  return recording;
}

}  // namespace

TEST_CASE("study: what the kernels can do comes out as the reference does it") {
  study::Recording recording = record(true, 3, 6, 4 * kTileElements);
  recording.hidden = 1024;
  for (const study::Option& option : study::all_options()) {
    if (option.rounding != study::Rounding::kSymmetric) continue;
    CAPTURE(option.name);
    const study::Outcome got = study::run(recording, option);
    ReferenceSetup setup;
    setup.ranks = 3;
    setup.codec = option.codec;
    setup.compensation = option.compensation;
    setup.compensation.channels = recording.hidden;
    setup.capacity = 4 * kTileElements;
    ReferenceAllReduce all(setup);
    for (std::size_t call = 0; call < recording.calls.size(); ++call) {
      test::Bits send;
      for (const auto& rank : recording.calls[call]) send.emplace_back(rank.begin(), rank.end());
      all.call(send, call == 0);
      const double want =
          test::sqnr_db(test::exact_sum(DataType::kBf16, send), test::values(DataType::kBf16, all.output(0)));
      CHECK(got.sqnr_db[call] == doctest::Approx(want).epsilon(0.001));
    }
  }
}

TEST_CASE("study: drift removes what grows faster than a random walk, and nothing else") {
  const auto options = study::all_options();
  const auto grown = [&](study::Recording recording, const std::string& name) {
    recording.hidden = 1024;
    for (const study::Option& option : options) {
      if (option.name == name) return study::run(recording, option).accumulated.back();
    }
    FAIL("no option " << name);
    return 0.0;
  };
  const study::Recording heavy = record(true, 4, 64, 32 * kTileElements);
  CHECK(grown(heavy, "int4 g32, drift") < 0.8 * grown(heavy, "int4 g32, none"));
  CHECK(grown(heavy, "int4 g32, drift") > 2 * grown(heavy, "int4 g32, both"));
  const study::Recording gaussian = record(false, 4, 64, 32 * kTileElements);
  CHECK(grown(gaussian, "int4 g32, drift") ==
        doctest::Approx(grown(gaussian, "int4 g32, none")).epsilon(0.05));
}

TEST_CASE("study: a rotation spreads outliers, asymmetric levels follow a shifted group") {
  const study::Recording gaussian = record(false, 2, 1, 32 * kTileElements);
  const auto options = study::all_options();
  const auto first_sqnr = [&](const study::Recording& recording, const std::string& name) {
    for (const study::Option& option : options) {
      if (option.name == name) return study::run(recording, option).sqnr_db[0];
    }
    FAIL("no option " << name);
    return 0.0;
  };
  const double plain = first_sqnr(gaussian, "int4 g32, none");
  CHECK(first_sqnr(gaussian, "hadamard g32, none") == doctest::Approx(plain).epsilon(0.02));
  CHECK(first_sqnr(gaussian, "asymmetric g32, none") > plain + 0.3);
  CHECK(first_sqnr(gaussian, "int8 g32, none") > plain + 20);

  study::Option asymmetric{"", {4, 32, 4}, study::Rounding::kAsymmetric, {}};
  study::Option rotated{"", {4, 32, 4}, study::Rounding::kHadamard, {}};
  std::vector<float> u(32, 1.0f), decoded(32);
  u[5] = 100;  // alone, it would leave no step for the others
  study::round_group(rotated, 4, u.data(), decoded.data());
  CHECK(decoded[5] == doctest::Approx(100).epsilon(0.05));
  for (int i = 0; i < 32; ++i) u[i] = 50 + 0.01f * static_cast<float>(i);
  study::round_group(asymmetric, 4, u.data(), decoded.data());
  for (int i = 0; i < 32; ++i) CHECK(std::fabs(decoded[i] - u[i]) < 0.5f);
}
