// SPDX-License-Identifier: Apache-2.0
// ENGINE: the functions of engine_abi.h. Looks up the communicator, asks decision.hpp, then compresses or
// forwards; ledger.hpp keeps count. Nothing is thrown past this file and no failure of ours becomes a failure
// of the job.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "kernels/tile.hpp"
#include "shim/backend.hpp"
#include "shim/call_range.hpp"
#include "shim/communicator.hpp"
#include "shim/engine_abi.h"
#include "shim/group.hpp"
#include "shim/ledger.hpp"
#include "shim/policy_json.hpp"
#include "shim/say.hpp"

namespace echotp {

Group& this_thread_group() noexcept {
  thread_local Group group;
  return group;
}

namespace {

enum class Mode { kObserve, kCompress };

double seconds_from_environment(const char* name, double fallback) {
  const char* text = std::getenv(name);
  if (!text) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  return end != text && value > 0 ? value : fallback;
}

/// Everything that outlives a call. Leaked on purpose: jobs call NCCL from exit handlers too.
class Engine {
 public:
  Engine() {
    const char* mode = std::getenv("ECHO_TP_MODE");
    mode_ = mode && std::strcmp(mode, "observe") == 0 ? Mode::kObserve : Mode::kCompress;
    const bool mode_ok = !mode || mode_ == Mode::kObserve || std::strcmp(mode, "compress") == 0;
    const char* path = std::getenv("ECHO_TP_POLICY");
    if (!mode_ok) {
      policy_error_ = "ECHO_TP_MODE: expected observe or compress, got '" + std::string(mode) + "'";
      say(-1, "forwarding everything: %s", policy_error_.c_str());
    } else if (path) {
      Result<Policy> read = read_policy(path);
      if (read) {
        policy_ = *std::move(read);
        policy_ok_ = true;
      } else {
        policy_error_ = read.error().text();
        say(-1, "forwarding everything: %s", policy_error_.c_str());
      }
    } else {
      policy_error_ = "no policy: ECHO_TP_POLICY is not set";
      if (mode_ == Mode::kCompress) say(-1, "forwarding everything: %s", policy_error_.c_str());
    }
    ledger_.set_run(mode_ == Mode::kObserve ? "observe" : "compress", policy_.hash);
    if (!policy_ok_ && mode_ == Mode::kCompress) ledger_.note_error(policy_error_);
  }

  static void leave_receipt();

  Ledger& ledger() { return ledger_; }

  int comm_created(const EchoTpNccl& nccl, void* comm, EchoTpCreated how, const char* name) {
    table_.collect();
    // CUDA is up by now: registered after its own exit handlers, ours runs before them and may still read the
    // counters that live in CUDA's memory.
    static const int registered = (exits_early_ = true, std::atexit([] { leave_receipt(); }));
    (void)registered;
    auto entry = std::make_shared<KnownCommunicator>();
    entry->nccl = nccl;
    entry->comm = comm;
    entry->name = name ? name : "";
    ledger_.remember_nccl(nccl);
    if (how == ECHO_TP_CREATED_NONBLOCKING) {
      entry->off = Reason::kNotSetUp;  // not ready yet: asking it anything may be an error
    } else {
      nccl.comm_count(comm, &entry->ranks);
      nccl.comm_user_rank(comm, &entry->rank);
      entry->off = how == ECHO_TP_CREATED_MANY ? Reason::kManyGpusPerProcess : Reason::kCompressed;
    }
    entry->receipt.name = entry->name;
    entry->receipt.rank = entry->rank;
    entry->receipt.ranks = entry->ranks;
    if (entry->off == Reason::kCompressed) entry->off = static_reason(*entry);
    int result = kNcclSuccess;
    if (entry->off == Reason::kCompressed) result = set_up(*entry);
    if (entry->off != Reason::kCompressed) entry->receipt.off = reason_name(entry->off);
    if (entry->off != Reason::kCompressed && result == kNcclSuccess) entry->backend.reset();
    entry->announced = true;
    table_.add(entry);
    if (result != kNcclSuccess) table_.remove(comm, true);
    ledger_.write();
    return result;
  }

  void comm_ending(void* comm, bool abort) {
    if (table_.remove(comm, abort)) ledger_.write();
  }

  void async_error(void* comm, int& state) {
    if (state != kNcclSuccess) return;
    if (const int ours = table_.async_error(comm); ours != kNcclSuccess) state = ours;
  }

  int all_reduce(const EchoTpNccl& nccl, const void* send, void* recv, const RawCall& raw, void* comm,
                 void* stream) {
    HeldCall call;
    call.send = send;
    call.recv = recv;
    call.raw = raw;
    call.stream = stream;
    call.communicator = table_.find(comm);
    Group& group = this_thread_group();
    if (!call.communicator) {
      ledger_.count_unknown();
      return forward_now(nccl, call, comm, group);
    }
    KnownCommunicator& known = *call.communicator;
    call.decision = decide_call(known, call);
    if (group.depth > 0 && call.decision.reason == Reason::kCompressed) {
      if (!group.is_mixed(comm)) {
        group.held.push_back(std::move(call));
        return kNcclSuccess;
      }
      call.decision.reason = Reason::kMixedGroup;
    }
    if (call.decision.reason != Reason::kCompressed) return forward_now(nccl, call, comm, group);
    return compress(call, call.stream);
  }

  int other(const EchoTpNccl&, void* comm, EchoTpOther kind) {
    static constexpr const char* kNames[ECHO_TP_OTHER_COUNT] = {
        "broadcast", "reduce",  "all_gather", "reduce_scatter", "all_to_all",
        "gather",    "scatter", "send",       "recv",           "create"};
    Group& group = this_thread_group();
    // A rank that neither sends nor receives sees a group of all-reduces alone.
    if (group.depth > 0 && kind != ECHO_TP_OTHER_SEND && kind != ECHO_TP_OTHER_RECV) {
      const int result = flush_to_nccl(group, comm);
      if (result != kNcclSuccess) return result;
    }
    if (comm && kind >= 0 && kind < ECHO_TP_OTHER_COUNT) {
      if (const auto known = table_.find(comm); known && known->off == Reason::kCompressed) {
        const std::lock_guard lock(known->mutex);
        if (known->last_rule >= 0)
          known->passes.other_collective(policy_.rules[static_cast<std::size_t>(known->last_rule)].pass,
                                         kNames[kind]);
      }
    }
    return kNcclSuccess;
  }

  int group_start(const EchoTpNccl& nccl) {
    const int result = nccl.group_start();
    if (result == kNcclSuccess) ++this_thread_group().depth;
    return result;
  }

  int group_end(const EchoTpNccl& nccl) {
    Group& group = this_thread_group();
    if (group.depth == 0) return nccl.group_end();  // opened before the engine was loaded
    if (--group.depth > 0) return nccl.group_end();
    std::vector<HeldCall> held = std::move(group.held);
    group.held.clear();
    group.mixed.clear();
    const int result = nccl.group_end();
    if (result != kNcclSuccess && result != kNcclInProgress) return result;
    const int ours = run_group(held);
    return ours != kNcclSuccess ? ours : result;
  }

  /// For a process that never had a communicator: nothing else has written its receipt.
  void at_exit() {
    if (!exits_early_) ledger_.write();
  }

 private:
  /// Why a communicator can never compress, from facts that all ranks share without talking.
  Reason static_reason(const KnownCommunicator& entry) const {
    if (entry.ranks == 1) return Reason::kOneRank;
    if (mode_ == Mode::kObserve) return Reason::kObserveMode;
    if (entry.ranks > kMaxRanks) return Reason::kNoRule;
    return Reason::kCompressed;
  }

  int set_up(KnownCommunicator& entry) {
    entry.mine = local_record(policy_.hash);
    entry.mine.name_rules = name_rules(policy_, entry.name);
    entry.backend = make_backend(entry.nccl, entry.comm, entry.rank, entry.ranks);
    Status able = entry.backend->prepare(entry.mine);
    if (!policy_ok_) able = Error{ErrorCode::kBadInput, policy_error_, ""};
    int result = vote_round(entry, able);
    // What works on this machine is known only after it was tried with the peers.
    if (result == kNcclSuccess && entry.off == Reason::kCompressed)
      result = vote_round(entry, entry.backend->self_test(timeout_s_));
    if (result != kNcclSuccess || entry.off != Reason::kCompressed) return result;
    result = set_up_peers(entry);
    if (result != kNcclSuccess) return result;
    entry.receipt.transport = entry.p2p ? "p2p" : "staged";
    if (talkative_)
      say(entry.rank, "ready to compress on a communicator of %d ranks, %s (NCCL %d at %s)", entry.ranks,
          entry.receipt.transport.c_str(), entry.nccl.version, entry.nccl.path);
    return kNcclSuccess;
  }

  /// The transport between peers, if the policy has a use for it here: the same question on every rank, since
  /// they agreed on the policy and on the rules that the communicator's name fits.
  int set_up_peers(KnownCommunicator& entry) {
    const P2pNeeds needs = p2p_needs(policy_, entry.ranks, entry.name);
    if (!needs.wanted) return kNcclSuccess;
    const Gather gather = [&](std::span<const std::byte> mine, std::span<std::byte> all) {
      return entry.backend->gather(mine, all, timeout_s_);
    };
    const Result<P2pOutcome> outcome =
        set_up_p2p(entry.backend->p2p(), gather, needs, entry.ranks, timeout_s_);
    if (!outcome) return give_up(entry, outcome.error());
    entry.p2p = outcome->way.has_value();
    entry.receipt.p2p_asked_for = needs.asked_for;
    entry.receipt.p2p_off = outcome->why_not;
    if (entry.p2p) entry.receipt.p2p_way = p2p_way_name(*outcome->way);
    // Where it was left to us, staged is as good an answer; where somebody counts on it, it is not.
    if (!entry.p2p && entry.rank == 0 && (needs.asked_for || talkative_))
      say(entry.rank, "no p2p transport on a communicator of %d ranks, staged instead: %s", entry.ranks,
          outcome->why_not.c_str());
    return kNcclSuccess;
  }

  /// The second half of set-up, at the first call that goes staged: every rank is in that same call.
  int reserve(KnownCommunicator& entry) {
    const int result = vote_round(entry, entry.backend->reserve(widest_bits(policy_), may_drift(policy_)));
    entry.reserved = result == kNcclSuccess && entry.off == Reason::kCompressed;
    return result;
  }

  /// Every rank says whether it is able; the answer is equal on all. Returns an error only when the ranks
  /// can't talk.
  int vote_round(KnownCommunicator& entry, const Status& able) {
    entry.mine.ok = static_cast<bool>(able);
    if (!able) set_text(entry.mine.why_not, able.error().text());
    std::vector<SetupRecord> records(static_cast<std::size_t>(entry.ranks));
    const Status exchanged =
        entry.backend->gather(std::as_bytes(std::span<const SetupRecord>(&entry.mine, 1)),
                              std::as_writable_bytes(std::span(records)), timeout_s_);
    if (!exchanged) return give_up(entry, exchanged.error());
    const Vote answer = vote(records);
    if (answer.off == Reason::kCompressed) return kNcclSuccess;
    entry.off = answer.off;
    {
      const std::lock_guard lock(entry.receipt_mutex);
      entry.receipt.off = reason_name(answer.off);
      entry.receipt.off_detail = answer.detail;
    }
    if (entry.rank == 0)
      say(entry.rank, "compression is off on a communicator of %d ranks: %s", entry.ranks,
          answer.detail.c_str());
    return kNcclSuccess;
  }

  /// The ranks could not even talk: some rank runs without the shim, or died. The communicator can't be
  /// trusted to be in step any more, so the job's own call fails, with the reason, instead of hanging later.
  /// A communicator that the job has is the job's to abort, as after any other error of NCCL.
  int give_up(KnownCommunicator& entry, const Error& error) {
    say(entry.rank,
        "set-up of a communicator of %d ranks failed: %s. Is every rank started under echo-tp run?",
        entry.ranks, error.text().c_str());
    ledger_.note_error(error.text());
    entry.off = Reason::kCommunicatorError;
    {
      const std::lock_guard lock(entry.receipt_mutex);
      entry.receipt.off = reason_name(Reason::kCommunicatorError);
      entry.receipt.off_detail = error.text();
    }
    if (!entry.announced && entry.nccl.comm_abort) entry.nccl.comm_abort(entry.comm);
    return kNcclSystemError;
  }

  /// Whether a call that is compressed goes between peers: a function of what the ranks agreed on.
  bool goes_p2p(const KnownCommunicator& known, const HeldCall& call, const Decision& decision) const {
    if (!known.p2p) return false;
    const std::int64_t bytes = static_cast<std::int64_t>(call.raw.count) * element_bytes(decision.dtype);
    return transport_of(policy_.rules[static_cast<std::size_t>(decision.rule)], known.ranks, bytes) ==
           TransportChoice::kP2p;
  }

  Decision decide_call(KnownCommunicator& known, HeldCall& call) {
    AgreedFacts agreed;
    agreed.ranks = known.ranks;
    agreed.off = known.off;
    agreed.communicator_name = known.name;
    agreed.p2p = known.p2p;
    Decision decision = decide(policy_, agreed, call.raw);
    if (decision.reason != Reason::kCompressed) return decision;
    {
      const std::lock_guard lock(known.mutex);
      if (known.ended || !known.backend) return decision;  // compress() answers
      call.capture = known.backend->capture(call.stream);
    }
    if (call.capture.capturing) {
      call.raw.capturing = true;
      decision = decide(policy_, agreed, call.raw);
      // The scratch of the staged transport can't be allocated in here; an eager call of this communicator
      // has to come first.
      if (decision.reason == Reason::kCompressed && !known.reserved && !goes_p2p(known, call, decision))
        decision.reason = Reason::kCapture;
    }
    return decision;
  }

  /// Forwards one call, after those of its group that were held before it.
  int forward_now(const EchoTpNccl& nccl, const HeldCall& call, void* comm, Group& group) {
    if (group.depth > 0) {
      const int flushed = flush_to_nccl(group, comm);
      if (flushed != kNcclSuccess) return flushed;
    }
    return forward(nccl, call, comm);
  }

  int forward(const EchoTpNccl& nccl, const HeldCall& call, void* comm) {
    const CallRange range(call, nullptr);
    if (call.communicator) ledger_.count(*call.communicator, call, nullptr);
    return nccl.all_reduce(call.send, call.recv, call.raw.count, call.raw.dtype, call.raw.op, comm,
                           call.stream);
  }

  /// The group turned out to hold something else of `comm` (null: of everybody): its held all-reduces go to
  /// NCCL, in order, still inside the group.
  int flush_to_nccl(Group& group, void* comm) {
    if (comm && !group.is_mixed(comm)) group.mixed.push_back(comm);
    const auto others =
        std::stable_partition(group.held.begin(), group.held.end(),
                              [&](const HeldCall& call) { return comm && call.communicator->comm != comm; });
    std::vector<HeldCall> flushed(std::make_move_iterator(others), std::make_move_iterator(group.held.end()));
    group.held.erase(others, group.held.end());
    int first_error = kNcclSuccess;
    for (HeldCall& call : flushed) {
      call.decision.reason = Reason::kMixedGroup;
      const int result = forward(call.communicator->nccl, call, call.communicator->comm);
      if (first_error == kNcclSuccess) first_error = result;
    }
    return first_error;
  }

  /// A pure group of eligible all-reduces. NCCL lets all streams that one communicator uses in a group wait
  /// for each other before and after it: the calls of a communicator run on its first stream, the others join
  /// it.
  int run_group(const std::vector<HeldCall>& held) {
    std::vector<std::pair<KnownCommunicator*, void*>> lead;  // communicator -> its first stream
    std::vector<std::pair<KnownCommunicator*, void*>> joined;
    const auto stream_of = [&](KnownCommunicator* known) -> void* {
      for (const auto& [entry, stream] : lead)
        if (entry == known) return stream;
      return nullptr;
    };
    int first_error = kNcclSuccess;
    const auto keep = [&](int result) {
      if (first_error == kNcclSuccess) first_error = result;
    };
    for (const HeldCall& call : held) {
      KnownCommunicator* known = call.communicator.get();
      bool seen = false;
      for (const auto& [entry, stream] : lead) seen |= entry == known;
      if (!seen) {
        lead.emplace_back(known, call.stream);
      } else if (stream_of(known) != call.stream &&
                 std::find(joined.begin(), joined.end(), std::pair(known, call.stream)) == joined.end()) {
        joined.emplace_back(known, call.stream);
        keep(join(*known, stream_of(known), call.stream));
      }
    }
    for (const HeldCall& call : held) keep(compress(call, stream_of(call.communicator.get())));
    for (const auto& [known, stream] : joined) keep(join(*known, stream, stream_of(known)));
    return first_error;
  }

  static int join(KnownCommunicator& known, void* stream, void* other) {
    const std::lock_guard lock(known.mutex);
    return known.ended || !known.backend ? kNcclInvalidUsage : known.backend->join(stream, other);
  }

  int compress(const HeldCall& call, void* stream) {
    KnownCommunicator& known = *call.communicator;
    const std::lock_guard lock(known.mutex);
    // Aborted by another thread since the call came in or was held: NCCL's communicator may be gone.
    if (known.ended || !known.backend) return kNcclInvalidUsage;
    // What was enqueued before has failed: nothing more can be done with this communicator, as after an error
    // of NCCL.
    if (const int failed = known.backend->async_error(); failed != kNcclSuccess) return failed;
    const bool p2p = goes_p2p(known, call, call.decision);
    if (!p2p && !known.reserved && known.off == Reason::kCompressed) {
      const int result = reserve(known);
      if (result != kNcclSuccess) return result;
    }
    if (known.off != Reason::kCompressed) {  // a rank could not allocate: all forward from here on
      HeldCall forwarded = call;
      forwarded.decision.reason = known.off;
      return forward(known.nccl, forwarded, known.comm);
    }
    const PolicyRule& rule = policy_.rules[static_cast<std::size_t>(call.decision.rule)];
    const PassPosition position =
        known.passes.place(rule.pass, static_cast<std::uint64_t>(syscall(SYS_gettid)),
                           static_cast<std::int64_t>(call.raw.count), call.decision.dtype, call.capture.id);
    known.last_rule = call.decision.rule;
    CompressedCall compressed;
    compressed.send = call.send;
    compressed.recv = call.recv;
    compressed.count = static_cast<std::int64_t>(call.raw.count);
    compressed.dtype = call.decision.dtype;
    compressed.op = call.decision.op;
    compressed.stream = stream;
    compressed.capture = call.capture;
    compressed.rule = &rule;
    compressed.pass_start = position.pass_start;
    compressed.last_call = position.last_call;
    compressed.direction = position.direction;
    compressed.p2p = p2p;
    const CallRange range(call, &compressed);
    CallOutcome outcome = known.backend->all_reduce(compressed);
    outcome.p2p = p2p;
    ledger_.count(known, call, &outcome);
    return outcome.result;
  }

  Mode mode_ = Mode::kCompress;
  double timeout_s_ = seconds_from_environment("ECHO_TP_SETUP_TIMEOUT_S", 120.0);
  bool talkative_ = std::getenv("ECHO_TP_LOG") != nullptr;
  Policy policy_;
  bool policy_ok_ = false;
  std::string policy_error_;
  CommunicatorTable table_;
  Ledger ledger_{table_};
  std::atomic<bool> exits_early_{false};
};

Engine* engine = nullptr;

void Engine::leave_receipt() {
  engine->ledger_.write();
}

/// The exception firewall: whatever goes wrong in `body`, the job gets what `fallback` returns.
template <class Body, class Fallback>
int guarded(Body&& body, Fallback&& fallback) noexcept {
  try {
    const int result = body();
    engine->ledger().write_if_wanted();
    return result;
  } catch (const std::exception& error) {
    say(-1, "internal error: %s", error.what());
  } catch (...) {
    say(-1, "internal error");
  }
  return fallback();
}

extern "C" {

int abi_comm_created(const EchoTpNccl* nccl, void* comm, EchoTpCreated how, const char* name) {
  return guarded([&] { return engine->comm_created(*nccl, comm, how, name); },
                 [] { return kNcclInternalError; });
}

void abi_comm_ending(void* comm, int abort) {
  guarded([&] { return engine->comm_ending(comm, abort != 0), 0; }, [] { return 0; });
}

int abi_all_reduce(const EchoTpNccl* nccl, const void* send, void* recv, size_t count, int dtype, int op,
                   void* comm, void* stream) {
  // No silent fall-back to NCCL: the other ranks have decided to compress, and would wait for ever.
  return guarded(
      [&] {
        return engine->all_reduce(*nccl, send, recv, RawCall{count, dtype, op, false}, comm, stream);
      },
      [] { return kNcclInternalError; });
}

int abi_other(const EchoTpNccl* nccl, void* comm, EchoTpOther kind, size_t) {
  return guarded([&] { return engine->other(*nccl, comm, kind); }, [] { return kNcclInternalError; });
}

int abi_group_start(const EchoTpNccl* nccl) {
  return guarded([&] { return engine->group_start(*nccl); }, [] { return kNcclInternalError; });
}

int abi_group_end(const EchoTpNccl* nccl) {
  return guarded([&] { return engine->group_end(*nccl); }, [] { return kNcclInternalError; });
}

void abi_async_error(void* comm, int* state) {
  // Of the staged transport NCCL knows by itself, since its own collectives run there.
  guarded([&] { return engine->async_error(comm, *state), 0; }, [] { return 0; });
}

}  // extern "C"

constexpr EchoTpEngine kTable = {sizeof(EchoTpEngine), ECHO_TP_ENGINE_ABI_VERSION,
                                 abi_comm_created,     abi_comm_ending,
                                 abi_all_reduce,       abi_other,
                                 abi_group_start,      abi_group_end,
                                 abi_async_error};

}  // namespace

}  // namespace echotp

extern "C" __attribute__((visibility("default"))) const EchoTpEngine* echo_tp_engine_open(
    uint32_t abi_version) {
  using namespace echotp;
  if (abi_version != ECHO_TP_ENGINE_ABI_VERSION) {
    say(-1, "forwarding everything: the preload library speaks version %u, the engine %u", abi_version,
        ECHO_TP_ENGINE_ABI_VERSION);
    return nullptr;
  }
  static std::mutex opening;
  const std::lock_guard lock(opening);
  if (engine) return &kTable;
  try {
    engine = new Engine;
    std::atexit([] { engine->at_exit(); });
    return &kTable;
  } catch (...) {
    say(-1, "forwarding everything: the engine could not start");
    return nullptr;
  }
}
