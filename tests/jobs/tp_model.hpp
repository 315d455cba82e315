// SPDX-License-Identifier: Apache-2.0
// MODEL of the C++ job: one rank's share of a decoder. Query, key, value, gate and up projections are split
// by columns of the output; the two projections back to the hidden size are split by rows, so each gives a
// partial sum that an all-reduce completes.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <vector>

#include "tests/jobs/tp_kernels.hpp"
#include "tests/jobs/tp_options.hpp"

namespace tpjob {

/// One decoder block of this rank. Weights are [out][in].
struct Layer {
  Bf16* attention_norm = nullptr;
  Bf16* mlp_norm = nullptr;
  Bf16* qk_norm = nullptr;  // [2][head_dim], null without
  Bf16* qkv = nullptr;      // [(heads + 2 kv_heads) * head_dim of this rank][hidden]
  Bf16* out = nullptr;      // [hidden][heads * head_dim of this rank]
  Bf16* gate_up = nullptr;  // [2 * intermediate of this rank][hidden]
  Bf16* down = nullptr;     // [hidden][intermediate of this rank]
  Bf16* keys = nullptr;     // decode cache [decode_tokens][context][kv_heads * head_dim of this rank]
  Bf16* values = nullptr;
};

/// Pointers for cuBLAS's batched products, one entry per (sequence, head) or (sequence, key-value head).
struct AttentionBatch {
  const void** queries = nullptr;
  const void** keys = nullptr;
  const void** values = nullptr;
  void** scores = nullptr;
  void** outputs = nullptr;
  int count = 0;
};

class Model {
 public:
  /// Allocates and fills everything; `verify` may be null (no comparison of ranks).
  Model(const Options& options, int rank, int ranks, ncclComm_t communicator, ncclComm_t verify);

  /// Enqueue one whole step on stream(). Nothing waits for the host, so a decode step can be captured.
  void enqueue_prefill();
  void enqueue_decode();

  /// Waits for the stream and reads what the kernels reported, as a server does to get its tokens.
  DeviceStatus finish_step();

  /// Hidden states of the last step, before the final norm: [rows][hidden] on the device.
  const Bf16* hidden() const { return residual_; }
  cudaStream_t stream() const { return stream_; }
  /// Bytes of one all-reduce of a prefill or decode step.
  std::int64_t message_bytes(bool decode) const;
  std::int64_t all_reduces_per_step() const { return 2 * static_cast<std::int64_t>(options_.shape.layers); }

 private:
  void allocate_layer(int index);
  AttentionBatch prefill_batch() const;
  AttentionBatch decode_batch(const Layer& layer) const;
  void enqueue(std::int64_t rows, bool decode);
  void attend(const AttentionBatch& batch, bool decode);
  void multiply(const Bf16* input, const Bf16* weight, Bf16* output, std::int64_t rows, int in, int out);
  void all_reduce(const Bf16* send, Bf16* recv, std::int64_t count);

  Options options_;
  int rank_;
  int ranks_;
  int heads_;         // of this rank
  int kv_heads_;      // of this rank
  int intermediate_;  // of this rank
  ncclComm_t communicator_;
  ncclComm_t verify_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t cublas_ = nullptr;
  std::vector<Layer> layers_;
  AttentionBatch prefill_;
  std::vector<AttentionBatch> decode_;  // one a layer: each has its own cache
  Bf16* final_norm_ = nullptr;
  Bf16* residual_ = nullptr;
  Bf16* normed_ = nullptr;
  Bf16* qkv_ = nullptr;
  Bf16* scores_ = nullptr;
  Bf16* attended_ = nullptr;
  Bf16* partial_ = nullptr;
  Bf16* reduced_ = nullptr;
  Bf16* gate_up_ = nullptr;
  Bf16* activated_ = nullptr;
  unsigned long long* hashes_ = nullptr;  // own, then everybody's
  double* sums_ = nullptr;
  DeviceStatus* status_ = nullptr;
  DeviceStatus* host_status_ = nullptr;  // pinned
};

}  // namespace tpjob
