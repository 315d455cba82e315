// SPDX-License-Identifier: Apache-2.0
// Tile geometry: the one place that knows how a message is cut up and where its bytes lie on the wire.
//
// A message of `count` elements is cut into tiles of 2048. Tile t belongs to rank t mod P (block-cyclic: the
// owner of an element depends on its position alone, never on the message size). A segment is all tiles of
// one owner, in order. A tile on the wire: 2048 codes of 4 bits (1024 bytes, code + 8 stored; of eight
// neighbours in four bytes, elements 0 2 4 6 1 3 5 7 from the lowest nibble to the highest) or of 8 bits
// (2048 bytes in the order of the elements, code + 128 stored), then 2048/group scales in bf16. The two legs
// of a call, to the owners and back, may have codes of different width. The last tile is padded with zeros
// and travels whole.
#pragma once

#include <cstdint>

#include "kernels/types.hpp"

namespace echotp {

inline constexpr int kTileElements = 2048;
inline constexpr int kMaxRanks =
    64;  // of the staged path; bounded by nothing but the size of the argument struct

/// The two trips of a message: senders to owners, and owners to all.
enum class Leg { kFirst, kSecond };

/// Width of a code on a leg, in bits.
constexpr int leg_bits(const Codec& codec, Leg leg) {
  return leg == Leg::kFirst ? codec.first_leg_bits : codec.bits;
}

/// Bytes of one tile on the wire: codes, then scales.
constexpr int tile_code_bytes(int bits) {
  return kTileElements / 8 * bits;
}
constexpr int tile_scale_bytes(int group) {
  return kTileElements / group * 2;
}
constexpr int tile_bytes(const Codec& codec, Leg leg) {
  return tile_code_bytes(leg_bits(codec, leg)) + tile_scale_bytes(codec.group);
}

/// Tiles that hold `count` elements, the last one possibly partial.
constexpr std::int64_t tile_count(std::int64_t count) {
  return (count + kTileElements - 1) / kTileElements;
}

/// Tiles of every owner's segment; the same for all owners (short segments are padded with unused tiles).
constexpr std::int64_t segment_tiles(std::int64_t count, int ranks) {
  return (tile_count(count) + ranks - 1) / ranks;
}

/// Bytes of one segment on the wire.
constexpr std::int64_t segment_bytes(std::int64_t count, int ranks, const Codec& codec, Leg leg) {
  return segment_tiles(count, ranks) * tile_bytes(codec, leg);
}

/// Bytes that one rank sends for one all-reduce, both legs: (P-1) segments to their owners, its own segment
/// to P-1 peers. Codes and scales; flags and protocol headers of the transport are not counted.
constexpr std::int64_t wire_bytes(std::int64_t count, int ranks, const Codec& codec) {
  return (ranks - 1) *
         (segment_bytes(count, ranks, codec, Leg::kFirst) + segment_bytes(count, ranks, codec, Leg::kSecond));
}

}  // namespace echotp
