// SPDX-License-Identifier: Apache-2.0
// Profile files: round trip, cut tails, foreign and hostile files, merging, trimming.
#include "profiles/trace_file.hpp"

#include <doctest/doctest.h>
#include <unistd.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "profiles/trace_encode.hpp"

namespace echotp {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    char name[] = "/tmp/echo-tp-trace-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const char* name) const { return path / name; }
};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// One frame of `lines`, made with zstd's simple interface rather than the code under test.
std::string frame(const std::string& lines) {
  std::string out(ZSTD_compressBound(lines.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), lines.data(), lines.size(), 1));
  return out;
}

const std::string kHeader = "{\"schema\":\"echo-tp/profile/1\"}\n";
const std::string kProcess =
    "{\"process\":{\"host\":\"h\",\"pid\":1,\"epoch_ns\":\"1000\"}}\n{\"names\":{\"from\":0,\"add\":[\"k\","
    "\"0x1f\"]}}\n";

std::string error_of(const std::string& path, const ReadLimits& limits = {}) {
  Result<Trace> trace = read_profile(path, limits);
  if (trace) return "";
  CHECK(trace.error().text().find('\n') == std::string::npos);
  return trace.error().text();
}

std::string error_of_lines(const Folder& folder, const std::string& lines) {
  const std::string path = folder.file("hostile.echoprof");
  put(path, frame(lines));
  return error_of(path);
}

TEST_CASE("a process that is in the file twice is refused, its namesake of another time is not") {
  const Folder folder;
  CHECK(error_of_lines(folder, kHeader + kProcess + kHeader + kProcess).find("is in the file twice") !=
        std::string::npos);
  const std::string later = "{\"process\":{\"host\":\"h\",\"pid\":1,\"epoch_ns\":\"2000\"}}\n";
  CHECK(error_of_lines(folder, kHeader + kProcess + later).empty());
}

TEST_CASE("recordings of different commands in one file are told from parts of one job") {
  const Folder folder;
  const auto mixed = [&](const std::string& first, const std::string& second) {
    const auto header = [](const std::string& command) {
      return "{\"schema\":\"echo-tp/profile/1\",\"command\":[" + command + "]}\n";
    };
    put(folder.file("m.echoprof"), frame(header(first) + kProcess) + frame(header(second)));
    const Result<Trace> trace = read_profile(folder.file("m.echoprof"));
    REQUIRE(trace);
    return trace->mixed_commands;
  };
  CHECK(mixed("\"a\"", "\"b\""));
  CHECK_FALSE(mixed("\"a\"", "\"a\""));
  CHECK_FALSE(mixed("", "\"a\""));
  CHECK_FALSE(mixed("\"a\"", ""));
}

TEST_CASE("the mark of an excerpt is kept, and checked") {
  const Folder folder;
  Trace trace;
  trace.processes.resize(1);
  trace.excerpt = Excerpt{80};
  REQUIRE(write_profile(trace, folder.file("e.echoprof")));
  const Result<Trace> read = read_profile(folder.file("e.echoprof"));
  REQUIRE(read);
  REQUIRE(read->excerpt);
  CHECK(read->excerpt->of_steps == 80);
  CHECK(error_of_lines(folder, "{\"schema\":\"echo-tp/profile/1\",\"excerpt\":{\"of_steps\":0}}\n")
            .find("/excerpt/of_steps") != std::string::npos);
}

Trace example() {
  constexpr std::int64_t t = 1'790'000'000'000'000'000;
  Trace trace;
  trace.command = {"python", "serve.py", "--name", "\"quoted\"\n"};
  trace.names = {"gemm", "nccl \xC3\xA9", "step 1", "Memcpy DtoH"};
  trace.truncated_frames = 2;
  for (int p = 0; p < 2; ++p) {
    Process process;
    process.host = "node";
    process.pid = 100 + p;
    process.rank = p;
    process.program = "python serve.py";
    process.gpu = "NVIDIA H200";
    process.nccl = "2.28.9";
    process.tiers = {"nvtx", "cupti"};
    process.notes = {"a note"};
    process.dropped_records = p * 5;
    process.complete = p == 0;
    process.environment = {{"NCCL_ALGO", "Ring"}};
    if (p == 1) process.traced_ratio = 1.03125;
    trace.processes.push_back(process);
  }
  Communicator communicator;
  communicator.hash = 0xffffffffffffffffULL;
  communicator.name = "tp";
  communicator.ranks = 2;
  communicator.rank_of_process = {0, 1};
  trace.communicators.push_back(communicator);
  for (std::int32_t p = 0; p < 2; ++p) {
    for (std::int32_t i = 0; i < 3; ++i) {
      DeviceOp op;
      op.process = p;
      op.name = i == 1 ? 1 : 0;
      op.stream = 7;
      op.start_ns = t + p * 50 + i * 1000;
      op.end_ns = op.start_ns + 700;
      op.correlation = static_cast<std::uint32_t>(10 - i);
      if (i == 1) {
        op.call = p;
        op.graph_node = 0x2300000001ULL;
      }
      trace.device_ops.push_back(op);
    }
    CollectiveCall call;
    call.process = p;
    call.communicator = 0;
    call.function = "AllReduce";
    call.count = p == 0 ? 4096 : -1;
    call.dtype = p == 0 ? "bf16" : "";
    call.op = "sum";
    call.bytes = 8192;
    call.stream_handle = 0xdeadbeefcafeULL;
    call.thread = 77;
    call.host_start_ns = t + 5;
    call.host_end_ns = p == 0 ? t + 500 : -1;
    call.sequence = 3;
    call.captured = p == 1;
    call.group_size = 2;
    call.ops = {p * 3 + 1};
    trace.calls.push_back(call);
    HostApi api;
    api.process = p;
    api.kind = HostApiKind::kStreamWaitEvent;
    api.thread = 77;
    api.start_ns = t + 8;
    api.end_ns = t + 9;
    api.correlation = 4;
    api.stream = p == 0 ? 7 : 0xffffffffU;
    api.event = 12;
    api.event_sync = 1234567890123ULL;
    trace.host_apis.push_back(api);
    Range range;
    range.process = p;
    range.thread = 77;
    range.name = 2;
    range.start_ns = t;
    range.end_ns = t + 3000;
    trace.ranges.push_back(range);
  }
  return trace;
}

void check_equal(const Trace& a, const Trace& b) {
  CHECK(a.command == b.command);
  CHECK(a.truncated_frames == b.truncated_frames);
  const auto name = [](const Trace& trace, std::int32_t i) {
    return trace.names.at(static_cast<std::size_t>(i));
  };
  REQUIRE(a.processes.size() == b.processes.size());
  for (std::size_t i = 0; i < a.processes.size(); ++i) {
    const Process& x = a.processes[i];
    const Process& y = b.processes[i];
    CHECK(x.host == y.host);
    CHECK(x.pid == y.pid);
    CHECK(x.rank == y.rank);
    CHECK(x.program == y.program);
    CHECK(x.gpu == y.gpu);
    CHECK(x.nccl == y.nccl);
    CHECK(x.tiers == y.tiers);
    CHECK(x.notes == y.notes);
    CHECK(x.dropped_records == y.dropped_records);
    CHECK(x.complete == y.complete);
    CHECK(x.environment == y.environment);
    CHECK(x.traced_ratio == y.traced_ratio);
  }
  REQUIRE(a.communicators.size() == b.communicators.size());
  for (std::size_t i = 0; i < a.communicators.size(); ++i) {
    CHECK(a.communicators[i].hash == b.communicators[i].hash);
    CHECK(a.communicators[i].name == b.communicators[i].name);
    CHECK(a.communicators[i].ranks == b.communicators[i].ranks);
    CHECK(a.communicators[i].rank_of_process == b.communicators[i].rank_of_process);
  }
  REQUIRE(a.device_ops.size() == b.device_ops.size());
  for (std::size_t i = 0; i < a.device_ops.size(); ++i) {
    const DeviceOp& x = a.device_ops[i];
    const DeviceOp& y = b.device_ops[i];
    CHECK(x.process == y.process);
    CHECK(x.kind == y.kind);
    CHECK(name(a, x.name) == name(b, y.name));
    CHECK(x.device == y.device);
    CHECK(x.stream == y.stream);
    CHECK(x.start_ns == y.start_ns);
    CHECK(x.end_ns == y.end_ns);
    CHECK(x.correlation == y.correlation);
    CHECK(x.bytes == y.bytes);
    CHECK(x.graph_node == y.graph_node);
    CHECK(x.call == y.call);
  }
  REQUIRE(a.calls.size() == b.calls.size());
  for (std::size_t i = 0; i < a.calls.size(); ++i) {
    const CollectiveCall& x = a.calls[i];
    const CollectiveCall& y = b.calls[i];
    CHECK(x.process == y.process);
    CHECK(x.communicator == y.communicator);
    CHECK(x.function == y.function);
    CHECK(x.count == y.count);
    CHECK(x.dtype == y.dtype);
    CHECK(x.op == y.op);
    CHECK(x.bytes == y.bytes);
    CHECK(x.stream_handle == y.stream_handle);
    CHECK(x.thread == y.thread);
    CHECK(x.host_start_ns == y.host_start_ns);
    CHECK(x.host_end_ns == y.host_end_ns);
    CHECK(x.sequence == y.sequence);
    CHECK(x.captured == y.captured);
    CHECK(x.group_size == y.group_size);
    CHECK(x.ops == y.ops);
  }
  REQUIRE(a.host_apis.size() == b.host_apis.size());
  for (std::size_t i = 0; i < a.host_apis.size(); ++i) {
    const HostApi& x = a.host_apis[i];
    const HostApi& y = b.host_apis[i];
    CHECK(x.process == y.process);
    CHECK(x.kind == y.kind);
    CHECK(x.thread == y.thread);
    CHECK(x.start_ns == y.start_ns);
    CHECK(x.end_ns == y.end_ns);
    CHECK(x.correlation == y.correlation);
    CHECK(x.stream == y.stream);
    CHECK(x.event == y.event);
    CHECK(x.event_sync == y.event_sync);
  }
  REQUIRE(a.ranges.size() == b.ranges.size());
  for (std::size_t i = 0; i < a.ranges.size(); ++i) {
    CHECK(a.ranges[i].process == b.ranges[i].process);
    CHECK(name(a, a.ranges[i].name) == name(b, b.ranges[i].name));
    CHECK(a.ranges[i].start_ns == b.ranges[i].start_ns);
    CHECK(a.ranges[i].end_ns == b.ranges[i].end_ns);
  }
}

TEST_CASE("a trace survives writing and reading") {
  const Folder folder;
  const Trace trace = example();
  REQUIRE(write_profile(trace, folder.file("a.echoprof")));
  Result<Trace> read = read_profile(folder.file("a.echoprof"));
  if (!read) FAIL(read.error().text());
  check_equal(trace, *read);
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);  // no temporary file left
}

TEST_CASE("a trace with indices that point nowhere is not written") {
  const Folder folder;
  Trace trace = example();
  trace.calls[0].ops = {99};
  Status written = write_profile(trace, folder.file("a.echoprof"));
  REQUIRE(!written);
  CHECK(written.error().code == ErrorCode::kBadInput);
  CHECK(!fs::exists(folder.file("a.echoprof")));
}

TEST_CASE("a file cut anywhere is read up to the cut, or refused in one line") {
  const Folder folder;
  const std::string parts[] = {
      frame(kHeader + kProcess),
      frame("{\"device\":{\"t\":0,\"start\":[0,10],\"dur\":5,\"kind\":0,\"name\":0,\"device\":0,\"stream\":7,"
            "\"corr\":[1,1]}}\n"),
      frame("{\"device\":{\"t\":50,\"start\":[0],\"dur\":5,\"kind\":0,\"name\":0,\"device\":0,\"stream\":7,"
            "\"corr\":[9]}}\n{\"end\":{}}\n"),
  };
  const std::string whole = parts[0] + parts[1] + parts[2];
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    CAPTURE(size);
    put(folder.file("cut"), whole.substr(0, size));
    Result<Trace> trace = read_profile(folder.file("cut"));
    if (size < parts[0].size()) {
      REQUIRE(!trace);
      CHECK(trace.error().code == ErrorCode::kBadInput);
      continue;
    }
    REQUIRE(trace);
    const std::size_t two = parts[0].size() + parts[1].size();
    const bool at_edge = size == parts[0].size() || size == two || size == whole.size();
    CHECK(trace->truncated_frames == (at_edge ? 0 : 1));
    CHECK(trace->device_ops.size() == (size == whole.size() ? 3 : size >= two ? 2 : 0));
    CHECK(trace->processes.at(0).complete == (size == whole.size()));
  }
}

TEST_CASE("damage inside a file is refused with the byte") {
  const Folder folder;
  REQUIRE(write_profile(example(), folder.file("a")));
  std::string bytes = bytes_of(folder.file("a"));
  int refused = 0;
  for (std::size_t i = 4; i < bytes.size(); i += 7) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x41);
    put(folder.file("b"), damaged);
    if (!error_of(folder.file("b")).empty()) ++refused;
  }
  CHECK(refused > 50);
}

TEST_CASE("foreign files are named as such") {
  const Folder folder;
  const std::string path = folder.file("x.echoprof");
  CHECK(error_of(folder.file("none")).find("No such file") != std::string::npos);
  CHECK(read_profile(folder.file("none")).error().code == ErrorCode::kNotFound);
  put(path, "");
  CHECK(error_of(path).find("empty file") != std::string::npos);
  for (const std::string& foreign : {std::string("{\"schema\":\"echo-tp/policy/1\"}"),
                                     std::string("PK\3\4 a zip file"), std::string("\0\0\0\0\0", 5)}) {
    put(path, foreign);
    CHECK(error_of(path).find("not an echo-tp profile") != std::string::npos);
  }
  for (const std::string& lines :
       {std::string("hello\n"), std::string("[1,2]\n"), std::string("{\"a\":1}\n"),
        std::string("{\"schema\":7}\n"), std::string("{\"schema\":\"echo-tp/run/1\"}\n"), kProcess}) {
    CAPTURE(lines);
    CHECK(error_of_lines(folder, lines).find("not an echo-tp profile") != std::string::npos);
  }
  CHECK(error_of_lines(folder, "{\"schema\":\"echo-tp/profile/2\"}\n")
            .find("expected echo-tp/profile/1, found echo-tp/profile/2") != std::string::npos);
  CHECK(error_of(folder.path).find(folder.path.string()) == 0);  // a directory
}

TEST_CASE("hostile content is refused with the place of it") {
  const Folder folder;
  const auto device = [&](const std::string& columns) {
    return error_of_lines(folder, kHeader + kProcess + "{\"device\":{" + columns + "}}\n");
  };
  const std::string rest = ",\"kind\":0,\"name\":0,\"device\":0,\"stream\":7,\"corr\":[1]";
  CHECK(device("\"t\":0,\"start\":[0],\"dur\":5" + rest).empty());
  CHECK(device("\"t\":-5000,\"start\":[0],\"dur\":5" + rest).find("line 4: /device/start/0: negative") !=
        std::string::npos);
  CHECK(device("\"t\":0,\"start\":[-9000],\"dur\":5" + rest).find("/device/start/0: negative") !=
        std::string::npos);
  CHECK(device("\"t\":0,\"start\":[0],\"dur\":-5" + rest).find("/device/dur") != std::string::npos);
  CHECK(device("\"t\":0,\"start\":[9223372036854775807],\"dur\":5" + rest).find("/device/start/0") !=
        std::string::npos);
  CHECK(device("\"t\":0,\"start\":[1e300],\"dur\":5" + rest).find("/device/start/0") != std::string::npos);
  CHECK(device("\"t\":18446744073709551615,\"start\":[0],\"dur\":5" + rest).find("/device/t") !=
        std::string::npos);
  CHECK(device("\"t\":0,\"start\":[0],\"dur\":5,\"kind\":0,\"name\":99999999,\"device\":0,\"stream\":7,"
               "\"corr\":[1]")
            .find("/device/name") != std::string::npos);
  CHECK(device("\"t\":0,\"start\":[0],\"dur\":5,\"kind\":9,\"name\":0,\"device\":0,\"stream\":7,\"corr\":[1]")
            .find("/device/kind") != std::string::npos);
  CHECK(device("\"t\":0,\"start\":[0],\"dur\":[1,2]" + rest).find("different length") != std::string::npos);
  CHECK(device("\"t\":0,\"start\":[0],\"dur\":5,\"node\":0" + rest).find("hexadecimal") != std::string::npos);
  CHECK(device("\"t\":0,\"start\":[],\"dur\":5" + rest).find("/device/start") != std::string::npos);
  CHECK(device("\"t\":0,\"dur\":5" + rest).find("/device/start: column missing") != std::string::npos);
  const auto line = [&](const std::string& text) {
    return error_of_lines(folder, kHeader + kProcess + text + "\n");
  };
  CHECK(line("{\"device\":" + std::string(100000, '[') + std::string(100000, ']') + "}")
            .find("nested deeper") != std::string::npos);
  CHECK(line("{\"names\":{\"from\":7,\"add\":[\"x\"]}}").find("/names/from: expected 2") !=
        std::string::npos);
  CHECK(line("{\"comm\":{\"hash\":\"12\"}}").find("/comm/hash") != std::string::npos);
  CHECK(line("{\"comm\":{\"hash\":\"0x1\",\"ranks\":2,\"rank\":2}}").find("/comm/rank") != std::string::npos);
  CHECK(line("{\"comm\":[]}").find("/comm") != std::string::npos);
  CHECK(line("{\"update\":{\"notes\":[1]}}").find("/update/notes") != std::string::npos);
  CHECK(line("{\"device\":").find("not a JSON object") != std::string::npos);
  CHECK(line("{\"truncated\":{}}").find("/truncated") != std::string::npos);
  CHECK(line("{\"from a later version\":{\"x\":1}}").empty());
  CHECK(
      error_of_lines(folder, kHeader + "{\"names\":{\"from\":0,\"add\":[]}}\n").find("before any process") !=
      std::string::npos);
  CHECK(error_of_lines(folder, kHeader + "{\"process\":{\"epoch_ns\":\"99999999999999999999\"}}\n")
            .find("/process/epoch_ns") != std::string::npos);
  // Links that point nowhere are what a crash leaves: ignored.
  CHECK(line("{\"links\":{\"kind\":[0,3,2],\"call\":[5,0,0],\"target\":[9,999999,1]}}").empty());
}

TEST_CASE("clones of graph nodes that form a circle end") {
  const Folder folder;
  CHECK(error_of_lines(folder, kHeader + kProcess +
                                   "{\"links\":{\"kind\":2,\"call\":[0,1],\"target\":[1,0]}}\n"
                                   "{\"device\":{\"t\":0,\"start\":[0],\"dur\":5,\"kind\":0,\"name\":0,"
                                   "\"device\":0,\"stream\":7,\"corr\":[1],\"node\":1}}\n")
            .empty());
}

TEST_CASE("limits stop a file that would take all memory") {
  const Folder folder;
  std::string bomb = kHeader + kProcess;
  for (int i = 0; i < 100; ++i) {
    bomb +=
        "{\"device\":{\"t\":0,\"start\":[0,1],\"dur\":5,\"kind\":0,\"name\":0,\"device\":0,\"stream\":7,"
        "\"corr\":[1,1]}}\n";
  }
  put(folder.file("bomb"), frame(bomb));
  ReadLimits limits;
  limits.max_rows = 150;
  CHECK(error_of(folder.file("bomb"), limits).find("more than 150 rows") != std::string::npos);
  limits = {};
  limits.max_frame_bytes = 1000;
  CHECK(error_of(folder.file("bomb"), limits).find("larger than any") != std::string::npos);
  limits = {};
  limits.max_name_bytes = 10;
  CHECK(error_of(folder.file("bomb"), limits).find("more names") != std::string::npos);
}

TEST_CASE("parts merge in order; a cut part is marked, a foreign one named") {
  const Folder folder;
  const auto part = [&](const char* name, int pid, bool end) {
    return frame(kHeader + "{\"process\":{\"host\":\"h\",\"pid\":" + std::to_string(pid) +
                 ",\"epoch_ns\":\"1000\"}}\n") +
           frame("{\"names\":{\"from\":0,\"add\":[\"" + std::string(name) +
                 "\"]}}\n{\"device\":{\"t\":0,\"start\":[0],\"dur\":5,\"kind\":0,\"name\":0,\"device\":0,"
                 "\"stream\":7,\"corr\":[1]}}\n" +
                 (end ? "{\"end\":{}}\n" : ""));
  };
  put(folder.file("a"), part("alpha", 1, true));
  put(folder.file("b"), part("beta", 2, true).substr(0, part("beta", 2, true).size() - 3));
  put(folder.file("c"), "not a profile");
  put(folder.file("d"), part("delta", 4, true));
  Result<MergeSummary> summary = merge_profile(
      {folder.file("a"), folder.file("b"), folder.file("c"), folder.file("d")}, {"job"}, folder.file("out"));
  REQUIRE(summary);
  CHECK(summary->processes == 2);
  CHECK(summary->idle_processes == 1);  // b's only work was in the frame that is gone
  CHECK(summary->problems.size() == 1);
  CHECK(summary->problems[0].find(folder.file("c")) == 0);
  Result<Trace> trace = read_profile(folder.file("out"));
  REQUIRE(trace);
  REQUIRE(trace->processes.size() == 2);
  CHECK(trace->processes[0].pid == 1);
  CHECK(trace->processes[1].pid == 4);
  CHECK(trace->names == std::vector<std::string>{"alpha", "delta"});

  put(folder.file("e"), part("epsilon", 5, true) + frame("{\"update\":{\"notes\":[]}}\n").substr(0, 20));
  summary = merge_profile({folder.file("e")}, {}, folder.file("out"));
  REQUIRE(summary);
  CHECK(summary->truncated_frames == 1);
  CHECK(read_profile(folder.file("out"))->truncated_frames == 1);

  Result<MergeSummary> none = merge_profile({folder.file("c")}, {}, folder.file("never"));
  REQUIRE(!none);
  CHECK(none.error().code == ErrorCode::kInsufficient);
  CHECK(!fs::exists(folder.file("never")));
  CHECK(!merge_profile({}, {}, folder.file("never")));
}

TEST_CASE("trimming keeps a window and valid indices") {
  const Trace trace = example();
  const Trace cut = trim_trace(trace, trace.device_ops[1].start_ns, trace.device_ops[2].start_ns);
  REQUIRE(cut.device_ops.size() == 2);  // the second kernel of either process
  REQUIRE(cut.calls.size() == 2);
  CHECK(cut.calls[0].ops == std::vector<std::int32_t>{0});
  CHECK(cut.calls[1].ops == std::vector<std::int32_t>{1});
  CHECK(cut.device_ops[1].call == 1);
  const Folder folder;
  REQUIRE(write_profile(cut, folder.file("cut")));
  Result<Trace> read = read_profile(folder.file("cut"));
  REQUIRE(read);
  CHECK(read->device_ops.size() == 2);
  CHECK(trim_trace(trace, 0, 1).device_ops.empty());
}

TEST_CASE("a kernel takes less than 60 bytes on disk") {
  const Folder folder;
  std::mt19937_64 random(7);
  Trace trace;
  trace.processes.emplace_back();
  for (int i = 0; i < 40; ++i)
    trace.names.push_back("void kernel<float, " + std::to_string(i) + ">(float const*, float*)");
  std::int64_t t = 1'790'000'000'000'000'000;
  constexpr int kKernels = 20000;
  for (int i = 0; i < kKernels; ++i) {
    DeviceOp op;
    op.process = 0;
    op.name = static_cast<std::int32_t>(random() % 40);
    op.stream = 7;
    op.start_ns = t += static_cast<std::int64_t>(2000 + random() % 20000);
    op.end_ns = op.start_ns + static_cast<std::int64_t>(1000 + random() % 900);
    op.correlation = static_cast<std::uint32_t>(i * 3 + 1);
    trace.device_ops.push_back(op);
  }
  REQUIRE(write_profile(trace, folder.file("big")));
  const double each = static_cast<double>(fs::file_size(folder.file("big"))) / kKernels;
  MESSAGE("bytes a kernel: " << each);
  CHECK(each < 60);
}

TEST_CASE("strings are escaped so that any reader takes them") {
  std::string out;
  append_json_string(out, std::string("a\"b\\c\n\x01\xff\xC3\xA9\xED\xA0\x80\xF4\x90\x80\x80\xC0\xAF", 19));
  CHECK(out ==
        "\"a\\\"b\\\\c\\u000a\\u0001\\ufffd\xC3\xA9\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\"
        "ufffd\"");
}

}  // namespace
}  // namespace echotp
