// SPDX-License-Identifier: Apache-2.0
// CALLS: from NCCL's two voices (NVTX payload and profiler plugin) and the launches in between to one record
// a collective. All functions work on the log of the calling thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "profiles/recorder_log.hpp"

namespace echotp::recorder {

class Recorder;

/// What either voice knows about a call; -1, 0 and null are unknown.
struct CallFacts {
  const char* function = nullptr;  // immortal, "AllReduce"
  std::uint64_t communicator = 0;
  std::int64_t count = -1;
  std::int64_t bytes = -1;
  const char* dtype = nullptr;
  const char* op = nullptr;
  std::uint64_t stream = 0;
  bool stream_known = false;
  bool captured = false;
};

/// "AllReduce" for "ncclAllReduce" or "AllReduce": an immortal string, the same pointer for equal names.
const char* immortal_function(std::string_view name);
/// "bf16" for "ncclBfloat16"; the name itself without "nccl" where it is new; null for null.
const char* dtype_name(const char* nccl_name);
/// Bytes of one element of `dtype`; 0: unknown.
std::int64_t dtype_bytes(const char* dtype);
/// "sum" for ncclSum and so on; "custom" for operators that the job made.
const char* op_name(std::uint64_t nccl_op);

void nvtx_call_begin(Recorder& recorder, ThreadLog& log, const CallFacts& facts, std::int64_t start_ns);
void nvtx_call_end(Recorder& recorder, ThreadLog& log, std::int64_t end_ns);
void nvtx_group_start_end(ThreadLog& log);
void nvtx_group_end_end(Recorder& recorder, ThreadLog& log, std::int64_t end_ns);

/// The plugin's event of a call: completes the call that NVTX has opened, or opens one.
void plugin_call(Recorder& recorder, ThreadLog& log, const CallFacts& facts);
/// The outermost group of this thread has ended: calls opened by the plugin are complete.
void plugin_group_end(Recorder& recorder, ThreadLog& log);
/// A plugin event that comes after the launch (NCCL before 2.28).
void plugin_call_after_launch(Recorder& recorder, ThreadLog& log, const CallFacts& facts);

/// A kernel named like NCCL's is being launched with this correlation id.
void nccl_launch(Recorder& recorder, ThreadLog& log, std::uint32_t correlation);
/// That launch was captured: the kernel became this node of a graph.
void nccl_graph_node(Recorder& recorder, ThreadLog& log, std::uint64_t node);

}  // namespace echotp::recorder
