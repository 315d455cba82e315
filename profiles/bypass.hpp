// SPDX-License-Identifier: Apache-2.0
// BYPASS: all-reduce kernels that frameworks run without NCCL. Echo does not see them; the framework's own
// switch can send them back to NCCL. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/collectives.hpp"
#include "profiles/trace.hpp"

namespace echotp {

struct BypassKind {
  std::string_view framework;
  std::string_view how_to_switch_off;
};

/// The kind of a kernel, by its name, mangled or not; null: no bypass that is known.
const BypassKind* bypass_kind(std::string_view kernel);

struct BypassUse {
  std::int32_t name = -1;  // index into Trace::names
  const BypassKind* kind = nullptr;
  std::int64_t calls = 0;
  double total_ns = 0;  // over all processes
};

/// Bypassing kernels of a trace, most time first. Kernels that carry a recorded NCCL call are none.
std::vector<BypassUse> find_bypass(const Trace& trace, const DeviceTimes& times, const CollectiveSet& set);

/// By index into Trace::names: whether a kernel of that name bypasses NCCL.
std::vector<bool> bypass_names(const Trace& trace);

}  // namespace echotp
