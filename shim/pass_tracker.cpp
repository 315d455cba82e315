// SPDX-License-Identifier: Apache-2.0
#include "shim/pass_tracker.hpp"

#include <algorithm>

namespace echotp {

PassPosition PassTracker::place(const PassRule& rule, std::uint64_t thread, std::int64_t count,
                                DataType dtype, std::uint64_t capture) noexcept {
  PassPosition position;
  if (rule.direction == DirectionSource::kThread) {
    if (!has_forward_thread_) {
      has_forward_thread_ = true;
      forward_thread_ = thread;
    }
    position.direction = thread == forward_thread_ ? 0 : 1;
  }
  Direction& direction = directions_[static_cast<std::size_t>(position.direction)];
  // A change of direction opens a new pass: a backward follows its forward and the next forward is another
  // step.
  position.pass_start = !direction.open || position.direction != last_direction_ ||
                        count != direction.count || dtype != direction.dtype ||
                        capture != direction.capture || (rule.calls && direction.calls >= *rule.calls);
  if (position.pass_start) {
    direction = {true, 0, count, dtype, capture};
    ++passes_;
  }
  ++direction.calls;
  if (count != common_count_ || dtype != common_dtype_) common_calls_ = 0;
  common_count_ = count;
  common_dtype_ = dtype;
  ++common_calls_;
  position.last_call = rule.calls && common_calls_ % *rule.calls == 0;
  last_direction_ = position.direction;
  return position;
}

void PassTracker::other_collective(const PassRule& rule, std::string_view kind) noexcept {
  if (std::find(rule.resync.begin(), rule.resync.end(), kind) == rule.resync.end()) return;
  for (Direction& direction : directions_) direction.open = false;
  // These two involve some ranks only.
  if (kind != "send" && kind != "recv") common_calls_ = 0;
}

}  // namespace echotp
