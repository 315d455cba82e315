// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/fuzz/fuzz_plan.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

namespace echotp::fuzz {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

bool is_float(Type type) {
  return type == Type::kFp16 || type == Type::kFp32 || type == Type::kFp64 || type == Type::kBf16;
}

bool is_unsigned(Type type) {
  return type == Type::kUint8 || type == Type::kUint32 || type == Type::kUint64;
}

// IEEE half precision of a number that it holds exactly (normal or zero).
std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) == 0) return static_cast<std::uint16_t>(bits >> 16);
  const std::uint32_t exponent = ((bits >> 23) & 0xff) - 127 + 15;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | exponent << 10 | (bits >> 13 & 0x3ffu));
}

float from_half(std::uint16_t half) {
  const std::uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half & 0x8000 ? -1.f : 1.f;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
}

template <class T>
void put(void* buffer, std::size_t index, T value) {
  std::memcpy(static_cast<char*>(buffer) + index * sizeof value, &value, sizeof value);
}

template <class T>
T get(const void* buffer, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(buffer) + index * sizeof value, sizeof value);
  return value;
}

double reduce(Op op, double sum, double next) {
  switch (op) {
    case Op::kProd:
      return sum * next;
    case Op::kMax:
      return std::max(sum, next);
    case Op::kMin:
      return std::min(sum, next);
    default:
      return sum + next;
  }
}

// Few elements as often as many; odd counts as often as round ones.
std::size_t draw_count(Random& random, std::size_t most) {
  if (random.chance(3)) return 0;
  const int powers = static_cast<int>(std::bit_width(most)) - 1;
  const std::size_t base = std::size_t{1} << random.below(static_cast<std::uint64_t>(powers) + 1);
  return random.chance(50) ? base : std::min(most, base + random.below(base));
}

Call draw_call(Random& random, const Limits& limits, std::uint64_t id) {
  Call call;
  // Mostly what may be compressed: that is where bugs would be ours.
  constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kAllReduce, Kind::kAllReduce,
                             Kind::kAllReduce,     Kind::kReduce,    Kind::kBroadcast,
                             Kind::kReduceScatter, Kind::kAllGather, Kind::kRing};
  constexpr Type kLikely[] = {Type::kBf16, Type::kFp16, Type::kFp32};
  call.kind = kKinds[random.below(std::size(kKinds))];
  call.type =
      random.chance(65) ? kLikely[random.below(std::size(kLikely))] : static_cast<Type>(random.below(10));
  call.op = random.chance(65) ? Op::kSum : static_cast<Op>(random.below(6));
  // NCCL divides whole numbers towards zero: no matter for us. And user-defined operators are for
  // all-reduces.
  if ((call.op == Op::kAvg || call.op == Op::kDouble) && !is_float(call.type)) call.op = Op::kSum;
  if (call.op == Op::kDouble && call.kind != Kind::kAllReduce) call.op = Op::kSum;
  call.count = draw_count(random, limits.most_bytes / bytes_of(call.type));
  call.in_place = random.chance(50);
  call.communicator = static_cast<int>(random.below(static_cast<std::uint64_t>(limits.communicators)));
  call.stream = static_cast<int>(random.below(static_cast<std::uint64_t>(limits.streams)));
  call.root = static_cast<int>(random.below(64));  // modulo the communicator's ranks
  call.id = id;
  return call;
}

}  // namespace

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  return mix(state_);
}

std::size_t bytes_of(Type type) {
  constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[static_cast<int>(type)];
}

const char* name_of(Type type) {
  constexpr const char* kNames[] = {"int8",   "uint8", "int32", "uint32", "int64",
                                    "uint64", "fp16",  "fp32",  "fp64",   "bf16"};
  return kNames[static_cast<int>(type)];
}

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg", "sum of doubles"};
  return kNames[static_cast<int>(op)];
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"all-reduce", "reduce",         "broadcast",
                                    "all-gather", "reduce-scatter", "send and receive"};
  return kNames[static_cast<int>(kind)];
}

Batch draw(Random& random, const Limits& limits, std::uint64_t first_id) {
  Batch batch;
  batch.captured = random.chance(15);
  batch.replays = batch.captured ? 1 + static_cast<int>(random.below(3)) : 1;
  const int calls = 1 + static_cast<int>(random.below(batch.captured ? 4 : 12));
  const int stream = static_cast<int>(random.below(static_cast<std::uint64_t>(limits.streams)));
  int open = 0;       // calls that the group still takes
  bool pure = false;  // of all-reduces alone
  int communicator = 0;
  for (int i = 0; i < calls; ++i) {
    Call call = draw_call(random, limits, first_id + static_cast<std::uint64_t>(i));
    if (batch.captured) call.stream = stream;
    if (open == 0 && random.chance(35)) {
      open = 2 + static_cast<int>(random.below(4));
      pure = random.chance(50);
      communicator = random.chance(50) ? call.communicator : -1;
    }
    if (open > 0) {
      if (pure) call.kind = Kind::kAllReduce;
      if (call.op == Op::kDouble) call.op = Op::kSum;
      if (communicator >= 0) call.communicator = communicator;
    }
    batch.calls.push_back(call);
    if (open == 0 || --open == 0 || i + 1 == calls) {
      open = 0;
      batch.group_ends.push_back(i + 1);
    }
  }
  batch.resplit = random.chance(2);
  return batch;
}

int input(const Call& call, int replay, int rank, std::size_t index, int ranks) {
  const std::uint64_t hash = mix(
      call.id * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(replay) * 1000003 +
      static_cast<std::uint64_t>(rank) * 7919 + static_cast<std::uint64_t>(index) * 0xd1342543de82ef95ULL);
  if (call.op == Op::kProd) {
    // At most one rank has a 2 at each place: no product leaves any type's range.
    const int size = index % static_cast<std::size_t>(ranks) == static_cast<std::size_t>(rank) ? 2 : 1;
    return is_unsigned(call.type) || hash & 1 ? size : -size;
  }
  return is_unsigned(call.type) ? static_cast<int>(hash % 9) : static_cast<int>(hash % 17) - 8;
}

std::size_t send_count(const Call& call, int ranks) {
  return call.kind == Kind::kReduceScatter ? call.count * static_cast<std::size_t>(ranks) : call.count;
}

std::size_t receive_count(const Call& call, int ranks) {
  return call.kind == Kind::kAllGather ? call.count * static_cast<std::size_t>(ranks) : call.count;
}

bool expected(const Call& call, int replay, int rank, std::size_t index, int ranks, double& value) {
  const int root = call.root % ranks;
  switch (call.kind) {
    case Kind::kBroadcast:
      value = input(call, replay, root, index, ranks);
      return true;
    case Kind::kAllGather:
      value = input(call, replay, static_cast<int>(index / call.count), index % call.count, ranks);
      return true;
    case Kind::kRing:
      value = input(call, replay, (rank + ranks - 1) % ranks, index, ranks);
      return true;
    case Kind::kReduce:
      if (rank != root) return false;
      break;
    case Kind::kReduceScatter:
      index += static_cast<std::size_t>(rank) * call.count;
      break;
    case Kind::kAllReduce:
      break;
  }
  value = input(call, replay, 0, index, ranks);
  for (int other = 1; other < ranks; ++other)
    value = reduce(call.op, value, input(call, replay, other, index, ranks));
  if (call.op == Op::kAvg) value /= ranks;
  if (call.op == Op::kDouble) value *= 2;
  return true;
}

bool may_compress(const Call& call, std::size_t min_bytes, int ranks) {
  return call.kind == Kind::kAllReduce && ranks > 1 && (call.op == Op::kSum || call.op == Op::kAvg) &&
         (call.type == Type::kBf16 || call.type == Type::kFp16 || call.type == Type::kFp32) &&
         call.count * bytes_of(call.type) >= min_bytes;
}

Bound bound_of(const Call& call, int ranks) {
  constexpr double kScale = 1.02;  // scales are rounded to bf16, results to the type
  constexpr double kMost = 8;
  const double sender = kMost / 7 * kScale;
  const double owner = ranks * (kMost + sender) / 7 * kScale;
  double largest = 2 * (ranks * sender + owner);
  if (call.op == Op::kAvg) largest /= ranks;
  return {largest, largest / 4};
}

std::string describe(const Call& call) {
  return std::string(name_of(call.kind)) + " of " + std::to_string(call.count) + " " + name_of(call.type) +
         ", " + name_of(call.op) + (call.in_place ? ", in place" : "") + ", communicator " +
         std::to_string(call.communicator) + ", stream " + std::to_string(call.stream) + ", id " +
         std::to_string(call.id);
}

void store(Type type, void* buffer, std::size_t index, double value) {
  switch (type) {
    case Type::kInt8:
      return put(buffer, index, static_cast<std::int8_t>(value));
    case Type::kUint8:
      return put(buffer, index, static_cast<std::uint8_t>(value));
    case Type::kInt32:
      return put(buffer, index, static_cast<std::int32_t>(value));
    case Type::kUint32:
      return put(buffer, index, static_cast<std::uint32_t>(value));
    case Type::kInt64:
      return put(buffer, index, static_cast<std::int64_t>(value));
    case Type::kUint64:
      return put(buffer, index, static_cast<std::uint64_t>(value));
    case Type::kFp16:
      return put(buffer, index, to_half(static_cast<float>(value)));
    case Type::kFp32:
      return put(buffer, index, static_cast<float>(value));
    case Type::kFp64:
      return put(buffer, index, value);
    case Type::kBf16:
      return put(buffer, index,
                 static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
  }
}

double load(Type type, const void* buffer, std::size_t index) {
  switch (type) {
    case Type::kInt8:
      return get<std::int8_t>(buffer, index);
    case Type::kUint8:
      return get<std::uint8_t>(buffer, index);
    case Type::kInt32:
      return get<std::int32_t>(buffer, index);
    case Type::kUint32:
      return get<std::uint32_t>(buffer, index);
    case Type::kInt64:
      return static_cast<double>(get<std::int64_t>(buffer, index));
    case Type::kUint64:
      return static_cast<double>(get<std::uint64_t>(buffer, index));
    case Type::kFp16:
      return from_half(get<std::uint16_t>(buffer, index));
    case Type::kFp32:
      return get<float>(buffer, index);
    case Type::kFp64:
      return get<double>(buffer, index);
    case Type::kBf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(get<std::uint16_t>(buffer, index)) << 16);
  }
  return 0;
}

}  // namespace echotp::fuzz
