// SPDX-License-Identifier: Apache-2.0
// The writer: every flush period it takes what CUPTI and the job's threads have left, and appends one
// self-contained frame to the part file with one write(). A process that is killed loses at most what the
// last period held.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "profiles/recorder.hpp"

namespace echotp::recorder {
namespace {

constexpr int kLiveLevel = 3;
constexpr std::size_t kFrameText =
    8 << 20;  // a writer that was kept waiting still makes frames that readers take

}  // namespace

void Recorder::run_writer() {
  pthread_setname_np(pthread_self(), "echo-tp-rec");
  try {
    const Process facts = facts_now();
    last_update_ = update_line(facts);
    write_text(header_line({}) + "\n" + process_line(facts, epoch_ns_) + "\n");
    for (bool final = false; !final;) {
      {
        std::unique_lock<std::mutex> lock(wake_mutex_);
        wake_condition_.wait_for(lock, std::chrono::milliseconds(options_.flush_ms),
                                 [this] { return stopping_ || woken_.load(); });
        woken_ = false;
        final = stopping_;
      }
      flush(final);
    }
  } catch (...) {
    // Memory has run out: the file stays readable up to here.
  }
  const std::lock_guard<std::mutex> lock(wake_mutex_);
  done_ = true;
  done_condition_.notify_all();
}

void Recorder::flush(bool final) {
  cupti_.flush(final);
  if (full_) {
    // Beyond the limit rows are only counted, so that the report can say how much is missing.
    SectionEncoder scratch(epoch_ns_);
    std::swap(*encoder_, scratch);
    const std::int64_t lost = cupti_.started() ? cupti_.take_rows(*encoder_) : 0;
    take_host_records();
    dropped_ += lost + static_cast<std::int64_t>(encoder_->pending_rows());
    std::swap(*encoder_, scratch);
  } else {
    if (cupti_.started()) dropped_ += cupti_.take_rows(*encoder_);
    take_host_records();
    rows_ += static_cast<std::int64_t>(encoder_->pending_rows());
    if (rows_ > options_.max_records) {
      full_ = true;
      dropped_ += encoder_->drop_rows(rows_ - options_.max_records);
      cupti_.disable();
      note("stopped at the limit of " + std::to_string(options_.max_records) + " records");
    }
  }
  {
    const std::lock_guard<std::mutex> lock(facts_mutex_);
    for (const std::string& line : communicator_lines_) encoder_->add_line(line);
    communicator_lines_.clear();
  }
  const std::string update = update_line(facts_now());
  if (update != last_update_) encoder_->add_line(last_update_ = update);
  std::string text = encoder_->take_text();
  if (final) text += end_line(dropped_.load()) + "\n";
  write_text(text);
}

void Recorder::take_range_names() {
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  for (std::string& name : new_range_names_) range_texts_.push_back(std::move(name));
  new_range_names_.clear();
}

void Recorder::take_host_records() {
  std::vector<ThreadLog*> logs;
  {
    const std::lock_guard<std::mutex> lock(logs_mutex_);
    logs = logs_;
  }
  for (ThreadLog* log : logs) {
    // Read before draining: a thread that has ended adds nothing any more.
    const bool finished = log->finished.load(std::memory_order_acquire);
    log->ring.drain([&](const HostRecord& record) { take_host_record(*log, record); });
    if (!finished) continue;
    const std::lock_guard<std::mutex> lock(logs_mutex_);
    logs_.erase(std::find(logs_.begin(), logs_.end(), log));
    delete log;
  }
}

void Recorder::take_host_record(const ThreadLog& log, const HostRecord& record) {
  SectionEncoder& encoder = *encoder_;
  const auto text = [&](const char* known) {
    return known ? static_cast<std::int64_t>(encoder.intern(known)) : kUnknown;
  };
  const std::int64_t shift = cupti_.clock_offset_ns();
  switch (record.kind) {
    case HostRecord::Kind::kCall: {
      const CallRecord& call = record.call;
      ++calls_;
      CallRow row;
      row.id = call.id;
      if (call.communicator) row.communicator = encoder.intern_hex(call.communicator);
      row.function = text(call.function);
      row.count = call.count;
      row.dtype = text(call.dtype);
      row.op = text(call.op);
      row.bytes = call.bytes;
      if (call.stream_known) row.stream = encoder.intern_hex(call.stream);
      row.thread = log.thread;
      row.start_ns = call.start_ns + shift;
      row.end_ns = call.end_ns < 0 ? kUnknown : call.end_ns + shift;
      row.sequence = call.sequence;
      row.captured = call.captured;
      row.group_size = call.group_size;
      if (call.launch) row.launch = call.launch;
      encoder.add(row);
      return;
    }
    case HostRecord::Kind::kLink: {
      LinkRow row{record.link.kind, record.link.call, record.link.target};
      if (row.kind == LinkKind::kClone) row.call = encoder.intern_hex(row.call);
      if (row.kind != LinkKind::kLaunch) row.target = encoder.intern_hex(row.target);
      encoder.add(row);
      return;
    }
    case HostRecord::Kind::kRange: {
      const RangeRecord& range = record.range;
      // A name is interned before its range is pushed: it is there by now.
      if (range.name >= range_texts_.size()) take_range_names();
      if (range.name >= range_texts_.size()) return;
      encoder.add(RangeRow{encoder.intern(range_texts_[range.name]), range.thread, range.start_ns + shift,
                           range.end_ns + shift});
      return;
    }
  }
}

Process Recorder::facts_now() {
  const auto [gpu, uuid] = cupti_.started() ? cupti_.device() : std::pair<std::string, std::string>{};
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  if (!gpu.empty()) {
    process_.gpu = gpu;
    process_.gpu_uuid = uuid;
  }
  process_.dropped_records = dropped_.load();
  Process facts = process_;
  const auto has = [&](const char* tier) {
    return std::find(facts.tiers.begin(), facts.tiers.end(), tier) != facts.tiers.end();
  };
  if (calls_ > 0 && !has("nccl_profiler")) {
    facts.notes.emplace_back(
        "NCCL's profiler plugin interface did not load the recorder: count, datatype and stream of "
        "collectives are unknown");
  }
  if (calls_ > 0 && !has("nvtx")) {
    facts.notes.emplace_back(
        "NCCL's NVTX ranges did not reach the recorder: the operator of reductions is unknown");
  }
  if (calls_ > 0 && !cupti_.tried()) {
    facts.notes.emplace_back("CUDA did not load the recorder: no kernels recorded");
  }
  return facts;
}

void Recorder::write_text(std::string_view text) {
  while (text.size() > kFrameText) {
    const std::size_t end = text.rfind('\n', kFrameText);
    if (end == std::string_view::npos) break;
    write_frame(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  if (!text.empty()) write_frame(text);
}

void Recorder::write_frame(std::string_view text) {
  if (write_failed_) return;
  const std::string frame = compress_frame(text, kLiveLevel);
  std::size_t done = 0;
  while (done < frame.size()) {
    const ssize_t wrote = write(file_, frame.data() + done, frame.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      // A full disk: a half-written frame reads as a cut tail, so nothing may follow it.
      write_failed_ = true;
      return;
    }
    done += static_cast<std::size_t>(wrote);
  }
}

}  // namespace echotp::recorder
