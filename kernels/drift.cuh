// SPDX-License-Identifier: Apache-2.0
// Mode drift on one item: corrects by the estimates of the channels, rounds, and leaves every element's error
// where staged_drift.cu adds them up. Each group lies inside one token, because the channels are a multiple
// of it, and so do the eight elements of a lane.
#pragma once

#include <cstdint>

#include "kernels/warp.cuh"

namespace echotp::device {

/// A lane's eight elements of the present slice among the channels and among the chunk's errors. Nothing in
/// the other modes.
template <Memory M>
struct DriftCursor {
  __device__ __forceinline__ DriftCursor(const DriftView& /*view*/, const Item& /*item*/, Role /*role*/,
                                         int /*lane*/) {}
};
template <>
struct DriftCursor<Memory::kDrift> {
  const float* estimate;  // [channels]
  float* error;
  std::uint32_t channels;
  std::uint32_t channel;  // of the first of the eight

  /// At the item's first slice.
  __device__ __forceinline__ DriftCursor(const DriftView& view, const Item& item, Role role, int lane)
      : estimate(view.estimate + (role == Role::kOwner ? view.channels : 0)),
        error(view.error + item.first + lane * kLaneElements),
        channels(static_cast<std::uint32_t>(view.channels)),
        channel(static_cast<std::uint32_t>(static_cast<std::uint64_t>(item.entry + lane * kLaneElements) %
                                           channels)) {}
  /// To the next slice.
  __device__ __forceinline__ void advance() {
    error += kSliceElements;
    channel = (channel + kSliceElements) % channels;
  }
};

/// Corrects x, rounds, stores the errors, and moves the cursor on. `out` are the elements that go to the user
/// (owner only).
template <DataType D, bool Four, bool Owner>
__device__ __forceinline__ void round_drifting(const float (&x)[8], const Geometry& geometry,
                                               DriftCursor<Memory::kDrift>& cursor, Rounding& result,
                                               std::uint32_t (&out)[kElementWords<D>]) {
  float top = fabsf(x[0]);
#pragma unroll
  for (int i = 1; i < 8; ++i) top = max_nan(top, fabsf(x[i]));
  const float limit = __uint_as_float(group_max<kGroupLanes>(__float_as_uint(top), geometry.lanes));
  std::uint32_t estimates[8];
  load_words(cursor.estimate + cursor.channel, estimates);
  float u[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) u[i] = corrected(x[i], clamp_symmetric(__uint_as_float(estimates[i]), limit));

  const CodeWidth width = width_of<Four>(geometry);
  result.scale = group_scale(extremum_of(group_key(u, geometry.lanes)), width);
  float encoded[8];
  encode_lane(u, result.scale.inverse, width, encoded, result.codes);
  float decoded[8];
  if constexpr (Owner) {
    decode_own<D, Four>(result, geometry, out);
    unpack_elements<D>(out, decoded);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) decoded[i] = __fmul_rn(code_of(encoded[i], width), result.scale.scale);
  }
  std::uint32_t errors[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) errors[i] = __float_as_uint(drift_error(x[i], decoded[i]));
  store_words(cursor.error, errors);
  cursor.advance();
}

}  // namespace echotp::device
