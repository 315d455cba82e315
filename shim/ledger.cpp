// SPDX-License-Identifier: Apache-2.0
#include "shim/ledger.hpp"

#include <unistd.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include "shim/say.hpp"

namespace echotp {

namespace {

std::string program_name() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  for (char& c : text)
    if (c == '\0') c = ' ';
  if (!text.empty()) text.pop_back();
  return text.substr(0, 500);
}

int nccl_type_bytes(int dtype) {
  switch (dtype) {
    case 0:
    case 1:
    case 10:
    case 11:
      return 1;
    case 6:
    case 9:
      return 2;
    case 2:
    case 3:
    case 7:
      return 4;
    case 4:
    case 5:
    case 8:
      return 8;
    default:
      return 0;  // a type of a newer NCCL: size unknown
  }
}

/// Exact sizes while there are few, then powers of two: a serving job may send a new size in every step,
/// and the whole receipt is written every other second.
std::int64_t size_class(const CommunicatorReceipt& receipt, std::int64_t bytes) {
  constexpr std::size_t kExactSizes = 256;
  if (receipt.by_bytes.size() < kExactSizes || receipt.by_bytes.contains(bytes)) return bytes;
  constexpr auto kLargestPower = std::uint64_t{1} << 62;
  const auto size = static_cast<std::uint64_t>(bytes);
  return static_cast<std::int64_t>(size > kLargestPower ? kLargestPower : std::bit_ceil(size));
}

void set_facts(CommunicatorReceipt& receipt, const BackendFacts& facts) {
  receipt.state_bytes = facts.state_bytes;
  receipt.scratch_bytes = facts.scratch_bytes;
  receipt.nonfinite_groups = facts.nonfinite_groups;
}

}  // namespace

std::int64_t message_bytes(const RawCall& raw) noexcept {
  std::int64_t bytes = 0;
  if (raw.count > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) ||
      __builtin_mul_overflow(static_cast<std::int64_t>(raw.count), nccl_type_bytes(raw.dtype), &bytes))
    return std::numeric_limits<std::int64_t>::max();
  return bytes;
}

Ledger::Ledger(const CommunicatorTable& table) : table_(table), pid_(getpid()) {
  if (const char* dir = std::getenv("ECHO_TP_RUN_DIR")) run_dir_ = dir;
  const char* log = std::getenv("ECHO_TP_LOG");
  talkative_ = log && *log && std::strcmp(log, "0") != 0;
  coverage_ = echo_tp_coverage_open(run_dir_.c_str());
}

void Ledger::set_run(std::string mode, std::uint64_t policy_hash) {
  mode_ = std::move(mode);
  policy_hash_ = policy_hash;
}

void Ledger::count(KnownCommunicator& known, const HeldCall& call, const CallOutcome* outcome) {
  if (coverage_) echo_tp_coverage_add(outcome ? &coverage_->compressed : &coverage_->forwarded);
  const std::lock_guard lock(known.receipt_mutex);
  CommunicatorReceipt& receipt = known.receipt;
  if (talkative_) tell_if_new(known, call, outcome);
  ++receipt.calls;
  ++receipt.by_reason[static_cast<std::size_t>(call.decision.reason)];
  const std::int64_t bytes = message_bytes(call.raw);
  SizeClass& size = receipt.by_bytes[size_class(receipt, bytes)];
  ++size.calls;
  if (outcome) {
    ++receipt.compressed;
    ++size.compressed;
    receipt.captured += call.capture.capturing;
    receipt.payload_bytes += bytes;
    receipt.nccl_wire_bytes += 2 * (known.ranks - 1) * (bytes / known.ranks);
    receipt.echo_wire_bytes += outcome->wire_bytes;
    receipt.uncompensated += outcome->uncompensated;
    receipt.p2p_calls += outcome->p2p;
    receipt.passes = known.passes.passes();
    set_facts(receipt, known.backend->facts());
  }
  want_sometimes();
}

void Ledger::tell_if_new(KnownCommunicator& known, const HeldCall& call, const CallOutcome* outcome) {
  constexpr int kMostRules = 64;
  const int rule = outcome ? call.decision.rule : -1;
  if (rule >= kMostRules) return;
  // A reason is new if it was never counted, a rule if its bit is not set.
  const std::uint64_t bit = outcome ? std::uint64_t{1} << rule : 0;
  const bool is_new = outcome ? !(known.told_rules & bit)
                              : known.receipt.by_reason[static_cast<std::size_t>(call.decision.reason)] == 0;
  if (!is_new) return;
  known.told_rules |= bit;
  const std::string name = known.name.empty() ? "" : " \"" + known.name + "\"";
  const auto bytes = static_cast<long long>(message_bytes(call.raw));
  if (outcome) {
    say(known.rank, "communicator%s of %d ranks: an all-reduce of %lld bytes is compressed by rule %d%s",
        name.c_str(), known.ranks, bytes, rule, call.capture.capturing ? ", in a graph" : "");
  } else {
    say(known.rank, "communicator%s of %d ranks: an all-reduce of %lld bytes is left to NCCL, %s: %s",
        name.c_str(), known.ranks, bytes, reason_name(call.decision.reason),
        reason_text(call.decision.reason));
  }
}

void Ledger::count_unknown() noexcept {
  if (coverage_) echo_tp_coverage_add(&coverage_->forwarded);
  unknown_calls_.fetch_add(1, std::memory_order_relaxed);
}

void Ledger::remember_nccl(const EchoTpNccl& nccl) {
  const std::lock_guard lock(mutex_);
  if (nccl_path_.empty() && nccl.path) nccl_path_ = nccl.path;
  nccl_version_ = nccl.version;
}

void Ledger::note_error(std::string text) {
  const std::lock_guard lock(mutex_);
  if (errors_.size() < 20) errors_.push_back(std::move(text));
}

void Ledger::want_sometimes() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  auto due = due_.load(std::memory_order_relaxed);
  constexpr auto kPeriod = std::chrono::steady_clock::duration(std::chrono::seconds(2)).count();
  if (now < due || !due_.compare_exchange_strong(due, now + kPeriod)) return;
  wanted_.store(true, std::memory_order_relaxed);
}

void Ledger::write_if_wanted() noexcept {
  if (wanted_.load(std::memory_order_relaxed) && wanted_.exchange(false)) write();
}

void Ledger::write() noexcept {
  if (run_dir_.empty() || getpid() != pid_) return;
  try {
    write_or_throw();
  } catch (...) {
    if (!failed_.exchange(true)) say(-1, "no receipt: out of memory");
  }
}

void Ledger::write_or_throw() {
  const std::lock_guard lock(mutex_);
  Receipt receipt;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  receipt.host = host;
  receipt.pid = pid_;
  receipt.program = program_name();
  receipt.mode = mode_;
  receipt.nccl_path = nccl_path_;
  receipt.nccl_version = nccl_version_;
  receipt.policy_hash = policy_hash_;
  receipt.errors = errors_;
  for (const auto& entry : table_.all()) {
    const std::lock_guard receipt_lock(entry->receipt_mutex);
    if (const std::unique_lock free(entry->mutex, std::try_to_lock); free.owns_lock() && entry->backend)
      set_facts(entry->receipt, entry->backend->facts());  // counts of calls that ended since
    receipt.communicators.push_back(entry->receipt);
  }
  if (const auto unknown = unknown_calls_.load(); unknown > 0) {
    CommunicatorReceipt other;
    other.off = reason_name(Reason::kNotSetUp);
    other.calls = unknown;
    other.by_reason[static_cast<std::size_t>(Reason::kNotSetUp)] = unknown;
    receipt.communicators.push_back(std::move(other));
  }
  const Status written = write_receipt(receipt, run_dir_);
  if (!written && !failed_.exchange(true)) say(-1, "no receipt: %s", written.error().text().c_str());
}

}  // namespace echotp
