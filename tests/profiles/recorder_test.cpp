// SPDX-License-Identifier: Apache-2.0
// The real recorder in a real process, with CUPTI and the voice of NCCL faked: what ends up in the part file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "profiles/trace_file.hpp"

namespace echotp {
namespace {

namespace fs = std::filesystem;

/// A folder of its own for each test, gone afterwards.
struct Folder {
  fs::path path;
  Folder() {
    char name[] = "/tmp/echo-tp-recorder-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::vector<std::string> parts() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path)) found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }
};

using Extra = std::vector<std::pair<std::string, std::string>>;

pid_t spawn(const Folder& folder, const char* scenario, const Extra& extra = {}) {
  const pid_t child = fork();
  if (child != 0) return child;
  setenv("CUDA_INJECTION64_PATH", ECHOTP_RECORDER, 1);
  setenv("NVTX_INJECTION64_PATH", ECHOTP_RECORDER, 1);
  setenv("NCCL_PROFILER_PLUGIN", ECHOTP_RECORDER, 1);
  setenv("ECHO_TP_RECORD_DIR", folder.path.c_str(), 1);
  setenv("ECHO_TP_RECORD_OPTIONS", "{\"cupti\":\"" ECHOTP_FAKE_CUPTI "\",\"flush_ms\":50}", 1);
  setenv("NCCL_ALGO", "Ring", 1);
  setenv("NCCL_SECRET_TOKEN", "hidden", 1);
  for (const auto& [name, value] : extra) {
    if (value.empty()) {
      unsetenv(name.c_str());
    } else {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  execl(ECHOTP_SCENARIO, ECHOTP_SCENARIO, scenario, nullptr);
  _exit(127);
}

int run(const Folder& folder, const char* scenario, const Extra& extra = {}) {
  int status = 0;
  waitpid(spawn(folder, scenario, extra), &status, 0);
  return status;
}

Trace only_trace(const Folder& folder) {
  const auto parts = folder.parts();
  REQUIRE(parts.size() == 1);
  Result<Trace> trace = read_profile(parts[0]);
  if (!trace) FAIL(trace.error().text());
  return *trace;
}

bool has(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

const std::string& kernel_of(const Trace& trace, const CollectiveCall& call, std::size_t i = 0) {
  return trace
      .names[static_cast<std::size_t>(trace.device_ops[static_cast<std::size_t>(call.ops.at(i))].name)];
}

std::uint32_t correlation_of(const Trace& trace, const CollectiveCall& call) {
  return trace.device_ops[static_cast<std::size_t>(call.ops.at(0))].correlation;
}

TEST_CASE("an eager job: every call with both voices' facts and its kernel") {
  const Folder folder;
  REQUIRE(run(folder, "eager") == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.processes.size() == 1);
  const Process& process = trace.processes[0];
  CHECK(process.complete);
  CHECK(process.rank == 2);
  CHECK(process.gpu == "NVIDIA H200");
  CHECK(process.gpu_uuid == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10");
  CHECK(process.nccl == "2.28.9");
  CHECK(process.program.find("eager") != std::string::npos);
  CHECK(process.tiers.size() == 3);
  CHECK(process.notes.empty());
  CHECK(process.dropped_records == 0);
  CHECK(std::find(process.environment.begin(), process.environment.end(),
                  std::pair<std::string, std::string>{"NCCL_ALGO", "Ring"}) != process.environment.end());
  for (const auto& [name, value] : process.environment) CHECK(name != "NCCL_SECRET_TOKEN");

  REQUIRE(trace.communicators.size() == 1);
  CHECK(trace.communicators[0].hash == 0xfedcba9876543210ULL);
  CHECK(trace.communicators[0].name == "tp");
  CHECK(trace.communicators[0].ranks == 4);

  REQUIRE(trace.calls.size() == 4);
  const std::int64_t counts[] = {1024, 2048, 512, 256};
  const std::int64_t bytes[] = {2048, 4096, 2048, 1024};
  const char* ops[] = {"sum", "avg", "sum", "sum"};
  const char* dtypes[] = {"bf16", "bf16", "fp32", "fp32"};
  const int groups[] = {1, 1, 2, 2};
  const std::uint32_t launches[] = {101, 102, 105, 105};
  for (std::size_t i = 0; i < 4; ++i) {
    const CollectiveCall& call = trace.calls[i];
    CAPTURE(i);
    CHECK(call.function == "AllReduce");
    CHECK(call.count == counts[i]);
    CHECK(call.bytes == bytes[i]);
    CHECK(call.op == ops[i]);
    CHECK(call.dtype == dtypes[i]);
    CHECK(call.sequence == static_cast<std::int64_t>(i));
    CHECK(call.stream_handle == 0x7f00deadbeefULL);
    CHECK(call.group_size == groups[i]);
    CHECK(!call.captured);
    CHECK(call.host_end_ns >= call.host_start_ns);
    REQUIRE(call.ops.size() == 1);
    CHECK(correlation_of(trace, call) == launches[i]);
    CHECK(kernel_of(trace, call).rfind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(", 0) == 0);
  }
  const auto gemms = std::count_if(trace.device_ops.begin(), trace.device_ops.end(), [&](const DeviceOp& op) {
    return trace.names[static_cast<std::size_t>(op.name)] == "gemm(float*)" && op.call == -1;
  });
  CHECK(gemms == 3);
  REQUIRE(trace.ranges.size() == 1);
  CHECK(trace.names[static_cast<std::size_t>(trace.ranges[0].name)] == "step 0");

  const auto copy = std::find_if(trace.device_ops.begin(), trace.device_ops.end(),
                                 [](const DeviceOp& op) { return op.kind == DeviceOpKind::kMemcpy; });
  REQUIRE(copy != trace.device_ops.end());
  CHECK(copy->bytes == 4096);
  std::vector<HostApi> events;
  for (const HostApi& api : trace.host_apis) {
    if (api.kind == HostApiKind::kEventRecord || api.kind == HostApiKind::kStreamWaitEvent)
      events.push_back(api);
  }
  REQUIRE(events.size() == 2);  // the driver call inside the runtime call is not a second one
  CHECK(events[0].stream == 7);
  CHECK(events[0].event == 55);
  CHECK(events[0].end_ns - events[0].start_ns == 100);
  CHECK(events[1].stream == 9);
  CHECK(events[0].event_sync == 900);
  CHECK(events[1].event_sync == 900);
  CHECK(std::none_of(trace.host_apis.begin(), trace.host_apis.end(),
                     [](const HostApi& api) { return api.correlation == 109; }));
}

TEST_CASE("only NVTX: bytes and operator known, count and datatype unknown, and the profile says so") {
  const Folder folder;
  REQUIRE(run(folder, "nvtx-only", {{"NCCL_PROFILER_PLUGIN", ""}}) == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 4);
  CHECK(trace.calls[1].bytes == 4096);
  CHECK(trace.calls[1].op == "avg");
  CHECK(trace.calls[1].count == -1);
  CHECK(trace.calls[1].dtype.empty());
  CHECK(trace.calls[3].group_size == 2);
  for (const CollectiveCall& call : trace.calls) CHECK(call.ops.size() == 1);
  CHECK(trace.processes[0].rank == 2);
  CHECK(has(trace.processes[0].notes, "count, datatype and stream"));
}

TEST_CASE("only the plugin: count, datatype and stream known, operator unknown") {
  const Folder folder;
  REQUIRE(run(folder, "plugin-only") == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 4);
  CHECK(trace.calls[1].count == 2048);
  CHECK(trace.calls[1].bytes == 4096);
  CHECK(trace.calls[1].op.empty());
  CHECK(trace.calls[2].group_size == 2);
  const std::uint32_t launches[] = {101, 102, 105, 105};
  for (std::size_t i = 0; i < 4; ++i) {
    REQUIRE(trace.calls[i].ops.size() == 1);
    CHECK(correlation_of(trace, trace.calls[i]) == launches[i]);
  }
  CHECK(has(trace.processes[0].notes, "operator of reductions is unknown"));
}

TEST_CASE("plugin version 4 speaks after the launch: its facts reach the right calls") {
  const Folder folder;
  REQUIRE(run(folder, "plugin-v4") == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 4);
  const std::int64_t counts[] = {1024, 2048, 512, 256};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(trace.calls[i].count == counts[i]);
    CHECK(trace.calls[i].ops.size() == 1);
  }
  CHECK(trace.calls[3].dtype == "fp32");
}

TEST_CASE("plugin version 4 without NVTX") {
  const Folder folder;
  REQUIRE(run(folder, "plugin-v4-only") == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 4);
  const std::uint32_t launches[] = {101, 102, 105, 105};
  for (std::size_t i = 0; i < 4; ++i) {
    REQUIRE(trace.calls[i].ops.size() == 1);
    CHECK(correlation_of(trace, trace.calls[i]) == launches[i]);
  }
}

TEST_CASE("a group on two communicators: each call has its own communicator's kernel") {
  const Folder folder;
  REQUIRE(run(folder, "two-communicators") == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 3);
  const std::uint32_t launches[] = {1, 2, 1};
  const int groups[] = {2, 1, 2};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(trace.calls[i].count == static_cast<std::int64_t>(10 * (i + 1)));
    CHECK(trace.calls[i].group_size == groups[i]);
    REQUIRE(trace.calls[i].ops.size() == 1);
    CHECK(correlation_of(trace, trace.calls[i]) == launches[i]);
  }
}

TEST_CASE("captured calls own the kernels of every replay") {
  const Folder folder;
  REQUIRE(run(folder, "capture") == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 2);
  for (const CollectiveCall& call : trace.calls) {
    CHECK(call.captured);
    REQUIRE(call.ops.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(kernel_of(trace, call, i).rfind("ncclDevKernel", 0) == 0);
  }
  const auto node = [&](const CollectiveCall& call) {
    return trace.device_ops[static_cast<std::size_t>(call.ops[0])].graph_node;
  };
  CHECK(node(trace.calls[0]) == 0x6000000001ULL);
  CHECK(node(trace.calls[1]) == 0x6000000002ULL);
}

TEST_CASE("without launch callbacks calls and kernels are joined by time") {
  const Folder folder;
  const std::string options = "{\"cupti\":\"" ECHOTP_FAKE_CUPTI "\",\"launch_callbacks\":false}";
  REQUIRE(run(folder, "by-time", {{"ECHO_TP_RECORD_OPTIONS", options}}) == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    REQUIRE(trace.calls[i].ops.size() == 1);
    CHECK(correlation_of(trace, trace.calls[i]) == i + 1);
  }
}

TEST_CASE("CUPTI held by another tool: the holder is named and the host's facts are recorded") {
  const Folder folder;
  REQUIRE(run(folder, "eager", {{"FAKE_CUPTI_HOLDER", "CUPTI for Kineto"}}) == 0);
  const Trace trace = only_trace(folder);
  CHECK(has(trace.processes[0].notes, "CUPTI is in use by \"CUPTI for Kineto\""));
  CHECK(trace.calls.size() == 4);
  CHECK(trace.device_ops.empty());
  CHECK(trace.processes[0].complete);
}

TEST_CASE("CUPTI refuses or is missing: one note, no harm") {
  const Folder refused;
  REQUIRE(run(refused, "eager", {{"FAKE_CUPTI_ERROR", "15"}}) == 0);
  CHECK(has(only_trace(refused).processes[0].notes, "CUPTI refused (FAKE_ERROR_15"));
  const Folder missing;
  REQUIRE(run(missing, "eager", {{"ECHO_TP_RECORD_OPTIONS", "{\"cupti\":\"/nowhere/libcupti.so\"}"}}) == 0);
  CHECK(has(only_trace(missing).processes[0].notes, "CUPTI is missing (/nowhere/libcupti.so"));
}

TEST_CASE("CUDA never loads the recorder: calls without kernels, and a note") {
  const Folder folder;
  REQUIRE(run(folder, "no-cuda") == 0);
  const Trace trace = only_trace(folder);
  CHECK(trace.calls.size() == 4);
  CHECK(has(trace.processes[0].notes, "CUDA did not load the recorder"));
}

TEST_CASE("records that make no sense are counted, names that are no text are escaped") {
  const Folder folder;
  REQUIRE(run(folder, "hostile") == 0);
  const Trace trace = only_trace(folder);
  CHECK(trace.device_ops.size() == 3);
  CHECK(trace.processes[0].dropped_records == 3 + 11);
  CHECK(has(trace.names, "bad \xEF\xBF\xBD\xEF\xBF\xBD name \"\\\n"));
  CHECK(has(trace.names, "unknown kernel"));
}

TEST_CASE("many threads start the recorder at once: one file, nothing lost, ordinals without gaps") {
  const Folder folder;
  REQUIRE(run(folder, "threads") == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 4000);
  CHECK(trace.processes[0].dropped_records == 0);
  std::vector<std::vector<bool>> seen(4, std::vector<bool>(1000));
  for (const CollectiveCall& call : trace.calls) {
    CHECK(call.ops.size() == 1);
    seen.at(static_cast<std::size_t>(call.communicator)).at(static_cast<std::size_t>(call.sequence)) = true;
  }
  for (const auto& communicator : seen)
    CHECK(std::all_of(communicator.begin(), communicator.end(), [](bool b) { return b; }));
}

TEST_CASE("a forked child is silent and leaves the parent's file whole") {
  const Folder folder;
  REQUIRE(run(folder, "fork") == 0);
  const Trace trace = only_trace(folder);
  CHECK(trace.processes[0].complete);
  REQUIRE(trace.calls.size() == 2);
  CHECK(correlation_of(trace, trace.calls[1]) == 3);
}

TEST_CASE("a child forked before CUDA is used records itself") {
  const Folder folder;
  REQUIRE(run(folder, "fork-before-cuda") == 0);
  const auto parts = folder.parts();
  REQUIRE(parts.size() == 2);
  for (const std::string& part : parts) {
    Result<Trace> trace = read_profile(part);
    REQUIRE(trace);
    CHECK(trace->calls.size() == 1);
    CHECK(trace->processes[0].complete);
  }
}

TEST_CASE("the installed NCCL's own ranges are understood") {
  const Folder folder;
  const int status = run(folder, "real-nccl", {{"REAL_NCCL", ECHOTP_REAL_NCCL}});
  REQUIRE(status == 0);
  const Trace trace = only_trace(folder);
  REQUIRE(trace.calls.size() == 3);
  const std::int64_t bytes[] = {2048, 308, 312};
  const char* ops[] = {"avg", "max", "min"};
  const int groups[] = {1, 2, 2};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(trace.calls[i].function == "AllReduce");
    CHECK(trace.calls[i].bytes == bytes[i]);
    CHECK(trace.calls[i].op == ops[i]);
    CHECK(trace.calls[i].group_size == groups[i]);
  }
  CHECK(!trace.processes[0].nccl.empty());
}

TEST_CASE("a killed job leaves a readable file") {
  const Folder folder;
  const pid_t child = spawn(folder, "endless");
  usleep(600 * 1000);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  const Trace trace = only_trace(folder);
  CHECK(trace.calls.size() > 50);
  CHECK(!trace.processes[0].complete);
}

TEST_CASE("the record limit drops, counts and says so") {
  const Folder folder;
  const std::string options = "{\"cupti\":\"" ECHOTP_FAKE_CUPTI "\",\"max_records\":100}";
  REQUIRE(run(folder, "threads", {{"ECHO_TP_RECORD_OPTIONS", options}}) == 0);
  const Trace trace = only_trace(folder);
  CHECK(trace.calls.size() + trace.device_ops.size() + trace.host_apis.size() == 100);
  CHECK(trace.processes[0].dropped_records > 3000);
  CHECK(has(trace.processes[0].notes, "limit of 100 records"));
}

TEST_CASE("a process that never enters the recorder does nothing; without a folder nothing is recorded") {
  const Folder folder;
  REQUIRE(run(folder, "nothing") == 0);
  CHECK(folder.parts().empty());
  REQUIRE(run(folder, "eager", {{"ECHO_TP_RECORD_DIR", ""}}) == 0);
  CHECK(folder.parts().empty());
  REQUIRE(run(folder, "eager", {{"ECHO_TP_RECORD_DIR", "/nowhere/at/all"}}) == 0);
}

TEST_CASE("the recorder needs no CUDA, CUPTI or NCCL and shows only its entry points") {
  const auto output = [](const char* command) {
    std::string text;
    FILE* pipe = popen(command, "r");
    REQUIRE(pipe);
    char line[512];
    while (std::fgets(line, sizeof line, pipe)) text += line;
    pclose(pipe);
    return text;
  };
  const std::string needed = output("readelf -d " ECHOTP_RECORDER);
  REQUIRE(needed.find("libc.so.6") != std::string::npos);
  for (const char* library : {"libcupti", "libcuda", "libnccl", "libnvToolsExt", "libfmt"}) {
    CHECK(needed.find(library) == std::string::npos);
  }
  const std::string shown =
      output("nm -D --defined-only " ECHOTP_RECORDER " | awk '{print $3}' | sort | tr '\\n' ' '");
  CHECK(shown ==
        "InitializeInjection InitializeInjectionNvtx2 InitializeInjectionNvtxExtension ncclProfiler_v2 "
        "ncclProfiler_v3 "
        "ncclProfiler_v4 ncclProfiler_v5 ");
}

TEST_CASE("the parts of a job become one profile, idle processes left out") {
  const Folder folder;
  REQUIRE(run(folder, "eager") == 0);
  REQUIRE(run(folder, "plugin-only") == 0);
  REQUIRE(run(folder, "idle") == 0);
  const auto parts = folder.parts();
  REQUIRE(parts.size() == 3);
  const std::string out = folder.path / "job.echoprof";
  Result<MergeSummary> summary = merge_profile(parts, {"python", "serve.py"}, out);
  REQUIRE(summary);
  CHECK(summary->processes == 2);
  CHECK(summary->idle_processes == 1);
  CHECK(summary->problems.empty());
  CHECK(summary->bytes == static_cast<std::int64_t>(fs::file_size(out)));
  Result<Trace> trace = read_profile(out);
  REQUIRE(trace);
  CHECK(trace->processes.size() == 2);
  CHECK(trace->calls.size() == 8);
  CHECK(trace->communicators.size() == 1);
  CHECK(trace->command == std::vector<std::string>{"python", "serve.py"});
}

}  // namespace
}  // namespace echotp
