// SPDX-License-Identifier: Apache-2.0
// COMMUNICATOR: the side table. The job's ncclComm_t is never replaced; what we know of it lives here, keyed
// by its value. Entries are shared, so that a watchdog thread may end a communicator while another thread is
// inside a call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "shim/backend.hpp"
#include "shim/pass_tracker.hpp"
#include "shim/receipt.hpp"

namespace echotp {

/// One communicator of this process.
struct KnownCommunicator {
  EchoTpNccl nccl{};
  void* comm = nullptr;
  int rank = -1;
  int ranks = 0;
  std::string name;
  std::atomic<Reason> off{
      Reason::kCompressed};           // agreed by vote: at set-up, and once more at the first eligible call
  std::atomic<bool> reserved{false};  // that second vote took place, and every rank has its scratch
  std::atomic<bool> ended{false};     // the job destroys or aborts it: no call of ours may begin any more
  bool announced = false;             // the job has it; before that it is ours to abort
  bool p2p = false;                   // agreed by vote before it is announced

  std::mutex mutex;                  // guards what follows; held while a call is enqueued
  std::unique_ptr<Backend> backend;  // null when off
  SetupRecord mine;                  // this rank's record, for the votes
  PassTracker passes;
  int last_rule = -1;  // rule of the latest compressed call: whose resync list other collectives follow

  // Apart from `mutex`: a watchdog writes receipts and aborts while another thread may be stuck inside a
  // call.
  std::mutex receipt_mutex;
  CommunicatorReceipt receipt;
  std::uint64_t told_rules = 0;  // bit n: a line said that rule n compresses here
};

class CommunicatorTable {
 public:
  void add(std::shared_ptr<KnownCommunicator> entry);

  /// The entry, or null for a communicator that was never announced.
  std::shared_ptr<KnownCommunicator> find(void* comm) const;

  /// Takes the entry out: NCCL may hand out the same address again. A call on it that another thread is in
  /// is told to stop; `abort`: at once. False if it was not known.
  bool remove(void* comm, bool abort);

  /// Backend::async_error of a live communicator; kNcclSuccess if it is not known.
  int async_error(void* comm) const;

  /// Frees ended communicators whose GPU work is over and that no captured graph refers to. Freeing may wait
  /// for the GPU: no lock is held meanwhile, so that a watchdog can still abort.
  void collect();

  /// All communicators that this process ever had, ended ones included.
  std::vector<std::shared_ptr<KnownCommunicator>> all() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<KnownCommunicator>> live_;
  std::vector<std::shared_ptr<KnownCommunicator>> ended_;
};

}  // namespace echotp
