// SPDX-License-Identifier: Apache-2.0
// The state machine of one thread's collectives; see recorder_calls.hpp.
#include "profiles/recorder_calls.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>
#include <unordered_set>

#include "profiles/recorder.hpp"

namespace echotp::recorder {
namespace {

constexpr std::size_t kRecentLaunches = 64;
constexpr const char* kFunctionNames[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",
                                          "Send",      "Recv",      "AlltoAll",      "Gather",    "Scatter"};

struct Dtype {
  const char* nccl;
  const char* name;
  std::int64_t bytes;
};
constexpr Dtype kDtypes[] = {
    {"ncclBfloat16", "bf16", 2}, {"ncclFloat16", "fp16", 2},       {"ncclFloat32", "fp32", 4},
    {"ncclFloat64", "fp64", 8},  {"ncclInt8", "int8", 1},          {"ncclUint8", "uint8", 1},
    {"ncclInt32", "int32", 4},   {"ncclUint32", "uint32", 4},      {"ncclInt64", "int64", 8},
    {"ncclUint64", "uint64", 8}, {"ncclFloat8e4m3", "fp8e4m3", 1}, {"ncclFloat8e5m2", "fp8e5m2", 1},
};

/// A copy of `text` that lives as long as the process. Reached once for each new name.
const char* immortal(std::string_view text) {
  static std::mutex* mutex = new std::mutex;
  static auto* held = new std::unordered_set<std::string>;
  const std::lock_guard<std::mutex> lock(*mutex);
  return held->emplace(text.substr(0, 64)).first->c_str();
}

int function_index(const char* function) {
  for (std::size_t i = 0; i < std::size(kFunctionNames); ++i) {
    if (kFunctionNames[i] == function) return static_cast<int>(i);
  }
  return CommunicatorState::kFunctions - 1;
}

std::int64_t next_sequence(Recorder& recorder, ThreadLog& log, std::uint64_t hash, const char* function) {
  if (hash == 0 || !function) return -1;
  if (!log.communicator || log.communicator->hash != hash) log.communicator = &recorder.communicator(hash);
  return log.communicator->sequence[function_index(function)].fetch_add(1, std::memory_order_relaxed);
}

OpenCall& open_call(Recorder& recorder, ThreadLog& log, const CallFacts& facts, std::int64_t start_ns) {
  OpenCall call{};
  CallRecord& record = call.record;
  record.id = recorder.next_call_id();
  record.communicator = facts.communicator;
  record.stream = facts.stream;
  record.stream_known = facts.stream_known;
  record.count = facts.count;
  record.bytes = facts.bytes;
  record.start_ns = start_ns;
  record.end_ns = -1;
  record.sequence = next_sequence(recorder, log, facts.communicator, facts.function);
  record.function = facts.function;
  record.dtype = facts.dtype;
  record.op = facts.op;
  record.group_size = 1;
  record.captured = facts.captured;
  log.open.push_back(call);
  return log.open.back();
}

void push_link(Recorder& recorder, ThreadLog& log, LinkKind kind, std::uint64_t call, std::uint64_t target) {
  HostRecord record;
  record.kind = HostRecord::Kind::kLink;
  record.link = {kind, call, target};
  recorder.push(log, record);
}

/// Hands calls of one voice to the writer. Calls of a communicator that went into one group share its
/// launches.
void publish(Recorder& recorder, ThreadLog& log, bool from_nvtx, std::int64_t end_ns) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < log.open.size(); ++i) {
    if (log.open[i].from_nvtx != from_nvtx) continue;
    CallRecord& record = log.open[i].record;
    record.end_ns = end_ns;
    record.group_size =
        static_cast<std::int32_t>(std::count_if(log.open.begin(), log.open.end(), [&](const OpenCall& other) {
          return other.from_nvtx == from_nvtx && other.record.communicator == record.communicator;
        }));
    HostRecord out;
    out.kind = HostRecord::Kind::kCall;
    out.call = record;
    recorder.push(log, out);
  }
  for (std::size_t i = 0; i < log.open.size(); ++i) {
    if (log.open[i].from_nvtx != from_nvtx) log.open[kept++] = log.open[i];
  }
  log.open.resize(kept);
}

bool shares_launch(const ThreadLog& log, const OpenCall& call) {
  return log.launch_communicator == 0 || call.record.communicator == 0 ||
         call.record.communicator == log.launch_communicator;
}

bool is_reduction(const char* function) {
  return function && (std::strcmp(function, "AllReduce") == 0 || std::strcmp(function, "Reduce") == 0 ||
                      std::strcmp(function, "ReduceScatter") == 0);
}

void complete(Recorder& recorder, ThreadLog& log, OpenCall& call, const CallFacts& facts) {
  CallRecord& record = call.record;
  if (call.has_plugin_facts) return;
  call.has_plugin_facts = true;
  record.dtype = facts.dtype;
  if (record.function == facts.function) {
    record.count = facts.count;
  } else if (record.bytes >= 0 && dtype_bytes(facts.dtype) > 0) {
    // One call of NCCL that it carries out as sends and receives: the plugin tells those.
    record.count = record.bytes / dtype_bytes(facts.dtype);
  }
  if (record.bytes < 0 && record.count >= 0 && dtype_bytes(record.dtype) > 0)
    record.bytes = record.count * dtype_bytes(record.dtype);
  if (facts.stream_known) record.stream = facts.stream;
  record.stream_known = record.stream_known || facts.stream_known;
  record.captured = record.captured || facts.captured;
  if (record.communicator == 0 && facts.communicator != 0) {
    record.communicator = facts.communicator;
    record.sequence = next_sequence(recorder, log, facts.communicator, record.function);
  }
}

}  // namespace

const char* immortal_function(std::string_view name) {
  if (name.substr(0, 4) == "nccl") name.remove_prefix(4);
  for (const char* known : kFunctionNames) {
    if (name == known) return known;
  }
  if (name == "AllToAll") return "AlltoAll";
  return immortal(name);
}

const char* dtype_name(const char* nccl_name) {
  if (!nccl_name) return nullptr;
  for (const Dtype& dtype : kDtypes) {
    if (std::strcmp(dtype.nccl, nccl_name) == 0) return dtype.name;
  }
  std::string_view name(nccl_name);
  if (name.substr(0, 4) == "nccl") name.remove_prefix(4);
  return immortal(name);
}

std::int64_t dtype_bytes(const char* dtype) {
  for (const Dtype& known : kDtypes) {
    if (dtype && std::strcmp(known.name, dtype) == 0) return known.bytes;
  }
  return 0;
}

const char* op_name(std::uint64_t nccl_op) {
  static constexpr const char* kOps[] = {"sum", "prod", "max", "min", "avg"};
  return nccl_op < std::size(kOps) ? kOps[nccl_op] : "custom";
}

void nvtx_call_begin(Recorder& recorder, ThreadLog& log, const CallFacts& facts, std::int64_t start_ns) {
  open_call(recorder, log, facts, start_ns).from_nvtx = true;
}

void nvtx_call_end(Recorder& recorder, ThreadLog& log, std::int64_t end_ns) {
  if (log.group_depth == 0) publish(recorder, log, true, end_ns);
}

void nvtx_group_start_end(ThreadLog& log) {
  ++log.group_depth;
}

void nvtx_group_end_end(Recorder& recorder, ThreadLog& log, std::int64_t end_ns) {
  if (log.group_depth > 0) --log.group_depth;
  if (log.group_depth == 0) publish(recorder, log, true, end_ns);
}

void plugin_call(Recorder& recorder, ThreadLog& log, const CallFacts& facts) {
  const bool inside_nvtx = !log.frames.empty() && log.frames.back().kind == Frame::Kind::kNcclCall;
  if (inside_nvtx && !log.open.empty() && log.open.back().from_nvtx)
    return complete(recorder, log, log.open.back(), facts);
  OpenCall& call = open_call(recorder, log, facts, now_ns());
  complete(recorder, log, call, facts);
}

void plugin_group_end(Recorder& recorder, ThreadLog& log) {
  publish(recorder, log, false, now_ns());
  log.recent_launches.clear();
}

void plugin_call_after_launch(Recorder& recorder, ThreadLog& log, const CallFacts& given) {
  CallFacts facts = given;
  // These versions tell NCCL's inner view, in which only reductions keep their datatype.
  if (!is_reduction(facts.function)) facts.dtype = nullptr, facts.count = -1;
  bool nvtx_speaks = false;
  for (OpenCall& call : log.open) {
    nvtx_speaks = nvtx_speaks || call.from_nvtx;
    const bool same_communicator = facts.communicator == 0 || call.record.communicator == 0 ||
                                   call.record.communicator == facts.communicator;
    const std::int64_t bytes = facts.count * dtype_bytes(facts.dtype);
    const bool same_size =
        facts.count < 0 || call.record.bytes < 0 || bytes <= 0 || call.record.bytes == bytes;
    if (!call.from_nvtx || call.has_plugin_facts || call.record.function != facts.function ||
        !same_communicator || !same_size) {
      continue;
    }
    return complete(recorder, log, call, facts);
  }
  if (nvtx_speaks || recorder.nvtx_calls_seen.load(std::memory_order_relaxed)) return;
  OpenCall& call = open_call(recorder, log, facts, now_ns());
  complete(recorder, log, call, facts);
  for (const std::uint32_t correlation : log.recent_launches) {
    if (call.record.launch == 0) {
      call.record.launch = correlation;
    } else {
      push_link(recorder, log, LinkKind::kLaunch, call.record.id, correlation);
    }
  }
}

void nccl_launch(Recorder& recorder, ThreadLog& log, std::uint32_t correlation) {
  for (OpenCall& call : log.open) {
    if (!shares_launch(log, call)) continue;
    if (call.record.launch == 0) {
      call.record.launch = correlation;
    } else {
      push_link(recorder, log, LinkKind::kLaunch, call.record.id, correlation);
    }
  }
  if (log.open.empty() && log.recent_launches.size() < kRecentLaunches)
    log.recent_launches.push_back(correlation);
}

void nccl_graph_node(Recorder& recorder, ThreadLog& log, std::uint64_t node) {
  for (OpenCall& call : log.open) {
    if (!shares_launch(log, call)) continue;
    call.record.captured = true;
    push_link(recorder, log, LinkKind::kNode, call.record.id, node);
  }
}

}  // namespace echotp::recorder
