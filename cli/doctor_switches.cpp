// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_switches.hpp"

#include <cstring>

#include "cli/text.hpp"

namespace echotp {
namespace {

struct Known {
  const char* name;
  const char* active_value;  // null: any
  const char* effect;
};
constexpr Known kKnown[] = {
    {"ECHO_TP", "off", "echo-tp run leaves the job alone"},
    {"LD_PRELOAD", nullptr, "kept, behind echo-tp's own library"},
    {"CUDA_INJECTION64_PATH", nullptr,
     "echo-tp profile records no device times: another tool holds CUPTI's way in"},
    {"NVTX_INJECTION64_PATH", nullptr,
     "echo-tp profile sees no NVTX ranges, and run can't count all-reduces that pass it by"},
    {"NCCL_PROFILER_PLUGIN", nullptr, "echo-tp profile has no NCCL profiler plugin"},
    {"NCCL_NVTX_DISABLE", nullptr, "NCCL emits no NVTX: fewer facts in profiles, no coverage in run reports"},
    {"NCCL_COMM_BLOCKING", "0", "communicators are non-blocking: Echo leaves them to NCCL"},
    {"CUDA_VISIBLE_DEVICES", nullptr, "limits the GPUs that jobs see"},
    {"CUDA_LAUNCH_BLOCKING", "1", "every launch waits: step times say nothing"},
};

constexpr const char* kSmall =
    "small messages (decode) get slower: these kernels answer sooner than NCCL does, compressed or not; "
    "large ones "
    "(prefill) can gain";
constexpr const char* kFused = "the norm that was fused into the all-reduce becomes a kernel of its own";
constexpr const char* kOverlap = "the exchange no longer hides behind the matrix product";

/// A way around NCCL. Whether a job uses it can't be seen from here; its switch can.
struct Path {
  const char* name;
  const char* framework;
  const char* off_value;  // null: a command line option, or a setting in code
  bool on_by_default;
  const char* effect;
  const char* cost;
};
constexpr Path kPaths[] = {
    {"--disable-custom-all-reduce", "vLLM, SGLang", nullptr, true, "turns off their own all-reduce kernels",
     kSmall},
    {"VLLM_ALLREDUCE_USE_SYMM_MEM", "vLLM", "0", true, "0 turns off PyTorch symmetric-memory all-reduce",
     kSmall},
    {"VLLM_ALLREDUCE_USE_FLASHINFER", "vLLM", "0", false,
     "0 turns off FlashInfer's all-reduce; its fusion needs the pass fuse_allreduce_rms=false", kFused},
    {"VLLM_USE_NCCL_SYMM_MEM", "vLLM", "0", false,
     "0 turns off NCCL's symmetric windows; all-reduces are seen either way", "NCCL's own symmetric kernels"},
    {"--enable-torch-symm-mem", "SGLang", nullptr, false, "uses PyTorch symmetric memory; leave it out",
     kSmall},
    {"--enable-flashinfer-allreduce-fusion", "SGLang", nullptr, false,
     "fuses all-reduce and norm; leave it out", kFused},
    {"--enable-mscclpp", "SGLang", nullptr, false, "uses MSCCL++; leave it out", kSmall},
    {"allreduce_strategy", "TensorRT-LLM", nullptr, true,
     "NCCL sends all-reduces through NCCL; AUTO mostly does not", kSmall},
    {"ENABLE_INTRA_NODE_COMM", "PyTorch", "0", false,
     "1 sends small all-reduces of a node around NCCL; unset it", kSmall},
    {"TORCH_SYMMMEM", "PyTorch", "", false,
     "code that calls torch.ops.symm_mem or async TP (torch.compile) exchanges without NCCL", kOverlap},
    {"--tp-comm-overlap", "Megatron, Transformer Engine", nullptr, false, "uses user buffers; leave it out",
     kOverlap},
    {"MSCCLPP_NCCL_LIB_PATH", "MSCCL++", "", false, "a preloaded MSCCL++ takes NCCL's place; unset it",
     kSmall},
};

}  // namespace

std::vector<SwitchFinding> probe_switches(const std::function<std::string(const char*)>& variable) {
  std::vector<SwitchFinding> out;
  for (const Known& known : kKnown) {
    const std::string value = variable(known.name);
    if (value.empty() || (known.active_value && value != known.active_value)) continue;
    out.push_back({known.name, "", plain(value), known.effect, "", true, false});
  }
  for (const Path& path : kPaths) {
    const std::string value = path.off_value ? variable(path.name) : "";
    out.push_back({path.name, path.framework, plain(value),
                   std::string(path.effect) + (path.on_by_default ? " (on by default)" : ""), path.cost,
                   path.off_value && !value.empty() && value != path.off_value, true});
  }
  return out;
}

}  // namespace echotp
