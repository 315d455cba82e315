// SPDX-License-Identifier: Apache-2.0
// Known kernels that reduce over ranks without NCCL.
#include "profiles/bypass.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace echotp {
namespace {

constexpr BypassKind kCustom = {"vLLM / SGLang custom all-reduce", "--disable-custom-all-reduce"};
constexpr BypassKind kSymmetric = {
    "PyTorch symmetric memory", "vLLM: VLLM_ALLREDUCE_USE_SYMM_MEM=0; SGLang: drop --enable-torch-symm-mem"};
constexpr BypassKind kFlashInfer = {
    "FlashInfer / TensorRT-LLM fused all-reduce",
    "vLLM: VLLM_ALLREDUCE_USE_FLASHINFER=0 and compile pass fuse_allreduce_rms=false; SGLang: drop "
    "--enable-flashinfer-allreduce-fusion; TensorRT-LLM: allreduce_strategy: NCCL"};
constexpr BypassKind kMscclpp = {"MSCCL++", "SGLang: drop --enable-mscclpp"};
constexpr BypassKind kUserBuffers = {
    "Transformer Engine / TensorRT-LLM user buffers",
    "Megatron: drop --tp-comm-overlap; TensorRT-LLM: allreduce_strategy other than UB"};
constexpr BypassKind kNcclSymmetric = {"NCCL symmetric windows",
                                       "vLLM: VLLM_USE_NCCL_SYMM_MEM=0; SGLang: drop --enable-symm-mem"};
constexpr BypassKind kNvshmem = {"NVSHMEM", "a switch of the framework"};

struct Pattern {
  std::string_view part;
  std::string_view also;  // a second part that must be there; empty: none
  const BypassKind* kind;
};

// Parts of names, so that mangled names match as well.
constexpr std::array<Pattern, 25> kPatterns = {{
    {"cross_device_reduce_", "", &kCustom},
    {"half_butterfly", "", &kCustom},
    {"multimem_one_shot_", "reduce_kernel", &kSymmetric},
    {"multimem_all_reduce_kernel", "", &kSymmetric},
    {"multimem_reduce_kernel", "", &kSymmetric},
    {"one_shot_all_reduce_kernel", "", &kSymmetric},
    {"two_shot_all_reduce_kernel", "", &kSymmetric},
    {"allreduce_fusion_kernel_", "", &kFlashInfer},
    {"oneShotAllReduceKernel", "", &kFlashInfer},
    {"twoShotAllReduceKernel", "", &kFlashInfer},
    {"oneshotAllReduceKernel", "", &kFlashInfer},
    {"twoshotAllReduceKernel", "", &kFlashInfer},
    {"oneshotAllreduceFusionKernel", "", &kFlashInfer},
    {"twoshotAllreduceKernel", "", &kFlashInfer},
    {"one_shot_all_reduce_norm_kernel", "", &kFlashInfer},
    {"reduce_allreduce_fusion_", "moe", &kFlashInfer},
    {"finalize_allreduce_fusion_", "moe", &kFlashInfer},
    {"ipc_tp2_remote_push_kernel", "", &kFlashInfer},
    {"push_oneshot_param_kernel", "", &kFlashInfer},
    {"ipc_rsag_", "_param_kernel", &kFlashInfer},
    {"mscclpp", "educe", &kMscclpp},
    {"userbuffers_fp16_sum_inplace_gpu_", "", &kUserBuffers},
    {"ncclSymkDevKernel_AllReduce", "", &kNcclSymmetric},
    {"ncclSymDevKernel_AllReduce", "", &kNcclSymmetric},
    {"nvshmemi_", "reduce", &kNvshmem},
}};

}  // namespace

const BypassKind* bypass_kind(std::string_view kernel) {
  for (const Pattern& pattern : kPatterns) {
    if (kernel.find(pattern.part) != std::string_view::npos &&
        (pattern.also.empty() || kernel.find(pattern.also) != std::string_view::npos))
      return pattern.kind;
  }
  return nullptr;
}

std::vector<bool> bypass_names(const Trace& trace) {
  std::vector<bool> out;
  out.reserve(trace.names.size());
  for (const std::string& name : trace.names) out.push_back(bypass_kind(name) != nullptr);
  return out;
}

std::vector<BypassUse> find_bypass(const Trace& trace, const DeviceTimes& times, const CollectiveSet& set) {
  const std::vector<bool> bypasses = bypass_names(trace);
  std::map<std::int32_t, BypassUse> by_name;
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    const DeviceOp& op = trace.device_ops[i];
    if (op.name < 0 || !bypasses[op.name] || op.call >= 0 || set.rendezvous_of_op[i] >= 0) continue;
    BypassUse& use = by_name[op.name];
    use.name = op.name;
    ++use.calls;
    if (times.start_ns[i] >= 0) use.total_ns += static_cast<double>(times.end_ns[i] - times.start_ns[i]);
  }
  std::vector<BypassUse> out;
  for (auto& [name, use] : by_name) {
    use.kind = bypass_kind(trace.names[name]);
    out.push_back(use);
  }
  std::sort(out.begin(), out.end(),
            [](const BypassUse& l, const BypassUse& r) { return l.total_ns > r.total_ns; });
  return out;
}

}  // namespace echotp
