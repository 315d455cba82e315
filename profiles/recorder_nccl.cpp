// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin: who calls which collective with how many elements of which datatype on which
// stream. Always answers success: a profiler must not fail the job.
#include <new>

#include "profiles/recorder.hpp"
#include "profiles/recorder_calls.hpp"
#include "profiles/recorder_nccl_abi.hpp"

namespace echotp::recorder::nccl {
namespace {

/// One communicator as its init told. Never freed: NCCL's threads may hold it past finalize.
struct Context {
  std::uint64_t hash = 0;  // 0: this version tells it with every event
};

// Handles are addresses of these: they stay valid whatever NCCL does with them after a stop.
char group_tag;
char launch_tag;

Recorder* begin(void** context, int* mask, int events, std::uint64_t hash, const char* name, int ranks,
                int rank, const void* caller) {
  Recorder* recorder = Recorder::start();
  if (!recorder) return nullptr;
  *context = new (std::nothrow) Context{hash};
  *mask = events;
  recorder->tier("nccl_profiler");
  recorder->learn_nccl(caller);
  if (hash != 0) recorder->learn_communicator(hash, name ? name : "", ranks, rank);
  return recorder;
}

Status init_before_v4(void** context, int* mask) {
  try {
    Recorder* recorder =
        begin(context, mask, kGroup | kColl | kP2p, 0, nullptr, -1, -1, __builtin_return_address(0));
    if (recorder) recorder->announce_after_launch = true;
  } catch (...) {
  }
  return 0;
}

Status init_v4(void** context, int* mask, const char* name, std::uint64_t hash, int, int ranks, int rank,
               Logger) {
  try {
    Recorder* recorder =
        begin(context, mask, kGroup | kColl | kP2p, hash, name, ranks, rank, __builtin_return_address(0));
    if (recorder) recorder->announce_after_launch = true;
  } catch (...) {
  }
  return 0;
}

Status init_v5(void** context, std::uint64_t hash, int* mask, const char* name, int, int ranks, int rank,
               Logger) {
  try {
    begin(context, mask, kGroupApi | kCollApi | kP2pApi | kKernelLaunch, hash, name, ranks, rank,
          __builtin_return_address(0));
  } catch (...) {
  }
  return 0;
}

std::uint64_t hash_of(const void* context) {
  return context ? static_cast<const Context*>(context)->hash : 0;
}

/// Versions 2 to 4: the event of a collective comes right after its launch, on the same thread.
template <class Event>
void start_after_launch(void* context, void** handle, const Event& event, std::uint64_t hash) {
  Recorder* recorder = Recorder::active();
  ThreadLog* log = recorder ? recorder->log() : nullptr;
  if (!log) return;
  if (event.type == kGroup) {
    *handle = &group_tag;
    return;
  }
  if (event.type != kColl && event.type != kP2p) return;
  const bool coll = event.type == kColl;
  const char* function = coll ? event.coll.func : event.p2p.func;
  if (!function) return;
  CallFacts facts;
  facts.function = immortal_function(function);
  facts.communicator = hash != 0 ? hash : hash_of(context);
  facts.count = static_cast<std::int64_t>(coll ? event.coll.count : event.p2p.count);
  facts.dtype = dtype_name(coll ? event.coll.datatype : event.p2p.datatype);
  plugin_call_after_launch(*recorder, *log, facts);
}

Status start_before_v4(void* context, void** handle, EventV2* event) {
  *handle = nullptr;
  try {
    const std::uint64_t hash = event->type == kColl  ? event->coll.comm_hash
                               : event->type == kP2p ? event->p2p.comm_hash
                                                     : 0;
    start_after_launch(context, handle, *event, hash);
  } catch (...) {
  }
  return 0;
}

Status start_v4(void* context, void** handle, EventV4* event) {
  *handle = nullptr;
  try {
    start_after_launch(context, handle, *event, 0);
  } catch (...) {
  }
  return 0;
}

void start_api_event(void* context, void** handle, const EventV5& event) {
  Recorder* recorder = Recorder::active();
  ThreadLog* log = recorder ? recorder->log() : nullptr;
  if (!log) return;
  CallFacts facts;
  facts.communicator = hash_of(context);
  facts.stream_known = true;
  switch (event.type) {
    case kGroupApi:
      *handle = &group_tag;
      return;
    case kKernelLaunch:
      *handle = &launch_tag;
      log->launch_announced = true;
      log->launch_communicator = facts.communicator;
      return;
    case kCollApi:
      if (!event.coll_api.func) return;
      facts.function = immortal_function(event.coll_api.func);
      facts.count = static_cast<std::int64_t>(event.coll_api.count);
      facts.dtype = dtype_name(event.coll_api.datatype);
      facts.stream = reinterpret_cast<std::uint64_t>(event.coll_api.stream);
      facts.captured = event.coll_api.captured;
      return plugin_call(*recorder, *log, facts);
    case kP2pApi:
      if (!event.p2p_api.func) return;
      facts.function = immortal_function(event.p2p_api.func);
      facts.count = static_cast<std::int64_t>(event.p2p_api.count);
      facts.dtype = dtype_name(event.p2p_api.datatype);
      facts.stream = reinterpret_cast<std::uint64_t>(event.p2p_api.stream);
      facts.captured = event.p2p_api.captured;
      return plugin_call(*recorder, *log, facts);
    default:
      return;
  }
}

Status start_v5(void* context, void** handle, EventV5* event) {
  *handle = nullptr;
  try {
    start_api_event(context, handle, *event);
  } catch (...) {
  }
  return 0;
}

Status stop_event(void* handle) {
  try {
    Recorder* recorder = Recorder::active();
    ThreadLog* log = recorder ? recorder->log() : nullptr;
    if (!log) return 0;
    if (handle == &group_tag) plugin_group_end(*recorder, *log);
    if (handle == &launch_tag) {
      log->launch_announced = false;
      log->launch_communicator = 0;
    }
  } catch (...) {
  }
  return 0;
}

Status record_state(void*, int, void*) {
  return 0;
}

Status finalize(void*) {
  if (Recorder* recorder = Recorder::active()) recorder->wake();
  return 0;
}

}  // namespace
}  // namespace echotp::recorder::nccl

extern "C" {
using namespace echotp::recorder::nccl;  // NOLINT: the exported tables below are all that follows
__attribute__((visibility("default"))) extern const Plugin<InitV2, EventV2> ncclProfiler_v2;
__attribute__((visibility("default"))) extern const Plugin<InitV2, EventV3> ncclProfiler_v3;
__attribute__((visibility("default"))) extern const Plugin<InitV4, EventV4> ncclProfiler_v4;
__attribute__((visibility("default"))) extern const Plugin<InitV5, EventV5> ncclProfiler_v5;

const Plugin<InitV2, EventV2> ncclProfiler_v2{"echo-tp",  init_before_v4, start_before_v4,
                                              stop_event, record_state,   finalize};
const Plugin<InitV2, EventV3> ncclProfiler_v3{"echo-tp",  init_before_v4, start_before_v4,
                                              stop_event, record_state,   finalize};
const Plugin<InitV4, EventV4> ncclProfiler_v4{"echo-tp",  init_v4,      start_v4,
                                              stop_event, record_state, finalize};
const Plugin<InitV5, EventV5> ncclProfiler_v5{"echo-tp",  init_v5,      start_v5,
                                              stop_event, record_state, finalize};
}
