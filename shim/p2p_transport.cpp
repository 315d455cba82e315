// SPDX-License-Identifier: Apache-2.0
#include "shim/p2p_transport.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/hd.hpp"
#include "shim/context.hpp"
#include "shim/setup.hpp"

namespace echotp {

namespace {

/// Calls that are timed; the first few are not, since ranks start at different times.
constexpr int kWarmUpCalls = 3;
constexpr int kTimedCalls = 15;
constexpr double kDefaultDeadline_s = 600;

bool is_set(const char* text) {
  return text && *text != '\0';
}

/// Bits of P2pWay; an error if the variable says something else.
Result<unsigned> ways_from_environment() {
  const char* text = std::getenv("ECHO_TP_P2P");
  if (!is_set(text)) return 3u;
  const std::string_view word = text;
  if (word == "off") return Error{ErrorCode::kBadInput, "ECHO_TP_P2P is off", ""};
  for (const P2pWay way : kP2pWays)
    if (word == p2p_way_name(way)) return 1u << static_cast<unsigned>(way);
  return Error{ErrorCode::kBadInput, "ECHO_TP_P2P: expected off, vmm or ipc, got '" + std::string(word) + "'",
               ""};
}

double deadline_from_environment() {
  const char* text = std::getenv("ECHO_TP_P2P_DEADLINE_S");
  char* end = nullptr;
  const double value = is_set(text) ? std::strtod(text, &end) : 0;
  return value > 0 && *end == '\0' ? std::min(value, 1e9) : kDefaultDeadline_s;
}

/// What NCCL's own limit allows of `ctas`.
int limited_by_nccl(int ctas) {
  const char* text = std::getenv("NCCL_MAX_CTAS");
  const long limit = is_set(text) ? std::strtol(text, nullptr, 10) : 0;
  return limit > 0 ? static_cast<int>(std::min<long>(limit, ctas)) : ctas;
}

std::uint32_t load_word(const std::uint32_t& word) noexcept {
  return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(word)).load(std::memory_order_acquire);
}

/// What rank p sends in the self-test: the same in a whole tile, so that one code of 4 bits is exact, and
/// different from tile to tile, so that tiles in the wrong place are noticed.
float test_value(int rank, std::int64_t element) {
  return static_cast<float>((rank + 1) * (1 + element / kTileElements % 5));
}

/// One chunk for every lane.
std::int64_t full_test_count(const FusedLayout& layout) {
  return std::int64_t{fused_lanes(layout)} * layout.ranks * kTileElements;
}

}  // namespace

P2pTransport::~P2pTransport() {
  watch_.reset();                  // before the words it looks at
  if (stuck_) windows_.release();  // a kernel may still write there
  if (!context_ || stuck_) return;
  const ScopedContext scope(context_);
  const RelaxedCapture relaxed;
  windows_.reset();
  free_device_memory();
  if (status_) cudaFreeHost(status_);
}

void P2pTransport::bind(CUcontext context, cudaStream_t stream) noexcept {
  context_ = context;
  stream_ = stream;
}

Status P2pTransport::offer(const P2pNeeds& needs, P2pRecord& mine) noexcept {
  const Result<unsigned> ways = ways_from_environment();
  if (!ways) return ways.error();
  if (!context_) return Error{ErrorCode::kSystem, "no CUDA context", ""};
  const ScopedContext scope(context_);
  const RelaxedCapture relaxed;
  deadline_s_ = deadline_from_environment();
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  if (error == cudaSuccess) error = load_fused_kernels();
  if (error == cudaSuccess)
    error = cudaHostAlloc(reinterpret_cast<void**>(&status_), sizeof *status_,
                          cudaHostAllocMapped | cudaHostAllocPortable);
  if (error == cudaSuccess) {
    *status_ = FusedStatus{};
    error = cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_status_), status_, 0);
  }
  if (error != cudaSuccess) return cuda_error("getting ready for p2p", error);
  mine.ways = *ways;
  mine.boot = local_record(0).boot;
  std::memcpy(mine.gpu_uuid, properties.uuid.bytes, sizeof mine.gpu_uuid);
  mine.most_ctas = limited_by_nccl(needs.max_ctas.value_or(fused_default_ctas(ranks_)));
  mine.resident_ctas = fused_resident_ctas();
  if (mine.resident_ctas == 0) return Error{ErrorCode::kSystem, "the GPU can't run the kernel of p2p", ""};
  if (Status listening = sockets_.listen(); !listening) return listening;
  mine.socket = sockets_.address();
  return Unit{};
}

Status P2pTransport::connect(const P2pTerms& terms, std::span<const P2pRecord> all,
                             double timeout_s) noexcept {
  layout_ = terms.layout;
  same_gpu_ = terms.same_gpu;
  std::vector<SocketAddress> addresses;
  for (const P2pRecord& record : all) addresses.push_back(record.socket);
  return sockets_.connect(rank_, addresses, timeout_s);
}

Status P2pTransport::open_window(P2pWay way, P2pRecord& mine) noexcept {
  const ScopedContext scope(context_);
  const RelaxedCapture relaxed;
  if (stuck_) return Error{ErrorCode::kInsufficient, "the GPU is busy with a kernel that does not end", ""};
  way_ = way;
  *status_ = FusedStatus{};
  if (!windows_) windows_ = std::make_unique<Windows>();
  OwnWindow& window = own_window();
  if (Status created = window.create(way, fused_window_bytes(layout_), stream_); !created) return created;
  mine.window_bytes = window.bytes();
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof mine.ipc_handle);
  std::memcpy(mine.ipc_handle, &window.ipc_handle(), sizeof mine.ipc_handle);
  // Everything else that a call needs, too: a rank that ran out of memory later would miss from the calls.
  const std::size_t progress_bytes =
      sizeof(std::uint32_t) * static_cast<std::size_t>(1 + fused_lanes(layout_));
  const auto test_bytes = static_cast<std::size_t>(full_test_count(layout_)) * 2;
  cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&progress_), progress_bytes);
  if (error == cudaSuccess) error = cudaMalloc(&test_values_, test_bytes);
  if (error == cudaSuccess) error = cudaMemsetAsync(progress_, 0, progress_bytes, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  if (error != cudaSuccess) return cuda_error("allocating for p2p", error);
  scratch_bytes_ = window.bytes() + static_cast<std::int64_t>(progress_bytes);
  return Unit{};
}

Status P2pTransport::import_windows(std::span<const P2pRecord> all, double timeout_s) noexcept {
  const ScopedContext scope(context_);
  const RelaxedCapture relaxed;
  std::vector<UniqueFd> fds(all.size());
  if (way_ == P2pWay::kVmm) {
    if (Status swapped = sockets_.swap(own_window().fd(), fds, timeout_s); !swapped) return swapped;
  }
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    Status opened = Unit{};
    if (way_ == P2pWay::kVmm) {
      opened = windows_->peers[peer].open(fds[peer].get(), all[peer].window_bytes);
    } else {
      cudaIpcMemHandle_t handle;
      std::memcpy(&handle, all[peer].ipc_handle, sizeof handle);
      opened = windows_->peers[peer].open(handle);
    }
    if (!opened)
      return Error{ErrorCode::kSystem,
                   "mapping the window of rank " + std::to_string(peer) + ": " + opened.error().text(), ""};
  }
  own_window().close_fd();
  return Unit{};
}

Status P2pTransport::self_test(double timeout_s) noexcept {
  const ScopedContext scope(context_);
  const RelaxedCapture relaxed;
  Status outcome = Unit{};
  // All lanes with each of their slots, and one lane alone.
  for (int round = 0; round < kFusedSlots && outcome; ++round)
    outcome = run_test_call(full_test_count(layout_), timeout_s);
  if (outcome) outcome = run_test_call(1, timeout_s);
  if (outcome) outcome = time_test_calls(timeout_s);
  return outcome ? start_watching() : outcome;
}

Status P2pTransport::run_test_call(std::int64_t count, double timeout_s) noexcept {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = float_to_bf16(test_value(rank_, i));
  FusedArgs args;
  args.send = args.recv = test_values_;
  args.count = count;
  args.dtype = DataType::kBf16;
  args.compensation.mode = CompensationMode::kNone;
  args.deadline_ns = static_cast<std::uint64_t>(timeout_s * 1e9);
  const std::size_t bytes = values.size() * sizeof values[0];
  cudaError_t error = cudaMemcpyAsync(test_values_, values.data(), bytes, cudaMemcpyHostToDevice, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);  // `values` is used again
  if (error == cudaSuccess) error = all_reduce(args, false, stream_);
  if (error != cudaSuccess) return cuda_error("self-test", error);
  if (Status waited = wait(timeout_s); !waited) return waited;
  error = cudaMemcpyAsync(values.data(), test_values_, bytes, cudaMemcpyDeviceToHost, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  if (error != cudaSuccess) return cuda_error("self-test", error);
  for (std::int64_t i = 0; i < count; ++i) {
    const float expected = test_value(0, i) * static_cast<float>(ranks_ * (ranks_ + 1) / 2);
    const float got = bf16_to_float(values[static_cast<std::size_t>(i)]);
    // Each rounding to bf16, of two scales and of the result, is off by half an ulp.
    if (!(std::abs(got - expected) <= expected / 50)) {
      char text[96];
      std::snprintf(text, sizeof text, "wrong sum in the self-test: element %lld is %g, expected %g",
                    static_cast<long long>(i), static_cast<double>(got), static_cast<double>(expected));
      return Error{ErrorCode::kSystem, text, ""};
    }
  }
  return Unit{};
}

Status P2pTransport::time_test_calls(double timeout_s) noexcept {
  using Clock = std::chrono::steady_clock;
  FusedArgs args;
  args.send = args.recv = test_values_;
  args.count = kTileElements;
  args.dtype = DataType::kBf16;
  args.compensation.mode = CompensationMode::kNone;
  args.deadline_ns = static_cast<std::uint64_t>(timeout_s * 1e9);
  std::vector<double> times;
  for (int call = 0; call < kWarmUpCalls + kTimedCalls; ++call) {
    const auto start = Clock::now();
    if (const cudaError_t error = all_reduce(args, false, stream_); error != cudaSuccess)
      return cuda_error("self-test", error);
    if (Status waited = wait(timeout_s); !waited) return waited;
    if (call >= kWarmUpCalls)
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + kTimedCalls / 2, times.end());
  const double median = times[kTimedCalls / 2];
  if (median <= slowest_call_ms_) return Unit{};
  char text[160];
  std::snprintf(
      text, sizeof text, "a small call takes %.1f ms%s", median,
      same_gpu_ ? ": ranks on one GPU take turns; start the MPS daemon (nvidia-cuda-mps-control -d)" : "");
  return Error{ErrorCode::kInsufficient, text, ""};
}

/// Waits for the set-up stream. A kernel that is still there after its own deadline will never end.
Status P2pTransport::wait(double timeout_s) noexcept {
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (;;) {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaSuccess) break;
    if (error != cudaErrorNotReady) {
      stuck_ = true;
      return cuda_error("self-test", error);
    }
    cudaGetLastError();
    if (aborted_) std::atomic_ref(status_->abort).store(1);
    if (passed() > timeout_s + 5) {
      std::atomic_ref(status_->abort).store(1);
      if (passed() > timeout_s + 10) {
        stuck_ = true;
        return Error{ErrorCode::kSystem, "the kernel of the self-test does not end", ""};
      }
    }
    // The first wait is short: what is measured takes microseconds.
    const timespec pause{0, passed() < 0.01 ? 1'000 : 100'000};
    nanosleep(&pause, nullptr);
  }
  if (load_word(status_->failure) != 0)
    return Error{ErrorCode::kSystem, "self-test: no answer from rank " + std::to_string(status_->peer), ""};
  return Unit{};
}

/// The last part of set-up: from here on the peers' ends are noticed.
Status P2pTransport::start_watching() noexcept {
  WatchPlan plan;
  plan.rank = rank_;
  plan.abort = &status_->abort;
  plan.failure = &status_->failure;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    WatchedPeer watched;
    watched.rank = peer;
    watched.socket = sockets_.share_connection(peer);
    if (!watched.socket) return Error{ErrorCode::kInsufficient, "no descriptor is left for the watchdog", ""};
    watched.process = open_peer_process(watched.socket.get());
    plan.peers.push_back(std::move(watched));
  }
  plan.describe = [this](int gone) { return describe_failure(gone); };
  Result<std::unique_ptr<PeerWatch>> started = PeerWatch::start(std::move(plan));
  if (!started) return Error{ErrorCode::kInsufficient, started.error().what, ""};
  watch_ = *std::move(started);
  ready_ = true;
  return Unit{};
}

void P2pTransport::settle(bool agreed) noexcept {
  sockets_ = FdExchange();
  if (!context_ || stuck_) return;
  const ScopedContext scope(context_);
  const RelaxedCapture relaxed;
  if (test_values_ && cudaFree(test_values_) != cudaSuccess) cudaGetLastError();
  test_values_ = nullptr;
  if (!agreed) windows_.reset();
}

void P2pTransport::close_windows() noexcept {
  if (!context_) return;
  ready_ = false;
  watch_.reset();
  if (stuck_) return;
  const ScopedContext scope(context_);
  const RelaxedCapture relaxed;
  if (windows_) {
    for (PeerWindow& peer : windows_->peers) peer.close();
    windows_->own[static_cast<std::size_t>(P2pWay::kVmm)].free();  // lives on while a peer maps it
  }
  free_device_memory();
  scratch_bytes_ = 0;
}

void P2pTransport::free_device_memory() noexcept {
  for (void* memory : {static_cast<void*>(progress_), test_values_})
    if (memory && cudaFree(memory) != cudaSuccess) cudaGetLastError();
  progress_ = nullptr;
  test_values_ = nullptr;
}

cudaError_t P2pTransport::all_reduce(FusedArgs args, bool capturing, cudaStream_t stream) noexcept {
  args.rank = rank_;
  args.layout = layout_;
  for (int rank = 0; rank < ranks_; ++rank)
    args.windows[rank] = windows_->peers[static_cast<std::size_t>(rank)].data();
  args.windows[rank_] = own_window().data();
  args.progress = progress_;
  args.status = device_status_;
  if (args.deadline_ns == 0) args.deadline_ns = static_cast<std::uint64_t>(deadline_s_ * 1e9);
  const cudaError_t error = launch_fused(args, stream);
  if (error == cudaSuccess) return error;
  cudaGetLastError();
  if (!capturing) {
    broken_ = true;
    end(true);
  }
  return error;
}

bool P2pTransport::failed() noexcept {
  if (broken_) return true;
  if (!ready_ || load_word(status_->failure) == 0) return false;
  watch_->say_failure();
  return true;
}

std::string P2pTransport::describe_failure(int gone) const {
  const FusedStatus& status = *status_;
  char text[256];
  const int length =
      std::snprintf(text, sizeof text, "an all-reduce failed: no %s of rank %d arrived (lane %d, chunk %u): ",
                    status.leg == 0 ? "codes" : "results", status.peer, status.lane, status.sequence);
  char* rest = text + length;
  const std::size_t room = sizeof text - static_cast<std::size_t>(length);
  if (gone >= 0)
    std::snprintf(rest, room, "rank %d ended or left the communicator", gone);
  else if (status.failure == static_cast<std::uint32_t>(FusedFailure::kDeadline))
    std::snprintf(rest, room, "waited for %.0f s (ECHO_TP_P2P_DEADLINE_S)", deadline_s_);
  else
    std::snprintf(rest, room, "the communicator was aborted");
  return text;
}

void P2pTransport::end(bool abort) noexcept {
  if (!abort) return;
  aborted_ = true;
  if (!ready_) return;
  std::atomic_ref(status_->abort).store(1, std::memory_order_release);
  watch_->hang_up();
}

bool P2pTransport::released() noexcept {
  if (stuck_) return false;
  if (!ready_) return true;
  {
    const ScopedContext scope(context_);
    const RelaxedCapture relaxed;
    for (PeerWindow& peer : windows_->peers) peer.close();
  }
  watch_->hang_up();
  // CUDA IPC memory must not be freed while a peer has it mapped.
  return way_ == P2pWay::kVmm || watch_->all_gone();
}

}  // namespace echotp
