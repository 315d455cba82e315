// SPDX-License-Identifier: Apache-2.0
// What the engine is told, when, and what happens without one: creation in and outside groups, ends, errors,
// forks, threads and the switches that turn everything off.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/shim/interpose_process.hpp"

using namespace echotp::testing;
using Lines = std::vector<std::string>;

namespace {

Outcome linked(const std::string& scenario, const Environment& changes = {}) {
  return run_watched({INTERPOSE_LINKED, scenario}, changes);
}

/// The same with NCCL 2.30, by dlsym.
Outcome newest(const std::string& scenario, const Environment& changes = {}) {
  return run_watched({INTERPOSE_DLOPEN, "dlsym", FAKE_NCCL_SECOND, scenario}, changes);
}

std::ptrdiff_t line_count(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

Lines creations(const Outcome& outcome) {
  Lines found;
  for (const std::string& line : outcome.lines("engine comm_created "))
    found.push_back(line.substr(20, line.find(" nccl=") - 20));
  return found;
}

/// Watched by nobody: NCCL got everything, the engine nothing, and dlsym gave out the real functions.
void check_forwarded(const Environment& changes) {
  for (const Lines& command :
       {Lines{INTERPOSE_LINKED, "two_comms"}, {INTERPOSE_DLOPEN, "dlsym", FAKE_NCCL, "two_comms"}}) {
    const Outcome outcome = run_watched(command, changes);
    CAPTURE(outcome.text());
    CHECK(outcome.code == 0);
    CHECK(outcome.err.empty());
    CHECK(outcome.lines("engine").empty());
    CHECK(outcome.lines("nccl22809 AllReduce").size() == 2);
  }
  const Outcome lookups = run_watched({INTERPOSE_DLOPEN, "lookups", FAKE_NCCL}, changes);
  CHECK(lookups.out.find("AllReduce real\n") == 0);
}

}  // namespace

TEST_CASE("ECHO_TP=off turns everything off") {
  check_forwarded({{"ECHO_TP", "off"}});
  check_forwarded({{"ECHO_TP", "off"}, {"ECHO_TP_MODE", "observe"}});
}

TEST_CASE("without a policy only observe mode is at work") {
  check_forwarded({{"ECHO_TP_POLICY", ""}});
  check_forwarded({{"ECHO_TP_POLICY", ""}, {"ECHO_TP_MODE", "compress"}});
  const Outcome observed = linked("two_comms", {{"ECHO_TP_POLICY", ""}, {"ECHO_TP_MODE", "observe"}});
  CAPTURE(observed.text());
  CHECK(observed.lines("engine all_reduce").size() == 2);
}

TEST_CASE("a missing engine costs one line and nothing else") {
  const Outcome outcome = linked("two_comms", {{"ECHO_TP_ENGINE", "/nonexistent/engine.so"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.err.find("echo-tp: ") == 0);
  CHECK(outcome.err.find("/nonexistent/engine.so") != std::string::npos);
  CHECK(line_count(outcome.err) == 1);
  CHECK(outcome.lines("nccl22809 AllReduce").size() == 2);
}

TEST_CASE("a file that is no engine, an engine of another interface, an engine that refuses") {
  const Outcome wrong = linked("two_comms", {{"ECHO_TP_ENGINE", FAKE_NCCL_LOOKALIKE}});
  CAPTURE(wrong.text());
  CHECK(wrong.code == 0);
  CHECK(wrong.err.find("is not echo-tp's engine") != std::string::npos);
  CHECK(line_count(wrong.err) == 1);

  const Outcome stale = linked("two_comms", {{"FAKE_ENGINE_ABI", "99"}});
  CAPTURE(stale.text());
  CHECK(stale.code == 0);
  CHECK(stale.err.find("interface 99") != std::string::npos);
  CHECK(line_count(stale.err) == 1);
  CHECK(stale.lines("engine") == Lines{"engine open abi=1"});

  const Outcome refuses = linked("two_comms", {{"FAKE_ENGINE_REFUSE", "1"}});
  CAPTURE(refuses.text());
  CHECK(refuses.code == 0);
  CHECK(refuses.err == "echo-tp: the fake engine refuses\n");
  CHECK(refuses.lines("nccl22809 AllReduce").size() == 2);
}

TEST_CASE("the engine beside the preload library is the default") {
  const std::string directory = scratch_directory() + "/beside";
  std::filesystem::create_directory(directory);
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(INTERPOSE_SHIM, directory + "/libecho-tp-shim.so", overwrite);
  std::filesystem::copy_file(INTERPOSE_ENGINE, directory + "/libecho-tp-engine.so", overwrite);
  const Outcome outcome =
      linked("two_comms", {{"LD_PRELOAD", directory + "/libecho-tp-shim.so"}, {"ECHO_TP_ENGINE", ""}});
  CAPTURE(outcome.text());
  CHECK(outcome.lines("engine all_reduce").size() == 2);
  CHECK(outcome.err.empty());
}

TEST_CASE("an error of comm_created becomes the job's, and the communicator is gone") {
  const Outcome outcome = linked("refused", {{"FAKE_ENGINE_FAIL_CREATE", "6"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.lines("user") == Lines{"user result=6 comm=null", "user group result=6 comm=null"});
}

TEST_CASE("an error of other stops the call") {
  const Outcome outcome = linked("error_of_other", {{"FAKE_ENGINE_FAIL_OTHER", "3"}});
  CAPTURE(outcome.text());
  CHECK(outcome.lines("user") == Lines{"user result=3"});
  CHECK(outcome.lines("nccl22809 AllGather").empty());
}

TEST_CASE("an error of ours shows through ncclCommGetAsyncError") {
  const Outcome outcome = linked("all", {{"FAKE_ENGINE_ASYNC", "6"}});
  CAPTURE(outcome.text());
  CHECK(outcome.lines("user state") == Lines{"user state=6"});
}

TEST_CASE("names and configs of any size, never read past their end") {
  const Outcome outcome = linked("config");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome) == Lines{"comm=1 how=blocking name=TP0", "comm=2 how=blocking name=-",
                                    "comm=3 how=blocking name=-", "comm=4 how=blocking name=-",
                                    "comm=5 how=blocking name=scalable"});
  CHECK(outcome.lines("nccl22809 CommInitRankConfig").size() == 4);
}

TEST_CASE("non-blocking communicators and their children") {
  const Outcome outcome = linked("nonblocking");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome) == Lines{"comm=1 how=nonblocking name=-", "comm=2 how=nonblocking name=-",
                                    "comm=3 how=blocking name=-", "comm=4 how=nonblocking name=-"});
}

TEST_CASE("non-blocking communicators that are ready at once are still non-blocking") {
  const Outcome outcome = linked("nonblocking", {{"FAKE_NCCL_QUICK", "1"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome) == Lines{"comm=1 how=nonblocking name=-", "comm=2 how=nonblocking name=-",
                                    "comm=3 how=blocking name=-", "comm=4 how=nonblocking name=-"});
}

TEST_CASE("a creation in progress is non-blocking, whatever the config says") {
  const Outcome outcome = linked("in_progress", {{"FAKE_NCCL_NONBLOCKING", "1"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome) == Lines{"comm=1 how=nonblocking name=-", "comm=2 how=nonblocking name=-"});
}

TEST_CASE("NCCL_COMM_BLOCKING=0 makes every communicator non-blocking") {
  const Outcome outcome = linked("two_comms", {{"NCCL_COMM_BLOCKING", "0"}});
  CAPTURE(outcome.text());
  CHECK(creations(outcome) == Lines{"comm=1 how=nonblocking name=-", "comm=2 how=nonblocking name=-"});
}

TEST_CASE("one communicator in a group is announced after the outermost end") {
  for (const Lines& command :
       {Lines{INTERPOSE_LINKED, "group_one"}, {INTERPOSE_DLOPEN, "dlsym", FAKE_NCCL, "group_one"}}) {
    const Outcome outcome = run_watched(command);
    CAPTURE(outcome.text());
    CHECK(outcome.code == 0);
    CHECK(creations(outcome) == Lines{"comm=1 how=blocking name=TP7"});
    CHECK(outcome.index("nccl22809 GroupEnd depth=0") >= 0);
    CHECK(outcome.index("engine comm_created") > outcome.index("nccl22809 GroupEnd depth=0"));
    // The first group was opened before the engine was loaded: it never hears of it.
    CHECK(outcome.lines("engine group") == Lines{"engine group_start depth=1", "engine group_end depth=0"});
    CHECK(outcome.index("engine group_start") > outcome.index("engine comm_created"));
  }
}

TEST_CASE("several communicators in a group are announced as many, and leave the group's all-reduces alone") {
  const Outcome outcome = linked("group_two");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome) ==
        Lines{"comm=1 how=many name=-", "comm=2 how=many name=-", "comm=3 how=blocking name=-"});
  // Their other ranks may know nothing of these communicators.
  CHECK(outcome.lines("engine other").empty());
}

TEST_CASE("after a failed group nothing is announced, and an unmatched end is NCCL's business") {
  const Outcome outcome = linked("group_fails", {{"FAKE_NCCL_FAIL_GROUP_END", "1"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome).empty());
  CHECK(outcome.lines("engine group").empty());
}

TEST_CASE("a group that is older than the engine stays with NCCL to its end") {
  const Outcome outcome = linked("group_before_engine");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.lines("engine all_reduce") ==
        Lines{"engine all_reduce comm=1 count=12 dtype=9 op=0 nccl=22809"});
  CHECK(outcome.lines("nccl22809 AllReduce").size() == 2);
  CHECK(outcome.lines("engine group") == Lines{"engine group_start depth=1", "engine group_end depth=0"});
}

TEST_CASE("a simulated end closes the group for the engine too") {
  const Outcome outcome = linked("simulate");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.lines("engine group") == Lines{"engine group_start depth=1", "engine group_end depth=0",
                                               "engine group_start depth=1", "engine group_end depth=0"});
  CHECK(outcome.lines("nccl22809 GroupSimulateEnd").size() == 1);
  CHECK(outcome.lines("nccl22809 GroupEnd") == Lines{"nccl22809 GroupEnd depth=0 result=0"});
  // What the engine holds goes to NCCL before the simulation.
  const int flush = outcome.index("engine other comm=0");
  CHECK(flush > outcome.index("engine all_reduce comm=1 count=21"));
  CHECK(flush < outcome.index("nccl22809 GroupSimulateEnd"));
}

TEST_CASE("ncclCommInitAll makes many") {
  const Outcome outcome = linked("init_all");
  CAPTURE(outcome.text());
  CHECK(creations(outcome) ==
        Lines{"comm=1 how=many name=-", "comm=2 how=many name=-", "comm=3 how=many name=-"});
  CHECK(outcome.lines("engine comm_ending").size() == 3);
}

TEST_CASE("a rank that a split leaves without a communicator") {
  const Outcome outcome = linked("split");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome) == Lines{"comm=1 how=blocking name=-", "comm=2 how=blocking name=half"});
  CHECK(outcome.lines("nccl22809 CommSplit") ==
        Lines{"nccl22809 CommSplit comm=1 color=-1 key=0", "nccl22809 CommSplit comm=1 color=3 key=4"});
}

TEST_CASE("shrink, grow, suspend, revoke and abort of NCCL 2.30") {
  const Outcome outcome = newest("reshape");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(creations(outcome).size() == 5);
  CHECK(outcome.lines("nccl23007 CommGrow") == Lines{"nccl23007 CommGrow comm=101 nranks=3 id=given rank=-1",
                                                     "nccl23007 CommGrow comm=0 nranks=3 id=given rank=2"});
  // Our kernels are woken before NCCL waits for them.
  CHECK(outcome.index("engine comm_ending comm=101 abort=1") ==
        outcome.index("nccl23007 CommShrink comm=101 excluded=1 of=1 flags=1") - 1);
  CHECK(outcome.index("nccl23007 CommSuspend") > 0);
  CHECK(outcome.log[static_cast<std::size_t>(outcome.index("nccl23007 CommSuspend") - 1)] ==
        "engine comm_ending comm=101 abort=0");
  CHECK(outcome.log[static_cast<std::size_t>(outcome.index("nccl23007 CommRevoke") - 1)] ==
        "engine comm_ending comm=101 abort=1");
  CHECK(outcome.log[static_cast<std::size_t>(outcome.index("nccl23007 CommAbort") - 1)] ==
        "engine comm_ending comm=101 abort=1");
  CHECK(outcome.lines("engine comm_ending comm=0").empty());
}

TEST_CASE("a forked child only forwards, its parent goes on") {
  for (const Lines& command :
       {Lines{INTERPOSE_LINKED, "fork"}, {INTERPOSE_DLOPEN, "dlsym", FAKE_NCCL, "fork"}}) {
    const Outcome outcome = run_watched(command);
    CAPTURE(outcome.text());
    CHECK(outcome.code == 0);
    CHECK(outcome.lines("engine all_reduce") ==
          Lines{"engine all_reduce comm=1 count=43 dtype=9 op=0 nccl=22809"});
    CHECK(outcome.lines("nccl22809 AllReduce").size() == 3);
    CHECK(outcome.lines("engine open").size() == 1);
    CHECK(creations(outcome).size() == 1);
    CHECK(outcome.lines("engine comm_ending").size() == 1);
  }
}

TEST_CASE("a child that was forked before the first communicator is a job like any other") {
  const Outcome outcome = linked("fork_first");
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.lines("engine all_reduce") ==
        Lines{"engine all_reduce comm=1 count=51 dtype=9 op=0 nccl=22809"});
}

TEST_CASE("another thread aborts while a launch hangs") {
  const Outcome outcome = linked("abort", {{"FAKE_ENGINE_HANG", "1"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.lines("user") == Lines{"user launch result=6"});
  CHECK(outcome.index("engine comm_ending comm=1 abort=1") < outcome.index("nccl22809 CommAbort comm=1"));
}

TEST_CASE("first communicators of several threads at once open one engine") {
  const Outcome outcome =
      linked("threads", {{"FAKE_ENGINE_OPEN_MS", "200"}, {"FAKE_ENGINE_CREATE_MS", "200"}});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.lines("engine open").size() == 1);
  CHECK(creations(outcome).size() == 4);
}
