// SPDX-License-Identifier: Apache-2.0
// A small job for the recorder's tests: argv[1] names what it does. CUDA, NCCL and CUPTI are fakes; the
// recorder is real and gets in by the environment, as in a real job.
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/fake_cupti.h"
#include "tests/fakes/fake_nccl_voice.h"

namespace {

constexpr const char* kReduce =
    "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE";
constexpr const char* kGemm = "_Z4gemmPf";
constexpr std::uint64_t kHash = 0xfedcba9876543210ULL;
void* const kStream = reinterpret_cast<void*>(0x7f00deadbeef);

std::uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000ULL + static_cast<std::uint64_t>(t.tv_nsec);
}

/// What libcuda does in cuInit.
void cu_init() {
  void* library = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW | RTLD_LOCAL);
  if (!library) std::abort();
  reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"))();
}

struct Launch {
  const char* kernel = kReduce;
  std::uint32_t correlation = 0;
  std::uint32_t stream = 7;
  std::uint64_t node = 0;  // captured instead of run
  bool callbacks = true;
  bool kernels = true;
};

void launch(void* user) {
  const Launch& l = *static_cast<Launch*>(user);
  const auto thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
  const std::uint64_t start = now();
  if (l.callbacks) fake_cupti_launch(l.kernel, l.correlation, 1);
  if (l.node) fake_cupti_graph_node(l.node, 0);
  if (l.callbacks) fake_cupti_launch(l.kernel, l.correlation, 0);
  fake_cupti_api(1, 652, start, now(), thread, l.correlation);
  if (l.node || !l.kernels) return;
  const std::uint64_t begin = now();
  fake_cupti_kernel(l.kernel, begin, begin + 20000, l.stream, l.correlation, 0);
}

void reduce(VoiceComm* comm, std::size_t count, Launch l, int op = 0, int captured = 0) {
  voice_all_reduce(comm, count, "ncclBfloat16", 2, op, kStream, captured, launch, &l);
}

void gemm(std::uint32_t correlation) {
  Launch l;
  l.kernel = kGemm;
  l.correlation = correlation;
  launch(&l);
}

void eager(int plugin, int nvtx) {
  fake_cupti_device(0, "NVIDIA H200");
  VoiceComm* comm = voice_comm_init(kHash, plugin ? "tp" : nullptr, 4, 2, plugin, nvtx);
  if (plugin && (voice_activation_mask(comm) & 64))
    std::abort();  // KernelCh costs and changes captured graphs
  nvtxRangePushA("step 0");
  gemm(100);
  reduce(comm, 1024, {.correlation = 101});
  reduce(comm, 2048, {.correlation = 102}, 4);
  gemm(103);
  voice_group_start(comm);
  voice_all_reduce(comm, 512, "ncclFloat32", 4, 0, kStream, 0, nullptr, nullptr);
  gemm(104);  // the job may launch between the calls of a group
  voice_all_reduce(comm, 256, "ncclFloat32", 4, 0, kStream, 0, nullptr, nullptr);
  Launch shared{.correlation = 105};
  voice_group_end(comm, launch, &shared);
  nvtxRangePop();
  const std::uint64_t t = now();
  const auto thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
  fake_cupti_copy(4096, t, t + 500, 9, 106);
  fake_cupti_api(0, 135, t, t + 100, thread, 107);      // cudaEventRecord
  fake_cupti_api(1, 119, t + 10, t + 90, thread, 107);  // cuEventRecord inside it
  fake_cupti_event(7, 55, 900, 107);
  fake_cupti_api(0, 147, t + 200, t + 300, thread, 108);  // cudaStreamWaitEvent
  fake_cupti_wait(9, 55, 900, t + 200, t + 300, 108);
  fake_cupti_api(0, 3, t, t + 1, thread, 109);  // cudaMalloc or so: not recorded
}

void capture() {
  VoiceComm* comm = voice_comm_init(kHash, "tp", 2, 0, 5, 1);
  reduce(comm, 1024, {.correlation = 201, .node = 0x5000000001}, 0, 1);
  reduce(comm, 1024, {.correlation = 202, .node = 0x5000000002}, 0, 1);
  fake_cupti_graph_node(0x6000000001, 0x5000000001);  // instantiated: cloned
  fake_cupti_graph_node(0x6000000002, 0x5000000002);
  fake_cupti_graph_node(0x6000000003, 0x5000000003);  // not NCCL's
  for (std::uint32_t replay = 0; replay < 3; ++replay) {
    for (std::uint64_t node = 1; node <= 3; ++node) {
      const std::uint64_t t = now();
      fake_cupti_kernel(node == 3 ? kGemm : kReduce, t, t + 100, 7, 300 + replay, 0x6000000000 + node);
    }
  }
}

void two_communicators() {
  VoiceComm* comms[] = {voice_comm_init(kHash, "tp", 2, 0, 5, 1),
                        voice_comm_init(kHash + 1, "dp", 2, 1, 5, 1)};
  voice_group_start(comms[0]);
  voice_all_reduce(comms[0], 10, "ncclFloat32", 4, 0, kStream, 0, nullptr, nullptr);
  voice_all_reduce(comms[1], 20, "ncclFloat32", 4, 0, kStream, 0, nullptr, nullptr);
  voice_all_reduce(comms[0], 30, "ncclFloat32", 4, 0, kStream, 0, nullptr, nullptr);
  Launch launches[] = {{.correlation = 1}, {.correlation = 2}};
  void* const users[] = {&launches[0], &launches[1]};
  voice_group_end_many(comms, 2, launch, users);
}

void hostile_records() {
  VoiceComm* comm = voice_comm_init(kHash, "tp", 2, 0, 5, 1);
  reduce(comm, 64, {.correlation = 1});
  const std::uint64_t t = now();
  fake_cupti_kernel(kGemm, 0, 0, 7, 2, 0);
  fake_cupti_kernel(kGemm, t, t - 1, 7, 3, 0);
  fake_cupti_kernel(kGemm, 0x8000000000000000ULL, 0x8000000000000001ULL, 7, 4, 0);
  fake_cupti_kernel("bad \xff\xfe name \"\\\n", t, t + 10, 7, 5, 0);
  fake_cupti_kernel(nullptr, t + 20, t + 30, 7, 6, 0);
  fake_cupti_drop(11);
}

void many_threads() {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      cu_init();
      VoiceComm* comm = voice_comm_init(kHash + i, "tp", 2, 0, 5, 1);
      for (std::uint32_t c = 0; c < 1000; ++c) reduce(comm, 64, {.correlation = 1 + i * 1000 + c});
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void forked() {
  cu_init();
  VoiceComm* comm = voice_comm_init(kHash, "tp", 2, 0, 5, 1);
  reduce(comm, 64, {.correlation = 1});
  const pid_t child = fork();
  if (child == 0) {
    cu_init();
    reduce(comm, 64, {.correlation = 2});
    std::exit(0);
  }
  int status = 0;
  const std::uint64_t start = now();
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) std::abort();
  if (now() - start > 3000000000ULL) std::abort();  // the child waited for a writer that it does not have
  reduce(comm, 64, {.correlation = 3});
}

/// NVTX is in use before the fork, CUDA only after it: both processes are recorded.
void forked_before_cuda() {
  nvtxRangePushA("setup");
  nvtxRangePop();
  const pid_t child = fork();
  cu_init();
  VoiceComm* comm = voice_comm_init(kHash, "tp", 2, child == 0 ? 1 : 0, 5, 1);
  reduce(comm, 64, {.correlation = 1});
  if (child == 0) std::exit(0);
  int status = 0;
  waitpid(child, &status, 0);
}

/// The installed NCCL without a GPU: its ranges are pushed before it looks at the communicator, which is null
/// here.
void real_nccl() {
  void* library = dlopen(getenv("REAL_NCCL"), RTLD_NOW | RTLD_LOCAL);
  if (!library) std::exit(77);
  const auto group_start = reinterpret_cast<int (*)()>(dlsym(library, "ncclGroupStart"));
  const auto group_end = reinterpret_cast<int (*)()>(dlsym(library, "ncclGroupEnd"));
  using AllReduce = int (*)(const void*, void*, std::size_t, int, int, void*, void*);
  const auto all_reduce = reinterpret_cast<AllReduce>(dlsym(library, "ncclAllReduce"));
  float data[4] = {};
  constexpr int kBf16 = 9;
  constexpr int kAvg = 4;
  all_reduce(data, data, 1024, kBf16, kAvg, nullptr, nullptr);
  group_start();
  all_reduce(data, data, 77, 7, 2, nullptr, nullptr);
  all_reduce(data, data, 78, 7, 3, nullptr, nullptr);
  group_end();
}

void endless() {
  VoiceComm* comm = voice_comm_init(kHash, "tp", 2, 0, 5, 1);
  std::puts("running");
  std::fflush(stdout);
  for (std::uint32_t c = 1;; ++c) {
    reduce(comm, 64, {.correlation = c});
    usleep(1000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "nothing") return 0;
  if (what == "threads") return many_threads(), 0;
  if (what == "fork") return forked(), 0;
  if (what == "fork-before-cuda") return forked_before_cuda(), 0;
  if (what == "real-nccl") return real_nccl(), 0;
  if (what == "idle") return cu_init(), 0;
  if (what != "no-cuda") cu_init();
  if (what == "eager" || what == "no-cuda") return eager(5, 1), 0;
  if (what == "nvtx-only") return eager(0, 1), 0;
  if (what == "plugin-only") return eager(5, 0), 0;
  if (what == "plugin-v4") return eager(4, 1), 0;
  if (what == "plugin-v4-only") return eager(4, 0), 0;
  if (what == "capture") return capture(), 0;
  if (what == "two-communicators") return two_communicators(), 0;
  if (what == "hostile") return hostile_records(), 0;
  if (what == "endless") return endless(), 0;
  if (what == "by-time") {
    VoiceComm* comm = voice_comm_init(kHash, "tp", 2, 0, 5, 1);
    for (std::uint32_t c = 1; c <= 3; ++c) reduce(comm, 64, {.correlation = c, .callbacks = false});
    gemm(9);
    return 0;
  }
  std::fprintf(stderr, "unknown scenario '%s'\n", what.c_str());
  return 2;
}
