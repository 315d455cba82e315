// SPDX-License-Identifier: Apache-2.0
// EXCERPT: whole steps cut out of a recording, small enough to share, marked as what they are. Pure.
#pragma once

#include <cstdint>

#include "profiles/trace.hpp"
#include "shim/result.hpp"

namespace echotp {

/// Steps `first` .. `first + count - 1` of all ranks, counted from 0: their kernels, collectives, CUDA calls
/// and ranges. The steps must be named by ranges. Fails with kBadInput if they are not, or are fewer; and as
/// study_trace().
Result<Trace> excerpt_of_steps(const Trace& trace, std::int32_t first, std::int32_t count);

/// Leaves the folders out of the command and of the processes' programs.
void strip_folders(Trace& trace);

}  // namespace echotp
