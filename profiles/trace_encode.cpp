// SPDX-License-Identifier: Apache-2.0
// Columns instead of rows, differences instead of absolute times, one value instead of a column of equal
// values: that is what keeps a kernel below 20 bytes on disk.
#include "profiles/trace_encode.hpp"

#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <span>

namespace echotp {
namespace {

constexpr std::size_t kNameBytes = 2048;

void append_int(std::string& out, std::int64_t value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value);
  out.append(text, end.ptr);
}

/// Length of the valid UTF-8 sequence at the front of `text`; 0: not one.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  std::size_t length = 0;
  std::uint32_t point = 0;
  std::uint32_t smallest = 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2, point = first & 0x1FU, smallest = 0x80;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3, point = first & 0x0FU, smallest = 0x800;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4, point = first & 0x07U, smallest = 0x10000;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    point = point << 6U | (byte(i) & 0x3FU);
  }
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  return point < smallest || point > 0x10FFFF || surrogate ? 0 : length;
}

/// Writes one batch object {"<kind>":{...}} column by column.
class Batch {
 public:
  Batch(std::string& out, std::string_view kind) : out_(out) {
    out_ += "{\"";
    out_ += kind;
    out_ += "\":{";
  }
  ~Batch() { out_ += "}}\n"; }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void value(std::string_view key, std::int64_t v) {
    begin(key);
    append_int(out_, v);
  }
  /// `get(row)` below 0 is written as null.
  template <class Row, class Get>
  void column(std::string_view key, std::span<const Row> rows, Get get, bool always_array = false) {
    begin(key);
    const std::int64_t first = get(rows.front());
    const bool same =
        std::all_of(rows.begin(), rows.end(), [&](const Row& row) { return get(row) == first; });
    if (same && !always_array) return put(first);
    out_ += '[';
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i) out_ += ',';
      put(get(rows[i]));
    }
    out_ += ']';
  }
  /// Differences to the row before; the first one to `base`. Unknown rows are null and leave the base alone.
  template <class Row, class Get>
  void deltas(std::string_view key, std::span<const Row> rows, std::int64_t base, Get get) {
    begin(key);
    out_ += '[';
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i) out_ += ',';
      const std::int64_t v = get(rows[i]);
      if (v == kUnknown) {
        out_ += "null";
        continue;
      }
      append_int(out_, v - base);
      base = v;
    }
    out_ += ']';
  }
  /// "t" (relative to the epoch), "start" and "dur" of rows with start_ns and end_ns.
  template <class Row>
  void times(std::span<const Row> rows, std::int64_t epoch_ns) {
    std::int64_t base = epoch_ns;
    for (const Row& row : rows) {
      if (row.start_ns == kUnknown) continue;
      base = row.start_ns;
      break;
    }
    value("t", base - epoch_ns);
    deltas("start", rows, base, [](const Row& row) { return row.start_ns; });
    column("dur", rows, [](const Row& row) {
      return row.end_ns == kUnknown || row.start_ns == kUnknown || row.end_ns < row.start_ns
                 ? kUnknown
                 : row.end_ns - row.start_ns;
    });
  }

 private:
  void begin(std::string_view key) {
    if (!first_) out_ += ',';
    first_ = false;
    out_ += '"';
    out_ += key;
    out_ += "\":";
  }
  void put(std::int64_t v) {
    if (v < 0) {
      out_ += "null";
    } else {
      append_int(out_, v);
    }
  }
  std::string& out_;
  bool first_ = true;
};

template <class Row, class Write>
void in_batches(const std::vector<Row>& rows, Write write) {
  for (std::size_t at = 0; at < rows.size(); at += kBatchRows) {
    write(std::span<const Row>(rows).subspan(at, std::min(kBatchRows, rows.size() - at)));
  }
}

void write_device(std::string& out, std::span<const DeviceRow> rows, std::int64_t epoch_ns) {
  using Row = DeviceRow;
  Batch batch(out, "device");
  batch.times(rows, epoch_ns);
  batch.column("kind", rows, [](const Row& r) { return static_cast<std::int64_t>(r.kind); });
  batch.column("name", rows, [](const Row& r) -> std::int64_t { return r.name; });
  batch.column("device", rows, [](const Row& r) -> std::int64_t { return r.device; });
  batch.column("stream", rows, [](const Row& r) -> std::int64_t { return r.stream; });
  batch.deltas("corr", rows, 0, [](const Row& r) -> std::int64_t { return r.correlation; });
  batch.column("bytes", rows, [](const Row& r) { return r.bytes; });
  batch.column("node", rows, [](const Row& r) { return r.node; });
}

void write_api(std::string& out, std::span<const ApiRow> rows, std::int64_t epoch_ns) {
  using Row = ApiRow;
  Batch batch(out, "api");
  batch.times(rows, epoch_ns);
  batch.column("kind", rows, [](const Row& r) { return static_cast<std::int64_t>(r.kind); });
  batch.column("thread", rows, [](const Row& r) -> std::int64_t { return r.thread; });
  batch.deltas("corr", rows, 0, [](const Row& r) -> std::int64_t { return r.correlation; });
  batch.column("stream", rows, [](const Row& r) { return r.stream; });
  batch.column("event", rows, [](const Row& r) { return r.event; });
  batch.column("sync", rows, [](const Row& r) { return r.sync; });
}

void write_sync(std::string& out, std::span<const SyncRow> rows, std::int64_t epoch_ns) {
  using Row = SyncRow;
  Batch batch(out, "sync");
  batch.times(rows, epoch_ns);
  batch.column("kind", rows, [](const Row& r) { return static_cast<std::int64_t>(r.kind); });
  batch.deltas("corr", rows, 0, [](const Row& r) -> std::int64_t { return r.correlation; });
  batch.column("stream", rows, [](const Row& r) { return r.stream; });
  batch.column("event", rows, [](const Row& r) { return r.event; });
  batch.column("sync", rows, [](const Row& r) { return r.sync; });
}

void write_calls(std::string& out, std::span<const CallRow> rows, std::int64_t epoch_ns) {
  using Row = CallRow;
  Batch batch(out, "calls");
  batch.times(rows, epoch_ns);
  batch.deltas("id", rows, 0, [](const Row& r) { return static_cast<std::int64_t>(r.id); });
  batch.column("comm", rows, [](const Row& r) { return r.communicator; });
  batch.column("function", rows, [](const Row& r) { return r.function; });
  batch.column("count", rows, [](const Row& r) { return r.count; });
  batch.column("dtype", rows, [](const Row& r) { return r.dtype; });
  batch.column("op", rows, [](const Row& r) { return r.op; });
  batch.column("bytes", rows, [](const Row& r) { return r.bytes; });
  batch.column("stream", rows, [](const Row& r) { return r.stream; });
  batch.column("thread", rows, [](const Row& r) -> std::int64_t { return r.thread; });
  batch.column("seq", rows, [](const Row& r) { return r.sequence; });
  batch.column("captured", rows, [](const Row& r) -> std::int64_t { return r.captured ? 1 : 0; });
  batch.column("group", rows, [](const Row& r) -> std::int64_t { return r.group_size; });
  batch.column("launch", rows, [](const Row& r) { return r.launch; });
}

void write_links(std::string& out, std::span<const LinkRow> rows) {
  using Row = LinkRow;
  Batch batch(out, "links");
  batch.column("kind", rows, [](const Row& r) { return static_cast<std::int64_t>(r.kind); });
  batch.deltas("call", rows, 0, [](const Row& r) { return static_cast<std::int64_t>(r.call); });
  batch.column("target", rows, [](const Row& r) { return static_cast<std::int64_t>(r.target); });
}

void write_ranges(std::string& out, std::span<const RangeRow> rows, std::int64_t epoch_ns) {
  using Row = RangeRow;
  Batch batch(out, "ranges");
  batch.times(rows, epoch_ns);
  batch.column("name", rows, [](const Row& r) -> std::int64_t { return r.name; });
  batch.column("thread", rows, [](const Row& r) -> std::int64_t { return r.thread; });
}

void append_strings(std::string& out, const std::vector<std::string>& texts) {
  out += '[';
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i) out += ',';
    append_json_string(out, texts[i]);
  }
  out += ']';
}

void append_field(std::string& out, std::string_view key, const std::string& text) {
  if (text.empty()) return;
  if (out.back() != '{') out += ',';
  out += '"';
  out += key;
  out += "\":";
  append_json_string(out, text);
}

void append_field(std::string& out, std::string_view key, std::int64_t value) {
  if (value < 0) return;
  if (out.back() != '{') out += ',';
  out += '"';
  out += key;
  out += "\":";
  append_int(out, value);
}

void append_known(std::string& out, const Process& process) {
  append_field(out, "rank", process.rank);
  append_field(out, "program", process.program);
  append_field(out, "gpu", process.gpu);
  append_field(out, "gpu_uuid", process.gpu_uuid);
  append_field(out, "driver", process.driver);
  append_field(out, "cuda", process.cuda);
  append_field(out, "nccl", process.nccl);
  append_field(out, "dropped", process.dropped_records > 0 ? process.dropped_records : kUnknown);
  if (process.traced_ratio) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, *process.traced_ratio);
    out += out.back() == '{' ? "\"traced_ratio\":" : ",\"traced_ratio\":";
    out.append(text, end.ptr);
  }
  if (out.back() != '{') out += ',';
  out += "\"tiers\":";
  append_strings(out, process.tiers);
  out += ",\"notes\":";
  append_strings(out, process.notes);
  if (process.environment.empty()) return;
  out += ",\"environment\":{";
  for (const auto& [name, value] : process.environment) {
    if (out.back() != '{') out += ',';
    append_json_string(out, name);
    out += ':';
    append_json_string(out, value);
  }
  out += '}';
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      out += "\\ufffd";
      text.remove_prefix(1);
      continue;
    }
    const auto c = static_cast<unsigned char>(text.front());
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += kHex[c >> 4U];
      out += kHex[c & 15U];
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  out += '"';
}

std::uint32_t SectionEncoder::intern(std::string_view text) {
  std::string key(text.substr(0, kNameBytes));
  const auto [it, added] = names_.try_emplace(std::move(key), static_cast<std::uint32_t>(names_.size()));
  if (added) new_names_.push_back(it->first);
  return it->second;
}

std::uint32_t SectionEncoder::intern_hex(std::uint64_t value) {
  char text[20] = "0x";
  const auto end = std::to_chars(text + 2, text + sizeof text, value, 16);
  return intern(std::string_view(text, end.ptr));
}

void SectionEncoder::add_line(std::string_view json) {
  lines_ += json;
  lines_ += '\n';
}

std::int64_t SectionEncoder::drop_rows(std::int64_t count) {
  std::int64_t dropped = 0;
  const auto drop = [&](auto& rows) {
    const auto some = std::min(count - dropped, static_cast<std::int64_t>(rows.size()));
    rows.resize(rows.size() - static_cast<std::size_t>(some));
    dropped += some;
  };
  // Last what the report needs most.
  drop(ranges_);
  drop(sync_);
  drop(api_);
  drop(device_);
  drop(links_);
  drop(calls_);
  return dropped;
}

std::string SectionEncoder::take_text() {
  std::string out = std::move(lines_);
  lines_.clear();
  if (!new_names_.empty()) {
    in_batches(new_names_,
               [&, at = names_.size() - new_names_.size()](std::span<const std::string> some) mutable {
                 out += "{\"names\":{\"from\":";
                 append_int(out, static_cast<std::int64_t>(at));
                 out += ",\"add\":";
                 append_strings(out, {some.begin(), some.end()});
                 out += "}}\n";
                 at += some.size();
               });
    new_names_.clear();
  }
  in_batches(device_, [&](auto rows) { write_device(out, rows, epoch_ns_); });
  in_batches(api_, [&](auto rows) { write_api(out, rows, epoch_ns_); });
  in_batches(sync_, [&](auto rows) { write_sync(out, rows, epoch_ns_); });
  in_batches(calls_, [&](auto rows) { write_calls(out, rows, epoch_ns_); });
  in_batches(links_, [&](auto rows) { write_links(out, rows); });
  in_batches(ranges_, [&](auto rows) { write_ranges(out, rows, epoch_ns_); });
  device_.clear();
  api_.clear();
  sync_.clear();
  calls_.clear();
  links_.clear();
  ranges_.clear();
  return out;
}

std::string header_line(const std::vector<std::string>& command, std::optional<std::int64_t> of_steps) {
  std::string out = "{\"schema\":\"";
  out += kProfileSchema;
  out += "\",\"generator\":{\"name\":\"echo-tp\",\"version\":\"" ECHO_TP_VERSION "\"},\"command\":";
  append_strings(out, command);
  if (of_steps) out += ",\"excerpt\":{\"of_steps\":" + std::to_string(*of_steps) + "}";
  out += '}';
  return out;
}

std::string process_line(const Process& process, std::int64_t epoch_ns) {
  std::string out = "{\"process\":{";
  append_field(out, "host", process.host);
  append_field(out, "pid", process.pid);
  append_field(out, "epoch_ns", std::to_string(epoch_ns));
  append_known(out, process);
  out += "}}";
  return out;
}

std::string update_line(const Process& process) {
  std::string out = "{\"update\":{";
  append_known(out, process);
  out += "}}";
  return out;
}

std::string communicator_line(std::uint64_t hash, const std::string& name, std::int32_t ranks,
                              std::int32_t rank) {
  char text[20];
  const auto end = std::to_chars(text, text + sizeof text, hash, 16);
  std::string out = "{\"comm\":{\"hash\":\"0x";
  out.append(text, end.ptr);
  out += '"';
  append_field(out, "name", name);
  append_field(out, "ranks", ranks > 0 ? ranks : kUnknown);
  append_field(out, "rank", rank);
  out += "}}";
  return out;
}

std::string end_line(std::int64_t dropped_records) {
  std::string out = "{\"end\":{\"dropped\":";
  append_int(out, dropped_records);
  out += "}}";
  return out;
}

std::string compress_frame(std::string_view text, int level) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  if (!context) return {};
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size());
  ZSTD_freeCCtx(context);
  if (ZSTD_isError(size)) return {};
  out.resize(size);
  return out;
}

}  // namespace echotp
