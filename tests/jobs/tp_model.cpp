// SPDX-License-Identifier: Apache-2.0
// One rank's share of the decoder of the C++ job: allocation, weights, and the order of work in a step.
#include "tests/jobs/tp_model.hpp"

#include <algorithm>
#include <cmath>

#include "tests/jobs/tp_check.hpp"

namespace tpjob {
namespace {

// Which matrix of a layer: part of the seed, so that no two matrices share values.
enum Matrix {
  kQuery,
  kKey,
  kValue,
  kOut,
  kGate,
  kUp,
  kDown,
  kAttentionNorm,
  kMlpNorm,
  kQkNorm,
  kKeyCache,
  kValueCache,
  kMatrices
};

template <class T>
T* upload(const std::vector<T>& values) {
  T* memory = device_array<T>(values.size(), "pointers of the attention batch");
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

}  // namespace

Model::Model(const Options& options, int rank, int ranks, ncclComm_t communicator, ncclComm_t verify)
    : options_(options),
      rank_(rank),
      ranks_(ranks),
      heads_(options.shape.heads / ranks),
      kv_heads_(options.shape.kv_heads / ranks),
      intermediate_(options.shape.intermediate / ranks),
      communicator_(communicator),
      verify_(verify) {
  const Shape& shape = options_.shape;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cublasCreate(&cublas_), "cublasCreate");
  check(cublasSetStream(cublas_, stream_), "cublasSetStream");
  check(cublasSetMathMode(cublas_, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION), "cublasSetMathMode");
  // Own workspace: cuBLAS must not allocate while a step is captured.
  constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
  check(cublasSetWorkspace(cublas_, device_array<char>(kWorkspaceBytes, "cuBLAS workspace"), kWorkspaceBytes),
        "cublasSetWorkspace");

  const bool prefill = options_.mode != Mode::kDecode;
  const bool decode = options_.mode != Mode::kPrefill;
  const std::size_t rows = std::max(prefill ? options_.tokens : 0, decode ? options_.decode_tokens : 0);
  const std::size_t scores =
      std::max(prefill ? std::size_t{1} * options_.tokens * options_.sequence : 0,
               decode ? std::size_t{1} * options_.decode_tokens * options_.context : 0);
  const int head_columns = heads_ * shape.head_dim;
  residual_ = device_array<Bf16>(rows * shape.hidden, "hidden states");
  normed_ = device_array<Bf16>(rows * shape.hidden, "hidden states");
  partial_ = device_array<Bf16>(rows * shape.hidden, "hidden states");
  reduced_ = device_array<Bf16>(rows * shape.hidden, "hidden states");
  qkv_ =
      device_array<Bf16>(rows * (head_columns + 2 * kv_heads_ * shape.head_dim), "queries, keys and values");
  attended_ = device_array<Bf16>(rows * head_columns, "attention output");
  scores_ =
      device_array<Bf16>(scores * heads_, "attention scores; a shorter --sequence or --context needs less");
  gate_up_ = device_array<Bf16>(rows * 2 * intermediate_, "MLP activations");
  activated_ = device_array<Bf16>(rows * intermediate_, "MLP activations");
  hashes_ = device_array<unsigned long long>(static_cast<std::size_t>(ranks_) + 1, "hashes");
  sums_ = device_array<double>(kPartials, "partial sums");
  status_ = device_array<DeviceStatus>(1, "status");
  check(cudaMemsetAsync(status_, 0, sizeof(DeviceStatus), stream_), "cudaMemsetAsync");
  check(cudaMallocHost(reinterpret_cast<void**>(&host_status_), sizeof(DeviceStatus)), "cudaMallocHost");

  final_norm_ = device_array<Bf16>(shape.hidden, "weights");
  fill_random(final_norm_, {options_.seed, 1, shape.hidden, 0, 0, shape.hidden, 1.0f, 0.05f}, stream_);
  for (int layer = 0; layer < shape.layers; ++layer) allocate_layer(layer);
  if (prefill) prefill_ = prefill_batch();
  check(cudaGetLastError(), "filling the weights");
  check(cudaStreamSynchronize(stream_), "filling the weights");
}

void Model::allocate_layer(int index) {
  const Shape& shape = options_.shape;
  const int hidden = shape.hidden;
  const int dim = shape.head_dim;
  const auto seed = [&](Matrix matrix) {
    return options_.seed * 1000003 + static_cast<std::uint64_t>(index + 1) * kMatrices + matrix;
  };
  // Rows [rank * rows, ...) of a matrix with `hidden` columns: a column-parallel layer.
  const auto fill_rows = [&](Bf16* target, Matrix matrix, std::int64_t rows) {
    fill_random(target,
                {seed(matrix), rows, hidden, rank_ * rows, 0, hidden, 0.0f, 1.0f / std::sqrt(float(hidden))},
                stream_);
  };
  // Columns [rank * columns, ...) of a matrix with `hidden` rows: a row-parallel layer. Scaled by the depth,
  // so that the residual stream keeps its size.
  const auto fill_columns = [&](Bf16* target, Matrix matrix, std::int64_t columns) {
    const float full = float(columns) * float(ranks_);
    fill_random(target,
                {seed(matrix), hidden, columns, 0, rank_ * columns, columns * ranks_, 0.0f,
                 1.0f / std::sqrt(full * 2.0f * float(shape.layers))},
                stream_);
  };
  const auto fill_norm = [&](Bf16* target, Matrix matrix, int count) {
    fill_random(target, {seed(matrix), 1, count, 0, 0, count, 1.0f, 0.05f}, stream_);
  };

  Layer layer;
  layer.attention_norm = device_array<Bf16>(hidden, "weights");
  layer.mlp_norm = device_array<Bf16>(hidden, "weights");
  fill_norm(layer.attention_norm, kAttentionNorm, hidden);
  fill_norm(layer.mlp_norm, kMlpNorm, hidden);
  if (shape.qk_norm) {
    layer.qk_norm = device_array<Bf16>(2 * static_cast<std::size_t>(dim), "weights");
    fill_norm(layer.qk_norm, kQkNorm, 2 * dim);
  }
  const std::size_t query_rows = static_cast<std::size_t>(heads_) * dim;
  const std::size_t key_rows = static_cast<std::size_t>(kv_heads_) * dim;
  layer.qkv = device_array<Bf16>((query_rows + 2 * key_rows) * hidden, "weights; fewer --layers need less");
  fill_rows(layer.qkv, kQuery, static_cast<std::int64_t>(query_rows));
  fill_rows(layer.qkv + query_rows * hidden, kKey, static_cast<std::int64_t>(key_rows));
  fill_rows(layer.qkv + (query_rows + key_rows) * hidden, kValue, static_cast<std::int64_t>(key_rows));
  layer.out = device_array<Bf16>(query_rows * hidden, "weights; fewer --layers need less");
  fill_columns(layer.out, kOut, static_cast<std::int64_t>(query_rows));
  layer.gate_up =
      device_array<Bf16>(std::size_t{2} * intermediate_ * hidden, "weights; fewer --layers need less");
  fill_rows(layer.gate_up, kGate, intermediate_);
  fill_rows(layer.gate_up + static_cast<std::size_t>(intermediate_) * hidden, kUp, intermediate_);
  layer.down = device_array<Bf16>(static_cast<std::size_t>(intermediate_) * hidden,
                                  "weights; fewer --layers need less");
  fill_columns(layer.down, kDown, intermediate_);

  if (options_.mode != Mode::kPrefill) {
    // The context that decode attends to comes from the seed, not from a prefill: both cost and sizes are the
    // same.
    const std::int64_t positions = static_cast<std::int64_t>(options_.decode_tokens) * options_.context;
    const auto columns = static_cast<std::int64_t>(key_rows);
    for (const auto& [cache, matrix] :
         {std::pair{&layer.keys, kKeyCache}, std::pair{&layer.values, kValueCache}}) {
      *cache = device_array<Bf16>(static_cast<std::size_t>(positions * columns),
                                  "decode cache; a shorter --context needs less");
      fill_random(*cache,
                  {seed(matrix), positions, columns, 0, rank_ * columns, columns * ranks_, 0.0f, 1.0f},
                  stream_);
    }
    decode_.push_back(decode_batch(layer));
  }
  layers_.push_back(layer);
}

AttentionBatch Model::prefill_batch() const {
  const int dim = options_.shape.head_dim;
  const std::int64_t width = static_cast<std::int64_t>(heads_ + 2 * kv_heads_) * dim;
  const std::int64_t length = options_.sequence;
  std::vector<const void*> queries, keys, values;
  std::vector<void*> scores, outputs;
  for (std::int64_t sequence = 0; sequence < options_.tokens / length; ++sequence) {
    for (int head = 0; head < heads_; ++head) {
      const int kv_head = head / (heads_ / kv_heads_);
      const Bf16* start = qkv_ + sequence * length * width;
      queries.push_back(start + head * dim);
      keys.push_back(start + (heads_ + kv_head) * dim);
      values.push_back(start + (heads_ + kv_heads_ + kv_head) * dim);
      scores.push_back(scores_ + (sequence * heads_ + head) * length * length);
      outputs.push_back(attended_ + sequence * length * heads_ * dim + head * dim);
    }
  }
  return {upload(queries), upload(keys),    upload(values),
          upload(scores),  upload(outputs), static_cast<int>(queries.size())};
}

AttentionBatch Model::decode_batch(const Layer& layer) const {
  const int dim = options_.shape.head_dim;
  const std::int64_t group = heads_ / kv_heads_;
  std::vector<const void*> queries, keys, values;
  std::vector<void*> scores, outputs;
  for (std::int64_t row = 0; row < options_.decode_tokens; ++row) {
    for (int kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      const std::int64_t cache = row * options_.context * kv_heads_ * dim + kv_head * dim;
      queries.push_back(qkv_ + row * (heads_ + 2 * kv_heads_) * dim + kv_head * group * dim);
      keys.push_back(layer.keys + cache);
      values.push_back(layer.values + cache);
      scores.push_back(scores_ + (row * kv_heads_ + kv_head) * group * options_.context);
      outputs.push_back(attended_ + row * heads_ * dim + kv_head * group * dim);
    }
  }
  return {upload(queries), upload(keys),    upload(values),
          upload(scores),  upload(outputs), static_cast<int>(queries.size())};
}

std::int64_t Model::message_bytes(bool decode) const {
  return std::int64_t{decode ? options_.decode_tokens : options_.tokens} * options_.shape.hidden * 2;
}

// Row-major output[rows][out] = input[rows][in] * weight[out][in]^T; cuBLAS sees the transposes.
void Model::multiply(const Bf16* input, const Bf16* weight, Bf16* output, std::int64_t rows, int in,
                     int out) {
  const float one = 1.0f;
  const float zero = 0.0f;
  check(cublasGemmEx(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, out, static_cast<int>(rows), in, &one, weight,
                     CUDA_R_16BF, in, input, CUDA_R_16BF, in, &zero, output, CUDA_R_16BF, out,
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

void Model::attend(const AttentionBatch& batch, bool decode) {
  const int dim = options_.shape.head_dim;
  const int width = (heads_ + 2 * kv_heads_) * dim;
  const int queries = decode ? heads_ / kv_heads_ : options_.sequence;  // rows of one product
  const int seen = decode ? options_.context : options_.sequence;
  const int query_stride = decode ? dim : width;
  const int key_stride = decode ? kv_heads_ * dim : width;
  const int output_stride = decode ? dim : heads_ * dim;
  const float scale = 1.0f / std::sqrt(float(dim));
  const float one = 1.0f;
  const float zero = 0.0f;
  check(cublasGemmBatchedEx(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, seen, queries, dim, &scale, batch.keys,
                            CUDA_R_16BF, key_stride, batch.queries, CUDA_R_16BF, query_stride, &zero,
                            batch.scores, CUDA_R_16BF, seen, batch.count, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT),
        "cublasGemmBatchedEx (scores)");
  softmax(scores_, std::int64_t{batch.count} * queries, seen, !decode, stream_);
  check(cublasGemmBatchedEx(cublas_, CUBLAS_OP_N, CUBLAS_OP_N, dim, queries, seen, &one, batch.values,
                            CUDA_R_16BF, key_stride, batch.scores, CUDA_R_16BF, seen, &zero, batch.outputs,
                            CUDA_R_16BF, output_stride, batch.count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmBatchedEx (values)");
}

void Model::all_reduce(const Bf16* send, Bf16* recv, std::int64_t count) {
  check(ncclAllReduce(send, recv, static_cast<std::size_t>(count), ncclBfloat16, ncclSum, communicator_,
                      stream_),
        "ncclAllReduce");
  if (verify_ == nullptr) return;
  check(cudaMemsetAsync(hashes_, 0, sizeof *hashes_, stream_), "cudaMemsetAsync");
  hash_bytes(recv, count * 2, hashes_, stream_);
  check(ncclAllGather(hashes_, hashes_ + 1, 1, ncclUint64, verify_, stream_), "ncclAllGather");
  compare_hashes(hashes_ + 1, ranks_, status_, stream_);
}

void Model::enqueue(std::int64_t rows, bool decode) {
  const Shape& shape = options_.shape;
  const std::int64_t count = rows * shape.hidden;
  const int head_columns = heads_ * shape.head_dim;
  const int qkv_columns = head_columns + 2 * kv_heads_ * shape.head_dim;
  make_input(residual_, rows, shape.hidden, options_.seed, status_, stream_);
  const Bf16* delta = nullptr;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    add_rms_norm(residual_, delta, layer.attention_norm, normed_, rows, shape.hidden, stream_);
    multiply(normed_, layer.qkv, qkv_, rows, shape.hidden, qkv_columns);
    norm_and_rotate(qkv_, layer.qk_norm, rows, heads_, kv_heads_, shape.head_dim,
                    decode ? 0 : options_.sequence, shape.rope_base, status_, stream_);
    if (decode) {
      append_cache(qkv_, layer.keys, layer.values, static_cast<int>(rows), heads_, kv_heads_, shape.head_dim,
                   options_.context, status_, stream_);
    }
    attend(decode ? decode_[i] : prefill_, decode);
    multiply(attended_, layer.out, partial_, rows, head_columns, shape.hidden);
    all_reduce(partial_, reduced_, count);  // out of place
    add_rms_norm(residual_, reduced_, layer.mlp_norm, normed_, rows, shape.hidden, stream_);
    multiply(normed_, layer.gate_up, gate_up_, rows, shape.hidden, 2 * intermediate_);
    silu_multiply(gate_up_, activated_, rows, intermediate_, stream_);
    multiply(activated_, layer.down, partial_, rows, intermediate_, shape.hidden);
    all_reduce(partial_, partial_, count);  // in place
    delta = partial_;
  }
  add_rms_norm(residual_, delta, final_norm_, normed_, rows, shape.hidden, stream_);
  measure_hidden(residual_, count, sums_, status_, stream_);
  advance_step(status_, decode ? options_.context : 1, stream_);
  check(cudaGetLastError(), "launching a step");
}

void Model::enqueue_prefill() {
  enqueue(options_.tokens, false);
}
void Model::enqueue_decode() {
  enqueue(options_.decode_tokens, true);
}

DeviceStatus Model::finish_step() {
  check(cudaMemcpyAsync(host_status_, status_, sizeof(DeviceStatus), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "a step");
  return *host_status_;
}

}  // namespace tpjob
