// SPDX-License-Identifier: Apache-2.0
// What the tests of the command line run as a job, and their tools: writes what recorder and shim would have
// written, made by the writers themselves; checks JSON; plays a terminal.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "profiles/trace_file.hpp"
#include "shim/coverage.h"
#include "shim/receipt.hpp"
#include "tests/profiles/synthetic_trace.hpp"

namespace echotp {
namespace {

int told(const Status& status) {
  if (!status) std::fprintf(stderr, "cli_fixture: %s\n", status.error().text().c_str());
  return status ? 0 : 1;
}

// Two ranks, twelve layers, a bypassing kernel whose name would break a page that does not escape it.
Trace profile() {
  test::Shape shape;
  shape.ranks = 2;
  auto job = test::serial_job(shape);
  job.kernel(7, "cross_device_reduce_2stage<\"&'></script><script>alert(1)</script>",
             [](int) { return 5.0; });
  job.synchronise(7);
  Trace& trace = job.trace();
  for (Process& process : trace.processes) {
    process.gpu = "NVIDIA H200";
    process.gpu_uuid = "GPU-1";
  }
  trace.command = {"./job", "an argument"};
  return trace;
}

// What is left of a recording: "gpu-only", no collective; "host-only", no device times.
int partial_profile(const std::string& kind, const char* path) {
  Trace trace = profile();
  if (kind == "gpu-only") {
    trace.calls.clear();
    for (DeviceOp& op : trace.device_ops) op.call = -1;
  } else {
    trace.device_ops.clear();
    for (CollectiveCall& call : trace.calls) call.ops.clear();
  }
  return told(write_profile(trace, path));
}

// A recorder's part for each rank; `complete` false: as if the process was killed.
int parts(bool complete) {
  const char* folder = std::getenv("ECHO_TP_RECORD_DIR");
  if (!folder) return 0;
  Trace trace = profile();
  for (Process& process : trace.processes) process.complete = complete;
  return told(write_profile(trace, std::string(folder) + "/node0-1000.echoprof.part"));
}

/// What the engine and the witness left of one process.
int coverage(std::int64_t listening, std::int64_t nccl, std::int64_t forwarded) {
  EchoTpCoverage content{};
  std::memcpy(content.magic, ECHO_TP_COVERAGE_MAGIC, sizeof content.magic);
  content.pid = 100;
  content.listening = listening;
  content.nccl_all_reduces = nccl;
  content.forwarded = forwarded;
  std::ofstream file(std::string(std::getenv("ECHO_TP_RUN_DIR")) + "/coverage-node0-100", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&content), sizeof content);
  return file.flush() ? 0 : 1;
}

int receipts(std::int64_t calls, std::int64_t compressed) {
  const char* folder = std::getenv("ECHO_TP_RUN_DIR");
  if (!folder) return 0;
  for (int rank = 0; rank < 2; ++rank) {
    Receipt receipt;
    receipt.host = "node0";
    receipt.pid = 100 + rank;
    receipt.mode = std::getenv("ECHO_TP_MODE");
    CommunicatorReceipt communicator;
    communicator.rank = rank;
    communicator.ranks = 2;
    communicator.calls = calls;
    communicator.compressed = compressed;
    communicator.by_reason[static_cast<std::size_t>(Reason::kCompressed)] = compressed;
    communicator.by_reason[static_cast<std::size_t>(Reason::kBelowMinBytes)] = calls - compressed;
    communicator.by_bytes[4 << 20] = {calls, compressed};
    communicator.payload_bytes = compressed * (4 << 20);
    communicator.nccl_wire_bytes = compressed * (4 << 20);
    communicator.echo_wire_bytes = compressed * (4 << 20) * 9 / 32;
    communicator.transport = "staged";
    receipt.communicators.push_back(communicator);
    if (const int code = told(write_receipt(receipt, folder)); code != 0) return code;
  }
  return 0;
}

// Standard input holds one JSON document, in which the pointer has that value.
int json(const char* pointer, const char* wanted) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  const auto document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) return std::fprintf(stderr, "no JSON: %.200s\n", text.c_str()), 1;
  const nlohmann::json::json_pointer at(pointer);
  if (!document.contains(at)) return std::fprintf(stderr, "no %s in: %.2000s\n", pointer, text.c_str()), 1;
  const auto& value = document[at];
  const std::string found = value.is_string() ? value.get<std::string>() : value.dump();
  if (found != wanted) return std::fprintf(stderr, "%s is %s, not %s\n", pointer, found.c_str(), wanted), 1;
  return 0;
}

// Runs a command on a terminal of its own; types ^C once `ready` exists. Ends with the command's code.
int terminal(const std::string& ready, char** command) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return 98;
  const std::string name = ::ptsname(master);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    const int slave = ::open(name.c_str(), O_RDWR);
    ::ioctl(slave, TIOCSCTTY, 0);
    for (const int stream : {0, 1, 2}) ::dup2(slave, stream);
    ::execvp(command[0], command);
    ::_exit(97);
  }
  bool typed = false;
  char buffer[4096];
  for (int i = 0; i < 1500; ++i) {  // 30 s
    pollfd end{master, POLLIN, 0};
    if (::poll(&end, 1, 20) > 0) {
      const ssize_t length = ::read(master, buffer, sizeof buffer);
      if (length <= 0) break;
      std::fwrite(buffer, 1, static_cast<std::size_t>(length), stdout);
    }
    if (!typed && std::filesystem::exists(ready)) typed = ::write(master, "\x03", 1) == 1;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 96;
}

}  // namespace
}  // namespace echotp

int main(int argc, char** argv) {
  using namespace echotp;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "profile" && argc == 3) return told(write_profile(profile(), argv[2]));
  if (what == "empty-profile" && argc == 3) return told(write_profile(Trace{}, argv[2]));
  if ((what == "gpu-only" || what == "host-only") && argc == 3) return partial_profile(what, argv[2]);
  if (what == "parts") return parts(true);
  if (what == "killed-parts") return parts(false);
  if (what == "receipts" && argc == 4) return receipts(std::atoll(argv[2]), std::atoll(argv[3]));
  if (what == "coverage" && argc == 5)
    return coverage(std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]));
  if (what == "json" && argc == 4) return json(argv[2], argv[3]);
  if (what == "terminal" && argc > 3) return terminal(argv[2], argv + 3);
  std::fprintf(stderr, "cli_fixture: unknown words\n");
  return 99;
}
