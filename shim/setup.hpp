// SPDX-License-Identifier: Apache-2.0
// SET-UP: what ranks tell each other when a communicator is created, and the vote that follows. Any "no"
// turns compression off on every rank, because all ranks judge the same records by the same pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shim/decision.hpp"

namespace echotp {

/// Travels as bytes between processes of one job: fixed size, no pointers.
struct SetupRecord {
  static constexpr std::uint64_t kMagic = 0x31707472'6f686365ULL;  // "echortp1": not a plausible accident
  static constexpr std::uint32_t kProtocol = 3;

  std::uint64_t magic = kMagic;
  std::uint32_t protocol = kProtocol;
  std::int32_t ok = 0;  // this rank can compress
  std::int64_t pid = 0;
  std::uint64_t boot = 0;  // hash of the machine's boot id: same machine, whatever the host name says
  std::uint64_t policy_hash = 0;
  std::uint64_t name_rules = 0;  // which rules the communicator's name fits: NCCL lets names differ by rank
  std::int64_t chunk_elements = 0;  // of the transport; must be equal
  char host[64] = {};
  char gpu_uuid[16] = {};
  char version[16] = {};   // of this library
  char why_not[128] = {};  // for people, when ok == 0
};

/// The common answer.
struct Vote {
  Reason off = Reason::kCompressed;  // kCompressed: everybody agreed
  std::string detail;                // one line naming the rank and the difference; empty when agreed
};

/// Judges the records of all ranks, in rank order. Pure: equal on every rank.
Vote vote(std::span<const SetupRecord> records);

/// Which of the policy's rules a communicator of this name can match, as one number for comparing.
std::uint64_t name_rules(const Policy& policy, std::string_view name);

/// Host, pid, boot id and library version of this process.
SetupRecord local_record(std::uint64_t policy_hash);

/// Copies text into a fixed field, cut to fit, always terminated.
void set_text(std::span<char> field, std::string_view text);

}  // namespace echotp
