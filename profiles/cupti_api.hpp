// SPDX-License-Identifier: Apache-2.0
// CUPTI as the recorder uses it: opened at run time, never linked, so that the job keeps the copy it brought
// along. Record layouts that grew over the versions are read by their common front part.
#pragma once

#include <cupti.h>
#include <cstdint>

#include <string>

#include "shim/result.hpp"

namespace echotp {

/// A CUDA event record with the tail that came with CUPTI 13; `tail` is read only when the library is that
/// new.
struct CuptiCudaEvent {
  CUpti_ActivityCudaEvent front;
  std::uint32_t device_id;
  std::uint32_t pad;
  void* reserved;
  std::uint64_t device_timestamp;
  std::uint64_t sync_id;
};

/// A synchronisation record with the tail that came with CUPTI 13.
struct CuptiSynchronization {
  CUpti_ActivitySynchronization front;
  std::uint64_t sync_id;
};

/// cuptiSubscribe_v2's parameters (a CUPTI function of 12.8 and later).
struct CuptiSubscriberParams {
  std::size_t struct_size;
  const char* subscriber_name;
  char* old_subscriber_name;
  std::size_t old_subscriber_size;
};

/// CUPTI's functions. Those marked optional may be null.
struct CuptiApi {
  void* handle = nullptr;
  std::string path;
  std::uint32_t version = 0;

  decltype(&::cuptiGetVersion) get_version = nullptr;
  decltype(&::cuptiGetResultString) result_string = nullptr;
  decltype(&::cuptiSubscribe) subscribe = nullptr;
  CUptiResult (*subscribe_v2)(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*,
                              CuptiSubscriberParams*) = nullptr;  // optional
  decltype(&::cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&::cuptiEnableCallback) enable_callback = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&::cuptiGetTimestamp) timestamp = nullptr;
  decltype(&::cuptiSetThreadIdType) set_thread_id_type = nullptr;               // optional
  decltype(&::cuptiGetGraphNodeId) graph_node_id = nullptr;                     // optional
  CUptiResult (*enable_runtime_api)(CUpti_CallbackId, std::uint8_t) = nullptr;  // optional
  CUptiResult (*enable_driver_api)(CUpti_CallbackId, std::uint8_t) = nullptr;   // optional
  CUptiResult (*enable_all_sync_records)(std::uint8_t) = nullptr;               // optional

  /// "CUPTI_ERROR_..." of `result`.
  std::string error_text(CUptiResult result) const;
  /// True when event and synchronisation records carry the id that pairs a wait with its record.
  bool pairs_events() const { return version >= 130000; }
};

/// Opens CUPTI: `preferred` if not empty, else the copy that is loaded already, the one beside the process's
/// libcudart, the toolkit's, any on the search path. Copies newer than the driver are passed over. Never
/// throws.
Result<CuptiApi> open_cupti(const std::string& preferred);

/// Version of the installed driver as cuDriverGetVersion reports it (13000 is 13.0); 0 when libcuda is not
/// loaded.
int cuda_driver_version();

}  // namespace echotp
