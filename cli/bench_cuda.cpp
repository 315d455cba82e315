// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_cuda.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace echotp {
namespace {

std::string g_program = "echo-tp-bench";

std::optional<std::string> driver_version() {
  using Init = int (*)();
  using Version = int (*)(char*, unsigned);
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  const auto init = reinterpret_cast<Init>(dlsym(library, "nvmlInit_v2"));
  const auto version = reinterpret_cast<Version>(dlsym(library, "nvmlSystemGetDriverVersion"));
  char text[96] = {};
  if (init == nullptr || version == nullptr || init() != 0 || version(text, sizeof text) != 0)
    return std::nullopt;
  return text;
}

}  // namespace

void set_bench_program(std::string name) {
  g_program = std::move(name);
}

void fail(const char* what, const std::string& why) {
  std::fprintf(stderr, "%s: %s: %s\n", g_program.c_str(), what, why.c_str());
  std::exit(1);
}

void check(cudaError_t rc, const char* what) {
  if (rc != cudaSuccess) fail(what, cudaGetErrorString(rc));
}

DeviceMemory::DeviceMemory(std::size_t bytes, const char* what) {
  check(cudaMalloc(&data_, bytes), what);
  check(cudaMemset(data_, 0, bytes), what);
  // The default stream zeroes it while streams that do not wait for that one may already use it.
  check(cudaStreamSynchronize(nullptr), what);
}

EventPair::EventPair() {
  check(cudaEventCreate(&start), "cudaEventCreate");
  check(cudaEventCreate(&stop), "cudaEventCreate");
}

EventPair::~EventPair() {
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
}

double EventPair::milliseconds() const {
  float out = 0;
  check(cudaEventElapsedTime(&out, start, stop), "cudaEventElapsedTime");
  return out;
}

BenchEnvironment machine_facts(int device) {
  BenchEnvironment environment;
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  environment.gpu = properties.name;
  environment.driver = driver_version();
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  environment.cuda = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) == 0) environment.host = host;
  return environment;
}

}  // namespace echotp
