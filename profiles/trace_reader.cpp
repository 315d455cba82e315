// SPDX-License-Identifier: Apache-2.0
// read_profile(): lines of JSON -> Trace. Every number is checked before it is used as an index or a time.
#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "profiles/batch_columns.hpp"
#include "profiles/frame_io.hpp"
#include "profiles/section_builder.hpp"
#include "profiles/trace_file.hpp"

namespace echotp {
namespace {

using namespace reading;  // NOLINT: this file is the reader

class Parser {
 public:
  explicit Parser(const ReadLimits& limits) : limits_(limits) {}

  void line(std::string_view text) {
    check_shape(text);
    const Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object()) {
      if (!have_header_) bad("", foreign());
      bad("", "not a JSON object");
    }
    if (json.contains("schema")) return header(json);
    if (!have_header_) bad("", foreign());
    if (const auto it = json.find("process"); it != json.end()) return process(*it);
    if (const auto it = json.find("truncated"); it != json.end()) {
      if (!it->is_object()) bad("/truncated", "expected an object");
      const auto frames = it->find("frames");
      if (frames == it->end()) bad("/truncated/frames", "expected an integer");
      trace_.truncated_frames += integer(*frames, "/truncated/frames", 0, kMax32);
      return;
    }
    static constexpr const char* kKnown[] = {"names", "update", "comm",  "end",   "device",
                                             "api",   "sync",   "calls", "links", "ranges"};
    for (const char* key : kKnown) {
      const auto it = json.find(key);
      if (it == json.end()) continue;
      if (!in_process_) bad("", std::string(key) + " before any process");
      dispatch(key, *it);
    }
  }

  Trace finish(bool truncated) {
    if (!have_header_) bad("", foreign());
    if (truncated) ++trace_.truncated_frames;
    end_section();
    choose_ranks();
    for (Communicator& communicator : trace_.communicators)
      communicator.rank_of_process.resize(trace_.processes.size(), -1);
    return std::move(trace_);
  }

 private:
  static std::string foreign() {
    return "not an echo-tp profile (expected " + std::string(kProfileSchema) + ")";
  }

  void header(const Json& json) {
    const Json& schema = json["schema"];
    if (!schema.is_string()) bad("/schema", foreign());
    const auto name = schema.get<std::string>();
    if (name != kProfileSchema) {
      if (name.rfind("echo-tp/profile/", 0) == 0) {
        bad("/schema", "made by another version of echo-tp: expected " + std::string(kProfileSchema) +
                           ", found " + name);
      }
      bad("/schema", foreign() + ", found " + name);
    }
    have_header_ = true;
    std::vector<std::string> command = texts_of(json, "command", "");
    if (trace_.command.empty()) {
      trace_.command = std::move(command);
    } else if (!command.empty() && command != trace_.command) {
      trace_.mixed_commands = true;
    }
    if (const auto it = json.find("excerpt"); it != json.end()) {
      if (!it->is_object() || !it->contains("of_steps")) bad("/excerpt", "expected {\"of_steps\":N}");
      trace_.excerpt = Excerpt{integer((*it)["of_steps"], "/excerpt/of_steps", 1, kMax32)};
    }
  }

  Process& current() { return trace_.processes.back(); }

  void process(const Json& json) {
    if (!json.is_object()) bad("/process", "expected an object");
    end_section();
    if (trace_.processes.size() >= 65536) bad("/process", "more processes than any job has");
    trace_.processes.emplace_back();
    in_process_ = true;
    section_.process = static_cast<std::int32_t>(trace_.processes.size()) - 1;
    current().host = text_of(json, "host", "/process");
    if (json.contains("pid"))
      current().pid = static_cast<std::int32_t>(integer(json["pid"], "/process/pid", 0, 0x7fffffff));
    const std::string epoch = text_of(json, "epoch_ns", "/process");
    if (epoch.empty() || epoch.size() > 19 || epoch.find_first_not_of("0123456789") != std::string::npos ||
        std::stoull(epoch) > static_cast<std::uint64_t>(kMaxTime >> 1)) {
      bad("/process/epoch_ns", "expected nanoseconds since 1970 as a string of digits");
    }
    epoch_ns_ = std::stoll(epoch);
    // The same process twice would be two ranks that always arrive together.
    if (current().pid >= 0 && !seen_.emplace(current().host, current().pid, epoch_ns_).second)
      bad("/process", "process " + std::to_string(current().pid) + " of host " + current().host +
                          " is in the file twice");
    facts(json, "/process");
  }

  void facts(const Json& json, const std::string& pointer) {
    if (!json.is_object()) bad(pointer, "expected an object");
    Process& to = current();
    const auto set = [&](std::string& field, const char* key) {
      if (json.contains(key)) field = text_of(json, key, pointer);
    };
    set(to.program, "program");
    set(to.gpu, "gpu");
    set(to.gpu_uuid, "gpu_uuid");
    set(to.driver, "driver");
    set(to.cuda, "cuda");
    set(to.nccl, "nccl");
    if (json.contains("rank"))
      to.rank = static_cast<std::int32_t>(integer(json["rank"], pointer + "/rank", 0, 1 << 24));
    if (json.contains("dropped"))
      to.dropped_records = integer(json["dropped"], pointer + "/dropped", 0, kMaxTime);
    if (json.contains("tiers")) to.tiers = texts_of(json, "tiers", pointer);
    if (json.contains("notes")) to.notes = texts_of(json, "notes", pointer);
    if (const auto it = json.find("traced_ratio"); it != json.end()) {
      if (!it->is_number()) bad(pointer + "/traced_ratio", "expected a number");
      to.traced_ratio = it->get<double>();
    }
    if (const auto it = json.find("environment"); it != json.end()) {
      if (!it->is_object()) bad(pointer + "/environment", "expected an object of strings");
      to.environment.clear();
      for (const auto& [name, value] : it->items()) {
        if (!value.is_string()) bad(pointer + "/environment", "expected an object of strings");
        to.environment.emplace_back(name, value.get<std::string>());
      }
    }
  }

  void dispatch(std::string_view key, const Json& json) {
    if (key == "names") return names(json);
    if (key == "update") return facts(json, "/update");
    if (key == "comm") return communicator(json);
    if (key == "end") {
      facts(json, "/end");
      current().complete = true;
      return;
    }
    if (key == "device") return device(json);
    if (key == "api") return api(json);
    if (key == "sync") return sync(json);
    if (key == "calls") return calls(json);
    if (key == "links") return links(json);
    ranges(json);
  }

  void names(const Json& json) {
    if (!json.is_object() || !json.contains("from")) bad("/names", "expected {\"from\":N,\"add\":[...]}");
    if (integer(json["from"], "/names/from", 0, kMax32) != static_cast<std::int64_t>(names_.size())) {
      bad("/names/from", "expected " + std::to_string(names_.size()));
    }
    for (std::string& name : texts_of(json, "add", "/names")) {
      name_bytes_ += static_cast<std::int64_t>(name.size()) + 32;
      if (name_bytes_ > limits_.max_name_bytes) bad("/names", "more names than this reader takes");
      names_.push_back(std::move(name));
    }
    global_.resize(names_.size(), -1);
  }

  std::int64_t highest_name() const { return static_cast<std::int64_t>(names_.size()) - 1; }
  const std::string& name_at(std::int64_t index) const { return names_[static_cast<std::size_t>(index)]; }

  /// Index in Trace::names; unknown stays -1.
  std::int32_t global_name(std::int64_t local) {
    if (local < 0) return -1;
    std::int32_t& known = global_[static_cast<std::size_t>(local)];
    if (known < 0) {
      const auto [it, added] =
          trace_names_.try_emplace(name_at(local), static_cast<std::int32_t>(trace_.names.size()));
      if (added) trace_.names.push_back(it->first);
      known = it->second;
    }
    return known;
  }

  std::int32_t communicator_index(std::uint64_t hash) {
    const auto [it, added] =
        communicators_.try_emplace(hash, static_cast<std::int32_t>(trace_.communicators.size()));
    if (added) {
      trace_.communicators.emplace_back();
      trace_.communicators.back().hash = hash;
    }
    return it->second;
  }

  void communicator(const Json& json) {
    if (!json.is_object()) bad("/comm", "expected an object");
    Communicator& to = trace_.communicators[static_cast<std::size_t>(
        communicator_index(hex_of(text_of(json, "hash", "/comm"), "/comm/hash")))];
    if (const std::string name = text_of(json, "name", "/comm"); !name.empty()) to.name = name;
    // Two communicators of one hash may meet when parts of several jobs are put together: the larger one
    // counts.
    std::int32_t ranks = 0;
    if (json.contains("ranks")) {
      ranks = static_cast<std::int32_t>(integer(json["ranks"], "/comm/ranks", 1, 1 << 24));
    }
    to.ranks = std::max(to.ranks, ranks);
    to.rank_of_process.resize(trace_.processes.size(), -1);
    if (!json.contains("rank")) return;
    const std::int64_t highest = ranks > 0 ? ranks - 1 : 1 << 24;
    const auto rank = static_cast<std::int32_t>(integer(json["rank"], "/comm/rank", 0, highest));
    to.rank_of_process.back() = rank;
    if (to.ranks > 0) to.ranks = std::max(to.ranks, rank + 1);
  }

  void count_rows(std::size_t rows) {
    rows_ += static_cast<std::int64_t>(rows);
    if (rows_ > limits_.max_rows)
      bad("", "more than " + std::to_string(limits_.max_rows) + " rows: trim the profile");
  }

  void device(const Json& json) {
    const Columns columns(json, "/device", "start");
    count_rows(columns.rows());
    const auto times = columns.times(epoch_ns_);
    const auto kind = columns.ints("kind", 2, true);
    const auto name = columns.ints("name", highest_name(), true);
    const auto on = columns.ints("device", kMax32, true);
    const auto stream = columns.ints("stream", kMax32, true);
    const auto correlation = columns.sums("corr", 0, kMax32);
    const auto bytes = columns.ints("bytes", kMaxTime);
    const auto node = columns.ints("node", highest_name());
    for (std::size_t i = 0; i < columns.rows(); ++i) {
      DeviceOp op;
      op.process = section_.process;
      op.kind = static_cast<DeviceOpKind>(kind[i]);
      op.name = global_name(name[i]);
      op.device = static_cast<std::uint32_t>(on[i]);
      op.stream = static_cast<std::uint32_t>(stream[i]);
      op.start_ns = times.start[i];
      op.end_ns = times.end[i];
      op.correlation = correlation[i] < 0 ? 0 : static_cast<std::uint32_t>(correlation[i]);
      op.bytes = bytes[i];
      if (node[i] >= 0) op.graph_node = hex_of(name_at(node[i]), "/device/node");
      section_.ops.push_back(op);
      section_.op_nodes.push_back(node[i]);
    }
  }

  void api(const Json& json) {
    const Columns columns(json, "/api", "start");
    count_rows(columns.rows());
    const auto times = columns.times(epoch_ns_);
    const auto kind = columns.ints("kind", static_cast<std::int64_t>(HostApiKind::kDeviceSynchronize), true);
    const auto thread = columns.ints("thread", kMax32, true);
    const auto correlation = columns.sums("corr", 0, kMax32);
    const auto stream = columns.ints("stream", kMax32);
    const auto event = columns.ints("event", kMax32);
    const auto sync_id = columns.ints("sync", kMaxTime);
    for (std::size_t i = 0; i < columns.rows(); ++i) {
      HostApi row;
      row.process = section_.process;
      row.kind = static_cast<HostApiKind>(kind[i]);
      row.thread = static_cast<std::uint32_t>(thread[i]);
      row.start_ns = times.start[i];
      row.end_ns = times.end[i];
      row.correlation = correlation[i] < 0 ? 0 : static_cast<std::uint32_t>(correlation[i]);
      row.stream = stream[i] < 0 ? 0xffffffffU : static_cast<std::uint32_t>(stream[i]);
      if (event[i] > 0) row.event = static_cast<std::uint32_t>(event[i]);
      if (sync_id[i] > 0) row.event_sync = static_cast<std::uint64_t>(sync_id[i]);
      section_.apis.push_back(row);
    }
  }

  void sync(const Json& json) {
    const Columns columns(json, "/sync", "start");
    count_rows(columns.rows());
    const auto times = columns.times(epoch_ns_);
    const auto kind = columns.ints("kind", static_cast<std::int64_t>(HostApiKind::kDeviceSynchronize), true);
    const auto correlation = columns.sums("corr", 0, kMax32);
    const auto stream = columns.ints("stream", kMax32);
    const auto event = columns.ints("event", kMax32);
    const auto sync_id = columns.ints("sync", kMaxTime);
    for (std::size_t i = 0; i < columns.rows(); ++i) {
      SyncRow row;
      row.kind = static_cast<HostApiKind>(kind[i]);
      row.is_wait = row.kind != HostApiKind::kEventRecord;
      row.start_ns = times.start[i];
      row.end_ns = times.end[i];
      row.correlation = correlation[i] < 0 ? 0 : static_cast<std::uint32_t>(correlation[i]);
      row.stream = stream[i];
      row.event = event[i];
      row.sync = sync_id[i];
      section_.syncs.push_back(row);
    }
  }

  void calls(const Json& json) {
    const Columns columns(json, "/calls", "start");
    count_rows(columns.rows());
    const auto times = columns.times(epoch_ns_);
    const auto id = columns.sums("id", 0, kMaxTime);
    const auto comm = columns.ints("comm", highest_name());
    const auto function = columns.ints("function", highest_name());
    const auto count = columns.ints("count", kMaxTime);
    const auto dtype = columns.ints("dtype", highest_name());
    const auto op = columns.ints("op", highest_name());
    const auto bytes = columns.ints("bytes", kMaxTime);
    const auto stream = columns.ints("stream", highest_name());
    const auto thread = columns.ints("thread", kMax32, true);
    const auto sequence = columns.ints("seq", kMaxTime);
    const auto captured = columns.ints("captured", 1);
    const auto group = columns.ints("group", 1 << 24);
    const auto launch = columns.ints("launch", kMax32);
    const auto text = [&](std::int64_t index) { return index < 0 ? std::string() : name_at(index); };
    for (std::size_t i = 0; i < columns.rows(); ++i) {
      SectionCall held;
      held.id = id[i] < 0 ? 0 : static_cast<std::uint64_t>(id[i]);
      held.launch = launch[i];
      CollectiveCall& call = held.call;
      call.process = section_.process;
      if (comm[i] >= 0) call.communicator = communicator_index(hex_of(name_at(comm[i]), "/calls/comm"));
      call.function = text(function[i]);
      call.count = count[i];
      call.dtype = text(dtype[i]);
      call.op = text(op[i]);
      call.bytes = bytes[i];
      if (stream[i] >= 0) call.stream_handle = hex_of(name_at(stream[i]), "/calls/stream");
      call.thread = static_cast<std::uint32_t>(thread[i]);
      call.host_start_ns = times.start[i];
      call.host_end_ns = times.end[i];
      call.sequence = sequence[i];
      call.captured = captured[i] == 1;
      if (group[i] > 0) call.group_size = static_cast<std::int32_t>(group[i]);
      section_.calls.push_back(std::move(held));
    }
  }

  void links(const Json& json) {
    const Columns columns(json, "/links", "call");
    count_rows(columns.rows());
    const auto kind = columns.ints("kind", static_cast<std::int64_t>(LinkKind::kOp), true);
    const auto call = columns.sums("call", 0, kMaxTime);
    const auto target = columns.ints("target", kMaxTime, true);
    for (std::size_t i = 0; i < columns.rows(); ++i) {
      if (call[i] < 0) continue;
      section_.links.push_back({static_cast<LinkKind>(kind[i]), static_cast<std::uint64_t>(call[i]),
                                static_cast<std::uint64_t>(target[i])});
    }
  }

  void ranges(const Json& json) {
    const Columns columns(json, "/ranges", "start");
    count_rows(columns.rows());
    const auto times = columns.times(epoch_ns_);
    const auto name = columns.ints("name", highest_name(), true);
    const auto thread = columns.ints("thread", kMax32, true);
    for (std::size_t i = 0; i < columns.rows(); ++i) {
      Range range;
      range.process = section_.process;
      range.thread = static_cast<std::uint32_t>(thread[i]);
      range.name = global_name(name[i]);
      range.start_ns = times.start[i];
      range.end_ns = times.end[i];
      section_.ranges.push_back(range);
    }
  }

  void end_section() {
    if (in_process_) append_section(std::move(section_), trace_);
    section_ = Section{};
    names_.clear();
    global_.clear();
    in_process_ = false;
  }

  /// A process's rank is that in the largest communicator it belongs to, unless the file says otherwise.
  void choose_ranks() {
    for (std::size_t p = 0; p < trace_.processes.size(); ++p) {
      if (trace_.processes[p].rank >= 0) continue;
      std::int32_t largest = 0;
      for (const Communicator& communicator : trace_.communicators) {
        if (p >= communicator.rank_of_process.size() || communicator.rank_of_process[p] < 0) continue;
        if (communicator.ranks <= largest) continue;
        largest = communicator.ranks;
        trace_.processes[p].rank = communicator.rank_of_process[p];
      }
    }
  }

  ReadLimits limits_;
  Trace trace_;
  Section section_;
  std::vector<std::string> names_;
  std::vector<std::int32_t> global_;
  std::unordered_map<std::string, std::int32_t> trace_names_;
  std::unordered_map<std::uint64_t, std::int32_t> communicators_;
  std::set<std::tuple<std::string, std::int32_t, std::int64_t>> seen_;  // host, pid, epoch
  std::int64_t epoch_ns_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t name_bytes_ = 0;
  bool have_header_ = false;
  bool in_process_ = false;
};

}  // namespace

Result<Trace> read_profile(const std::string& path, const ReadLimits& limits) {
  std::int64_t line_number = 0;
  try {
    FrameReader reader;
    if (Status opened = reader.open(path, limits.max_frame_bytes); !opened) return opened.error();
    Parser parser(limits);
    for (;;) {
      Result<std::optional<std::string>> frame = reader.next();
      if (!frame) return frame.error();
      if (!*frame) break;
      std::string_view rest = **frame;
      while (!rest.empty()) {
        const std::size_t end = rest.find('\n');
        ++line_number;
        parser.line(rest.substr(0, end));
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      }
    }
    line_number = 0;
    return parser.finish(reader.truncated());
  } catch (const BadLine& what) {
    std::string where = path;
    if (line_number > 1 || !what.pointer.empty()) where += ": line " + std::to_string(line_number);
    if (!what.pointer.empty()) where += ": " + what.pointer;
    return Error{ErrorCode::kBadInput, what.what, where};
  } catch (const std::exception& failure) {
    return Error{ErrorCode::kBadInput, std::string("cannot be read: ") + failure.what(), path};
  }
}

}  // namespace echotp
