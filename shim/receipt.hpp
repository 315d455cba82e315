// SPDX-License-Identifier: Apache-2.0
// RECEIPT: what the shim did in one process, written when the process ends and merged into the run report.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shim/decision.hpp"
#include "shim/result.hpp"

namespace echotp {

/// Calls of one message size on one communicator.
struct SizeClass {
  std::int64_t calls = 0;
  std::int64_t compressed = 0;
};

/// One communicator as this process saw it.
struct CommunicatorReceipt {
  std::string name;  // ncclConfig_t.commName, may be empty
  int rank = -1;
  int ranks = 0;
  std::string off;         // reason name when compression is off, else empty
  std::string off_detail;  // the line that was printed, else empty
  std::int64_t calls = 0;
  std::int64_t compressed = 0;
  std::int64_t captured = 0;  // of the compressed: recorded into a CUDA graph, replays are not counted
  std::array<std::int64_t, static_cast<std::size_t>(Reason::kCount)> by_reason{};
  std::map<std::int64_t, SizeClass> by_bytes;
  std::int64_t payload_bytes = 0;  // of the compressed calls, count * element size
  std::int64_t nccl_wire_bytes =
      0;  // what a ring would have sent for the compressed calls: 2(P-1)/P * payload
  std::int64_t echo_wire_bytes = 0;   // what was sent
  std::int64_t passes = 0;            // pass boundaries seen
  std::int64_t state_bytes = 0;       // device memory of the error estimates
  std::int64_t scratch_bytes = 0;     // device memory of the transport
  std::int64_t uncompensated = 0;     // compressed without state: over max_state_bytes or allocation refused
  std::int64_t nonfinite_groups = 0;  // groups that held NaN or Inf
  std::string transport;              // "staged", or "p2p": between peers where the rule allows it
  std::string p2p_way;                // "vmm" or "ipc": how the peers share memory; empty without p2p
  std::string p2p_off;                // why p2p, or the way that comes before, was not possible; else empty
  bool p2p_asked_for = false;         // a rule for this communicator says "p2p"
  std::int64_t p2p_calls = 0;         // of the compressed
};

struct Receipt {
  std::string host;
  int pid = 0;
  std::string program;
  std::string mode;  // observe, compress
  std::string nccl_path;
  int nccl_version = 0;
  std::uint64_t policy_hash = 0;
  std::vector<std::string> errors;
  std::vector<CommunicatorReceipt> communicators;
};

/// JSON of one receipt, schema echo-tp/receipt/1.
std::string receipt_json(const Receipt& receipt);

/// Writes `<dir>/receipt-<host>-<pid>.json` through a temporary file.
Status write_receipt(const Receipt& receipt, const std::string& dir);

/// Reads every receipt of a run directory. Unreadable ones are named in `problems` and left out.
std::vector<Receipt> read_receipts(const std::string& dir, std::vector<std::string>& problems);

}  // namespace echotp
