// SPDX-License-Identifier: Apache-2.0
// PASS: where one forward or one backward begins. Compensation state belongs to one pass; it reads as zero on
// the first call of the next. Pure bookkeeping of one communicator. A missed or a false boundary costs
// accuracy of about one rounding on this rank; it never makes ranks differ.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "shim/policy.hpp"

namespace echotp {

/// Where a call stands in its pass.
struct PassPosition {
  int direction = 0;  // 0: the thread that issued first (forward); 1: any other thread (backward)
  bool pass_start = false;
  bool last_call = false;  // the last of rule.calls, by a count that is the same on all ranks
};

class PassTracker {
 public:
  /// Places the next compressed call. `thread` is the issuing thread, `capture` the id of a graph capture or
  /// 0.
  PassPosition place(const PassRule& rule, std::uint64_t thread, std::int64_t count, DataType dtype,
                     std::uint64_t capture) noexcept;

  /// Another collective ran on the communicator: ends the pass when the rule names it.
  void other_collective(const PassRule& rule, std::string_view kind) noexcept;

  std::int64_t passes() const noexcept { return passes_; }

 private:
  struct Direction {
    bool open = false;
    std::int64_t calls = 0;
    std::int64_t count = -1;
    DataType dtype = DataType::kBf16;
    std::uint64_t capture = 0;
  };
  std::array<Direction, 2> directions_;
  // Calls since something happened that happens on all ranks alike: never of threads, captures or states.
  std::int64_t common_calls_ = 0;
  std::int64_t common_count_ = -1;
  DataType common_dtype_ = DataType::kBf16;
  bool has_forward_thread_ = false;
  std::uint64_t forward_thread_ = 0;
  int last_direction_ = -1;
  std::int64_t passes_ = 0;
};

}  // namespace echotp
