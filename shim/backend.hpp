// SPDX-License-Identifier: Apache-2.0
// BACKEND: what the engine needs from the GPU for one communicator: exchange records at set-up, tell whether
// a stream is capturing, run a compressed all-reduce. Abstract, so that the engine is tested without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "shim/engine_abi.h"
#include "shim/p2p_setup.hpp"
#include "shim/policy.hpp"
#include "shim/result.hpp"
#include "shim/setup.hpp"

namespace echotp {

/// ncclResult_t values that the engine answers with; the numbers are NCCL's.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,  // NCCL's own answer when a remote process ended
  kNcclInProgress = 7,
};

/// Graph capture as seen on one stream.
struct CaptureInfo {
  bool capturing = false;
  std::uint64_t id = 0;  // of the capture; 0 when not capturing
};

/// One all-reduce that is going to be compressed.
struct CompressedCall {
  const void* send = nullptr;
  void* recv = nullptr;
  std::int64_t count = 0;
  DataType dtype = DataType::kBf16;
  ReduceOp op = ReduceOp::kSum;
  void* stream = nullptr;
  CaptureInfo capture;
  const PolicyRule* rule = nullptr;
  bool pass_start = false;
  bool last_call = false;  // of its pass; equal on all ranks
  int direction = 0;       // which of the communicator's states: 0 forward, 1 backward
  bool p2p = false;        // between peers, which was agreed on; else staged
};

/// What a compressed call did beside its result; goes into the receipt.
struct CallOutcome {
  int result = kNcclSuccess;
  std::int64_t wire_bytes = 0;  // sent by this rank
  bool p2p = false;             // went between peers
  bool uncompensated = false;   // the rule wants compensation, but there was no room for its state, or the
                                // message does not consist of whole tokens (mode drift)
};

struct BackendFacts {
  std::int64_t scratch_bytes = 0;
  std::int64_t state_bytes = 0;
  std::int64_t nonfinite_groups = 0;
};

/// One communicator's resources. Calls come from one thread at a time (the engine holds the communicator's
/// lock).
class Backend {
 public:
  virtual ~Backend() = default;

  /// Fills the GPU part of this rank's record and loads the kernels. An error becomes a "no"
  /// vote.
  virtual Status prepare(SetupRecord& mine) noexcept = 0;

  /// Gathers equally many bytes of every rank, [ranks][mine.size()], over the communicator. Blocks, at most
  /// `timeout_s` seconds; kSystem error after that.
  virtual Status gather(std::span<const std::byte> mine, std::span<std::byte> all,
                        double timeout_s) noexcept = 0;

  /// Runs one small compressed all-reduce and checks its result; this also connects the ranks.
  virtual Status self_test(double timeout_s) noexcept = 0;

  /// This rank's side of setting up the transport between peers.
  virtual P2pRank& p2p() noexcept = 0;

  /// Allocates the transport's scratch: at the first call that is to be compressed, because most
  /// communicators of a job never have one. Not inside a capture. An error becomes a "no" vote.
  /// `widest_bits` is the widest code that the policy can ask for; `drift`: it can ask for that mode.
  virtual Status reserve(int widest_bits, bool drift) noexcept = 0;

  virtual CaptureInfo capture(void* stream) noexcept = 0;

  /// Enqueues the call; returns before it completes. Captures nothing but kernels, NCCL calls and events.
  virtual CallOutcome all_reduce(const CompressedCall& call) noexcept = 0;

  /// Makes `stream` wait for everything that is enqueued on `other`: streams of one group.
  virtual int join(void* stream, void* other) noexcept = 0;

  /// The job ends the communicator. May come from another thread while one of the calls above is stuck, so it
  /// waits for none of them: they stop before their next NCCL call, and waits end early. `abort`: kernels
  /// that wait for a peer end too; otherwise what is enqueued is still done.
  virtual void end(bool abort) noexcept = 0;

  /// kNcclSuccess, or the error of a call that failed after it was enqueued. From any thread; never waits.
  /// Once it is an error, it stays.
  virtual int async_error() noexcept = 0;

  virtual BackendFacts facts() const noexcept = 0;

  /// True once the resources can be freed without waiting for the GPU and no captured graph refers to them.
  virtual bool idle() noexcept = 0;
};

/// The backend of this build: CUDA in the engine, a recorder in its tests.
std::unique_ptr<Backend> make_backend(const EchoTpNccl& nccl, void* comm, int rank, int ranks);

}  // namespace echotp
