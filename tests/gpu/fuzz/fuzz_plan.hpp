// SPDX-License-Identifier: Apache-2.0
// FUZZ PLAN: the random collectives of a fuzz run and what they must give. Pure and the same on all ranks:
// every rank draws the same calls from the seed, computes every rank's input, and so knows each result
// without asking.
//
// Inputs are small whole numbers, chosen so that NCCL's result is exact in every type and order of summation:
// a result that is not exact was compressed. It must then be one that may be compressed, lie within the
// codec's bound, and be the same on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace echotp::fuzz {

/// splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// Uniform in [0, bound); bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool chance(int percent) { return static_cast<int>(below(100)) < percent; }

 private:
  std::uint64_t state_;
};

enum class Type {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFp16,
  kFp32,
  kFp64,
  kBf16
};  // as in nccl.h
enum class Op {
  kSum,
  kProd,
  kMax,
  kMin,
  kAvg,
  kDouble
};  // the first five as in nccl.h; kDouble: pre-multiplied by 2
enum class Kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kRing
};  // kRing: send to the next rank

std::size_t bytes_of(Type type);
const char* name_of(Type type);
const char* name_of(Op op);
const char* name_of(Kind kind);

struct Call {
  Kind kind = Kind::kAllReduce;
  Type type = Type::kBf16;
  Op op = Op::kSum;
  std::size_t count = 0;  // elements that a rank sends; of a reduce-scatter, that it gets
  int root = 0;
  bool in_place = false;
  int communicator = 0;  // index into the run's list
  int stream = 0;
  std::uint64_t id = 0;  // seeds the input
};

/// What is enqueued between two checks.
struct Batch {
  std::vector<Call> calls;
  std::vector<int> group_ends;  // indices behind the last call of each group; calls outside are groups of one
  bool captured = false;        // all in one stream, recorded into a graph and replayed
  int replays = 0;
  bool resplit = false;  // afterwards the split communicators are made anew
};

struct Limits {
  int communicators = 1;
  int streams = 1;
  std::size_t most_bytes = 4u << 20;  // that a rank sends in a call
};

Batch draw(Random& random, const Limits& limits, std::uint64_t first_id);

/// Element `index` of what `rank` puts into a call; `replay` changes it. A whole number, at most 8 in size.
int input(const Call& call, int replay, int rank, std::size_t index, int ranks);

/// Element `index` of what `rank` must get. False: it gets nothing there (a reduce at another rank than the
/// root).
bool expected(const Call& call, int replay, int rank, std::size_t index, int ranks, double& value);

/// Elements that `rank` sends and gets.
std::size_t send_count(const Call& call, int ranks);
std::size_t receive_count(const Call& call, int ranks);

/// Whether a policy over bf16, fp16 and fp32, sum and avg, from `min_bytes` on may compress it.
bool may_compress(const Call& call, std::size_t min_bytes, int ranks);

/// Bounds of the error of a compressed call, any element and root mean square. With inputs of at most M = 8 a
/// sender's residual stays below M/7 (a step is an eighth of the largest value, itself at most M plus a
/// residual), the owner's below a seventh of what it adds up; a correction is at most a residual.
struct Bound {
  double largest;
  double rms;
};
Bound bound_of(const Call& call, int ranks);

/// One line for people.
std::string describe(const Call& call);

/// Numbers of `type` from and to doubles that it holds exactly.
void store(Type type, void* buffer, std::size_t index, double value);
double load(Type type, const void* buffer, std::size_t index);

}  // namespace echotp::fuzz
