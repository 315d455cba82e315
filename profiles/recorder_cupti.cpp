// SPDX-License-Identifier: Apache-2.0
// The CUPTI subscription: what is enabled, CUPTI's callbacks, the join of launches to calls. Records become
// rows in recorder_records.cpp. No CUDA call is made here and cuptiFinalize is never used: both hang or crash
// jobs.
#include "profiles/recorder_cupti.hpp"

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include <cstdlib>
#include <cstring>

#include "profiles/recorder.hpp"
#include "profiles/recorder_api_kinds.hpp"
#include "profiles/recorder_calls.hpp"

namespace echotp::recorder {
namespace {

// Small enough that a flush finds finished buffers while the GPU is busy: a buffer with one unfinished record
// stays back.
constexpr std::size_t kBufferBytes = 512 * 1024;
constexpr std::size_t kQueuedBuffers = 16;  // more than this and the writer is woken early
constexpr std::size_t kNcclNodes = 1 << 20;
constexpr std::int64_t kClockTolerance_ns = 1'000'000;

constexpr CUpti_CallbackId kLaunchCallbacks[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
};

/// CUPTI's threads and the job's threads come through here; nothing may be thrown into them.
void CUPTIAPI on_callback(void* session, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  static_cast<CuptiSession*>(session)->callback(domain, id, data);
}

/// Buffer callbacks have no user argument. A session lives as long as the process.
std::atomic<CuptiSession*> the_session{nullptr};

void CUPTIAPI on_buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = nullptr;
  *size = 0;
  *max_records = 0;
  if (CuptiSession* session = the_session.load()) session->buffer_requested(buffer, size);
}

void CUPTIAPI on_buffer_completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                                  std::size_t valid) {
  if (CuptiSession* session = the_session.load()) session->buffer_completed(buffer, valid);
}

}  // namespace

bool CuptiSession::subscribe(std::string& why) {
  char holder[128] = "";
  CUptiResult result = CUPTI_SUCCESS;
  if (api_.subscribe_v2) {
    CuptiSubscriberParams params{sizeof(CuptiSubscriberParams), "echo-tp", holder, sizeof holder};
    result = api_.subscribe_v2(&subscriber_, on_callback, this, &params);
  } else {
    result = api_.subscribe(&subscriber_, on_callback, this);
  }
  if (result == CUPTI_SUCCESS) return true;
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    holder[sizeof holder - 1] = '\0';
    why = std::string("CUPTI is in use by ") +
          (holder[0] ? "\"" + std::string(holder) + "\"" : "another tool") +
          ": no kernels recorded, import that tool's trace instead";
  } else {
    why = "CUPTI refused (" + api_.error_text(result) + ", " + api_.path + "): no kernels recorded";
  }
  return false;
}

bool CuptiSession::start(const Options& options, std::string& why) {
  tried_ = true;
  Result<CuptiApi> opened = open_cupti(options.cupti);
  if (!opened) {
    why = "CUPTI is missing (" + opened.error().text() + "): no kernels recorded";
    return false;
  }
  api_ = *opened;
  if (!subscribe(why)) return false;
  the_session = this;
  CUptiResult result = api_.register_callbacks(on_buffer_requested, on_buffer_completed);
  if (result == CUPTI_SUCCESS) {
    // Never KERNEL: that kind serialises the kernels of the job.
    result = api_.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  }
  if (result != CUPTI_SUCCESS) {
    why = "CUPTI records no kernels (" + api_.error_text(result) + ", " + api_.path + ")";
    api_.unsubscribe(subscriber_);
    return false;
  }
  enabled_.push_back(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  if (api_.set_thread_id_type) api_.set_thread_id_type(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  // Event queries that find nothing done yet are what NCCL's watchdogs do all day.
  if (api_.enable_all_sync_records) api_.enable_all_sync_records(0);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_DEVICE, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
        CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_CUDA_EVENT}) {
    if (api_.enable(kind) == CUPTI_SUCCESS) enabled_.push_back(kind);
  }
  enable_apis();
  enable_callbacks(options);
  measure_clock();
  started_ = true;
  running_ = true;
  return true;
}

void CuptiSession::enable_apis() {
  if (api_.enable_runtime_api && api_.enable_driver_api) {
    for (const ApiFunction& function : kRuntimeFunctions) api_.enable_runtime_api(function.id, 1);
    for (const ApiFunction& function : kDriverFunctions) api_.enable_driver_api(function.id, 1);
    return;
  }
  whole_kinds_ = true;
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER}) {
    if (api_.enable(kind) == CUPTI_SUCCESS) enabled_.push_back(kind);
  }
}

void CuptiSession::enable_callbacks(const Options& options) {
  if (options.launch_callbacks) {
    for (const CUpti_CallbackId id : kLaunchCallbacks)
      api_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, id);
    if (api_.graph_node_id) {
      api_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
      api_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
    }
  }
  api_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE,
                       CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
  api_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_STATE, CUPTI_CBID_STATE_FATAL_ERROR);
}

void CuptiSession::measure_clock() {
  std::int64_t best_gap = INT64_MAX;
  for (int i = 0; i < 20; ++i) {
    const std::int64_t before = now_ns();
    std::uint64_t cupti = 0;
    if (api_.timestamp(&cupti) != CUPTI_SUCCESS || cupti == 0) return;
    const std::int64_t after = now_ns();
    if (after - before >= best_gap) continue;
    best_gap = after - before;
    clock_offset_ns_ = static_cast<std::int64_t>(cupti) - (before + after) / 2;
  }
  // Both are CLOCK_REALTIME: a small difference is the two reads, not the clocks.
  if (std::llabs(clock_offset_ns_) < kClockTolerance_ns) clock_offset_ns_ = 0;
}

void CuptiSession::flush(bool all) noexcept {
  if (running()) api_.flush_all(all ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
}

void CuptiSession::disable() noexcept {
  if (!running_.exchange(false)) return;
  for (const CUpti_ActivityKind kind : enabled_) api_.disable(kind);
  if (!whole_kinds_) {
    for (const ApiFunction& function : kRuntimeFunctions) api_.enable_runtime_api(function.id, 0);
    for (const ApiFunction& function : kDriverFunctions) api_.enable_driver_api(function.id, 0);
  }
  for (const CUpti_CallbackId id : kLaunchCallbacks)
    api_.enable_callback(0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, id);
}

void CuptiSession::buffer_requested(std::uint8_t** buffer, std::size_t* size) noexcept {
  {
    const std::lock_guard<std::mutex> lock(buffers_mutex_);
    if (!pool_.empty()) {
      *buffer = pool_.back();
      pool_.pop_back();
    }
  }
  if (!*buffer) *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
}

void CuptiSession::buffer_completed(std::uint8_t* buffer, std::size_t valid) noexcept {
  if (!buffer) return;
  bool many = false;
  try {
    const std::lock_guard<std::mutex> lock(buffers_mutex_);
    if (valid == 0) {
      pool_.push_back(buffer);
    } else {
      full_.emplace_back(buffer, valid);
    }
    many = full_.size() > kQueuedBuffers;
  } catch (...) {
    std::free(buffer);
  }
  if (!many) return;
  if (Recorder* recorder = Recorder::active()) recorder->wake();
}

void CuptiSession::callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  Recorder* recorder = Recorder::active();
  if (!recorder || !data) return;
  try {
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
      return on_launch(*static_cast<const CUpti_CallbackData*>(data), id);
    if (domain == CUPTI_CB_DOMAIN_STATE)
      return recorder->note("CUPTI met a fatal error and detached: kernels are missing from there on");
    if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
    if (id == CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING) {
      flush(false);
      return recorder->wake();
    }
    const auto* resource = static_cast<const CUpti_ResourceData*>(data);
    if (resource->resourceDescriptor)
      on_graph_node(id, *static_cast<const CUpti_GraphData*>(resource->resourceDescriptor));
  } catch (...) {
  }
}

void CuptiSession::on_launch(const CUpti_CallbackData& data, CUpti_CallbackId) {
  Recorder* recorder = Recorder::active();
  ThreadLog* log = Recorder::existing_log();
  if (!recorder || !log) return;
  if (data.callbackSite == CUPTI_API_EXIT) {
    log->in_nccl_launch = false;
    return;
  }
  // Most launches are the job's own: leave before looking at names.
  if (log->open.empty() && !recorder->announce_after_launch.load(std::memory_order_relaxed)) return;
  if (!log->launch_announced && !(data.symbolName && std::strstr(data.symbolName, "nccl"))) return;
  log->in_nccl_launch = true;
  nccl_launch(*recorder, *log, data.correlationId);
}

void CuptiSession::on_graph_node(CUpti_CallbackId id, const CUpti_GraphData& graph) {
  Recorder* recorder = Recorder::active();
  std::uint64_t node = 0;
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
    ThreadLog* log = Recorder::existing_log();
    if (!log || !log->in_nccl_launch || api_.graph_node_id(graph.node, &node) != CUPTI_SUCCESS) return;
    {
      const std::lock_guard<std::mutex> lock(nodes_mutex_);
      if (nccl_nodes_.size() < kNcclNodes) nccl_nodes_.insert(node);
    }
    return nccl_graph_node(*recorder, *log, node);
  }
  std::uint64_t origin = 0;
  if (id != CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED ||
      api_.graph_node_id(graph.originalNode, &origin) != CUPTI_SUCCESS) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(nodes_mutex_);
    if (!nccl_nodes_.count(origin)) return;
  }
  if (api_.graph_node_id(graph.node, &node) != CUPTI_SUCCESS) return;
  {
    const std::lock_guard<std::mutex> lock(nodes_mutex_);
    if (nccl_nodes_.size() < kNcclNodes) nccl_nodes_.insert(node);
  }
  ThreadLog* log = recorder->log();
  if (!log) return;
  HostRecord record;
  record.kind = HostRecord::Kind::kLink;
  record.link = {LinkKind::kClone, node, origin};
  recorder->push(*log, record);
}

}  // namespace echotp::recorder
