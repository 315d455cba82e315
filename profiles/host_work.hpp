// SPDX-License-Identifier: Apache-2.0
// HOST WORK: how fast the host was at its best. Recording makes CUDA calls longer, and NCCL's threads take
// cores while the host launches, so the host of a faster step may need less time than it was seen to need.
// The best that was recorded at the same place of a step bounds by how much. Pure.
#pragma once

#include <vector>

#include "profiles/launches.hpp"
#include "profiles/steps.hpp"
#include "profiles/timeline.hpp"
#include "profiles/trace.hpp"

namespace echotp {

/// By host call, the factor in (0, 1] that takes its work (the call, and what the thread did before it) to
/// the fast end of what was recorded: the 10% quantile over all used steps and ranks of the work between the
/// same two collectives of a step. 1 where nothing can be compared. Empty: no host calls were recorded.
std::vector<float> fast_host_factors(const Trace& trace, const Timeline& timeline, const Launches& launches,
                                     const Steps& steps);

}  // namespace echotp
