// SPDX-License-Identifier: Apache-2.0
// The part of NCCL that a profiler hears, without the rest: its NVTX ranges and payloads and its profiler
// plugin events, in the order of NCCL 2.28.9 (or of 2.27 for plugin version 4).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct VoiceComm VoiceComm;
/// Called where NCCL launches its kernel.
typedef void (*VoiceLaunch)(void* user);

/// `plugin_version`: 5, 4 or 0 for none. `nvtx` 0 leaves NVTX out, as NCCL_NVTX_DISABLE does.
VoiceComm* voice_comm_init(uint64_t hash, const char* name, int ranks, int rank, int plugin_version,
                           int nvtx);
void voice_group_start(VoiceComm* comm);
void voice_group_end(VoiceComm* comm, VoiceLaunch launch, void* user);
/// A group of calls on several communicators: NCCL launches one kernel for each, in this order. Plugin
/// version 5.
void voice_group_end_many(VoiceComm* const* comms, int count, VoiceLaunch launch, void* const* users);
/// `datatype` as NCCL writes it, "ncclBfloat16"; `op` as ncclRedOp_t. `launch` runs at the implicit group
/// end; inside a group pass null.
void voice_all_reduce(VoiceComm* comm, size_t count, const char* datatype, size_t size, int op, void* stream,
                      int captured, VoiceLaunch launch, void* user);
/// What the plugin asked NCCL for.
int voice_activation_mask(const VoiceComm* comm);

#ifdef __cplusplus
}
#endif
