// SPDX-License-Identifier: Apache-2.0
// SECTION: the rows of one process as a profile holds them, and how they become part of a Trace: kernels are
// joined to the collectives that launched them, CUPTI's event records to the CUDA calls, and all is put into
// order.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profiles/trace.hpp"
#include "profiles/trace_encode.hpp"

namespace echotp {

/// A call whose indices are still local to its section.
struct SectionCall {
  std::uint64_t id = 0;
  std::int64_t launch = kUnknown;
  CollectiveCall call;
};

/// One process while it is being read. Graph nodes are indices into the section's names.
struct Section {
  std::int32_t process = -1;           // index into Trace::processes
  std::vector<DeviceOp> ops;           // in file order: the ordinal that LinkKind::kOp speaks of
  std::vector<std::int64_t> op_nodes;  // interned node of each op; kUnknown: none
  std::vector<HostApi> apis;
  std::vector<SyncRow> syncs;
  std::vector<SectionCall> calls;
  std::vector<LinkRow> links;
  std::vector<Range> ranges;
};

/// Joins, sorts and appends `section` to `trace`. Links that point nowhere are ignored: a crash may have cut
/// their target.
void append_section(Section section, Trace& trace);

}  // namespace echotp
