// SPDX-License-Identifier: Apache-2.0
// Prints what profiles hold, for people who check the recorder: trace-dump FILE... (part files or a profile).
#include <cstdio>
#include <map>
#include <string>

#include "profiles/trace_file.hpp"

namespace {

using echotp::Trace;

void dump_process(const Trace& trace, std::size_t p) {
  const echotp::Process& process = trace.processes[p];
  std::printf("process %zu: %s pid %d rank %d, %s (%s), driver %s, CUDA %s, NCCL %s%s\n", p,
              process.host.c_str(), process.pid, process.rank,
              process.gpu.empty() ? "GPU unknown" : process.gpu.c_str(), process.gpu_uuid.c_str(),
              process.driver.c_str(), process.cuda.c_str(), process.nccl.c_str(),
              process.complete ? "" : ", did not end in order");
  std::printf("  program: %s\n  tiers:", process.program.c_str());
  for (const std::string& tier : process.tiers) std::printf(" %s", tier.c_str());
  std::printf("\n");
  for (const std::string& note : process.notes) std::printf("  note: %s\n", note.c_str());
  std::size_t kernels = 0, copies = 0, nccl = 0, joined = 0;
  for (const echotp::DeviceOp& op : trace.device_ops) {
    if (static_cast<std::size_t>(op.process) != p) continue;
    if (op.kind != echotp::DeviceOpKind::kKernel) {
      ++copies;
      continue;
    }
    ++kernels;
    if (trace.names[static_cast<std::size_t>(op.name)].find("nccl") == std::string::npos) continue;
    ++nccl;
    if (op.call >= 0) ++joined;
  }
  std::size_t apis = 0, paired = 0, events = 0, ranges = 0;
  for (const echotp::HostApi& api : trace.host_apis) {
    if (static_cast<std::size_t>(api.process) != p) continue;
    ++apis;
    if (api.kind != echotp::HostApiKind::kEventRecord && api.kind != echotp::HostApiKind::kStreamWaitEvent)
      continue;
    ++events;
    if (api.event != 0) ++paired;
  }
  for (const echotp::Range& range : trace.ranges) ranges += static_cast<std::size_t>(range.process) == p;
  std::printf(
      "  kernels %zu (NCCL's: %zu, joined to a call: %zu), copies and sets %zu, CUDA calls %zu (event "
      "records and waits %zu, with event "
      "id %zu), ranges %zu, dropped %lld\n",
      kernels, nccl, joined, copies, apis, events, paired, ranges,
      static_cast<long long>(process.dropped_records));
  struct Group {
    std::size_t calls = 0, with_kernel = 0, captured = 0;
    double kernel_us = 0;
  };
  std::map<std::string, Group> groups;
  for (const echotp::CollectiveCall& call : trace.calls) {
    if (static_cast<std::size_t>(call.process) != p) continue;
    char key[256];
    std::snprintf(key, sizeof key, "%s count %lld dtype %s op %s bytes %lld stream 0x%llx comm %d group %d",
                  call.function.c_str(), static_cast<long long>(call.count),
                  call.dtype.empty() ? "?" : call.dtype.c_str(), call.op.empty() ? "?" : call.op.c_str(),
                  static_cast<long long>(call.bytes), static_cast<unsigned long long>(call.stream_handle),
                  call.communicator, call.group_size);
    Group& group = groups[key];
    ++group.calls;
    group.with_kernel += !call.ops.empty();
    group.captured += call.captured;
    for (const std::int32_t op : call.ops) {
      const auto& kernel = trace.device_ops[static_cast<std::size_t>(op)];
      group.kernel_us += static_cast<double>(kernel.end_ns - kernel.start_ns) / 1000;
    }
  }
  for (const auto& [key, group] : groups) {
    std::printf("  %6zu x %s: with kernel %zu, captured %zu, mean kernel %.1f us\n", group.calls, key.c_str(),
                group.with_kernel, group.captured,
                group.with_kernel ? group.kernel_us / static_cast<double>(group.with_kernel) : 0.0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int failed = argc < 2;
  for (int i = 1; i < argc; ++i) {
    echotp::Result<Trace> trace = echotp::read_profile(argv[i]);
    if (!trace) {
      std::fprintf(stderr, "%s\n", trace.error().text().c_str());
      failed = 1;
      continue;
    }
    std::printf("%s: %zu processes, %zu communicators, %zu calls, %zu device ops, cut frames %lld\n", argv[i],
                trace->processes.size(), trace->communicators.size(), trace->calls.size(),
                trace->device_ops.size(), static_cast<long long>(trace->truncated_frames));
    for (std::size_t p = 0; p < trace->processes.size(); ++p) dump_process(*trace, p);
  }
  return failed;
}
