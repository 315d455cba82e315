// SPDX-License-Identifier: Apache-2.0
// write_profile(), merge_profile() and trim_trace(); the reader is trace_reader.cpp.
#include "profiles/trace_file.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "profiles/frame_io.hpp"
#include "profiles/trace_encode.hpp"

namespace echotp {
namespace {

constexpr std::size_t kRowsBetweenFlushes = 16 * kBatchRows;

template <class Index, class Vector>
bool points_into(Index index, const Vector& vector) {
  return index >= 0 && static_cast<std::size_t>(index) < vector.size();
}

/// Nothing may be written that the reader would refuse.
Status check(const Trace& trace, const std::string& path) {
  const auto refuse = [&](const char* what) { return Error{ErrorCode::kBadInput, what, path}; };
  for (const DeviceOp& op : trace.device_ops) {
    if (!points_into(op.process, trace.processes)) return refuse("device op of no process");
    if (!points_into(op.name, trace.names)) return refuse("device op without a name");
  }
  for (const HostApi& api : trace.host_apis) {
    if (!points_into(api.process, trace.processes)) return refuse("CUDA call of no process");
  }
  for (const CollectiveCall& call : trace.calls) {
    if (!points_into(call.process, trace.processes)) return refuse("collective of no process");
    if (call.communicator >= 0 && !points_into(call.communicator, trace.communicators))
      return refuse("collective of no communicator");
    for (const std::int32_t op : call.ops) {
      if (!points_into(op, trace.device_ops)) return refuse("collective with a kernel that does not exist");
    }
  }
  for (const Range& range : trace.ranges) {
    if (!points_into(range.process, trace.processes)) return refuse("range of no process");
    if (!points_into(range.name, trace.names)) return refuse("range without a name");
  }
  return Unit{};
}

/// Rows of one process, by index, so that a section is written without passing over the whole trace again.
struct Members {
  std::vector<std::size_t> ops, apis, calls, ranges;
  std::int64_t epoch_ns = std::numeric_limits<std::int64_t>::max();
};

std::vector<Members> members_of(const Trace& trace) {
  std::vector<Members> members(trace.processes.size());
  const auto note = [&](std::int32_t process, std::int64_t start_ns) -> Members& {
    Members& m = members[static_cast<std::size_t>(process)];
    if (start_ns >= 0) m.epoch_ns = std::min(m.epoch_ns, start_ns);
    return m;
  };
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    note(trace.device_ops[i].process, trace.device_ops[i].start_ns).ops.push_back(i);
  }
  for (std::size_t i = 0; i < trace.host_apis.size(); ++i) {
    note(trace.host_apis[i].process, trace.host_apis[i].start_ns).apis.push_back(i);
  }
  for (std::size_t i = 0; i < trace.calls.size(); ++i) {
    note(trace.calls[i].process, trace.calls[i].host_start_ns).calls.push_back(i);
  }
  for (std::size_t i = 0; i < trace.ranges.size(); ++i)
    note(trace.ranges[i].process, trace.ranges[i].start_ns).ranges.push_back(i);
  for (Members& m : members) {
    if (m.epoch_ns == std::numeric_limits<std::int64_t>::max()) m.epoch_ns = 0;
  }
  return members;
}

std::int64_t known_text(SectionEncoder& encoder, const std::string& text) {
  return text.empty() ? kUnknown : static_cast<std::int64_t>(encoder.intern(text));
}

DeviceRow device_row(const Trace& trace, const DeviceOp& op, SectionEncoder& encoder) {
  DeviceRow row;
  row.kind = op.kind;
  row.name = encoder.intern(trace.names[static_cast<std::size_t>(op.name)]);
  row.device = op.device;
  row.stream = op.stream;
  row.start_ns = op.start_ns;
  row.end_ns = op.end_ns;
  row.correlation = op.correlation;
  row.bytes = op.bytes;
  if (op.graph_node) row.node = encoder.intern_hex(op.graph_node);
  return row;
}

ApiRow api_row(const HostApi& api) {
  ApiRow row;
  row.kind = api.kind;
  row.thread = api.thread;
  row.start_ns = api.start_ns;
  row.end_ns = api.end_ns;
  row.correlation = api.correlation;
  if (api.stream != 0xffffffffU) row.stream = api.stream;
  if (api.event) row.event = api.event;
  if (api.event_sync) row.sync = static_cast<std::int64_t>(api.event_sync);
  return row;
}

CallRow call_row(const Trace& trace, const CollectiveCall& call, std::size_t index, SectionEncoder& encoder) {
  CallRow row;
  row.id = index;
  if (call.communicator >= 0) {
    row.communicator =
        encoder.intern_hex(trace.communicators[static_cast<std::size_t>(call.communicator)].hash);
  }
  row.function = known_text(encoder, call.function);
  row.count = call.count;
  row.dtype = known_text(encoder, call.dtype);
  row.op = known_text(encoder, call.op);
  row.bytes = call.bytes;
  row.stream = encoder.intern_hex(call.stream_handle);
  row.thread = call.thread;
  row.start_ns = call.host_start_ns;
  row.end_ns = call.host_end_ns;
  row.sequence = call.sequence;
  row.captured = call.captured;
  row.group_size = call.group_size;
  return row;
}

Status write_section(const Trace& trace, std::size_t process, const Members& members, FrameFile& file) {
  SectionEncoder encoder(members.epoch_ns);
  encoder.add_line(process_line(trace.processes[process], members.epoch_ns));
  for (const Communicator& communicator : trace.communicators) {
    const std::int32_t rank =
        process < communicator.rank_of_process.size() ? communicator.rank_of_process[process] : -1;
    if (rank >= 0 || process == 0)
      encoder.add_line(communicator_line(communicator.hash, communicator.name, communicator.ranks, rank));
  }
  const auto flush = [&](bool always) -> Status {
    return always || encoder.pending_rows() >= kRowsBetweenFlushes ? file.add(encoder.take_text()) : Unit{};
  };
  std::map<std::int32_t, std::size_t> ordinal;
  for (std::size_t i = 0; i < members.ops.size(); ++i) {
    encoder.add(device_row(trace, trace.device_ops[members.ops[i]], encoder));
    ordinal[static_cast<std::int32_t>(members.ops[i])] = i;
    if (Status done = flush(false); !done) return done;
  }
  for (const std::size_t i : members.apis) {
    encoder.add(api_row(trace.host_apis[i]));
    if (Status done = flush(false); !done) return done;
  }
  for (std::size_t i = 0; i < members.calls.size(); ++i) {
    const CollectiveCall& call = trace.calls[members.calls[i]];
    encoder.add(call_row(trace, call, i, encoder));
    for (const std::int32_t op : call.ops) {
      if (const auto found = ordinal.find(op); found != ordinal.end())
        encoder.add(LinkRow{LinkKind::kOp, i, found->second});
    }
    if (Status done = flush(false); !done) return done;
  }
  for (const std::size_t i : members.ranges) {
    const Range& range = trace.ranges[i];
    encoder.add(RangeRow{encoder.intern(trace.names[static_cast<std::size_t>(range.name)]), range.thread,
                         range.start_ns, range.end_ns});
    if (Status done = flush(false); !done) return done;
  }
  if (Status done = flush(true); !done) return done;
  if (!trace.processes[process].complete) return Unit{};
  return file.add(end_line(trace.processes[process].dropped_records) + "\n");
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

/// What one part file holds, found in a first pass so that idle processes are left out and bad files named.
struct PartFacts {
  bool readable = false;
  bool idle = true;
  bool complete = false;
  bool truncated = false;
};

template <class Visit>
Status each_line(const std::string& path, bool& truncated, Visit visit) {
  FrameReader reader;
  if (Status opened = reader.open(path, ReadLimits{}.max_frame_bytes); !opened) return opened;
  for (;;) {
    Result<std::optional<std::string>> frame = reader.next();
    if (!frame) return frame.error();
    if (!*frame) break;
    std::string_view rest = **frame;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\n'), rest.size() - 1);
      if (Status done = visit(rest.substr(0, end + 1)); !done) return done;
      rest.remove_prefix(end + 1);
    }
  }
  truncated = reader.truncated();
  return Unit{};
}

Status scan(const std::string& path, PartFacts& facts) {
  const std::string header = "{\"schema\":\"" + std::string(kProfileSchema) + "\"";
  bool first = true;
  Status done = each_line(path, facts.truncated, [&](std::string_view line) -> Status {
    if (first && !starts_with(line, header)) {
      return Error{ErrorCode::kBadInput,
                   "not an echo-tp profile (expected " + std::string(kProfileSchema) + ")", path};
    }
    first = false;
    if (starts_with(line, "{\"process\"") || starts_with(line, "{\"update\"")) {
      facts.readable = true;
      if (line.find("\"notes\":[\"") != std::string_view::npos) facts.idle = false;
    }
    for (const std::string_view batch : {"{\"device\"", "{\"calls\"", "{\"ranges\""}) {
      if (starts_with(line, batch)) facts.idle = false;
    }
    if (starts_with(line, "{\"end\"")) facts.complete = true;
    return Unit{};
  });
  if (!done) return done;
  if (!facts.readable) return Error{ErrorCode::kBadInput, "holds no process", path};
  return Unit{};
}

}  // namespace

Status write_profile(const Trace& trace, const std::string& path) {
  if (Status fine = check(trace, path); !fine) return fine;
  FrameFile file;
  if (Status created = file.create(path); !created) return created;
  std::optional<std::int64_t> of_steps;
  if (trace.excerpt) of_steps = trace.excerpt->of_steps;
  if (Status done = file.add(header_line(trace.command, of_steps) + "\n"); !done) return done;
  const std::vector<Members> members = members_of(trace);
  for (std::size_t p = 0; p < trace.processes.size(); ++p) {
    if (Status done = write_section(trace, p, members[p], file); !done) return done;
  }
  if (trace.truncated_frames > 0) {
    const std::string line = "{\"truncated\":{\"frames\":" + std::to_string(trace.truncated_frames) + "}}\n";
    if (Status done = file.add(line); !done) return done;
  }
  Result<std::int64_t> bytes = file.finish();
  if (!bytes) return bytes.error();
  return Unit{};
}

Result<MergeSummary> merge_profile(const std::vector<std::string>& parts,
                                   const std::vector<std::string>& command, const std::string& out_path) {
  MergeSummary summary;
  std::vector<std::pair<std::string, PartFacts>> usable;
  for (const std::string& part : parts) {
    PartFacts facts;
    if (Status scanned = scan(part, facts); scanned) {
      usable.emplace_back(part, facts);
    } else {
      summary.problems.push_back(scanned.error().text());
    }
  }
  if (usable.empty()) {
    std::string what = parts.empty() ? "no process was recorded" : "no part of the recording can be read";
    if (!summary.problems.empty()) what += "; first: " + summary.problems.front();
    return Error{ErrorCode::kInsufficient, what, out_path};
  }
  const bool all_idle =
      std::all_of(usable.begin(), usable.end(), [](const auto& part) { return part.second.idle; });
  FrameFile file;
  if (Status created = file.create(out_path); !created) return created.error();
  if (Status done = file.add(header_line(command) + "\n"); !done) return done.error();
  for (const auto& [part, facts] : usable) {
    if (facts.idle && !all_idle) {
      ++summary.idle_processes;
      continue;
    }
    ++summary.processes;
    if (!facts.complete) ++summary.incomplete;
    bool truncated = false;
    Status copied = each_line(part, truncated, [&](std::string_view line) -> Status {
      return starts_with(line, "{\"schema\"") ? Unit{} : file.add(line);
    });
    if (!copied) return copied.error();
    if (!truncated) continue;
    ++summary.truncated_frames;
    if (Status done = file.add("{\"truncated\":{\"frames\":1}}\n"); !done) return done.error();
  }
  Result<std::int64_t> bytes = file.finish();
  if (!bytes) return bytes.error();
  summary.bytes = *bytes;
  return summary;
}

Trace trim_trace(const Trace& trace, std::int64_t from_ns, std::int64_t to_ns) {
  const auto inside = [&](std::int64_t start_ns) { return start_ns >= from_ns && start_ns < to_ns; };
  Trace out;
  out.processes = trace.processes;
  out.names = trace.names;
  out.communicators = trace.communicators;
  out.command = trace.command;
  out.excerpt = trace.excerpt;
  out.mixed_commands = trace.mixed_commands;
  std::vector<std::int32_t> new_op(trace.device_ops.size(), -1);
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    if (!inside(trace.device_ops[i].start_ns)) continue;
    new_op[i] = static_cast<std::int32_t>(out.device_ops.size());
    out.device_ops.push_back(trace.device_ops[i]);
    out.device_ops.back().call = -1;
  }
  for (const CollectiveCall& call : trace.calls) {
    std::vector<std::int32_t> ops;
    for (const std::int32_t op : call.ops) {
      if (new_op[static_cast<std::size_t>(op)] >= 0) ops.push_back(new_op[static_cast<std::size_t>(op)]);
    }
    if (ops.empty() && !inside(call.host_start_ns)) continue;
    const auto index = static_cast<std::int32_t>(out.calls.size());
    for (const std::int32_t op : ops) {
      std::int32_t& owner = out.device_ops[static_cast<std::size_t>(op)].call;
      if (owner < 0) owner = index;
    }
    out.calls.push_back(call);
    out.calls.back().ops = std::move(ops);
  }
  for (const HostApi& api : trace.host_apis) {
    if (inside(api.start_ns)) out.host_apis.push_back(api);
  }
  for (const Range& range : trace.ranges) {
    if (inside(range.start_ns)) out.ranges.push_back(range);
  }
  return out;
}

}  // namespace echotp
