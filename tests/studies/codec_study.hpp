// SPDX-License-Identifier: Apache-2.0
// Offline study of codecs and compensation on recorded all-reduce inputs: the two-shot collective with any
// rounding of a group, so that codecs can be compared that no kernel has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/types.hpp"

namespace echotp::study {

/// How a group is rounded.
enum class Rounding {
  kSymmetric,   // what the kernels do
  kAsymmetric,  // 16 levels from the group's smallest to its largest value, both as bf16
  kHadamard,    // a normalised Hadamard transform of every 32 values, then kSymmetric
};

/// One thing to try.
struct Option {
  std::string name;
  Codec codec;
  Rounding rounding = Rounding::kSymmetric;
  Compensation compensation;  // with mode drift the channels are the recording's

  /// Average over both legs, scales included, in bits an element.
  double wire_bits() const;
};

/// What one option does to one recorded pass; one value a call.
struct Outcome {
  std::vector<double> sqnr_db;       // of the call's output
  std::vector<double> accumulated;   // RMS of the summed error so far, in units of the RMS of all exact sums
  std::vector<double> stream_error;  // RMS of the summed error over RMS of the summed exact outputs
};

/// A recorded pass: [calls][ranks][elements] as raw bf16.
struct Recording {
  int ranks = 0;
  int hidden = 0;  // channels: element i belongs to channel i mod hidden; 0: unknown, and mode drift
                   // corrects nothing
  std::vector<std::vector<std::vector<std::uint16_t>>> calls;
};

/// Rounds `group` values in place of `u` as `option` does on a leg of codes of `bits` bits.
void round_group(const Option& option, int bits, const float* u, float* decoded);

/// Runs the whole pass. Elements beyond the last whole group are left out.
Outcome run(const Recording& recording, const Option& option);

/// Every option that is worth a row.
std::vector<Option> all_options();

}  // namespace echotp::study
