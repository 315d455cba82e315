// SPDX-License-Identifier: Apache-2.0
// Which calls are caught, and which NCCL they end in: every way in which jobs reach NCCL, several copies in
// one process, functions that are not ours, and jobs without NCCL.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tests/shim/interpose_process.hpp"

using namespace echotp::testing;
using Lines = std::vector<std::string>;

namespace {

/// The log of scenario "all" where everything was caught once and reached the NCCL `version` with its
/// arguments intact.
void check_all(const Outcome& outcome, const std::string& version = "22809") {
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  unsigned sum = 0;
  for (int i = 0; i < 128; ++i) sum = sum * 31 + static_cast<unsigned char>(i * 7 + 1);
  char id[16];
  std::snprintf(id, sizeof id, "%08x", sum);
  const std::string nccl = "nccl" + version + " ";
  const std::string engine = " nccl=" + version;
  const Lines expected = {
      nccl + "GetUniqueId",
      "engine open abi=1",
      nccl + "CommInitRank nranks=2 rank=1 id=" + id + " depth=0",
      "engine comm_created comm=1 how=blocking name=-" + engine + " ranks=2",
      "engine all_reduce comm=1 count=1001 dtype=9 op=3" + engine,
      nccl + "AllReduce comm=1 send=0x1000 recv=0x2000 count=1001 dtype=9 op=3 stream=0x5000 depth=0",
      "engine other comm=1 kind=0 count=1002" + engine,
      nccl + "Broadcast comm=1 send=0x1000 recv=0x2000 count=1002 dtype=1 root=5 stream=0x5000",
      "engine other comm=1 kind=0 count=1003" + engine,
      nccl + "Bcast comm=1 count=1003 depth=0",
      nccl + "Broadcast comm=1 send=0x1000 recv=0x1000 count=1003 dtype=1 root=5 stream=0x5000",
      "engine other comm=1 kind=1 count=1004" + engine,
      nccl + "Reduce comm=1 send=0x1000 recv=0x2000 count=1004 dtype=1 op=3 root=5 stream=0x5000",
      "engine other comm=1 kind=2 count=1005" + engine,
      nccl + "AllGather comm=1 send=0x1000 recv=0x2000 count=1005 dtype=1 stream=0x5000",
      "engine other comm=1 kind=3 count=1006" + engine,
      nccl + "ReduceScatter comm=1 send=0x1000 recv=0x2000 count=1006 dtype=1 op=3 stream=0x5000",
      "engine other comm=1 kind=4 count=1007" + engine,
      nccl + "AlltoAll comm=1 send=0x1000 recv=0x2000 count=1007 dtype=1 stream=0x5000",
      "engine other comm=1 kind=5 count=1008" + engine,
      nccl + "Gather comm=1 send=0x1000 recv=0x2000 count=1008 dtype=1 root=5 stream=0x5000",
      "engine other comm=1 kind=6 count=1009" + engine,
      nccl + "Scatter comm=1 send=0x1000 recv=0x2000 count=1009 dtype=1 root=5 stream=0x5000",
      "engine other comm=1 kind=7 count=1010" + engine,
      nccl + "Send comm=1 send=0x1000 count=1010 dtype=1 peer=6 stream=0x5000",
      "engine other comm=1 kind=8 count=1011" + engine,
      nccl + "Recv comm=1 recv=0x2000 count=1011 dtype=1 peer=6 stream=0x5000",
      nccl + "CommGetAsyncError comm=1 state=0",
      "engine async_error comm=1 state=0",
      "user state=0",
      nccl + "CommRegister comm=1 size=4096",
      nccl + "FutureThing value=41",
      "engine comm_ending comm=1 abort=0",
      nccl + "CommFinalize comm=1",
      "engine comm_ending comm=1 abort=0",
      nccl + "CommDestroy comm=1"};
  CHECK(outcome.log == expected);
}

std::string directory_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

TEST_CASE("a program linked with NCCL") {
  check_all(run_watched({INTERPOSE_LINKED, "all"}));
}

TEST_CASE("a program that opens NCCL by name and asks dlsym") {
  check_all(run_watched({INTERPOSE_DLOPEN, "dlsym", "libnccl.so.2", "all"},
                        {{"LD_LIBRARY_PATH", directory_of(FAKE_NCCL)}}));
}

TEST_CASE("a program that opens NCCL by absolute path, RTLD_LOCAL, and asks dlsym") {
  check_all(run_watched({INTERPOSE_DLOPEN, "dlsym", FAKE_NCCL, "all"}));
}

TEST_CASE("a program that opens NCCL RTLD_GLOBAL and asks for RTLD_DEFAULT") {
  check_all(run_watched({INTERPOSE_DLOPEN, "default", FAKE_NCCL, "all"}));
}

TEST_CASE("a plugin, linked with NCCL, loaded RTLD_LOCAL") {
  check_all(run_watched({INTERPOSE_DLOPEN, "plugin", INTERPOSE_PLUGIN, "all"}));
}

TEST_CASE("a plugin that holds a static NCCL") {
  check_all(run_watched({INTERPOSE_DLOPEN, "plugin", INTERPOSE_STATIC_PLUGIN, "all"}));
}

TEST_CASE("a Python program that binds a list of functions with ctypes") {
  if (std::string(INTERPOSE_PYTHON).empty()) {
    MESSAGE("SKIPPED (no python3)");
    return;
  }
  const Outcome outcome = run_watched({INTERPOSE_PYTHON, INTERPOSE_PYNCCL, FAKE_NCCL});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CHECK(outcome.lines("engine") ==
        Lines{"engine open abi=1", "engine comm_created comm=1 how=blocking name=- nccl=22809 ranks=2",
              "engine group_start depth=1", "engine all_reduce comm=1 count=1001 dtype=9 op=0 nccl=22809",
              "engine group_end depth=0", "engine other comm=1 kind=0 count=1002 nccl=22809",
              "engine comm_ending comm=1 abort=0"});
  CHECK(outcome.lines("nccl").size() == 7);
  CHECK(
      outcome.index(
          "nccl22809 AllReduce comm=1 send=0x1000 recv=0x2000 count=1001 dtype=9 op=0 stream=(nil) depth=1") >
      0);
}

TEST_CASE("two NCCL copies in one process, both by dlsym") {
  const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "copies", FAKE_NCCL, FAKE_NCCL_SECOND});
  CAPTURE(outcome.text());
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines("engine comm_created") ==
        Lines{"engine comm_created comm=1 how=blocking name=- nccl=22809 ranks=2",
              "engine comm_created comm=101 how=blocking name=- nccl=23007 ranks=2"});
  // The engine has one group a thread: what runs in the other copy meanwhile goes straight to that copy.
  CHECK(outcome.lines("engine all_reduce") ==
        Lines{"engine all_reduce comm=1 count=1 dtype=9 op=0 nccl=22809",
              "engine all_reduce comm=101 count=4 dtype=9 op=0 nccl=23007"});
  CHECK(outcome.lines("engine group") == Lines{"engine group_start depth=1", "engine group_end depth=0"});
  CHECK(outcome.lines("nccl22809 AllReduce").size() == 1);
  CHECK(outcome.lines("nccl23007 AllReduce").size() == 3);
  CHECK(outcome.lines("nccl23007 CommDestroy") == Lines{"nccl23007 CommDestroy comm=101"});
}

TEST_CASE("two NCCL copies in one process, one linked by a plugin and one static in another") {
  const Outcome outcome =
      run_watched({INTERPOSE_DLOPEN, "plugins", INTERPOSE_PLUGIN, INTERPOSE_SECOND_PLUGIN, "two_comms"});
  CAPTURE(outcome.text());
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines("nccl22809 AllReduce").size() == 2);
  CHECK(outcome.lines("nccl23007 AllReduce").size() == 2);
  CHECK(outcome.lines("engine all_reduce") ==
        Lines{"engine all_reduce comm=1 count=1 dtype=9 op=0 nccl=22809",
              "engine all_reduce comm=2 count=2 dtype=9 op=0 nccl=22809",
              "engine all_reduce comm=101 count=1 dtype=9 op=0 nccl=23007",
              "engine all_reduce comm=102 count=2 dtype=9 op=0 nccl=23007"});
  CHECK(outcome.lines("engine open").size() == 1);
}

TEST_CASE(
    "a caller that isn't linked with NCCL reaches the library of its communicator, and the guess is "
    "announced") {
  const Outcome outcome =
      run_watched({INTERPOSE_DLOPEN, "stranger", INTERPOSE_LOOSE, FAKE_NCCL, FAKE_NCCL_SECOND});
  CAPTURE(outcome.text());
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines("engine all_reduce") ==
        Lines{"engine all_reduce comm=101 count=8 dtype=9 op=0 nccl=23007"});
  CHECK(outcome.lines("nccl22809").empty());
  CHECK(outcome.lines("nccl23007 CommDestroy comm=101").size() == 1);
  CHECK(outcome.err.find("echo-tp: " INTERPOSE_LOOSE
                         " calls NCCL but isn't linked with it: using " FAKE_NCCL) == 0);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

TEST_CASE("what NCCL calls inside itself is not the job's") {
  for (const Lines& command :
       {Lines{INTERPOSE_LINKED, "inside"}, {INTERPOSE_DLOPEN, "dlsym", FAKE_NCCL, "inside"}}) {
    const Outcome outcome = run_watched(command);
    CAPTURE(outcome.text());
    CHECK(outcome.code == 0);
    CHECK(outcome.lines("engine other") == Lines{"engine other comm=1 kind=0 count=31 nccl=22809",
                                                 "engine other comm=1 kind=1 count=32 nccl=22809"});
    CHECK(outcome.lines("nccl22809 Send").size() == 1);
    CHECK(outcome.lines("nccl22809 Broadcast").size() == 2);
  }
}

TEST_CASE("dlsym gives out our functions for the wrapped names alone, and leaves dlerror as it should be") {
  const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "lookups", FAKE_NCCL});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.out ==
        "AllReduce ours\nCommRegister real\nFutureThing real\nCommShrink there\nerror none\nNope "
        "missing\nerror names it\nsame yes\n");
}

TEST_CASE("a function that an old NCCL lacks stays missing") {
  const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "lookups", FAKE_NCCL_OLD});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("AllReduce ours\n") == 0);
  CHECK(outcome.out.find("CommShrink missing\nerror names it\n") != std::string::npos);
  const Outcome job = run_watched({INTERPOSE_DLOPEN, "dlsym", FAKE_NCCL_OLD, "two_comms"});
  CAPTURE(job.text());
  CHECK(job.code == 0);
  CHECK(job.lines("engine all_reduce").size() == 2);
}

TEST_CASE("a function of the same name in a library that is not NCCL is not touched") {
  const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "lookalike", FAKE_NCCL_LOOKALIKE});
  CAPTURE(outcome.text());
  CHECK(outcome.out == "result 4711\nits own yes\n");
  CHECK(outcome.err.empty());
}

TEST_CASE("without any NCCL a call fails with one clear line, and ECHO_TP_REAL_NCCL helps") {
  const std::string empty = directory_of(FAKE_EMPTY);
  const Outcome none =
      run_watched({INTERPOSE_DLOPEN, "nothing", INTERPOSE_LOOSE}, {{"LD_LIBRARY_PATH", empty}});
  CAPTURE(none.text());
  CHECK(none.out == "result 2\n");
  CHECK(none.err.find("echo-tp: ncclGroupStart was called, but no NCCL library") == 0);
  CHECK(std::count(none.err.begin(), none.err.end(), '\n') == 1);
  const Outcome given = run_watched({INTERPOSE_DLOPEN, "nothing", INTERPOSE_LOOSE},
                                    {{"LD_LIBRARY_PATH", empty}, {"ECHO_TP_REAL_NCCL", FAKE_NCCL}});
  CAPTURE(given.text());
  CHECK(given.out == "result 0\n");
  CHECK(given.err.find("using " FAKE_NCCL ", version 22809") != std::string::npos);
  CHECK(given.lines("nccl22809 GroupStart").size() == 1);
}
