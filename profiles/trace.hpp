// SPDX-License-Identifier: Apache-2.0
// TRACE: a profile in memory. Types only; reading and writing files is trace_file.hpp. Times are nanoseconds
// of the host's CLOCK_REALTIME, the clock that CUPTI reports in; unknown is std::nullopt or -1, never 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace echotp {

enum class DeviceOpKind : std::uint8_t { kKernel, kMemcpy, kMemset };

/// Something that ran on a GPU stream.
struct DeviceOp {
  std::int32_t process = -1;  // index into Trace::processes
  DeviceOpKind kind = DeviceOpKind::kKernel;
  std::int32_t name = -1;  // index into Trace::names
  std::uint32_t device = 0;
  std::uint32_t stream = 0;  // CUPTI stream id, unique in the process
  std::int64_t start_ns = -1;
  std::int64_t end_ns = -1;
  std::uint32_t correlation = 0;  // of the host call that launched it; 0: unknown
  std::int64_t bytes = -1;        // copies and memsets
  std::uint64_t graph_node = 0;   // non-zero: ran as this node of a CUDA graph
  std::int32_t call = -1;         // index into Trace::calls when this kernel carries a collective
};

enum class HostApiKind : std::uint8_t {
  kLaunch,
  kGraphLaunch,
  kMemcpy,
  kMemset,
  kEventRecord,
  kStreamWaitEvent,
  kEventSynchronize,
  kStreamSynchronize,
  kDeviceSynchronize,
};

/// A CUDA call of the host that shapes the timeline.
struct HostApi {
  std::int32_t process = -1;
  HostApiKind kind = HostApiKind::kLaunch;
  std::uint32_t thread = 0;  // gettid
  std::int64_t start_ns = -1;
  std::int64_t end_ns = -1;
  std::uint32_t correlation = 0;
  std::uint32_t stream =
      0;  // event record, stream wait, stream synchronise: CUPTI stream id; 0xffffffff unknown
  std::uint32_t event = 0;  // CUPTI event id of record, wait and synchronise; 0: none
  std::uint64_t event_sync =
      0;  // CUPTI's cudaEventSyncId: pairs a wait with the record it waited for; 0: none
};

/// A communicator, across all processes that recorded it.
struct Communicator {
  std::uint64_t hash = 0;  // NCCL's commHash: equal on all ranks
  std::string name;
  std::int32_t ranks = 0;                     // 0: unknown
  std::vector<std::int32_t> rank_of_process;  // by process index; -1: not a member or unknown
};

/// One collective as one rank's host issued it.
struct CollectiveCall {
  std::int32_t process = -1;
  std::int32_t communicator = -1;  // index into Trace::communicators
  std::string function;            // "AllReduce", "AllGather", ...
  std::int64_t count = -1;         // elements
  std::string dtype;               // "bf16", "fp16", "fp32", "fp64", "int32", ...; empty: unknown
  std::string op;                  // "sum", "avg", "max", ...; empty: unknown or not a reduction
  std::int64_t bytes = -1;
  std::uint64_t stream_handle = 0;  // the cudaStream_t value; 0 is the legacy default stream
  std::uint32_t thread = 0;
  std::int64_t host_start_ns = -1;
  std::int64_t host_end_ns = -1;
  std::int64_t sequence = -1;     // ordinal of this function's calls on the communicator: equal on all ranks
  bool captured = false;          // recorded into a CUDA graph
  std::int32_t group_size = 1;    // collectives that shared one launch
  std::vector<std::int32_t> ops;  // indices into Trace::device_ops, empty when no kernel was seen
};

/// A named range of a host thread (NVTX): step markers, NCCL's own ranges are not repeated here.
struct Range {
  std::int32_t process = -1;
  std::uint32_t thread = 0;
  std::int32_t name = -1;
  std::int64_t start_ns = -1;
  std::int64_t end_ns = -1;
};

/// One recorded process.
struct Process {
  std::string host;
  std::int32_t pid = -1;
  std::int32_t rank = -1;  // of the largest communicator; -1: none seen
  std::string program;     // argv, joined
  std::string gpu;         // "NVIDIA H200"
  std::string gpu_uuid;
  std::string driver;
  std::string cuda;
  std::string nccl;
  std::vector<std::string> tiers;  // evidence: "nvtx", "nccl_profiler", "cupti"
  std::vector<std::string> notes;  // what could not be recorded and why
  std::int64_t dropped_records = 0;
  bool complete = false;  // the process ended in order; false: killed or crashed, readable up to there
  std::vector<std::pair<std::string, std::string>>
      environment;                     // allow-listed variables of the job: NCCL_*, CUDA_*
  std::optional<double> traced_ratio;  // traced step time / untraced step time; unset: not measured
};

/// Marks a trace that was cut out of a longer one.
struct Excerpt {
  std::int64_t of_steps = 0;  // steps of the whole recording
};

struct Trace {
  std::vector<Process> processes;
  std::vector<std::string> names;
  std::vector<Communicator> communicators;
  std::vector<CollectiveCall> calls;  // per process in host order
  std::vector<DeviceOp> device_ops;   // per process and stream in start order
  std::vector<HostApi> host_apis;     // per process in start order
  std::vector<Range> ranges;
  std::vector<std::string> command;  // of `echo-tp profile`
  bool mixed_commands = false;       // several recordings of different commands were put together
  std::optional<Excerpt> excerpt;
  std::int64_t truncated_frames = 0;  // frames at the end of a file that a crash cut
};

}  // namespace echotp
