// SPDX-License-Identifier: Apache-2.0
// Scalar reference of the compensated two-shot all-reduce: all ranks in one process, one element after the
// other, written apart from the codec and the kernels so that it can judge them bit for bit. Slow on purpose.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tile.hpp"
#include "kernels/types.hpp"

namespace echotp {

/// What stays the same over the calls of one simulated communicator.
struct ReferenceSetup {
  int ranks = 1;
  DataType dtype = DataType::kBf16;
  Codec codec;
  Compensation compensation;
  float post_scale = 1.0f;
  std::int64_t capacity = 0;  // state elements of every rank, a multiple of kTileElements; 0: no state
  /// Negative control for tests: feed the plain output error (input - decoded) back instead of the residual.
  bool output_error_feedback = false;
  /// For comparison with published tables: codes from -7 to 7 (-127 to 127), the scale is a seventh (127th)
  /// of the largest magnitude. Nothing else does this.
  bool symmetric_range = false;
};

/// Estimates of mode drift of one rank in one role, [channels] each, and the sums they will follow.
struct ReferenceDrift {
  std::vector<float> estimate;
  std::vector<float> sum;
  std::vector<std::uint32_t> tokens;
};

/// Estimates of one rank. fp32 keeps `fast`/`slow` as values; fp16 and int8 as entries in units of `unit`
/// (bf16 bits).
struct ReferenceState {
  std::vector<float> fast32, slow32;
  std::vector<std::uint16_t> fast16, slow16;
  std::vector<std::int8_t> fast8, slow8;
  std::vector<std::uint16_t> unit;
  ReferenceDrift as_sender, as_owner;  // mode drift alone
};

/// P ranks that all-reduce. Elements are passed as raw bits (in the low bits of a word for the 16-bit types).
class ReferenceAllReduce {
 public:
  explicit ReferenceAllReduce(const ReferenceSetup& setup);

  /// Changes the width of the codes from the next call on; estimates stay.
  void set_bits(int first_leg, int second_leg) {
    setup_.codec.first_leg_bits = first_leg;
    setup_.codec.bits = second_leg;
  }

  /// One call, or one chunk of it that starts at element `first` (a multiple of ranks * kTileElements) of the
  /// message. send[p] are the elements of rank p, all of the same size. `message` are the elements of the
  /// whole message; 0: it ends with this chunk. Afterwards the accessors below describe this call.
  void call(const std::vector<std::vector<std::uint32_t>>& send, bool pass_start, std::int64_t first = 0,
            std::int64_t message = 0);

  /// Bytes that rank p put together for each owner, [ranks][segment_bytes]; tiles that nothing was written to
  /// are zero.
  const std::vector<std::uint8_t>& outbox(int rank) const { return outbox_[rank]; }
  /// Reduced segments, [ranks][segment_bytes], the same on every rank.
  const std::vector<std::uint8_t>& gathered() const { return gathered_; }
  /// Elements that rank p ends up with, as raw bits.
  const std::vector<std::uint32_t>& output(int rank) const { return output_[rank]; }
  /// Estimates of rank p.
  ReferenceState& state(int rank) { return state_[rank]; }
  /// Groups, counted by their owners over all calls, that became NaN.
  std::uint64_t nonfinite_groups() const { return nonfinite_groups_; }

  /// Value of an element's raw bits, and the raw bits of a value (to nearest even; NaN is 0x7FFF or
  /// 0x7FFFFFFF).
  static float value_of(DataType type, std::uint32_t bits);
  static std::uint32_t bits_of(DataType type, float value);

 private:
  struct Rounded {
    std::vector<int> codes;
    std::uint16_t scale_bits = 0;
    std::vector<float> decoded;
    bool finite = true;
  };
  Rounded round_group(const std::vector<float>& u, int bits) const;
  Rounded compensate(int rank, std::int64_t state_index, bool compensated, bool pass_start, bool owner,
                     const std::vector<float>& x);
  /// Rounds a group that begins at element `index` of the message, and notes its errors in `errors`.
  Rounded drift(int rank, std::int64_t index, bool owner, const std::vector<float>& x, float* errors);
  /// Adds up the errors of a chunk, and lets the estimates follow if it is the last of its message.
  void follow_drift(int rank, bool owner, std::int64_t first, std::int64_t count, bool last,
                    const std::vector<float>& errors);
  /// Entries as stored; returns what one of them is worth.
  float load_state(int rank, std::int64_t index, std::vector<float>& fast, std::vector<float>& slow) const;
  void store_state(int rank, std::int64_t index, const std::vector<float>& fast,
                   const std::vector<float>& slow);
  void put(std::vector<std::uint8_t>& wire, Leg leg, std::int64_t tile_offset, int element,
           const Rounded& group) const;
  std::vector<float> get(const std::vector<std::uint8_t>& wire, Leg leg, std::int64_t tile_offset,
                         int element) const;

  ReferenceSetup setup_;
  std::vector<ReferenceState> state_;
  std::vector<std::vector<std::uint8_t>> outbox_;
  std::vector<std::uint8_t> gathered_;
  std::vector<std::vector<std::uint32_t>> output_;
  std::uint64_t nonfinite_groups_ = 0;
};

}  // namespace echotp
