// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_load.hpp"

#include <algorithm>
#include <chrono>

namespace echotp {
namespace {

// Copy engines need large chunks to reach the link's rate; smaller ones would follow the calls more closely.
constexpr std::int64_t kChunkBytes = std::int64_t{64} << 20;  // each direction
constexpr std::size_t kUnderWay = 4;

}  // namespace

BackgroundLoad::BackgroundLoad(BenchBackground kind, const RankPlace& place, int device,
                               ncclComm_t communicator)
    : kind_(kind), place_(place), device_(device), communicator_(communicator) {
  if (kind_ == BenchBackground::kIdle) return;
  check(cudaStreamCreateWithFlags(&out_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaStreamCreateWithFlags(&in_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  out_here_ = DeviceMemory(kChunkBytes, "background buffers");
  in_here_ = DeviceMemory(kChunkBytes, "background buffers");
  slots_.resize(kUnderWay);
  for (Slot& slot : slots_) slot.events = std::make_unique<EventPair>();
  if (kind_ == BenchBackground::kCollective) {
    path_ = "NCCL send and receive between neighbours";
    return;
  }
  int devices = 0, reachable = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  const int peer = (device_ + 1) % std::max(devices, 1);
  if (devices >= place_.ranks)
    check(cudaDeviceCanAccessPeer(&reachable, device_, peer), "cudaDeviceCanAccessPeer");
  if (reachable != 0 && peer != device_) {
    peer_device_ = peer;
    path_ = "copies to and from the next GPU";
    check(cudaDeviceEnablePeerAccess(peer, 0), "cudaDeviceEnablePeerAccess");
    check(cudaSetDevice(peer), "cudaSetDevice");
    check(cudaMalloc(&out_there_, kChunkBytes), "background buffers");
    check(cudaMalloc(&in_there_, kChunkBytes), "background buffers");
    check(cudaSetDevice(device_), "cudaSetDevice");
  } else {
    path_ = "copies to and from the host";
    check(cudaMallocHost(&out_there_, kChunkBytes), "background buffers");
    check(cudaMallocHost(&in_there_, kChunkBytes), "background buffers");
  }
}

BackgroundLoad::~BackgroundLoad() {
  pause();
  if (peer_device_ >= 0) {
    cudaFree(out_there_);
    cudaFree(in_there_);
  } else {
    cudaFreeHost(out_there_);
    cudaFreeHost(in_there_);
  }
  if (joined_ != nullptr) cudaEventDestroy(joined_);
  if (out_stream_ != nullptr) cudaStreamDestroy(out_stream_);
  if (in_stream_ != nullptr) cudaStreamDestroy(in_stream_);
}

void BackgroundLoad::start(cudaEvent_t clock) {
  clock_ = clock;
  chunks_.clear();
  enqueued_ = 0;
  pausing_ = false;
  if (kind_ != BenchBackground::kIdle) thread_ = std::thread([this] { run(); });
}

long long BackgroundLoad::pause() {
  pausing_ = true;
  if (thread_.joinable()) thread_.join();
  return enqueued_;
}

std::vector<BackgroundChunk> BackgroundLoad::finish(long long chunks) {
  while (enqueued_ < chunks) {
    collect(next_slot());
    enqueue(next_slot());
  }
  for (Slot& slot : slots_) collect(slot);
  return std::move(chunks_);
}

void BackgroundLoad::run() {
  check(cudaSetDevice(device_), "cudaSetDevice");  // a new thread begins on GPU 0
  while (!pausing_) {
    // Never blocked in here: this rank's chunk may wait for one that a paused rank has not enqueued.
    const Slot& oldest = next_slot();
    const cudaError_t status = oldest.busy ? cudaEventQuery(oldest.events->stop) : cudaSuccess;
    if (status == cudaErrorNotReady) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
    check(status, "the background");
    collect(next_slot());
    enqueue(next_slot());
  }
}

void BackgroundLoad::enqueue(Slot& slot) {
  check(cudaEventRecord(slot.events->start, out_stream_), "cudaEventRecord");
  if (kind_ == BenchBackground::kCollective) {
    const int next = (place_.rank + 1) % place_.ranks,
              before = (place_.rank + place_.ranks - 1) % place_.ranks;
    check(pncclGroupStart(), "pncclGroupStart");
    check(pncclSend(out_here_.as(), kChunkBytes, ncclUint8, next, communicator_, out_stream_), "pncclSend");
    check(pncclRecv(in_here_.as(), kChunkBytes, ncclUint8, before, communicator_, out_stream_), "pncclRecv");
    check(pncclGroupEnd(), "pncclGroupEnd");
  } else {
    check(cudaStreamWaitEvent(in_stream_, slot.events->start), "cudaStreamWaitEvent");
    check(cudaMemcpyAsync(out_there_, out_here_.as(), kChunkBytes, cudaMemcpyDefault, out_stream_),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(in_here_.as(), in_there_, kChunkBytes, cudaMemcpyDefault, in_stream_),
          "cudaMemcpyAsync");
    check(cudaEventRecord(joined_, in_stream_), "cudaEventRecord");
    check(cudaStreamWaitEvent(out_stream_, joined_), "cudaStreamWaitEvent");
  }
  check(cudaEventRecord(slot.events->stop, out_stream_), "cudaEventRecord");
  slot.busy = true;
  ++enqueued_;
}

void BackgroundLoad::collect(Slot& slot) {
  if (!slot.busy) return;
  slot.busy = false;
  check(cudaEventSynchronize(slot.events->stop), "the background");
  float start = 0, stop = 0;
  check(cudaEventElapsedTime(&start, clock_, slot.events->start), "cudaEventElapsedTime");
  check(cudaEventElapsedTime(&stop, clock_, slot.events->stop), "cudaEventElapsedTime");
  chunks_.push_back({{start, stop}, 2.0 * static_cast<double>(kChunkBytes)});
}

}  // namespace echotp
