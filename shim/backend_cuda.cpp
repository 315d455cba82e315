// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: one communicator's context, transports, state store and the order of its calls.
#include <cuda_runtime_api.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "kernels/launch.hpp"
#include "shim/backend.hpp"
#include "shim/compensation_state.hpp"
#include "shim/context.hpp"
#include "shim/drift_state.hpp"
#include "shim/p2p_transport.hpp"
#include "shim/staged_transport.hpp"

namespace echotp {

namespace {

/// 16 Mi elements: 32 MiB of bf16. Long enough that NCCL's start-up cost of a chunk stays small, short enough
/// that three in flight cost 85 MB of device memory at any number of ranks.
constexpr std::int64_t kDefaultChunkElements = std::int64_t{16} << 20;

std::int64_t chunk_elements_from_environment() {
  const char* text = std::getenv("ECHO_TP_CHUNK_ELEMENTS");
  const long long value = text ? std::strtoll(text, nullptr, 10) : 0;
  constexpr long long kMost = 1LL << 32;  // beyond any memory, far from overflow
  return value > 0 ? std::min(value, kMost) : kDefaultChunkElements;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const EchoTpNccl& nccl, void* comm, int rank, int ranks)
      : nccl_(nccl), comm_(comm), rank_(rank), ranks_(ranks) {
    transport_ = std::make_unique<StagedTransport>(nccl, comm, rank, ranks);
    test_transport_ = std::make_unique<StagedTransport>(nccl, comm, rank, ranks);
    p2p_ = std::make_unique<P2pTransport>(rank, ranks);
    states_ = std::make_unique<std::array<CompensationState, 2>>();
    drift_states_ = std::make_unique<std::array<DriftState, 2>>();
  }

  ~CudaBackend() override {
    if (!context_) return;
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    p2p_.reset();
    drift_states_.reset();
    states_.reset();  // here and not with the members: freeing needs the context
    transport_.reset();
    test_transport_.reset();
    if (set_up_memory_) set_up_on_host_ ? cudaFreeHost(set_up_memory_) : cudaFree(set_up_memory_);
    if (test_values_) cudaFree(test_values_);
    if (order_) cudaEventDestroy(order_);
    if (captured_order_) cudaEventDestroy(captured_order_);
    if (set_up_stream_) cudaStreamDestroy(set_up_stream_);
    if (counters_ && !captured_) cudaFreeHost(counters_);
  }

  Status prepare(SetupRecord& mine) noexcept override {
    mine.chunk_elements = chunk_elements_from_environment();
    if (!driver().usable()) return Error{ErrorCode::kSystem, "no usable CUDA driver", ""};
    if (!find_context()) {
      cudaGetLastError();
      return Error{ErrorCode::kSystem, "no current CUDA context", ""};
    }
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    int device = 0;
    cudaDeviceProp properties{};
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) return cuda_error("cudaGetDeviceProperties", error);
    std::memcpy(mine.gpu_uuid, properties.uuid.bytes, sizeof mine.gpu_uuid);
    error = cudaStreamCreateWithFlags(&set_up_stream_, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&order_, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&captured_order_, cudaEventDisableTiming);
    if (error == cudaSuccess)
      error = cudaHostAlloc(reinterpret_cast<void**>(&counters_), sizeof *counters_, cudaHostAllocMapped);
    if (error != cudaSuccess) return cuda_error("set-up", error);
    *counters_ = DeviceCounters{};
    chunk_elements_ = mine.chunk_elements;
    p2p_->bind(context_, set_up_stream_);
    error = load_staged_kernels();
    if (error != cudaSuccess) return cuda_error("loading kernels", error);
    // Before the first vote: a rank that had no memory left for the self-test would miss from its calls.
    error = cudaMalloc(reinterpret_cast<void**>(&test_values_), sizeof(float) * test_count());
    if (error == cudaSuccess)
      error = test_transport_->allocate(static_cast<std::int64_t>(test_count()), 4, false);
    if (error != cudaSuccess) return cuda_error("allocating for the self-test", error);
    return Unit{};
  }

  Status reserve(int widest_bits, bool drift) noexcept override {
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    const cudaError_t error = transport_->allocate(chunk_elements_, widest_bits, drift);
    if (error != cudaSuccess) return cuda_error("allocating scratch", error);
    return Unit{};
  }

  P2pRank& p2p() noexcept override { return *p2p_; }

  Status gather(std::span<const std::byte> mine, std::span<std::byte> all,
                double timeout_s) noexcept override {
    if (!context_) return Error{ErrorCode::kSystem, "no CUDA context", ""};
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    // A rank whose own preparation failed must still be able to say no.
    if (!set_up_stream_) cudaStreamCreateWithFlags(&set_up_stream_, cudaStreamNonBlocking);
    const std::size_t bytes = mine.size();
    const std::size_t all_bytes = all.size();
    constexpr std::size_t kRecordBytes = std::max(sizeof(SetupRecord), sizeof(P2pRecord));
    if (bytes > kRecordBytes) return Error{ErrorCode::kSystem, "set-up record too long", ""};
    // Kept for the next vote and freed with this object: cudaFree waits for everything on the GPU, and some
    // of that may wait for a peer who waits for us. For the same reason nothing here uses the default stream.
    cudaError_t error = cudaSuccess;
    if (!set_up_memory_) {
      const std::size_t most = kRecordBytes * static_cast<std::size_t>(ranks_);
      error = cudaMalloc(reinterpret_cast<void**>(&set_up_memory_), most);
      if (error != cudaSuccess) {  // a full GPU must not keep a rank from voting no
        set_up_on_host_ = true;
        error = cudaHostAlloc(reinterpret_cast<void**>(&set_up_memory_), most,
                              cudaHostAllocMapped | cudaHostAllocPortable);
      }
    }
    if (error != cudaSuccess) return cuda_error("allocating the set-up records", error);
    std::uint8_t* const device = set_up_memory_;
    Status outcome = Unit{};
    error = cudaMemcpyAsync(device + static_cast<std::size_t>(rank_) * bytes, mine.data(), bytes,
                            cudaMemcpyDefault, set_up_stream_);
    if (error != cudaSuccess) {
      outcome = cuda_error("copying the set-up record", error);
    } else if (const int nccl = nccl_.all_gather(device + static_cast<std::size_t>(rank_) * bytes, device,
                                                 bytes, /*ncclUint8=*/1, comm_, set_up_stream_);
               nccl != kNcclSuccess) {
      outcome = Error{ErrorCode::kSystem,
                      "ncclAllGather of the set-up records returned " + std::to_string(nccl), ""};
    } else {
      outcome = wait(timeout_s);
      if (outcome) error = read_back(all.data(), device, all_bytes);
      if (error != cudaSuccess) outcome = cuda_error("reading the set-up records", error);
    }
    if (!outcome) stuck_ = true;
    return outcome;
  }

  Status self_test(double timeout_s) noexcept override {
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    // Rank p sends p + 1 everywhere: every group is constant, so one code is exact and the sum is known.
    std::vector<float> values(test_count(), static_cast<float>(rank_ + 1));
    const std::size_t bytes = sizeof(float) * values.size();
    cudaError_t error =
        cudaMemcpyAsync(test_values_, values.data(), bytes, cudaMemcpyHostToDevice, set_up_stream_);
    StagedArgs args;
    args.send = test_values_;
    args.recv = test_values_;
    args.count = static_cast<std::int64_t>(values.size());
    args.rank = rank_;
    args.ranks = ranks_;
    args.dtype = DataType::kFp32;
    args.compensation.mode = CompensationMode::kNone;
    Status outcome = Unit{};
    if (error != cudaSuccess) {
      outcome = cuda_error("self-test", error);
    } else if (const int nccl = test_transport_->all_reduce(args, set_up_stream_); nccl != kNcclSuccess) {
      outcome = Error{ErrorCode::kSystem, "all-reduce returned " + std::to_string(nccl), ""};
    } else {
      outcome = wait(timeout_s);
      if (outcome) error = read_back(values.data(), test_values_, bytes);
      if (error != cudaSuccess) outcome = cuda_error("self-test", error);
    }
    if (!outcome) stuck_ = true;
    if (!outcome) return outcome;
    const float expected = static_cast<float>(ranks_) * static_cast<float>(ranks_ + 1) / 2;
    // bf16 scales round the values of more than a few ranks: half an ulp of bf16 for each of the two
    // roundings.
    const bool right = std::all_of(values.begin(), values.end(),
                                   [&](float v) { return std::fabs(v - expected) <= expected / 100; });
    if (!right) return Error{ErrorCode::kSystem, "wrong sum", ""};
    return Unit{};
  }

  CaptureInfo capture(void* stream) noexcept override {
    const ScopedContext scope(context_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    if (cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id) != cudaSuccess) {
      cudaGetLastError();  // the legacy stream while another stream captures: that call is the job's own
                           // error to meet
      return {};
    }
    // A capture that was spoilt is one still: only inside it does the job meet the error that spoilt it.
    const bool capturing = status != cudaStreamCaptureStatusNone;
    return {capturing, capturing ? id : 0};
  }

  CallOutcome all_reduce(const CompressedCall& call) noexcept override {
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    const auto stream = static_cast<cudaStream_t>(call.stream);
    CallOutcome outcome;
    if (!enter(call, stream)) {
      outcome.result = kNcclUnhandledCudaError;
      return outcome;
    }
    CompensationState& state = (*states_)[static_cast<std::size_t>(call.direction)];
    DriftState& drift_state = (*drift_states_)[static_cast<std::size_t>(call.direction)];
    bool fresh = false;
    StagedArgs args;
    args.send = call.send;
    args.recv = call.recv;
    args.count = call.count;
    args.rank = rank_;
    args.ranks = ranks_;
    args.dtype = call.dtype;
    args.codec = codec_of(*call.rule, call.last_call);
    args.compensation = call.rule->compensation;
    args.post_scale = call.op == ReduceOp::kAvg ? 1.0f / static_cast<float>(ranks_) : 1.0f;
    if (args.compensation.mode == CompensationMode::kDrift) {
      args.state.drift = drift_state.provide(call.count, args.compensation, call.rule->max_state_bytes,
                                             call.capture.capturing, stream);
    } else {
      args.state = state.provide(call.count, args.codec, args.compensation, call.rule->max_state_bytes,
                                 call.capture.capturing, stream, fresh);
    }
    args.pass_start = call.pass_start || fresh;
    args.counters = counters_;
    outcome.uncompensated =
        args.compensation.mode != CompensationMode::kNone && !args.state.fast && !args.state.drift.estimate;
    outcome.result = call.p2p ? all_reduce_p2p(args, call.capture.capturing, stream)
                              : transport_->all_reduce(args, stream);
    outcome.wire_bytes = wire_bytes(call.count, ranks_, args.codec);
    state_bytes_.store((*states_)[0].bytes() + (*states_)[1].bytes() + (*drift_states_)[0].bytes() +
                           (*drift_states_)[1].bytes(),
                       std::memory_order_relaxed);
    if (call.capture.capturing) {
      captured_ = true;
      state.keep();
      drift_state.keep();
      if (!call.p2p) transport_->keep();
    }
    if (!leave(call, stream) && outcome.result == kNcclSuccess) outcome.result = kNcclUnhandledCudaError;
    return outcome;
  }

  int join(void* stream, void* other) noexcept override {
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    cudaEvent_t event = nullptr;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventRecord(event, static_cast<cudaStream_t>(other));
    if (error == cudaSuccess) error = cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0);
    if (event) cudaEventDestroy(event);
    return error == cudaSuccess ? kNcclSuccess : kNcclUnhandledCudaError;
  }

  void end(bool abort) noexcept override {
    p2p_->end(abort);
    transport_->end();
    const std::lock_guard lock(ended_mutex_);
    ended_ = true;
  }

  int async_error() noexcept override { return p2p_->failed() ? kNcclRemoteError : kNcclSuccess; }

  BackendFacts facts() const noexcept override {
    BackendFacts facts;
    facts.scratch_bytes = transport_->scratch_bytes() + p2p_->scratch_bytes();
    facts.state_bytes = state_bytes_.load(std::memory_order_relaxed);
    if (counters_)
      facts.nonfinite_groups =
          static_cast<std::int64_t>(*static_cast<volatile unsigned long long*>(&counters_->nonfinite_groups));
    return facts;
  }

  bool idle() noexcept override {
    if (!context_) return true;
    if (captured_ || stuck_) return false;
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    const bool done = !order_ || cudaEventQuery(order_) == cudaSuccess;
    if (!done) cudaGetLastError();
    return done && p2p_->released();
  }

 private:
  std::size_t test_count() const { return static_cast<std::size_t>(ranks_) * kTileElements; }

  int all_reduce_p2p(const StagedArgs& call, bool capturing, cudaStream_t stream) noexcept {
    FusedArgs args;
    args.send = call.send;
    args.recv = call.recv;
    args.count = call.count;
    args.dtype = call.dtype;
    args.codec = call.codec;
    args.compensation = call.compensation;
    args.post_scale = call.post_scale;
    args.pass_start = call.pass_start;
    args.state = call.state;
    args.counters = call.counters;
    return p2p_->all_reduce(args, capturing, stream) == cudaSuccess ? kNcclSuccess : kNcclUnhandledCudaError;
  }

  /// The context of the communicator's device: the thread's current one if that is it, else the device's
  /// primary one. What the thread has selected stays as it is.
  bool find_context() noexcept {
    CUcontext before = nullptr;
    int device = -1;
    int current = -1;
    const bool known = nccl_.comm_cu_device && nccl_.comm_cu_device(comm_, &device) == kNcclSuccess;
    if (driver().ctx_get_current(&before) == CUDA_SUCCESS && before &&
        (!known || (cudaGetDevice(&current) == cudaSuccess && current == device))) {
      context_ = before;
      return true;
    }
    if (!known) return false;
    const bool pushed = before && driver().ctx_push_current(before) == CUDA_SUCCESS;
    const bool found = cudaSetDevice(device) == cudaSuccess &&
                       driver().ctx_get_current(&context_) == CUDA_SUCCESS && context_;
    CUcontext popped = nullptr;
    if (pushed) driver().ctx_pop_current(&popped);
    return found;
  }

  /// After wait(): blocks for the copy alone.
  cudaError_t read_back(void* to, const void* from, std::size_t bytes) noexcept {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, set_up_stream_);
    return error == cudaSuccess ? cudaStreamSynchronize(set_up_stream_) : error;
  }

  /// Waits for the set-up stream, watching NCCL's own errors and the deadline.
  Status wait(double timeout_s) noexcept {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    for (;;) {
      const cudaError_t error = cudaStreamQuery(set_up_stream_);
      if (error == cudaSuccess) return Unit{};
      if (error != cudaErrorNotReady) return cuda_error("set-up", error);
      {
        const std::lock_guard lock(ended_mutex_);  // the communicator is not freed while it is asked
        if (ended_) return Error{ErrorCode::kSystem, "the communicator was aborted meanwhile", ""};
        int state = kNcclSuccess;
        if (nccl_.comm_get_async_error && nccl_.comm_get_async_error(comm_, &state) == kNcclSuccess &&
            state != kNcclSuccess && state != kNcclInProgress)
          return Error{ErrorCode::kSystem, "NCCL reports error " + std::to_string(state), ""};
      }
      if (std::chrono::steady_clock::now() > deadline) {
        char text[96];
        std::snprintf(text, sizeof text, "not every rank answered within %.0f s", timeout_s);
        return Error{ErrorCode::kSystem, text, ""};
      }
      const timespec pause{0, 50'000};
      nanosleep(&pause, nullptr);
    }
  }

  /// One communicator is never in flight twice: its scratch and state serve one call after the other, as
  /// NCCL's own calls on one communicator do. Eager calls and graph replays meet at one event; inside a
  /// capture the event is an external node, so that every replay waits for what was enqueued before it.
  bool enter(const CompressedCall& call, cudaStream_t stream) noexcept {
    // Never "the same stream as last time, so in order already": a handle may be that of a stream destroyed
    // since, and cudaStreamPerThread is another stream in every thread.
    if (!call.capture.capturing) return !used_ || cudaStreamWaitEvent(stream, order_, 0) == cudaSuccess;
    if (call.capture.id == last_capture_)
      return cudaStreamWaitEvent(stream, captured_order_, 0) == cudaSuccess;
    return cudaStreamWaitEvent(stream, order_, cudaEventWaitExternal) == cudaSuccess;
  }

  bool leave(const CompressedCall& call, cudaStream_t stream) noexcept {
    used_ = true;
    last_capture_ = call.capture.id;
    if (!call.capture.capturing) return cudaEventRecord(order_, stream) == cudaSuccess;
    return cudaEventRecordWithFlags(order_, stream, cudaEventRecordExternal) == cudaSuccess &&
           cudaEventRecord(captured_order_, stream) == cudaSuccess;
  }

  EchoTpNccl nccl_;
  void* comm_;
  int rank_;
  int ranks_;
  CUcontext context_ = nullptr;
  std::int64_t chunk_elements_ = 0;
  std::unique_ptr<StagedTransport> transport_;
  std::unique_ptr<P2pTransport> p2p_;
  std::unique_ptr<std::array<CompensationState, 2>> states_;  // forward, backward
  std::unique_ptr<std::array<DriftState, 2>> drift_states_;   // likewise
  DeviceCounters* counters_ = nullptr;
  std::atomic<std::int64_t> state_bytes_{0};
  cudaStream_t set_up_stream_ = nullptr;
  std::uint8_t* set_up_memory_ = nullptr;
  bool set_up_on_host_ = false;
  float* test_values_ = nullptr;
  std::unique_ptr<StagedTransport> test_transport_;
  bool stuck_ = false;  // something may wait for a peer for ever: nothing is ever freed
  std::mutex ended_mutex_;
  bool ended_ = false;
  cudaEvent_t order_ = nullptr;
  cudaEvent_t captured_order_ = nullptr;  // the same, between the calls of one capture
  std::uint64_t last_capture_ = 0;
  bool used_ = false;
  bool captured_ = false;  // some graph may replay our kernels: nothing they use is ever freed
};

}  // namespace

std::unique_ptr<Backend> make_backend(const EchoTpNccl& nccl, void* comm, int rank, int ranks) {
  return std::make_unique<CudaBackend>(nccl, comm, rank, ranks);
}

}  // namespace echotp
