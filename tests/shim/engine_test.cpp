// SPDX-License-Identifier: Apache-2.0
// The engine behind engine_abi.h, with an NCCL and a backend that only record: which calls are compressed,
// which are forwarded, in which order, and what the receipt says.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shim/backend.hpp"
#include "shim/engine_abi.h"
#include "shim/receipt.hpp"

namespace {

using namespace echotp;

constexpr int kBf16 = 9;
constexpr int kFp32 = 7;
constexpr int kInt32 = 2;
constexpr int kSum = 0;
constexpr int kMax = 2;
constexpr std::size_t kLarge = std::size_t{4} << 20;

std::vector<std::string> events;
int next_comm_ranks = 2;
Status next_exchange = Unit{};
std::vector<SetupRecord>
    other_ranks;  // what the peers answer; empty: copies of this rank's record with another pid
Status next_reserve = Unit{};
int reserved = 0;
bool reserved_drift = false;
bool stream_captures = false;
std::vector<CompressedCall> compressed_calls;
std::vector<void*> ended;
bool ended_by_abort = false;
int async_error_now = kNcclSuccess;
bool p2p_possible = false;
std::function<void(P2pRecord&)> peer_says;  // changes the answer of rank 1 to a step of the peers' set-up
std::vector<std::string> p2p_steps;
bool quiet = false;                     // several threads at work: nothing is recorded
std::function<void()> during_exchange;  // runs inside the exchange of a vote
std::function<void()> during_free;      // runs while a backend frees its memory, which may wait for the GPU

std::string call_text(const char* what, const void* send, void* comm) {
  return std::string(what) + " " + std::to_string(reinterpret_cast<std::uintptr_t>(send)) + " on " +
         std::to_string(reinterpret_cast<std::uintptr_t>(comm));
}

EchoTpNccl fake_nccl() {
  EchoTpNccl nccl{};
  nccl.path = "/fake/libnccl.so.2";
  nccl.version = 22809;
  nccl.all_reduce = [](const void* send, void*, size_t, int, int, void* comm, void*) {
    if (!quiet) events.push_back(call_text("nccl", send, comm));
    return 0;
  };
  nccl.group_start = [] { return events.push_back("start"), 0; };
  nccl.group_end = [] { return events.push_back("end"), 0; };
  nccl.comm_count = [](void*, int* ranks) { return *ranks = next_comm_ranks, 0; };
  nccl.comm_user_rank = [](void*, int* rank) { return *rank = 0, 0; };
  nccl.comm_abort = [](void*) { return events.push_back("abort"), 0; };
  return nccl;
}

/// Every step goes well, or the first one does not.
class RecordingRank final : public P2pRank {
 public:
  Status offer(const P2pNeeds&, P2pRecord& mine) noexcept override {
    if (!p2p_possible) return Error{ErrorCode::kSystem, "no peers here", ""};
    mine.most_ctas = 64;
    mine.resident_ctas = 132;
    mine.ways = 3;
    return step("offer");
  }
  Status connect(const P2pTerms&, std::span<const P2pRecord>, double) noexcept override {
    return step("connect");
  }
  Status open_window(P2pWay way, P2pRecord&) noexcept override { return step(p2p_way_name(way)); }
  Status import_windows(std::span<const P2pRecord>, double) noexcept override { return step("import"); }
  Status self_test(double) noexcept override { return step("test"); }
  void settle(bool) noexcept override {}
  void close_windows() noexcept override { p2p_steps.push_back("close"); }

 private:
  static Status step(const char* name) {
    if (!quiet) p2p_steps.push_back(name);
    return Unit{};
  }
};

class RecordingBackend final : public Backend {
 public:
  RecordingBackend(void* comm, int ranks) : comm_(comm), ranks_(ranks) {}
  ~RecordingBackend() override {
    if (during_free) during_free();
  }
  Status prepare(SetupRecord& mine) noexcept override {
    mine.chunk_elements = 1 << 20;
    return Unit{};
  }
  Status gather(std::span<const std::byte> mine, std::span<std::byte> all, double) noexcept override {
    if (during_exchange) during_exchange();
    if (!next_exchange) return next_exchange;
    const auto records = [&]<class Record>(Record first, auto&& change) {
      std::memcpy(&first, mine.data(), sizeof first);
      for (int rank = 0; rank < ranks_; ++rank) {
        Record record = first;
        change(record, rank);
        std::memcpy(all.data() + static_cast<std::size_t>(rank) * sizeof record, &record, sizeof record);
      }
    };
    if (mine.size() == sizeof(SetupRecord)) {
      records(SetupRecord{}, [](SetupRecord& record, int rank) {
        record.pid += rank;
        if (rank > 0 && rank <= static_cast<int>(other_ranks.size()))
          record = other_ranks[static_cast<std::size_t>(rank - 1)];
      });
    } else {
      records(P2pRecord{}, [](P2pRecord& record, int rank) {
        record.gpu_uuid[0] = static_cast<std::uint8_t>(rank);
        if (rank == 1 && peer_says) peer_says(record);
      });
    }
    return Unit{};
  }
  Status self_test(double) noexcept override { return Unit{}; }
  P2pRank& p2p() noexcept override { return p2p_; }
  Status reserve(int, bool drift) noexcept override {
    if (!quiet) ++reserved, reserved_drift = drift;
    return next_reserve;
  }
  CaptureInfo capture(void*) noexcept override { return {stream_captures, stream_captures ? 7ULL : 0ULL}; }
  CallOutcome all_reduce(const CompressedCall& call) noexcept override {
    CallOutcome outcome;
    calls_here_ = calls_here_ + 1;
    if (quiet) return outcome;
    events.push_back(call_text("echo", call.send, comm_));
    compressed_calls.push_back(call);
    outcome.wire_bytes = 1000;
    return outcome;
  }
  int join(void* stream, void* other) noexcept override {
    events.push_back("join " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) + " after " +
                     std::to_string(reinterpret_cast<std::uintptr_t>(other)));
    return 0;
  }
  void end(bool abort) noexcept override {
    if (quiet) return;
    ended.push_back(comm_);
    ended_by_abort = abort;
  }
  int async_error() noexcept override { return async_error_now; }
  BackendFacts facts() const noexcept override { return {}; }
  bool idle() noexcept override { return true; }

 private:
  void* comm_;
  int ranks_;
  RecordingRank p2p_;
  int calls_here_ = 0;  // unguarded on purpose: the engine lets in one thread at a time
};

/// One engine a process: opened once, with a policy that compresses from 1 MiB.
struct Bed {
  EchoTpNccl nccl = fake_nccl();
  const EchoTpEngine* engine = nullptr;
  static std::string directory() {
    static const std::string made = [] {
      std::string name = (std::filesystem::temp_directory_path() / "echo-tp-engine-XXXXXX").string();
      return std::string(mkdtemp(name.data()));
    }();
    return made;
  }

  Bed() {
    const std::string policy = directory() + "/policy.json";
    std::ofstream(policy)
        << R"({"schema":"echo-tp/policy/1","rules":[{"match":{"dtype":["bf16"],"op":["sum"],"min_bytes":1048576},
      "pass":{"calls":3,"resync":["all_gather"]}},
      {"match":{"dtype":["fp32"],"op":["sum"],"min_bytes":1048576},"pass":{"calls":2},
      "compensation":{"mode":"drift","channels":64}}]})";
    setenv("ECHO_TP_POLICY", policy.c_str(), 1);
    setenv("ECHO_TP_RUN_DIR", directory().c_str(), 1);
    engine = echo_tp_engine_open(ECHO_TP_ENGINE_ABI_VERSION);
    events.clear();
    compressed_calls.clear();
    other_ranks.clear();
    next_exchange = Unit{};
    next_reserve = Unit{};
    reserved = 0;
    reserved_drift = false;
    next_comm_ranks = 2;
    stream_captures = false;
    ended.clear();
    async_error_now = kNcclSuccess;
    p2p_possible = false;
    peer_says = nullptr;
    p2p_steps.clear();
    during_exchange = nullptr;
    during_free = nullptr;
  }
  ~Bed() {
    during_exchange = nullptr;
    during_free = nullptr;
  }

  static void* pointer(std::uintptr_t value) {
    return reinterpret_cast<void*>(value);
  }  // NOLINT: opaque handles

  void* communicator(EchoTpCreated how = ECHO_TP_CREATED_BLOCKING) {
    static std::uintptr_t next = 100;
    void* comm = pointer(next++);
    CHECK(engine->comm_created(&nccl, comm, how, nullptr) == 0);
    return comm;
  }

  int all_reduce(void* comm, std::uintptr_t send, std::size_t count = kLarge, int dtype = kBf16,
                 int op = kSum, std::uintptr_t stream = 1) {
    return engine->all_reduce(&nccl, pointer(send), pointer(send), count, dtype, op, comm, pointer(stream));
  }

  /// What the receipt says of the communicator that made so many calls: the only one that did.
  CommunicatorReceipt receipt_of(void* comm, std::int64_t calls) {
    engine->comm_ending(comm, 0);
    std::vector<std::string> problems;
    const std::vector<Receipt> receipts = read_receipts(directory(), problems);
    REQUIRE(problems.empty());
    REQUIRE(receipts.size() == 1);
    const auto& all = receipts[0].communicators;
    // The communicator that ended last is the last of the ended ones, and those come first.
    const auto found = std::find_if(all.rbegin(), all.rend(), [&](const CommunicatorReceipt& one) {
      return one.rank >= 0 && one.calls == calls;
    });
    REQUIRE(found != all.rend());
    return *found;
  }
};

std::string on(const char* what, int send, void* comm) {
  return call_text(what, Bed::pointer(static_cast<std::uintptr_t>(send)), comm);
}

}  // namespace

std::unique_ptr<echotp::Backend> echotp::make_backend(const EchoTpNccl&, void* comm, int, int ranks) {
  return std::make_unique<RecordingBackend>(comm, ranks);
}

TEST_CASE("engine: an eligible call is compressed, others are forwarded unchanged") {
  Bed bed;
  void* comm = bed.communicator();
  bed.all_reduce(comm, 1);
  bed.all_reduce(comm, 2, 1024);
  bed.all_reduce(comm, 3, kLarge, kInt32);
  bed.all_reduce(comm, 4, kLarge, kBf16, kMax);
  bed.all_reduce(comm, 5, 0);
  CHECK(events == std::vector<std::string>{on("echo", 1, comm), on("nccl", 2, comm), on("nccl", 3, comm),
                                           on("nccl", 4, comm), on("nccl", 5, comm)});
}

TEST_CASE("engine: a communicator nobody announced is forwarded") {
  Bed bed;
  void* stranger = Bed::pointer(7);
  bed.all_reduce(stranger, 1);
  CHECK(events == std::vector<std::string>{on("nccl", 1, stranger)});
}

TEST_CASE("engine: non-blocking, many per process and one rank are forwarded") {
  Bed bed;
  void* nonblocking = bed.communicator(ECHO_TP_CREATED_NONBLOCKING);
  void* many = bed.communicator(ECHO_TP_CREATED_MANY);
  next_comm_ranks = 1;
  void* alone = bed.communicator();
  for (void* comm : {nonblocking, many, alone}) bed.all_reduce(comm, 1);
  CHECK(events ==
        std::vector<std::string>{on("nccl", 1, nonblocking), on("nccl", 1, many), on("nccl", 1, alone)});
}

TEST_CASE("engine: one rank with another policy turns compression off") {
  Bed bed;
  SetupRecord peer = local_record(12345);
  peer.ok = 1;
  peer.pid += 1;
  peer.chunk_elements = 1 << 20;
  other_ranks = {peer};
  void* comm = bed.communicator();
  bed.all_reduce(comm, 1);
  CHECK(events == std::vector<std::string>{on("nccl", 1, comm)});
}

TEST_CASE("engine: ranks that can't be reached end the communicator with an error") {
  Bed bed;
  next_exchange = Error{ErrorCode::kSystem, "not every rank answered within 1 s", ""};
  void* comm = Bed::pointer(900);
  CHECK(bed.engine->comm_created(&bed.nccl, comm, ECHO_TP_CREATED_BLOCKING, nullptr) == kNcclSystemError);
  CHECK(events == std::vector<std::string>{"abort"});
}

TEST_CASE("engine: a pure group runs at its end, in order") {
  Bed bed;
  void* comm = bed.communicator();
  bed.engine->group_start(&bed.nccl);
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(comm, 1);
  bed.all_reduce(comm, 2);
  bed.engine->group_end(&bed.nccl);
  CHECK(events == std::vector<std::string>{"start", "start", "end"});
  bed.engine->group_end(&bed.nccl);
  CHECK(events ==
        std::vector<std::string>{"start", "start", "end", "end", on("echo", 1, comm), on("echo", 2, comm)});
}

TEST_CASE("engine: a mixed group goes to NCCL whole and in order") {
  Bed bed;
  void* comm = bed.communicator();
  SUBCASE("a small all-reduce comes third") {
    bed.engine->group_start(&bed.nccl);
    bed.all_reduce(comm, 1);
    bed.all_reduce(comm, 2);
    bed.all_reduce(comm, 3, 16);
    bed.all_reduce(comm, 4);
    bed.engine->group_end(&bed.nccl);
    CHECK(events == std::vector<std::string>{"start", on("nccl", 1, comm), on("nccl", 2, comm),
                                             on("nccl", 3, comm), on("nccl", 4, comm), "end"});
  }
  SUBCASE("another collective comes second") {
    bed.engine->group_start(&bed.nccl);
    bed.all_reduce(comm, 1);
    bed.engine->other(&bed.nccl, comm, ECHO_TP_OTHER_BROADCAST, 10);
    events.push_back("broadcast");
    bed.all_reduce(comm, 2);
    bed.engine->group_end(&bed.nccl);
    CHECK(events ==
          std::vector<std::string>{"start", on("nccl", 1, comm), "broadcast", on("nccl", 2, comm), "end"});
  }
  // The next group starts afresh.
  events.clear();
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(comm, 9);
  bed.engine->group_end(&bed.nccl);
  CHECK(events == std::vector<std::string>{"start", "end", on("echo", 9, comm)});
}

TEST_CASE("engine: what only some ranks see in a group has no say") {
  Bed bed;
  void* comm = bed.communicator();
  void* elsewhere = bed.communicator();
  const std::vector<std::string> compressed = {"start", "theirs", "end", on("echo", 1, comm),
                                               on("echo", 2, comm)};
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(comm, 1);
  SUBCASE("a send on the same communicator") {
    bed.engine->other(&bed.nccl, comm, ECHO_TP_OTHER_SEND, 10);
    events.push_back("theirs");
  }
  SUBCASE("a receive on the same communicator") {
    bed.engine->other(&bed.nccl, comm, ECHO_TP_OTHER_RECV, 10);
    events.push_back("theirs");
  }
  SUBCASE("a collective on another communicator") {
    bed.engine->other(&bed.nccl, elsewhere, ECHO_TP_OTHER_ALL_GATHER, 10);
    events.push_back("theirs");
  }
  SUBCASE("a small all-reduce on another communicator") {
    bed.all_reduce(elsewhere, 7, 16);
    CHECK(events.back() == on("nccl", 7, elsewhere));
    events.back() = "theirs";
  }
  SUBCASE("an all-reduce on a communicator nobody announced") {
    bed.all_reduce(Bed::pointer(7), 7);
    events.back() = "theirs";
  }
  bed.all_reduce(comm, 2);
  bed.engine->group_end(&bed.nccl);
  CHECK(events == compressed);
}

TEST_CASE("engine: each communicator of a group is judged by its own calls") {
  Bed bed;
  void* pure = bed.communicator();
  void* mixed = bed.communicator();
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(pure, 1);
  bed.all_reduce(mixed, 2);
  bed.all_reduce(mixed, 3, 16);
  bed.all_reduce(pure, 4);
  bed.all_reduce(mixed, 5);
  bed.engine->group_end(&bed.nccl);
  CHECK(events == std::vector<std::string>{"start", on("nccl", 2, mixed), on("nccl", 3, mixed),
                                           on("nccl", 5, mixed), "end", on("echo", 1, pure),
                                           on("echo", 4, pure)});
}

TEST_CASE("engine: a simulated group goes to NCCL whole") {
  Bed bed;
  void* first = bed.communicator();
  void* second = bed.communicator();
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(first, 1);
  bed.all_reduce(second, 2);
  bed.engine->other(&bed.nccl, nullptr, ECHO_TP_OTHER_CREATE, 0);
  bed.engine->group_end(&bed.nccl);
  CHECK(events == std::vector<std::string>{"start", on("nccl", 1, first), on("nccl", 2, second), "end"});
}

TEST_CASE("engine: calls held for a communicator that is aborted meanwhile touch it no more") {
  Bed bed;
  void* comm = bed.communicator();
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(comm, 1);
  std::thread([&] { bed.engine->comm_ending(comm, 1); }).join();  // a watchdog
  CHECK(ended == std::vector<void*>{comm});
  next_comm_ranks = 1;
  bed.communicator();  // collects the ended one
  CHECK(bed.engine->group_end(&bed.nccl) == kNcclInvalidUsage);
  CHECK(events == std::vector<std::string>{"start", "end"});
}

TEST_CASE("engine: a vote that fails at the first call leaves the communicator for the job to abort") {
  Bed bed;
  void* comm = bed.communicator();
  next_exchange = Error{ErrorCode::kSystem, "not every rank answered within 1 s", ""};
  CHECK(bed.all_reduce(comm, 1) == kNcclSystemError);
  CHECK(events.empty());
  std::vector<std::string> forwarded;
  for (int call = 2; call < 19; ++call) {
    CHECK(bed.all_reduce(comm, static_cast<std::uintptr_t>(call)) == 0);
    forwarded.push_back(on("nccl", call, comm));
  }
  CHECK(events == forwarded);  // no abort: NCCL tells what is wrong
  CHECK(bed.receipt_of(comm, 17).off == "communicator_error");
}

TEST_CASE("engine: a watchdog can abort while the first call waits for its peers") {
  Bed bed;
  void* comm = bed.communicator();
  bool in_time = false;
  during_exchange = [&] {
    std::promise<void> done;
    std::thread watchdog([&] { bed.engine->comm_ending(comm, 1), done.set_value(); });
    in_time = done.get_future().wait_for(std::chrono::seconds(5)) == std::future_status::ready;
    if (in_time) next_exchange = Error{ErrorCode::kSystem, "the communicator was aborted meanwhile", ""};
    in_time ? watchdog.join() : watchdog.detach();
  };
  CHECK(bed.all_reduce(comm, 1) == kNcclSystemError);
  CHECK(in_time);
  CHECK(ended == std::vector<void*>{comm});
  CHECK(events.empty());
}

TEST_CASE("engine: other communicators work on while the memory of an ended one is freed") {
  Bed bed;
  void* gone = bed.communicator();
  void* alive = bed.communicator();
  bed.engine->comm_ending(gone, 0);
  int frees = 0;
  bool in_time = true;
  during_free = [&] {  // as cudaFree behind a kernel that never ends
    if (frees++ > 0) return;
    auto done = std::make_shared<std::promise<void>>();
    auto future = done->get_future();
    std::thread watchdog([&bed, alive, done] {
      bed.all_reduce(alive, 1);
      bed.engine->comm_ending(alive, 1);
      done->set_value();
    });
    in_time = future.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
    in_time ? watchdog.join() : watchdog.detach();
  };
  next_comm_ranks = 1;
  bed.communicator();
  CHECK(frees > 0);
  CHECK(in_time);
}

TEST_CASE("engine: threads create, use, abort and collect communicators at the same time") {
  Bed bed;
  quiet = true;
  const auto handle = [](int thread, int round) {
    return Bed::pointer(static_cast<std::uintptr_t>(100000 + thread * 100 + round % 3));
  };
  std::atomic<int> surprises{0};
  std::atomic<bool> working{true};
  const auto work = [&](int thread) {
    for (int round = 0; round < 25; ++round) {
      void* comm = handle(thread, round);
      if (bed.engine->comm_created(&bed.nccl, comm, ECHO_TP_CREATED_BLOCKING, "TP") != 0) ++surprises;
      for (int call = 0; call < 20; ++call) {
        const int result = bed.all_reduce(comm, 1, call % 3 == 0 ? 16 : kLarge);
        if (result != 0 && result != kNcclInvalidUsage) ++surprises;  // the watchdog was here
        bed.engine->other(&bed.nccl, comm, ECHO_TP_OTHER_ALL_GATHER, 1);
      }
      bed.engine->group_start(&bed.nccl);
      bed.all_reduce(comm, 2);
      bed.all_reduce(comm, 3);
      const int result = bed.engine->group_end(&bed.nccl);
      if (result != 0 && result != kNcclInvalidUsage) ++surprises;
      bed.engine->comm_ending(comm, 0);
    }
  };
  const auto watch = [&] {
    for (int round = 0; working; ++round) bed.engine->comm_ending(handle(round % 3, round / 3), 1);
  };
  bed.nccl.group_start = [] { return 0; };
  bed.nccl.group_end = [] { return 0; };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) threads.emplace_back(work, thread);
  std::thread watchdog(watch);
  for (std::thread& thread : threads) thread.join();
  working = false;
  watchdog.join();
  quiet = false;
  CHECK(surprises == 0);
}

TEST_CASE("engine: streams of one group wait for each other before and after") {
  Bed bed;
  void* comm = bed.communicator();
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(comm, 1, kLarge, kBf16, kSum, 11);
  bed.all_reduce(comm, 2, kLarge, kBf16, kSum, 22);
  bed.engine->group_end(&bed.nccl);
  CHECK(events == std::vector<std::string>{"start", "end", "join 11 after 22", on("echo", 1, comm),
                                           on("echo", 2, comm), "join 22 after 11"});
  for (const CompressedCall& call : compressed_calls) CHECK(call.stream == Bed::pointer(11));
}

TEST_CASE("engine: a group opened before the engine existed ends in NCCL") {
  Bed bed;
  CHECK(bed.engine->group_end(&bed.nccl) == 0);
  CHECK(events == std::vector<std::string>{"end"});
  void* comm = bed.communicator();
  bed.all_reduce(comm, 1);
  CHECK(events.back() == on("echo", 1, comm));
}

TEST_CASE("engine: passes start where the policy says") {
  Bed bed;
  void* comm = bed.communicator();
  for (int call = 0; call < 4; ++call) bed.all_reduce(comm, 1);    // three calls a pass
  bed.engine->other(&bed.nccl, comm, ECHO_TP_OTHER_BROADCAST, 1);  // not in the resync list
  bed.all_reduce(comm, 1);
  bed.engine->other(&bed.nccl, comm, ECHO_TP_OTHER_ALL_GATHER, 1);
  bed.all_reduce(comm, 1);
  bed.all_reduce(comm, 1, 2 * kLarge);  // another size
  stream_captures = true;
  bed.all_reduce(comm, 1, 2 * kLarge);  // a capture begins
  std::vector<bool> starts;
  for (const CompressedCall& call : compressed_calls) starts.push_back(call.pass_start);
  CHECK(starts == std::vector<bool>{true, false, false, true, false, true, true, true});
}

TEST_CASE("engine: a rule with drift asks for its scratch and keeps its mode over passes") {
  Bed bed;
  void* comm = bed.communicator();
  for (int call = 0; call < 3; ++call) bed.all_reduce(comm, 1, kLarge, kFp32);
  CHECK(reserved_drift);
  REQUIRE(compressed_calls.size() == 3);
  std::vector<bool> starts;
  for (const CompressedCall& call : compressed_calls) {
    // The backend is told of the border; the state of this mode outlives it, as the kernels' tests show.
    starts.push_back(call.pass_start);
    CHECK(call.rule->compensation.mode == CompensationMode::kDrift);
    CHECK(call.rule->compensation.channels == 64);
    CHECK(call.direction == compressed_calls[0].direction);
  }
  CHECK(starts == std::vector<bool>{true, false, true});
}

TEST_CASE("engine: an address that NCCL hands out again is a new communicator") {
  Bed bed;
  void* comm = Bed::pointer(500);
  CHECK(bed.engine->comm_created(&bed.nccl, comm, ECHO_TP_CREATED_BLOCKING, nullptr) == 0);
  bed.engine->comm_ending(comm, 1);
  bed.all_reduce(comm, 1);
  CHECK(events.back() == on("nccl", 1, comm));
  CHECK(bed.engine->comm_created(&bed.nccl, comm, ECHO_TP_CREATED_BLOCKING, nullptr) == 0);
  bed.all_reduce(comm, 2);
  CHECK(events.back() == on("echo", 2, comm));
}

TEST_CASE("engine: the receipt counts calls, reasons and bytes") {
  Bed bed;
  std::filesystem::remove_all(Bed::directory());
  std::filesystem::create_directory(Bed::directory());
  void* comm = bed.communicator();
  bed.all_reduce(comm, 1);
  bed.all_reduce(comm, 2);
  bed.all_reduce(comm, 3, 16);
  bed.engine->comm_ending(comm, 0);
  std::vector<std::string> problems;
  const std::vector<Receipt> receipts = read_receipts(Bed::directory(), problems);
  REQUIRE(receipts.size() == 1);
  CHECK(problems.empty());
  CHECK(receipts[0].nccl_version == 22809);
  CHECK(receipts[0].mode == "compress");
  const auto& all = receipts[0].communicators;
  const auto found =
      std::find_if(all.begin(), all.end(), [](const CommunicatorReceipt& one) { return one.calls == 3; });
  REQUIRE(found != all.end());
  CHECK(found->compressed == 2);
  CHECK(found->by_reason[static_cast<std::size_t>(Reason::kBelowMinBytes)] == 1);
  CHECK(found->payload_bytes == static_cast<std::int64_t>(2 * kLarge * 2));
  CHECK(found->echo_wire_bytes == 2000);
  CHECK(found->nccl_wire_bytes == static_cast<std::int64_t>(2 * kLarge * 2));
  CHECK(found->by_bytes.at(static_cast<std::int64_t>(kLarge * 2)).compressed == 2);
  CHECK(found->by_bytes.at(32).compressed == 0);
}

TEST_CASE("engine: sizes that no integer holds and sizes without end still make a readable receipt") {
  Bed bed;
  void* comm = bed.communicator();
  bed.all_reduce(comm, 1, std::numeric_limits<std::size_t>::max(), kInt32);
  bed.all_reduce(comm, 1, std::size_t{1} << 62, kInt32);
  for (std::size_t count = 1; count <= 5000; ++count) bed.all_reduce(comm, 1, count);
  const CommunicatorReceipt receipt = bed.receipt_of(comm, 5002);
  CHECK(receipt.by_bytes.size() < 300);
  std::int64_t calls = 0;
  for (const auto& [bytes, size] : receipt.by_bytes) {
    CHECK(bytes > 0);
    calls += size.calls;
  }
  CHECK(calls == 5002);
  CHECK(receipt.by_bytes.at(20).calls == 1);
}

TEST_CASE("engine: scratch is allocated at the first eligible call and never in a capture") {
  Bed bed;
  void* comm = bed.communicator();
  bed.all_reduce(comm, 1, 16);
  CHECK(reserved == 0);
  stream_captures = true;
  bed.all_reduce(comm, 2);
  CHECK(reserved == 0);
  CHECK(events.back() == on("nccl", 2, comm));
  stream_captures = false;
  bed.all_reduce(comm, 3);
  bed.all_reduce(comm, 4);
  CHECK(reserved == 1);
  CHECK(events.back() == on("echo", 4, comm));
  stream_captures = true;
  bed.all_reduce(comm, 5);
  CHECK(events.back() == on("echo", 5, comm));
}

TEST_CASE("engine: a rank without memory for the scratch turns compression off, and the call is still made") {
  Bed bed;
  void* comm = bed.communicator();
  next_reserve = Error{ErrorCode::kSystem, "out of memory", ""};
  CHECK(bed.all_reduce(comm, 1) == 0);
  CHECK(bed.all_reduce(comm, 2) == 0);
  CHECK(events == std::vector<std::string>{on("nccl", 1, comm), on("nccl", 2, comm)});
  CHECK(reserved == 1);
}

TEST_CASE("engine: calls go between peers where all ranks agreed, also in a capture that comes first") {
  Bed bed;
  p2p_possible = true;
  void* comm = bed.communicator();
  CHECK(p2p_steps == std::vector<std::string>{"offer", "connect", "vmm", "import", "test"});
  stream_captures = true;
  bed.all_reduce(comm, 1);
  stream_captures = false;
  for (int call = 2; call <= 23; ++call) bed.all_reduce(comm, 2);
  CHECK(reserved == 0);  // the staged transport's scratch is not needed
  REQUIRE(compressed_calls.size() == 23);
  for (const CompressedCall& call : compressed_calls) CHECK(call.p2p);
  const CommunicatorReceipt receipt = bed.receipt_of(comm, 23);
  CHECK(receipt.transport == "p2p");
  CHECK(receipt.p2p_way == "vmm");
  CHECK(receipt.p2p_off.empty());
  CHECK(receipt.p2p_calls == 23);
}

TEST_CASE("engine: a rank that can't share memory makes all take the next way, and staged at last") {
  Bed bed;
  p2p_possible = true;
  SUBCASE("CUDA IPC works") {
    peer_says = [](P2pRecord& record) {
      if (record.step != 4) return;  // offer, connect, window, import
      record.ok = 0;
      set_text(record.why_not, "no peer access");
    };
    void* comm = bed.communicator();
    for (int call = 1; call <= 29; ++call) bed.all_reduce(comm, 1);
    REQUIRE(compressed_calls.size() == 29);
    CHECK(compressed_calls[0].p2p);
    CHECK(p2p_steps ==
          std::vector<std::string>{"offer", "connect", "vmm", "import", "close", "ipc", "import", "test"});
    const CommunicatorReceipt receipt = bed.receipt_of(comm, 29);
    CHECK(receipt.p2p_way == "ipc");
    CHECK(receipt.p2p_off == "vmm: rank 1: no peer access");
  }
  SUBCASE("nothing works") {
    peer_says = [](P2pRecord& record) {
      if (record.step < 3) return;
      record.ok = 0;
      set_text(record.why_not, "no peer access");
    };
    void* comm = bed.communicator();
    for (int call = 1; call <= 31; ++call) bed.all_reduce(comm, 1);
    REQUIRE(compressed_calls.size() == 31);
    CHECK(!compressed_calls[0].p2p);
    CHECK(reserved == 1);
    const CommunicatorReceipt receipt = bed.receipt_of(comm, 31);
    CHECK(receipt.transport == "staged");
    CHECK(receipt.p2p_way.empty());
    CHECK(receipt.p2p_off == "vmm: rank 1: no peer access; ipc: rank 1: no peer access");
    CHECK(receipt.p2p_calls == 0);
  }
}

TEST_CASE("engine: ranks that stop talking while peers are set up end the communicator with an error") {
  Bed bed;
  p2p_possible = true;
  int votes = 0;
  during_exchange = [&] {
    if (++votes == 5) next_exchange = Error{ErrorCode::kSystem, "not every rank answered within 1 s", ""};
  };
  void* comm = Bed::pointer(901);
  CHECK(bed.engine->comm_created(&bed.nccl, comm, ECHO_TP_CREATED_BLOCKING, nullptr) == kNcclSystemError);
  CHECK(events == std::vector<std::string>{"abort"});
}

TEST_CASE("engine: a call that failed after it was enqueued is NCCL's asynchronous error, and the last one") {
  Bed bed;
  p2p_possible = true;
  void* comm = bed.communicator();
  bed.all_reduce(comm, 1);
  int state = kNcclSuccess;
  bed.engine->async_error(comm, &state);
  CHECK(state == kNcclSuccess);
  async_error_now = kNcclRemoteError;
  bed.engine->async_error(comm, &state);
  CHECK(state == kNcclRemoteError);
  state = kNcclSystemError;  // NCCL's own
  bed.engine->async_error(comm, &state);
  CHECK(state == kNcclSystemError);
  CHECK(bed.all_reduce(comm, 2) == kNcclRemoteError);
  bed.engine->group_start(&bed.nccl);
  bed.all_reduce(comm, 3);
  CHECK(bed.engine->group_end(&bed.nccl) == kNcclRemoteError);
  CHECK(compressed_calls.size() == 1);
  bed.engine->comm_ending(comm, 1);
  CHECK(ended_by_abort);
  state = kNcclSuccess;
  bed.engine->async_error(comm, &state);
  CHECK(state == kNcclSuccess);
}

TEST_CASE("engine: a communicator that is destroyed is not aborted") {
  Bed bed;
  void* comm = bed.communicator();
  ended_by_abort = true;
  bed.engine->comm_ending(comm, 0);
  CHECK(ended == std::vector<void*>{comm});
  CHECK(!ended_by_abort);
}

TEST_CASE("vote: a communicator's names may differ as long as they fit the same rules") {
  Policy policy;
  policy.rules.resize(2);
  CHECK(name_rules(policy, "a") == name_rules(policy, "b"));
  policy.rules[0].match.communicator_name = "TP*";
  CHECK(name_rules(policy, "TP0") == name_rules(policy, "TP1"));
  CHECK(name_rules(policy, "TP0") != name_rules(policy, "DP0"));
}

TEST_CASE("vote: every difference is named with its rank") {
  SetupRecord a = local_record(1);
  a.ok = 1;
  a.chunk_elements = 64;
  SetupRecord b = a;
  b.pid += 1;
  const auto judge = [&](const SetupRecord& second) {
    const SetupRecord records[] = {a, second};
    return vote(records);
  };
  CHECK(judge(b).off == Reason::kCompressed);
  SetupRecord c = b;
  c.policy_hash = 2;
  CHECK(judge(c).off == Reason::kVotedOff);
  CHECK(judge(c).detail.find("rank 1") != std::string::npos);
  c = b;
  c.ok = 0;
  set_text(c.why_not, "out of memory");
  CHECK(judge(c).detail.find("out of memory") != std::string::npos);
  c = b;
  c.name_rules = 1;
  CHECK(judge(c).off == Reason::kVotedOff);
  CHECK(judge(c).detail.find("name") != std::string::npos);
  c = b;
  c.chunk_elements = 128;
  CHECK(judge(c).off == Reason::kVotedOff);
  c = b;
  c.magic = 0;
  CHECK(judge(c).off == Reason::kVotedOff);
  CHECK(judge(a).off == Reason::kManyGpusPerProcess);
  c = a;
  c.boot += 1;  // the same pid on another machine
  CHECK(judge(c).off == Reason::kCompressed);
}
