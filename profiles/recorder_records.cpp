// SPDX-License-Identifier: Apache-2.0
// CUPTI's activity records -> rows. Runs on the writer thread. Every record is checked: times of zero, ends
// before starts and enormous values do occur and must not reach a profile.
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "profiles/recorder.hpp"
#include "profiles/recorder_api_kinds.hpp"
#include "profiles/recorder_cupti.hpp"

namespace echotp::recorder {
namespace {

constexpr std::uint64_t kLatest_ns = std::uint64_t{1} << 61;

bool sane(std::uint64_t start, std::uint64_t end) {
  return start != 0 && end >= start && end < kLatest_ns;
}

std::string demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 && text ? text : name;
  std::free(text);
  return out;
}

std::string uuid_text(const CUuuid& uuid) {
  char text[48];
  const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
  std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
                b[15]);
  return text;
}

const char* copy_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "Memcpy HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "Memcpy DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "Memcpy DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH:
      return "Memcpy HtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "Memcpy PtoP";
    default:
      return "Memcpy";
  }
}

/// A copy of the record's front: CUPTI's structs are packed, and newer libraries append fields.
template <class Record>
Record front_of(const CUpti_Activity* activity) {
  Record record;
  std::memcpy(static_cast<void*>(&record), activity, sizeof record);
  return record;
}

template <class Record>
DeviceRow device_row(const Record& record) {
  DeviceRow row;
  row.device = record.deviceId;
  row.stream = record.streamId;
  row.start_ns = static_cast<std::int64_t>(record.start);
  row.end_ns = static_cast<std::int64_t>(record.end);
  row.correlation = record.correlationId;
  return row;
}

bool wait_kind(CUpti_ActivitySynchronizationType type, HostApiKind& kind) {
  switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE:
      kind = HostApiKind::kEventSynchronize;
      return true;
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT:
      kind = HostApiKind::kStreamWaitEvent;
      return true;
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE:
      kind = HostApiKind::kStreamSynchronize;
      return true;
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE:
      kind = HostApiKind::kDeviceSynchronize;
      return true;
    default:
      return false;
  }
}

constexpr std::uint32_t kNoValue = 0xffffffffU;  // CUPTI_SYNCHRONIZATION_INVALID_VALUE

}  // namespace

std::uint32_t CuptiSession::kernel_name(const char* mangled, SectionEncoder& encoder) {
  if (!mangled) return encoder.intern("unknown kernel");
  auto& known = kernel_names_[mangled];
  // A module that was unloaded may leave its address to another name.
  if (known.first.empty() || known.first != mangled) {
    known.first = mangled;
    known.second = encoder.intern(demangled(mangled));
  }
  return known.second;
}

std::int64_t CuptiSession::take_rows(SectionEncoder& encoder) {
  std::vector<std::pair<std::uint8_t*, std::size_t>> buffers;
  {
    const std::lock_guard<std::mutex> lock(buffers_mutex_);
    buffers.swap(full_);
  }
  std::int64_t lost = 0;
  for (const auto& [buffer, valid] : buffers) lost += take_buffer(buffer, valid, encoder);
  // CUPTI may hold locks of its own while it hands over a buffer: none of ours is held while it is called.
  std::size_t dropped = 0;
  if (api_.dropped_records(nullptr, 0, &dropped) == CUPTI_SUCCESS) lost += static_cast<std::int64_t>(dropped);
  const std::lock_guard<std::mutex> lock(buffers_mutex_);
  for (const auto& [buffer, valid] : buffers) pool_.push_back(buffer);
  return lost;
}

std::int64_t CuptiSession::take_buffer(std::uint8_t* buffer, std::size_t valid, SectionEncoder& encoder) {
  std::int64_t lost = 0;
  CUpti_Activity* record = nullptr;
  while (api_.next_record(buffer, valid, &record) == CUPTI_SUCCESS && record) {
    if (!take_record(record, encoder)) ++lost;
  }
  return lost;
}

bool CuptiSession::take_record(const CUpti_Activity* activity, SectionEncoder& encoder) {
  switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto record = front_of<CUpti_ActivityKernel9>(activity);
      if (!sane(record.start, record.end)) return false;
      if (first_kernel_device_ < 0) first_kernel_device_ = record.deviceId;
      DeviceRow row = device_row(record);
      row.name = kernel_name(record.name, encoder);
      if (record.graphNodeId) row.node = encoder.intern_hex(record.graphNodeId);
      encoder.add(row);
      return true;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto record = front_of<CUpti_ActivityMemcpy5>(activity);
      if (!sane(record.start, record.end)) return false;
      DeviceRow row = device_row(record);
      row.kind = DeviceOpKind::kMemcpy;
      row.name = encoder.intern(copy_name(record.copyKind));
      row.bytes = static_cast<std::int64_t>(record.bytes);
      if (record.graphNodeId) row.node = encoder.intern_hex(record.graphNodeId);
      encoder.add(row);
      return true;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto record = front_of<CUpti_ActivityMemcpyPtoP4>(activity);
      if (!sane(record.start, record.end)) return false;
      DeviceRow row = device_row(record);
      row.kind = DeviceOpKind::kMemcpy;
      row.name = encoder.intern(copy_name(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP));
      row.bytes = static_cast<std::int64_t>(record.bytes);
      if (record.graphNodeId) row.node = encoder.intern_hex(record.graphNodeId);
      encoder.add(row);
      return true;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto record = front_of<CUpti_ActivityMemset4>(activity);
      if (!sane(record.start, record.end)) return false;
      DeviceRow row = device_row(record);
      row.kind = DeviceOpKind::kMemset;
      row.name = encoder.intern("Memset");
      row.bytes = static_cast<std::int64_t>(record.bytes);
      if (record.graphNodeId) row.node = encoder.intern_hex(record.graphNodeId);
      encoder.add(row);
      return true;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto record = front_of<CUpti_ActivityAPI>(activity);
      const ApiFunction* function = activity->kind == CUPTI_ACTIVITY_KIND_RUNTIME
                                        ? find_function(kRuntimeFunctions, record.cbid)
                                        : find_function(kDriverFunctions, record.cbid);
      if (!function) return true;
      if (!sane(record.start, record.end)) return false;
      ApiRow row;
      row.kind = function->kind;
      row.thread = record.threadId;
      row.start_ns = static_cast<std::int64_t>(record.start);
      row.end_ns = static_cast<std::int64_t>(record.end);
      row.correlation = record.correlationId;
      encoder.add(row);
      return true;
    }
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: {
      const auto front = front_of<CUpti_ActivityCudaEvent>(activity);
      SyncRow row;
      row.correlation = front.correlationId;
      row.stream = front.streamId;
      row.event = front.eventId;
      if (api_.pairs_events())
        row.sync = static_cast<std::int64_t>(front_of<CuptiCudaEvent>(activity).sync_id);
      encoder.add(row);
      return true;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
      const auto front = front_of<CUpti_ActivitySynchronization>(activity);
      SyncRow row;
      if (!wait_kind(front.type, row.kind)) return true;
      row.is_wait = true;
      if (sane(front.start, front.end)) {
        row.start_ns = static_cast<std::int64_t>(front.start);
        row.end_ns = static_cast<std::int64_t>(front.end);
      }
      row.correlation = front.correlationId;
      if (front.streamId != kNoValue) row.stream = front.streamId;
      if (front.cudaEventId != kNoValue) row.event = front.cudaEventId;
      if (api_.pairs_events())
        row.sync = static_cast<std::int64_t>(front_of<CuptiSynchronization>(activity).sync_id);
      encoder.add(row);
      return true;
    }
    case CUPTI_ACTIVITY_KIND_DEVICE: {
      const auto record = front_of<CUpti_ActivityDevice4>(activity);
      devices_[record.id] = {record.name ? record.name : "", uuid_text(record.uuid)};
      return true;
    }
    default:
      return true;
  }
}

std::pair<std::string, std::string> CuptiSession::device() const {
  if (devices_.empty()) return {};
  const auto found = devices_.find(static_cast<std::uint32_t>(first_kernel_device_));
  if (first_kernel_device_ >= 0 && found != devices_.end()) return found->second;
  // Before the first kernel a process that sees several devices has chosen none.
  return devices_.size() == 1 ? devices_.begin()->second : std::pair<std::string, std::string>{};
}

}  // namespace echotp::recorder
