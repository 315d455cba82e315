// SPDX-License-Identifier: Apache-2.0
// The scalar reference. Roundings are done by arithmetic on doubles (every product of two floats is exact in
// a double), not by the bit tricks of the code under test.
#include "kernels/reference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace echotp {
namespace {

/// Rounds to a binary format with `precision` significant bits whose smallest normal is 2^min_exponent, ties
/// to even.
double round_to_format(double x, int precision, int min_exponent) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double quantum = std::ldexp(1.0, exponent - precision + 1);
  return std::nearbyint(x / quantum) * quantum;
}

double round_bf16(double x) {
  const double rounded = round_to_format(x, 8, -126);
  return std::fabs(rounded) >= 0x1p128 ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

/// Bits of a value that is already representable as bf16 (or Inf).
std::uint16_t bf16_bits(double x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
}

float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t fp16_bits(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(round_to_format(value, 11, -14));
  if (magnitude >= 65536) return static_cast<std::uint16_t>(sign | 0x7C00);
  if (magnitude < 0x1p-14) return static_cast<std::uint16_t>(sign | static_cast<int>(magnitude * 0x1p24));
  const int exponent = std::ilogb(magnitude);
  const int mantissa = static_cast<int>(std::ldexp(magnitude, 10 - exponent)) - 1024;
  return static_cast<std::uint16_t>(sign | ((exponent + 15) << 10) | mantissa);
}

float fp16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  double magnitude = 0;
  if (exponent == 31) {
    magnitude =
        mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

/// Where the 4-bit code of an element of a tile lies: of eight neighbours, 0 2 4 6 1 3 5 7 from the lowest
/// nibble of four bytes to the highest.
struct NibblePlace {
  explicit NibblePlace(std::int64_t position)
      : byte(position / 8 * 4 + position % 8 / 4 + (position % 2 == 0 ? 0 : 2)), high(position % 4 >= 2) {}

  std::int64_t byte;
  bool high;
};

/// Round to nearest even of a*b, without rounding the product first.
double nearest_of_product(float a, float b) {
  return std::nearbyint(static_cast<double>(a) * b);
}

}  // namespace

float ReferenceAllReduce::value_of(DataType type, std::uint32_t bits) {
  switch (type) {
    case DataType::kBf16:
      return bf16_value(static_cast<std::uint16_t>(bits));
    case DataType::kFp16:
      return fp16_value(static_cast<std::uint16_t>(bits));
    case DataType::kFp32:
      break;
  }
  return std::bit_cast<float>(bits);
}

std::uint32_t ReferenceAllReduce::bits_of(DataType type, float value) {
  switch (type) {
    case DataType::kBf16:
      return std::isnan(value) ? 0x7FFF : bf16_bits(round_bf16(value));
    case DataType::kFp16:
      return fp16_bits(value);
    case DataType::kFp32:
      break;
  }
  return std::isnan(value) ? 0x7FFFFFFFu : std::bit_cast<std::uint32_t>(value);
}

ReferenceAllReduce::ReferenceAllReduce(const ReferenceSetup& setup) : setup_(setup) {
  state_.resize(setup.ranks);
  const auto elements = static_cast<std::size_t>(setup.capacity);
  const bool dual = setup.compensation.b != 0;
  for (ReferenceState& state : state_) {
    if (setup.compensation.mode == CompensationMode::kDrift) {
      const auto channels = static_cast<std::size_t>(setup.compensation.channels);
      const std::vector<float> zero(channels, 0);
      state.as_sender = state.as_owner = {zero, zero, std::vector<std::uint32_t>(channels, 0)};
      continue;
    }
    if (setup.compensation.state != StateFormat::kFp32) state.unit.assign(elements / setup.codec.group, 0);
    switch (setup.compensation.state) {
      case StateFormat::kFp32:
        state.fast32.assign(elements, 0);
        if (dual) state.slow32.assign(elements, 0);
        break;
      case StateFormat::kFp16:
        state.fast16.assign(elements, 0);
        if (dual) state.slow16.assign(elements, 0);
        break;
      case StateFormat::kInt8:
        state.fast8.assign(elements, 0);
        if (dual) state.slow8.assign(elements, 0);
        break;
    }
  }
}

ReferenceAllReduce::Rounded ReferenceAllReduce::round_group(const std::vector<float>& u, int bits) const {
  const int lowest = -(1 << (bits - 1)) + (setup_.symmetric_range ? 1 : 0);
  const int highest = (1 << (bits - 1)) - 1;
  // Beyond this the lowest code times the scale would overflow; within 8 bits' resolution of it a code would.
  const double scale_max = 0x1.FEp127 / -lowest;
  const double largest = bits == 8 ? 0x1.FFFCp127 : std::numeric_limits<double>::infinity();
  Rounded result;
  float high = -std::numeric_limits<float>::infinity();
  float low = std::numeric_limits<float>::infinity();
  for (float value : u) {
    result.finite = result.finite && std::isfinite(value) && std::fabs(value) < largest;
    high = std::max(high, value);
    low = std::min(low, value);
  }
  if (!result.finite) {
    result.scale_bits = 0x7FC0;
    result.codes.assign(u.size(), -lowest - 1);
    result.decoded.assign(u.size(), std::numeric_limits<float>::quiet_NaN());
    return result;
  }
  const float extremum = -low >= high ? low : high;
  double scale = round_bf16(extremum / static_cast<double>(lowest));
  if (std::fabs(scale) > scale_max) scale = std::copysign(scale_max, scale);
  if (std::fabs(scale) < static_cast<double>(1e-30f)) {
    result.codes.assign(u.size(), 0);
    result.decoded.assign(u.size(), 0.0f);
    return result;
  }
  result.scale_bits = bf16_bits(scale);
  const auto inverse =
      bits == 4 ? static_cast<float>(round_bf16(1.0 / scale)) : 1.0f / static_cast<float>(scale);
  for (float value : u) {
    const double code = std::clamp<double>(nearest_of_product(value, inverse), lowest, highest);
    result.codes.push_back(static_cast<int>(code));
    // An integer zero times a negative scale is minus zero, as in IEEE arithmetic.
    result.decoded.push_back(static_cast<float>(static_cast<int>(code)) * static_cast<float>(scale));
  }
  return result;
}

float ReferenceAllReduce::load_state(int rank, std::int64_t index, std::vector<float>& fast,
                                     std::vector<float>& slow) const {
  const ReferenceState& state = state_[rank];
  const bool dual = setup_.compensation.b != 0;
  for (std::size_t i = 0; i < fast.size(); ++i) {
    const auto at = static_cast<std::size_t>(index) + i;
    switch (setup_.compensation.state) {
      case StateFormat::kFp32:
        fast[i] = state.fast32[at];
        if (dual) slow[i] = state.slow32[at];
        break;
      case StateFormat::kFp16:
        fast[i] = fp16_value(state.fast16[at]);
        if (dual) slow[i] = fp16_value(state.slow16[at]);
        break;
      case StateFormat::kInt8:
        fast[i] = static_cast<float>(state.fast8[at]);
        if (dual) slow[i] = static_cast<float>(state.slow8[at]);
        break;
    }
  }
  return state.unit.empty() ? 1.0f
                            : bf16_value(state.unit[static_cast<std::size_t>(index) / setup_.codec.group]);
}

void ReferenceAllReduce::store_state(int rank, std::int64_t index, const std::vector<float>& fast,
                                     const std::vector<float>& slow) {
  ReferenceState& state = state_[rank];
  const bool dual = setup_.compensation.b != 0;
  const StateFormat format = setup_.compensation.state;
  float inverse = 0;
  if (format != StateFormat::kFp32) {
    float largest = 0;
    for (float value : fast) largest = std::max(largest, std::fabs(value));
    for (float value : slow) largest = dual ? std::max(largest, std::fabs(value)) : largest;
    double unit = 0;
    if (largest >= 1e-30f) {
      const float target = format == StateFormat::kInt8 ? largest * (1.0f / 127.0f) : largest;
      unit = round_bf16(target);
      if (unit < target) unit += std::ldexp(1.0, std::max(std::ilogb(target), -126) - 7);
      unit = std::min(unit, 0x1p126);
      inverse = 1.0f / static_cast<float>(unit);
    }
    state.unit[static_cast<std::size_t>(index) / setup_.codec.group] = bf16_bits(unit);
  }
  const auto int8_of = [&](float v) {
    return static_cast<std::int8_t>(std::clamp(nearest_of_product(v, inverse), -127.0, 127.0));
  };
  for (std::size_t i = 0; i < fast.size(); ++i) {
    const auto at = static_cast<std::size_t>(index) + i;
    switch (format) {
      case StateFormat::kFp32:
        state.fast32[at] = fast[i];
        if (dual) state.slow32[at] = slow[i];
        break;
      case StateFormat::kFp16:
        state.fast16[at] = fp16_bits(fast[i] * inverse);
        if (dual) state.slow16[at] = fp16_bits(slow[i] * inverse);
        break;
      case StateFormat::kInt8:
        state.fast8[at] = int8_of(fast[i]);
        if (dual) state.slow8[at] = int8_of(slow[i]);
        break;
    }
  }
}

ReferenceAllReduce::Rounded ReferenceAllReduce::compensate(int rank, std::int64_t state_index,
                                                           bool compensated, bool pass_start, bool owner,
                                                           const std::vector<float>& x) {
  const Compensation& how = setup_.compensation;
  std::vector<float> fast(x.size(), 0.0f);
  std::vector<float> slow(x.size(), 0.0f);
  std::vector<float> u = x;
  float unit = 1.0f;
  if (compensated) {
    if (!pass_start) unit = load_state(rank, state_index, fast, slow);
    float absmax = 0;
    for (float value : x) absmax = std::max(absmax, std::fabs(value));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float of_fast = how.a * unit;
      const float of_slow = how.b * unit;
      float c = how.b != 0 ? std::fma(of_fast, fast[i], of_slow * slow[i]) : of_fast * fast[i];
      if (!(c >= -absmax)) c = -absmax;
      if (c > absmax) c = absmax;
      u[i] = x[i] + c;
      if (std::isfinite(x[i]) && !std::isfinite(u[i])) {
        u[i] = std::copysign(std::numeric_limits<float>::max(), u[i]);
      }
    }
  }
  Rounded rounded = round_group(u, leg_bits(setup_.codec, owner ? Leg::kSecond : Leg::kFirst));
  if (!compensated) return rounded;
  if (!rounded.finite) {
    if (pass_start) store_state(rank, state_index, fast, slow);
    return rounded;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float decoded =
        owner ? value_of(setup_.dtype, bits_of(setup_.dtype, rounded.decoded[i])) : rounded.decoded[i];
    float residual = setup_.output_error_feedback ? x[i] - decoded : u[i] - decoded;
    if (!std::isfinite(residual)) residual = 0;
    const float keep_fast = how.bf * unit;
    const float keep_slow = how.bs * unit;
    fast[i] = how.bf == 0 ? residual : std::fma(1.0f - how.bf, residual, keep_fast * fast[i]);
    if (how.b != 0) slow[i] = std::fma(1.0f - how.bs, residual, keep_slow * slow[i]);
  }
  store_state(rank, state_index, fast, slow);
  return rounded;
}

ReferenceAllReduce::Rounded ReferenceAllReduce::drift(int rank, std::int64_t index, bool owner,
                                                      const std::vector<float>& x, float* errors) {
  const std::vector<float>& estimate =
      owner ? state_[rank].as_owner.estimate : state_[rank].as_sender.estimate;
  float absmax = 0;
  for (float value : x) absmax = std::max(absmax, std::fabs(value));
  std::vector<float> u = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t channel = (static_cast<std::size_t>(index) + i) % estimate.size();
    u[i] = x[i] + std::max(-absmax, std::min(absmax, estimate[channel]));
    if (std::isfinite(x[i]) && !std::isfinite(u[i])) {
      u[i] = std::copysign(std::numeric_limits<float>::max(), u[i]);
    }
  }
  Rounded rounded = round_group(u, leg_bits(setup_.codec, owner ? Leg::kSecond : Leg::kFirst));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float decoded =
        owner ? value_of(setup_.dtype, bits_of(setup_.dtype, rounded.decoded[i])) : rounded.decoded[i];
    const float error = x[i] - decoded;
    errors[i] = std::isfinite(error) ? error : 0;
  }
  return rounded;
}

void ReferenceAllReduce::follow_drift(int rank, bool owner, std::int64_t first, std::int64_t count, bool last,
                                      const std::vector<float>& errors) {
  ReferenceDrift& state = owner ? state_[rank].as_owner : state_[rank].as_sender;
  const auto channels = static_cast<std::int64_t>(state.estimate.size());
  const std::int64_t first_row = first / channels;
  const std::int64_t rows = (first + count + channels - 1) / channels - first_row;
  const std::int64_t run_rows = (rows + 31) / 32;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const auto at = static_cast<std::size_t>(channel);
    if (first == 0) {
      state.sum[at] = 0;
      state.tokens[at] = 0;
    }
    for (std::int64_t begin = 0; begin < rows; begin += run_rows) {
      float sum = 0;
      for (std::int64_t row = begin; row < std::min(begin + run_rows, rows); ++row) {
        const std::int64_t element = (first_row + row) * channels + channel - first;
        if (element < 0 || element >= count) continue;
        if ((element / kTileElements % setup_.ranks == rank) != owner) continue;
        sum += errors[static_cast<std::size_t>(element)];
        ++state.tokens[at];
      }
      state.sum[at] += sum;
    }
    if (!last || state.tokens[at] == 0) continue;
    const float mean = state.sum[at] / static_cast<float>(state.tokens[at]);
    const float next = std::fma(setup_.compensation.gain, mean, state.estimate[at]);
    if (std::isfinite(next)) state.estimate[at] = next;
  }
}

void ReferenceAllReduce::put(std::vector<std::uint8_t>& wire, Leg leg, std::int64_t tile_offset, int element,
                             const Rounded& group) const {
  const int bits = leg_bits(setup_.codec, leg);
  for (std::size_t i = 0; i < group.codes.size(); ++i) {
    const std::int64_t position = element + static_cast<std::int64_t>(i);
    const int stored = group.codes[i] + (1 << (bits - 1));
    if (bits == 8) {
      wire[static_cast<std::size_t>(tile_offset + position)] = static_cast<std::uint8_t>(stored);
    } else {
      const NibblePlace place(position);
      std::uint8_t& byte = wire[static_cast<std::size_t>(tile_offset + place.byte)];
      byte = static_cast<std::uint8_t>(place.high ? (byte & 0x0F) | (stored << 4) : (byte & 0xF0) | stored);
    }
  }
  const auto at =
      static_cast<std::size_t>(tile_offset + tile_code_bytes(bits) + element / setup_.codec.group * 2);
  wire[at] = static_cast<std::uint8_t>(group.scale_bits & 0xFF);
  wire[at + 1] = static_cast<std::uint8_t>(group.scale_bits >> 8);
}

std::vector<float> ReferenceAllReduce::get(const std::vector<std::uint8_t>& wire, Leg leg,
                                           std::int64_t tile_offset, int element) const {
  const int bits = leg_bits(setup_.codec, leg);
  const auto at =
      static_cast<std::size_t>(tile_offset + tile_code_bytes(bits) + element / setup_.codec.group * 2);
  const float scale = bf16_value(static_cast<std::uint16_t>(wire[at] | (wire[at + 1] << 8)));
  std::vector<float> values(static_cast<std::size_t>(setup_.codec.group));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t position = element + static_cast<std::int64_t>(i);
    const NibblePlace place(position);
    const int byte = wire[static_cast<std::size_t>(tile_offset + (bits == 8 ? position : place.byte))];
    const int stored = bits == 8 ? byte : place.high ? byte >> 4 : byte & 15;
    values[i] = static_cast<float>(stored - (1 << (bits - 1))) * scale;
  }
  return values;
}

void ReferenceAllReduce::call(const std::vector<std::vector<std::uint32_t>>& send, bool pass_start,
                              std::int64_t first, std::int64_t message) {
  const int ranks = setup_.ranks;
  const int group = setup_.codec.group;
  const auto count = static_cast<std::int64_t>(send[0].size());
  const auto wire_size = [&](Leg leg) {
    return static_cast<std::size_t>(segment_bytes(count, ranks, setup_.codec, leg) * ranks);
  };
  outbox_.assign(ranks, std::vector<std::uint8_t>(wire_size(Leg::kFirst), 0));
  gathered_.assign(wire_size(Leg::kSecond), 0);
  output_.assign(ranks, std::vector<std::uint32_t>(static_cast<std::size_t>(count), 0));

  const bool last = message == 0 || first + count == message;
  const bool drifts = setup_.compensation.mode == CompensationMode::kDrift &&
                      (message == 0 ? first + count : message) % setup_.compensation.channels == 0;
  std::vector<std::vector<float>> errors(
      drifts ? ranks : 0, std::vector<float>(static_cast<std::size_t>(tile_count(count) * kTileElements)));

  const auto input = [&](int rank, std::int64_t start) {
    std::vector<float> x(static_cast<std::size_t>(group), 0.0f);
    for (int i = 0; i < group && start + i < count; ++i) {
      x[i] = value_of(setup_.dtype, send[rank][static_cast<std::size_t>(start + i)]);
    }
    return x;
  };

  for (std::int64_t tile = 0; tile < tile_count(count); ++tile) {
    const int owner = static_cast<int>(tile % ranks);
    const auto tile_offset = [&](Leg leg) {
      return owner * segment_bytes(count, ranks, setup_.codec, leg) +
             tile / ranks * tile_bytes(setup_.codec, leg);
    };
    const std::int64_t state_tile = first + tile * kTileElements;
    const bool has_state = state_tile + kTileElements <= setup_.capacity;
    const bool sender_state = has_state && setup_.compensation.mode == CompensationMode::kBoth;
    const bool owner_state = has_state && (setup_.compensation.mode == CompensationMode::kOwner ||
                                           setup_.compensation.mode == CompensationMode::kBoth);
    const auto round = [&](int rank, bool owned, std::int64_t start, const std::vector<float>& x) {
      if (drifts) return drift(rank, first + start, owned, x, errors[rank].data() + start);
      return compensate(rank, first + start, owned ? owner_state : sender_state, pass_start, owned, x);
    };
    for (int element = 0; element < kTileElements; element += group) {
      const std::int64_t start = tile * kTileElements + element;
      for (int p = 0; p < ranks; ++p) {
        if (p == owner) continue;
        put(outbox_[p], Leg::kFirst, tile_offset(Leg::kFirst), element,
            round(p, false, start, input(p, start)));
      }
      std::vector<float> sum(static_cast<std::size_t>(group), 0.0f);
      for (int p = 0; p < ranks; ++p) {
        const std::vector<float> term =
            p == owner ? input(p, start) : get(outbox_[p], Leg::kFirst, tile_offset(Leg::kFirst), element);
        for (int i = 0; i < group; ++i) sum[i] = p == 0 ? term[i] : sum[i] + term[i];
      }
      for (float& value : sum) value *= setup_.post_scale;
      const Rounded reduced = round(owner, true, start, sum);
      if (!reduced.finite) ++nonfinite_groups_;
      put(gathered_, Leg::kSecond, tile_offset(Leg::kSecond), element, reduced);
      const std::vector<float> decoded = get(gathered_, Leg::kSecond, tile_offset(Leg::kSecond), element);
      for (int p = 0; p < ranks; ++p) {
        for (int i = 0; i < group && start + i < count; ++i) {
          output_[p][static_cast<std::size_t>(start + i)] = bits_of(setup_.dtype, decoded[i]);
        }
      }
    }
  }
  for (int p = 0; drifts && p < ranks; ++p) {
    for (const bool owner : {false, true}) follow_drift(p, owner, first, count, last, errors[p]);
  }
}

}  // namespace echotp
