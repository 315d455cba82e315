// SPDX-License-Identifier: Apache-2.0
// RECORDER: one per process, started by the first of its three ways in (CUDA injection, NVTX injection once
// NCCL uses it, NCCL profiler plugin) and shared by all. Lives until the process ends; a forked child starts
// its own or stays silent.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "profiles/recorder_cupti.hpp"
#include "profiles/recorder_log.hpp"
#include "profiles/trace.hpp"

namespace echotp::recorder {

/// From ECHO_TP_RECORD_OPTIONS, a JSON object; unknown keys are ignored.
struct Options {
  std::int64_t max_records = 4'000'000;  // rows in the file; later ones are dropped and counted
  std::int64_t flush_ms = 500;           // what a SIGKILL may lose
  bool launch_callbacks = true;  // exact join of calls and kernels; without it they are joined by time
  std::string cupti;             // path of the CUPTI to use; empty: chosen
};
Options parse_options(const char* json);

/// Nanoseconds of CLOCK_REALTIME, which CUPTI on Linux reports in.
std::int64_t now_ns();

/// One communicator as this process knows it. Counters give every call its ordinal, equal on all ranks.
struct CommunicatorState {
  static constexpr int kFunctions = 12;
  std::uint64_t hash = 0;
  std::atomic<std::int64_t> sequence[kFunctions] = {};
};

class Recorder {
 public:
  /// The recorder of this process if one runs, else null. Cheap: for every callback.
  static Recorder* active() { return active_.load(std::memory_order_acquire); }
  /// Starts one if none runs. Null when ECHO_TP_RECORD_DIR is unset, the file cannot be made, or a fork
  /// forbids it.
  static Recorder* start() noexcept;

  /// This thread's log; null while a thread is being torn down or without memory.
  ThreadLog* log() noexcept;
  /// This thread's log if it has one.
  static ThreadLog* existing_log() noexcept;
  void push(ThreadLog& log, const HostRecord& record) noexcept;

  CommunicatorState& communicator(std::uint64_t hash);
  /// A membership learnt from NCCL. `ranks` and `rank` below 1 and 0 are unknown; `name` may be empty.
  void learn_communicator(std::uint64_t hash, const std::string& name, std::int32_t ranks, std::int32_t rank);
  void learn_nccl(const void* address_in_nccl);
  std::uint32_t range_name(std::string_view text);
  std::uint64_t next_call_id() { return call_ids_.fetch_add(1, std::memory_order_relaxed); }

  void tier(const char* name);
  void note(const std::string& text);

  /// CUPTI, first call wins. Never throws.
  void start_cupti() noexcept;
  CuptiSession& cupti() { return cupti_; }
  /// Asks the writer to run soon, without waiting.
  void wake() noexcept;
  /// The plugin of NCCL before 2.28 announces a call after its launch: launches are kept until then.
  std::atomic<bool> announce_after_launch{false};
  std::atomic<bool> nvtx_calls_seen{false};
  const Options& options() const { return options_; }

 private:
  Recorder() = default;
  bool open_file();
  void run_writer();
  void flush(bool final);
  void take_range_names();
  void take_host_records();
  void take_host_record(const ThreadLog& log, const HostRecord& record);
  void write_text(std::string_view text);
  void write_frame(std::string_view text);
  Process facts_now();
  void finish() noexcept;
  static void at_exit();
  static void child_after_fork();

  static std::atomic<Recorder*> active_;

  Options options_;
  CuptiSession cupti_;
  std::int64_t epoch_ns_ = 0;
  int file_ = -1;
  std::string path_;

  std::mutex facts_mutex_;  // guards the facts below; taken rarely
  Process process_;
  std::vector<std::string> communicator_lines_;
  std::map<std::uint64_t, std::unique_ptr<CommunicatorState>> communicators_;
  std::unordered_map<std::string, std::uint32_t> range_names_;
  std::vector<std::string> new_range_names_;

  std::mutex logs_mutex_;
  std::vector<ThreadLog*> logs_;
  std::atomic<std::uint64_t> call_ids_{1};
  std::atomic<std::int64_t> dropped_{0};

  std::mutex wake_mutex_;
  std::condition_variable wake_condition_;
  std::condition_variable done_condition_;
  std::atomic<bool> woken_{false};
  bool stopping_ = false;
  bool done_ = false;

  // Of the writer alone.
  std::unique_ptr<SectionEncoder> encoder_;
  std::vector<std::string> range_texts_;
  std::string last_update_;
  std::int64_t rows_ = 0;
  std::int64_t calls_ = 0;
  bool full_ = false;
  bool write_failed_ = false;
};

}  // namespace echotp::recorder
