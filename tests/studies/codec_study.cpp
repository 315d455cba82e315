// SPDX-License-Identifier: Apache-2.0
#include "tests/studies/codec_study.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/codec.hpp"
#include "kernels/compensator.hpp"
#include "kernels/tile.hpp"

namespace echotp::study {

namespace {

constexpr int kHadamard = 32;

void hadamard(float* x) {
  for (int half = 1; half < kHadamard; half *= 2) {
    for (int i = 0; i < kHadamard; i += 2 * half) {
      for (int j = i; j < i + half; ++j) {
        const float a = x[j];
        const float b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(kHadamard));
  for (int i = 0; i < kHadamard; ++i) x[i] *= norm;
}

void round_asymmetric(const float* u, int group, int bits, float* decoded) {
  const auto [low, high] = std::minmax_element(u, u + group);
  const float levels = static_cast<float>((1 << bits) - 1);
  const float zero = bf16_to_float(float_to_bf16(*low));
  const float step = bf16_to_float(float_to_bf16((*high - zero) / levels));
  for (int i = 0; i < group; ++i) {
    const float code = step > 0 ? std::clamp(std::nearbyint((u[i] - zero) / step), 0.0f, levels) : 0.0f;
    decoded[i] = zero + code * step;
  }
}

/// Estimates of one quantiser of one element range, stored as the option says.
struct Estimates {
  std::vector<float> fast, slow;
};

/// What a group's estimates become by being stored.
void store(StateFormat format, float* fast, float* slow, int group) {
  if (format == StateFormat::kFp32) return;
  float largest = 0;
  for (int i = 0; i < group; ++i) largest = std::max({largest, std::fabs(fast[i]), std::fabs(slow[i])});
  const std::uint16_t unit = state_unit(format, largest);
  const float inverse = state_inverse(unit);
  for (float* estimate : {fast, slow}) {
    for (int i = 0; i < group; ++i) {
      const float entry = format == StateFormat::kInt8
                              ? bits_float(state_to_int8(estimate[i], inverse)) - kStateMagic
                              : fp16_to_float(state_to_fp16(estimate[i], inverse));
      estimate[i] = entry * bf16_to_float(unit);
    }
  }
}

/// One rounding of a group with its compensation; `owner` rounds to bf16 as the output is.
void round_compensated(const Option& option, bool compensated, bool owner, const float* x, float* fast,
                       float* slow, float* decoded) {
  const int group = option.codec.group;
  const Coefficients k = coefficients(option.compensation);
  std::vector<float> u(x, x + group);
  if (compensated) {
    float limit = 0;
    for (int i = 0; i < group; ++i) limit = std::max(limit, std::fabs(x[i]));
    for (int i = 0; i < group; ++i)
      u[i] = corrected(x[i], clamp_symmetric(correction(k, fast[i], slow[i]), limit));
  }
  round_group(option, leg_bits(option.codec, owner ? Leg::kSecond : Leg::kFirst), u.data(), decoded);
  if (owner) {
    for (int i = 0; i < group; ++i) decoded[i] = bf16_to_float(float_to_bf16(decoded[i]));
  }
  if (!compensated) return;
  for (int i = 0; i < group; ++i) {
    const float residual = usable_residual(u[i] - decoded[i]);
    fast[i] = follow_fast(k, k.bf == 0, fast[i], residual);
    slow[i] = k.b != 0 ? follow_slow(k, slow[i], residual) : 0.0f;
  }
  store(option.compensation.state, fast, slow, group);
}

/// Estimates a channel of one quantiser (mode drift).
class Drift {
 public:
  explicit Drift(int channels) : estimate_(channels, 0), sum_(channels, 0), tokens_(channels, 0) {}

  /// One rounding of a group that begins at element `start`.
  void round(const Option& option, bool owner, std::size_t start, const float* x, float* decoded) {
    const int group = option.codec.group;
    float limit = 0;
    for (int i = 0; i < group; ++i) limit = std::max(limit, std::fabs(x[i]));
    std::vector<float> u(x, x + group);
    for (int i = 0; i < group; ++i)
      u[i] = corrected(x[i], clamp_symmetric(estimate_[channel(start + i)], limit));
    round_compensated(option, false, owner, u.data(), nullptr, nullptr, decoded);
    for (int i = 0; i < group; ++i) {
      sum_[channel(start + i)] += drift_error(x[i], decoded[i]);
      ++tokens_[channel(start + i)];
    }
  }
  void end_call(float gain) {
    for (std::size_t c = 0; c < sum_.size(); ++c) {
      estimate_[c] = follow_drift(estimate_[c], gain, sum_[c], tokens_[c]);
      sum_[c] = 0;
      tokens_[c] = 0;
    }
  }

 private:
  std::size_t channel(std::size_t element) const { return element % estimate_.size(); }

  std::vector<float> estimate_, sum_;
  std::vector<std::uint32_t> tokens_;
};

double root_mean_square(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return x.empty() ? 0 : std::sqrt(sum / static_cast<double>(x.size()));
}

}  // namespace

double Option::wire_bits() const {
  const double scales = (rounding == Rounding::kAsymmetric ? 32.0 : 16.0) / codec.group;
  return (codec.bits + codec.first_leg_bits) / 2.0 + scales;
}

void round_group(const Option& option, int bits, const float* u, float* decoded) {
  const int group = option.codec.group;
  if (option.rounding == Rounding::kAsymmetric) {
    round_asymmetric(u, group, bits, decoded);
    return;
  }
  std::vector<float> values(u, u + group);
  const bool rotated = option.rounding == Rounding::kHadamard;
  for (int i = 0; rotated && i < group; i += kHadamard) hadamard(values.data() + i);
  std::vector<std::uint8_t> codes(group);
  std::uint16_t scale = 0;
  encode_group(values.data(), group, codes.data(), &scale, bits);
  decode_group(codes.data(), scale, group, decoded, bits);
  for (int i = 0; rotated && i < group; i += kHadamard) hadamard(decoded + i);
}

Outcome run(const Recording& recording, const Option& option) {
  const int ranks = recording.ranks;
  const int group = option.codec.group;
  const std::size_t elements = recording.calls.at(0).at(0).size() / group * group;
  const CompensationMode mode = option.compensation.mode;
  // Sender's and owner's ranges of a rank never overlap, but here every quantiser has its own array.
  std::vector<Estimates> estimates(ranks);
  for (Estimates& one : estimates) one.fast.assign(elements, 0), one.slow.assign(elements, 0);

  const bool drift = mode == CompensationMode::kDrift && recording.hidden > 0;
  std::vector<Drift> senders(ranks, Drift(drift ? recording.hidden : 1));
  std::vector<Drift> owners = senders;

  Outcome outcome;
  std::vector<double> error(elements, 0);
  std::vector<double> stream(elements, 0);
  double power = 0;
  std::vector<float> x(group), sum(group), decoded(group);
  for (const auto& call : recording.calls) {
    std::vector<double> exact(elements, 0);
    std::vector<double> wrong(elements, 0);
    for (std::size_t start = 0; start < elements; start += group) {
      const int owner = static_cast<int>(start / kTileElements % static_cast<std::size_t>(ranks));
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int p = 0; p < ranks; ++p) {
        for (int i = 0; i < group; ++i) {
          x[i] = bf16_to_float(call[p][start + i]);
          exact[start + i] += x[i];
        }
        if (p == owner) {
          decoded = x;
        } else if (drift) {
          senders[p].round(option, false, start, x.data(), decoded.data());
        } else {
          round_compensated(option, mode == CompensationMode::kBoth, false, x.data(),
                            estimates[p].fast.data() + start, estimates[p].slow.data() + start,
                            decoded.data());
        }
        for (int i = 0; i < group; ++i) sum[i] += decoded[i];
      }
      if (drift) {
        owners[owner].round(option, true, start, sum.data(), decoded.data());
      } else {
        round_compensated(option, mode == CompensationMode::kOwner || mode == CompensationMode::kBoth, true,
                          sum.data(), estimates[owner].fast.data() + start,
                          estimates[owner].slow.data() + start, decoded.data());
      }
      for (int i = 0; i < group; ++i) wrong[start + i] = decoded[i] - exact[start + i];
    }
    for (Drift& state : senders) state.end_call(option.compensation.gain);
    for (Drift& state : owners) state.end_call(option.compensation.gain);
    for (std::size_t i = 0; i < elements; ++i) {
      error[i] += wrong[i];
      stream[i] += exact[i];
    }
    const double signal = root_mean_square(exact);
    power += signal * signal;
    outcome.sqnr_db.push_back(20 * std::log10(signal / root_mean_square(wrong)));
    outcome.accumulated.push_back(root_mean_square(error));
    outcome.stream_error.push_back(root_mean_square(error) / root_mean_square(stream));
  }
  const double unit = std::sqrt(power / static_cast<double>(recording.calls.size()));
  for (double& value : outcome.accumulated) value /= unit;
  return outcome;
}

std::vector<Option> all_options() {
  const auto compensation = [](CompensationMode mode, float a, float bf, float b, StateFormat state) {
    return Compensation{mode, a, bf, b, 0.9f, state};
  };
  const struct {
    const char* name;
    Compensation how;
  } modes[] = {
      {"none", compensation(CompensationMode::kNone, 1, 0, 0, StateFormat::kFp32)},
      {"owner", compensation(CompensationMode::kOwner, 0.9f, 0, 0.1f, StateFormat::kInt8)},
      {"ef", compensation(CompensationMode::kBoth, 1, 0, 0, StateFormat::kInt8)},
      {"both", compensation(CompensationMode::kBoth, 0.9f, 0, 0.1f, StateFormat::kInt8)},
      {"both fp32", compensation(CompensationMode::kBoth, 0.9f, 0, 0.1f, StateFormat::kFp32)},
      {"smooth", compensation(CompensationMode::kBoth, 0.75f, 0.25f, 0.25f, StateFormat::kInt8)},
      {"drift", compensation(CompensationMode::kDrift, 1, 0, 0, StateFormat::kFp32)},
  };
  const struct {
    const char* name;
    Codec codec;
    Rounding rounding;
  } codecs[] = {
      {"int4 g32", {4, 32, 4}, Rounding::kSymmetric},
      {"int4 g64", {4, 64, 4}, Rounding::kSymmetric},
      {"int4 g128", {4, 128, 4}, Rounding::kSymmetric},
      {"int8+4 g32", {4, 32, 8}, Rounding::kSymmetric},
      {"int8+4 g64", {4, 64, 8}, Rounding::kSymmetric},
      {"int8+4 g128", {4, 128, 8}, Rounding::kSymmetric},
      {"int8 g32", {8, 32, 8}, Rounding::kSymmetric},
      {"asymmetric g32", {4, 32, 4}, Rounding::kAsymmetric},
      {"asymmetric g64", {4, 64, 4}, Rounding::kAsymmetric},
      {"asymmetric g128", {4, 128, 4}, Rounding::kAsymmetric},
      {"hadamard g32", {4, 32, 4}, Rounding::kHadamard},
      {"hadamard g64", {4, 64, 4}, Rounding::kHadamard},
      {"hadamard g128", {4, 128, 4}, Rounding::kHadamard},
  };
  std::vector<Option> options;
  for (const auto& codec : codecs) {
    for (const auto& mode : modes) {
      options.push_back({std::string(codec.name) + ", " + mode.name, codec.codec, codec.rounding, mode.how});
    }
  }
  return options;
}

}  // namespace echotp::study
