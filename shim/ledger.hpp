// SPDX-License-Identifier: Apache-2.0
// LEDGER: counts what happens to every call of this process and writes the receipt: when communicators come
// and go, every other second while calls are made (a killed process leaves most of it behind), and at exit.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "shim/backend.hpp"
#include "shim/communicator.hpp"
#include "shim/coverage.h"
#include "shim/group.hpp"

namespace echotp {

/// Bytes of a message; the largest integer when that does not fit, 0 for a type of a newer NCCL.
std::int64_t message_bytes(const RawCall& raw) noexcept;

class Ledger {
 public:
  /// Receipts go to ECHO_TP_RUN_DIR; without it nothing is written. `table` outlives the ledger.
  explicit Ledger(const CommunicatorTable& table);

  void set_run(std::string mode, std::uint64_t policy_hash);

  /// One call of a known communicator; `outcome` is null for a forwarded one.
  void count(KnownCommunicator& known, const HeldCall& call, const CallOutcome* outcome);

  /// One call of a communicator that was never announced.
  void count_unknown() noexcept;

  void remember_nccl(const EchoTpNccl& nccl);

  /// Keeps the first 20.
  void note_error(std::string text);

  /// Writes if a receipt is due. At the end of calls, with no lock held.
  void write_if_wanted() noexcept;

  /// Writes now. Not in a forked child. A receipt that can't be written is no failure of the job's call: one
  /// line, once. Waits for no thread that is inside a call.
  void write() noexcept;

 private:
  /// One line for the first call of each reason and of each rule on a communicator. With its receipt's lock
  /// held.
  static void tell_if_new(KnownCommunicator& known, const HeldCall& call, const CallOutcome* outcome);
  void want_sometimes() noexcept;  // called inside a call, with locks held: only marks that a receipt is due
  void write_or_throw();

  const CommunicatorTable& table_;
  bool talkative_ = false;  // ECHO_TP_LOG
  std::string run_dir_;
  EchoTpCoverage* coverage_ = nullptr;  // null: not counted there
  int pid_ = 0;
  std::string mode_;
  std::uint64_t policy_hash_ = 0;
  std::atomic<std::int64_t> unknown_calls_{0};
  std::atomic<std::chrono::steady_clock::rep> due_{0};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows
  std::string nccl_path_;
  int nccl_version_ = 0;
  std::vector<std::string> errors_;
};

}  // namespace echotp
