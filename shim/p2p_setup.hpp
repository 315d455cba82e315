// SPDX-License-Identifier: Apache-2.0
// SET-UP OF THE PEER TRANSPORT: what the ranks of one host tell each other, step by step, before they may
// push into each other's memory. After every step all ranks vote over the same records: the first "no" ends
// that way of sharing memory on every rank, and when no way is left the staged transport serves. Pure but
// for the two interfaces that it drives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "kernels/fused_plan.hpp"
#include "shim/fd_exchange.hpp"
#include "shim/policy.hpp"
#include "shim/result.hpp"

namespace echotp {

/// How device memory is shared between processes, in the order in which the ways are tried.
enum class P2pWay : std::uint8_t { kVmm, kIpc };
inline constexpr P2pWay kP2pWays[] = {P2pWay::kVmm, P2pWay::kIpc};

/// "vmm", "ipc".
const char* p2p_way_name(P2pWay way) noexcept;

/// What the policy asks of the transport for one communicator; equal on all ranks.
struct P2pNeeds {
  bool wanted = false;          // some rule allows it
  bool asked_for = false;       // some rule names it
  int bits = 4;                 // widest code
  std::optional<int> max_ctas;  // smallest limit of those rules
};

/// Looks at the rules that fit a communicator of this size and name.
P2pNeeds p2p_needs(const Policy& policy, int ranks, std::string_view name);

/// Travels as bytes between the ranks at every step: fixed size, no pointers. Fields are filled in as the
/// steps come and keep their values.
struct P2pRecord {
  static constexpr std::uint64_t kMagic = 0x32703270'6f686365ULL;

  std::uint64_t magic = kMagic;
  std::uint32_t step = 0;      // counts the exchanges: ranks out of step must not take each other's records
  std::int32_t ok = 0;         // the step went well on this rank
  std::int32_t hopeless = 0;   // it did not, and no other way of sharing memory would change that
  std::uint32_t ways = 0;      // bit w: this rank allows P2pWay w
  std::uint64_t boot = 0;      // as in SetupRecord
  std::int32_t most_ctas = 0;  // that this rank's settings allow
  std::int32_t resident_ctas = 0;  // that its GPU can run at the same time, all ranks on it together
  std::uint8_t gpu_uuid[16] = {};
  SocketAddress socket;
  std::int64_t window_bytes = 0;  // as allocated
  std::uint8_t ipc_handle[64] = {};
  char why_not[160] = {};  // for people, when ok == 0
};

/// What follows from the first records; equal on all ranks.
struct P2pTerms {
  FusedLayout layout;
  unsigned ways = 0;      // bit w: all ranks allow P2pWay w
  bool same_gpu = false;  // some GPU serves more than one rank
};

/// One rank's side. A step's error becomes its "no". The steps come in this order; from open_window() on they
/// are repeated for the next way if one fails anywhere.
class P2pRank {
 public:
  virtual ~P2pRank() = default;

  /// Says what this rank has, and starts to listen.
  virtual Status offer(const P2pNeeds& needs, P2pRecord& mine) noexcept = 0;

  /// Connects with all peers.
  virtual Status connect(const P2pTerms& terms, std::span<const P2pRecord> all,
                         double timeout_s) noexcept = 0;

  /// Allocates everything that a call needs, and gets the window ready to be shared.
  virtual Status open_window(P2pWay way, P2pRecord& mine) noexcept = 0;

  /// Maps the windows of all peers.
  virtual Status import_windows(std::span<const P2pRecord> all, double timeout_s) noexcept = 0;

  /// Runs a few calls, checks and times them. An error of code kInsufficient: no other way would do better.
  virtual Status self_test(double timeout_s) noexcept = 0;

  /// Set-up is over: what only it needs can go, and if the ranks did not agree, everything. No rank has
  /// anything of another mapped then.
  virtual void settle(bool agreed) noexcept = 0;

  /// Gives up the imported windows, and what else belongs to the way that failed.
  virtual void close_windows() noexcept = 0;
};

/// Gathers equally long records of all ranks, [ranks][bytes]; blocks, kSystem error after a while.
using Gather = std::function<Status(std::span<const std::byte> mine, std::span<std::byte> all)>;

/// The common answer.
struct P2pOutcome {
  std::optional<P2pWay> way;  // unset: not possible
  std::string why_not;        // one line that names the rank; also when a later way worked out
};

/// Runs all steps. An error only when the ranks can't talk: then the communicator is out of step.
/// `timeout_s` is that of `gather`; the steps take a part of it, so that a rank whose step times out is still
/// in time for the vote.
Result<P2pOutcome> set_up_p2p(P2pRank& rank, const Gather& gather, const P2pNeeds& needs, int ranks,
                              double timeout_s);

/// The first rank's "no", as "rank 1: why"; nothing if all agree.
std::optional<std::string> first_no(std::span<const P2pRecord> records, std::uint32_t step);

/// Terms from the records of the first step, or why there can be none.
Result<P2pTerms> agree_on_terms(std::span<const P2pRecord> records, int bits);

}  // namespace echotp
