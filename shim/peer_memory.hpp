// SPDX-License-Identifier: Apache-2.0
// PEER MEMORY: a window of this rank's device memory that other processes of the host can map, and the
// windows of the others mapped here. Always memory of our own: the job's buffers are never shared, so its
// allocator has no say. Two ways: CUDA's virtual memory, handed over as a file descriptor, and CUDA IPC.
// Outside captures only.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "shim/p2p_setup.hpp"
#include "shim/result.hpp"
#include "shim/unique_fd.hpp"

namespace echotp {

/// A range of device addresses with memory behind it that a file descriptor stands for.
class MappedRange {
 public:
  MappedRange() = default;
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  ~MappedRange() { unmap(); }

  /// Maps `bytes` of `memory` for reading and writing from `device`. Takes over `memory`, also on an error.
  Status map(CUmemGenericAllocationHandle memory, std::int64_t bytes, std::size_t granularity,
             int device) noexcept;
  void unmap() noexcept;
  std::uint8_t* data() const noexcept { return reinterpret_cast<std::uint8_t*>(address_); }

 private:
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;
  bool mapped_ = false;
};

/// This rank's window, on the current device.
class OwnWindow {
 public:
  OwnWindow() = default;
  OwnWindow(const OwnWindow&) = delete;
  OwnWindow& operator=(const OwnWindow&) = delete;
  ~OwnWindow() { free(); }

  /// Allocates at least `bytes`, zeroes them and gets them ready to be shared. Waits for `stream` alone.
  Status create(P2pWay way, std::int64_t bytes, cudaStream_t stream) noexcept;

  /// Gives the memory back. Windows of kVmm live on while a peer has them mapped; one of kIpc must be
  /// unmapped everywhere first.
  void free() noexcept;

  std::uint8_t* data() const noexcept { return ipc_ ? ipc_ : range_.data(); }
  std::int64_t bytes() const noexcept { return bytes_; }  // as allocated; what importers map
  int fd() const noexcept { return fd_.get(); }           // kVmm: to be sent to peers; stays owned
  void close_fd() noexcept { fd_.reset(); }               // once every peer has it
  const cudaIpcMemHandle_t& ipc_handle() const noexcept { return handle_; }

 private:
  Status create_vmm(std::int64_t bytes) noexcept;
  Status create_ipc(std::int64_t bytes) noexcept;

  std::int64_t bytes_ = 0;
  MappedRange range_;
  UniqueFd fd_;
  std::uint8_t* ipc_ = nullptr;
  cudaIpcMemHandle_t handle_{};
};

/// A peer's window, mapped for the current device.
class PeerWindow {
 public:
  PeerWindow() = default;
  PeerWindow(const PeerWindow&) = delete;
  PeerWindow& operator=(const PeerWindow&) = delete;
  ~PeerWindow() { close(); }

  /// `bytes` is what the peer allocated.
  Status open(int fd, std::int64_t bytes) noexcept;
  Status open(const cudaIpcMemHandle_t& handle) noexcept;
  void close() noexcept;

  std::uint8_t* data() const noexcept { return ipc_ ? static_cast<std::uint8_t*>(ipc_) : range_.data(); }

 private:
  MappedRange range_;
  void* ipc_ = nullptr;
};

}  // namespace echotp
