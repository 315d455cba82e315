// SPDX-License-Identifier: Apache-2.0
#include "shim/setup.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "echo_tp_version.h"

namespace echotp {

namespace {

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::string text_of(std::span<const char> field) {
  return std::string(field.data(), strnlen(field.data(), field.size()));
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

void set_text(std::span<char> field, std::string_view text) {
  const std::size_t length = std::min(text.size(), field.size() - 1);
  std::memcpy(field.data(), text.data(), length);
  field[length] = '\0';
}

std::uint64_t name_rules(const Policy& policy, std::string_view name) {
  std::string fits;
  for (const PolicyRule& rule : policy.rules)
    fits +=
        rule.match.communicator_name.empty() || glob_matches(rule.match.communicator_name, name) ? '1' : '0';
  return fnv1a(fits);
}

SetupRecord local_record(std::uint64_t policy_hash) {
  SetupRecord record;
  record.pid = getpid();
  record.policy_hash = policy_hash;
  set_text(record.version, ECHO_TP_VERSION);
  char host[64] = {};
  if (gethostname(host, sizeof host - 1) == 0) set_text(record.host, host);
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  record.boot = fnv1a(boot_id);
  return record;
}

Vote vote(std::span<const SetupRecord> records) {
  const auto rank_text = [&](std::size_t rank) {
    return "rank " + std::to_string(rank) + " (" + text_of(records[rank].host) + ", pid " +
           std::to_string(records[rank].pid) + ")";
  };
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const SetupRecord& record = records[rank];
    const SetupRecord& first = records[0];
    if (record.magic != SetupRecord::kMagic || record.protocol != SetupRecord::kProtocol)
      return {Reason::kVotedOff, "rank " + std::to_string(rank) + " runs another version of this library"};
    if (std::memcmp(record.version, first.version, sizeof record.version) != 0)
      return {Reason::kVotedOff, rank_text(rank) + " runs version " + text_of(record.version) +
                                     ", rank 0 runs " + text_of(first.version)};
    if (!record.ok)
      return {Reason::kVotedOff, rank_text(rank) + " can't compress: " + text_of(record.why_not)};
    if (record.policy_hash != first.policy_hash)
      return {Reason::kVotedOff, rank_text(rank) + " has policy " + hex(record.policy_hash) +
                                     ", rank 0 has " + hex(first.policy_hash)};
    if (record.name_rules != first.name_rules)
      return {Reason::kVotedOff, rank_text(rank) +
                                     " gave the communicator a name that fits other rules of the "
                                     "policy than rank 0's name"};
    if (record.chunk_elements != first.chunk_elements)
      return {Reason::kVotedOff, rank_text(rank) + " uses chunks of " +
                                     std::to_string(record.chunk_elements) + " elements, rank 0 of " +
                                     std::to_string(first.chunk_elements)};
    for (std::size_t other = 0; other < rank; ++other)
      if (records[other].boot == record.boot && records[other].pid == record.pid)
        return {Reason::kManyGpusPerProcess, "ranks " + std::to_string(other) + " and " +
                                                 std::to_string(rank) + " live in one process (pid " +
                                                 std::to_string(record.pid) + ")"};
  }
  return {};
}

}  // namespace echotp
