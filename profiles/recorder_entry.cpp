// SPDX-License-Identifier: Apache-2.0
// ENTRY POINTS of the injected recorder: whichever of CUDA, NVTX and NCCL loads it first, all share one
// recorder. NCCL's tables are in recorder_nccl.cpp. Any of them may come several times, from several threads,
// in any order.
#include <cstdint>
#include <cstdlib>

#include "profiles/recorder.hpp"
#include "profiles/recorder_nvtx.hpp"

#define ECHOTP_EXPORT __attribute__((visibility("default")))

extern "C" {

/// Called by libcuda inside cuInit of a process with CUDA_INJECTION64_PATH. Answers 1: a job never fails
/// because of us.
ECHOTP_EXPORT int InitializeInjection() {
  if (auto* recorder = echotp::recorder::Recorder::start()) recorder->start_cupti();
  return 1;
}

/// Called by NVTX, once for every shared object that uses it. 0 tells NVTX to stay switched off.
ECHOTP_EXPORT int InitializeInjectionNvtx2(const void* (*get_export_table)(std::uint32_t)) {
  try {
    // Without a folder to record into there is nothing to do: NVTX then costs the job nothing.
    if (!std::getenv("ECHO_TP_RECORD_DIR")) return 0;
    return echotp::recorder::fill_nvtx_tables(get_export_table) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

/// Called by NVTX for each of its extensions; payloads are the one that matters.
ECHOTP_EXPORT int InitializeInjectionNvtxExtension(void* module_info) {
  try {
    if (!std::getenv("ECHO_TP_RECORD_DIR")) return 0;
    return echotp::recorder::fill_nvtx_extension(module_info) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}
}
