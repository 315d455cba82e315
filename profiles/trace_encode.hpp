// SPDX-License-Identifier: Apache-2.0
// ENCODING: rows of one process -> lines of JSON -> self-contained zstd frames appended to a file. Used by
// the recorder inside the job, so it needs no JSON library. The format is described in
// share/doc/profile-format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "profiles/trace.hpp"
#include "shim/result.hpp"

namespace echotp {

/// First key of every profile; readers compare it before anything else.
inline constexpr std::string_view kProfileSchema = "echo-tp/profile/1";
/// Value of an integer column that nothing is known about; written as null.
inline constexpr std::int64_t kUnknown = -1;
/// Rows of one batch line at most, so that a line stays short.
inline constexpr std::size_t kBatchRows = 1024;

/// Appends `text` as a JSON string: quotes, backslashes and control characters escaped, invalid UTF-8
/// replaced by U+FFFD.
void append_json_string(std::string& out, std::string_view text);

/// One thing on a stream, as a profile file holds it. Names are indices from SectionEncoder::intern().
struct DeviceRow {
  DeviceOpKind kind = DeviceOpKind::kKernel;
  std::uint32_t name = 0;
  std::uint32_t device = 0;
  std::uint32_t stream = 0;
  std::int64_t start_ns = kUnknown;
  std::int64_t end_ns = kUnknown;
  std::uint32_t correlation = 0;
  std::int64_t bytes = kUnknown;
  std::int64_t node = kUnknown;  // interned "0x..." of the graph node
};

/// One CUDA call of the host; stream, event and sync may follow in an event or wait row of the same
/// correlation.
struct ApiRow {
  HostApiKind kind = HostApiKind::kLaunch;
  std::uint32_t thread = 0;
  std::int64_t start_ns = kUnknown;
  std::int64_t end_ns = kUnknown;
  std::uint32_t correlation = 0;
  std::int64_t stream = kUnknown;
  std::int64_t event = kUnknown;
  std::int64_t sync = kUnknown;
};

/// What CUPTI says about an event record (`is_wait` false) or a wait (true); completes the API row of that
/// correlation.
struct SyncRow {
  bool is_wait = false;
  HostApiKind kind = HostApiKind::kEventRecord;
  std::int64_t start_ns = kUnknown;
  std::int64_t end_ns = kUnknown;
  std::uint32_t correlation = 0;
  std::int64_t stream = kUnknown;
  std::int64_t event = kUnknown;
  std::int64_t sync = kUnknown;
};

/// One collective call of the host. Strings are interned; kUnknown where nothing is known.
struct CallRow {
  std::uint64_t id = 0;                  // unique in the process
  std::int64_t communicator = kUnknown;  // interned "0x..." hash
  std::int64_t function = kUnknown;
  std::int64_t count = kUnknown;
  std::int64_t dtype = kUnknown;
  std::int64_t op = kUnknown;
  std::int64_t bytes = kUnknown;
  std::int64_t stream = kUnknown;  // interned "0x..." handle
  std::uint32_t thread = 0;
  std::int64_t start_ns = kUnknown;
  std::int64_t end_ns = kUnknown;
  std::int64_t sequence = kUnknown;
  bool captured = false;
  std::int32_t group_size = 1;
  std::int64_t launch = kUnknown;  // correlation id of its first kernel launch
};

enum class LinkKind : std::uint8_t {
  kLaunch,  // call -> correlation id of one more kernel launch
  kNode,    // call -> interned graph node
  kClone,   // interned graph node (in `call`) -> interned node that it was cloned from
  kOp,      // call -> ordinal of a device row in this section
};

struct LinkRow {
  LinkKind kind = LinkKind::kLaunch;
  std::uint64_t call = 0;
  std::uint64_t target = 0;
};

struct RangeRow {
  std::uint32_t name = 0;
  std::uint32_t thread = 0;
  std::int64_t start_ns = kUnknown;
  std::int64_t end_ns = kUnknown;
};

/// Collects rows of one process and turns them into lines. Not thread safe: one owner.
class SectionEncoder {
 public:
  /// Times are written relative to `epoch_ns`.
  explicit SectionEncoder(std::int64_t epoch_ns) : epoch_ns_(epoch_ns) {}

  /// Index of `text`, the same for equal strings; at most 2048 bytes of it are kept.
  std::uint32_t intern(std::string_view text);
  /// Index of "0x<hex>".
  std::uint32_t intern_hex(std::uint64_t value);

  void add(const DeviceRow& row) { device_.push_back(row); }
  void add(const ApiRow& row) { api_.push_back(row); }
  void add(const SyncRow& row) { sync_.push_back(row); }
  void add(const CallRow& row) { calls_.push_back(row); }
  void add(const LinkRow& row) { links_.push_back(row); }
  void add(const RangeRow& row) { ranges_.push_back(row); }
  /// A finished line, without its newline; written before the rows that are pending.
  void add_line(std::string_view json);

  std::size_t pending_rows() const {
    return device_.size() + api_.size() + sync_.size() + calls_.size() + links_.size() + ranges_.size();
  }
  /// Forgets up to `count` of the newest pending rows; returns how many that were.
  std::int64_t drop_rows(std::int64_t count);
  /// Everything pending as text, each line ended by a newline; empty when nothing is pending.
  std::string take_text();

 private:
  std::int64_t epoch_ns_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::vector<std::string> new_names_;
  std::string lines_;
  std::vector<DeviceRow> device_;
  std::vector<ApiRow> api_;
  std::vector<SyncRow> sync_;
  std::vector<CallRow> calls_;
  std::vector<LinkRow> links_;
  std::vector<RangeRow> ranges_;
};

/// The line that starts a file. `command` is that of `echo-tp profile`; empty in a part file. `of_steps`: the
/// file is an excerpt of a recording of so many steps; unset: it is whole.
std::string header_line(const std::vector<std::string>& command, std::optional<std::int64_t> of_steps = {});
/// The line that starts a process. Times of its rows are relative to `epoch_ns`.
std::string process_line(const Process& process, std::int64_t epoch_ns);
/// Facts learnt since process_line(): only what is known is written.
std::string update_line(const Process& process);
/// One rank's membership. `rank` and `ranks` below 0 or 0 are unknown.
std::string communicator_line(std::uint64_t hash, const std::string& name, std::int32_t ranks,
                              std::int32_t rank);
/// The line that ends a process: its absence means that the process did not end in order.
std::string end_line(std::int64_t dropped_records);

/// `text` as one zstd frame with a checksum. Empty when zstd fails.
std::string compress_frame(std::string_view text, int level);

}  // namespace echotp
