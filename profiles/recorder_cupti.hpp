// SPDX-License-Identifier: Apache-2.0
// DEVICE SIDE: one CUPTI subscription of the process. Its buffers are filled by CUPTI, queued by a callback,
// and turned into rows by the recorder's writer thread; launches of NCCL kernels are joined to the call on
// the thread's stack.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "profiles/cupti_api.hpp"
#include "profiles/trace_encode.hpp"

namespace echotp::recorder {

struct Options;

class CuptiSession {
 public:
  /// Opens CUPTI, subscribes and enables what is recorded. On failure `why` says what is missing; the job is
  /// untouched.
  bool start(const Options& options, std::string& why);
  bool running() const { return running_.load(std::memory_order_acquire); }
  /// True once start() was tried, whatever came of it.
  bool tried() const { return tried_.load(std::memory_order_acquire); }

  /// True once start() has succeeded; stays true after disable().
  bool started() const { return started_.load(std::memory_order_acquire); }

  /// Asks CUPTI for the buffers that are complete, or for all of them. Blocks, but synchronises nothing on
  /// the GPU.
  void flush(bool all) noexcept;
  /// Stops recording without touching the subscription.
  void disable() noexcept;
  /// Turns queued buffers into rows. Writer thread only. Returns records that CUPTI dropped or that made no
  /// sense.
  std::int64_t take_rows(SectionEncoder& encoder);
  /// Difference between CUPTI's clock and CLOCK_REALTIME, to add to host times.
  std::int64_t clock_offset_ns() const { return started() ? clock_offset_ns_ : 0; }

  /// Name and UUID of the device that runs this process's kernels; empty while unknown.
  std::pair<std::string, std::string> device() const;
  const std::string& path() const { return api_.path; }
  std::uint32_t version() const { return api_.version; }

  // Called by CUPTI.
  void buffer_requested(std::uint8_t** buffer, std::size_t* size) noexcept;
  void buffer_completed(std::uint8_t* buffer, std::size_t valid) noexcept;
  void callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept;

 private:
  bool subscribe(std::string& why);
  void enable_apis();
  void enable_callbacks(const Options& options);
  void on_launch(const CUpti_CallbackData& data, CUpti_CallbackId id);
  void on_graph_node(CUpti_CallbackId id, const CUpti_GraphData& graph);
  void measure_clock();
  std::int64_t take_buffer(std::uint8_t* buffer, std::size_t valid, SectionEncoder& encoder);
  bool take_record(const CUpti_Activity* record, SectionEncoder& encoder);
  std::uint32_t kernel_name(const char* mangled, SectionEncoder& encoder);

  CuptiApi api_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::atomic<bool> running_{false};
  std::atomic<bool> started_{false};
  std::atomic<bool> tried_{false};
  bool whole_kinds_ =
      false;  // this CUPTI cannot select single API functions: all arrive and are filtered here
  std::int64_t clock_offset_ns_ = 0;
  std::vector<CUpti_ActivityKind> enabled_;

  std::mutex buffers_mutex_;
  std::vector<std::uint8_t*> pool_;
  std::vector<std::pair<std::uint8_t*, std::size_t>> full_;

  std::mutex nodes_mutex_;
  std::unordered_set<std::uint64_t> nccl_nodes_;

  // Of the writer alone.
  std::unordered_map<const char*, std::pair<std::string, std::uint32_t>> kernel_names_;
  std::map<std::uint32_t, std::pair<std::string, std::string>> devices_;
  std::int64_t first_kernel_device_ = -1;
};

}  // namespace echotp::recorder
