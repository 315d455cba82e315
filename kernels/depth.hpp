// SPDX-License-Identifier: Apache-2.0
// DEPTH STUDY: what the accumulated error E_L does over L calls, from the scalar reference on synthetic
// activations. E_L is the sum over the calls of (output - exact sum), element by element: the error of a
// residual stream after L all-reduces.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reference.hpp"

namespace echotp {

enum class Activations : std::uint8_t { kGaussian, kHeavyTailed };

/// One line of the study.
struct DepthSetup {
  /// capacity is set by accumulated_error().
  ReferenceSetup collective;
  Activations activations = Activations::kGaussian;
  std::int64_t elements = 8192;  // of a call; a multiple of kSyntheticChannels
  int calls = 128;               // of the pass
  unsigned seed = 1;
};

/// RMS of E_L over the elements, [calls]: of all elements in units of the RMS of the exact sums, or with
/// heavy tails of those of non-outlier channels in units of the RMS of these.
std::vector<double> accumulated_error(const DepthSetup& setup);

}  // namespace echotp
