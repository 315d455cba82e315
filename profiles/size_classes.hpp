// SPDX-License-Identifier: Apache-2.0
// SIZE CLASSES: collectives grouped by function, data type, operator, ranks and message size, with what each
// group costs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiles/study.hpp"

namespace echotp {

struct MessageClass {
  std::string function;
  std::string dtype;
  std::string op;
  std::int64_t bytes = -1;         // largest of the class
  std::int64_t min_bytes = -1;     // smallest of the class
  std::int32_t communicator = -1;  // -1: several, or unknown
  std::int32_t ranks = 0;
  std::vector<std::int32_t> collectives;  // all of them
  std::int64_t used = 0;                  // with times, in used steps
  std::int64_t timed = 0;                 // with times
  bool partial = false;                   // some had missing ranks: the wait is not known
  // Nanoseconds, means over the recorded ranks, over the used steps and over everything.
  struct Times {
    double total = 0, wait = 0, transfer = 0, exposed = 0;
  };
  Times in_steps, in_all;
  double median_transfer_ns = 0;  // of one call
};

/// Step of a collective; -1: outside, or no kernel.
std::int32_t step_of(const Study& study, const Collective& collective);

/// Groups the collectives, largest total time first. Up to kMostSizes sizes of one kind are told apart; more
/// are pooled by powers of two. `by_communicator`: also by communicator.
std::vector<MessageClass> size_classes(const Trace& trace, const Study& study, bool by_communicator);

/// The same without device times: counts only.
std::vector<MessageClass> size_classes_without_times(const Trace& trace, const CollectiveSet& set);

inline constexpr std::size_t kMostSizes = 48;

/// Scenario in which the transfer of these collectives takes no time.
Scenario free_transfer(const Study& study, const std::vector<std::int32_t>& collectives);

}  // namespace echotp
