// SPDX-License-Identifier: Apache-2.0
// The preload library as a file: what it needs, what it exports, and that it leaves processes alone which
// have nothing to do with NCCL.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/shim/interpose_process.hpp"

using namespace echotp::testing;

namespace {

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    found.push_back((*at)[1]);
  return found;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::set<std::string> kExports = {"dlsym",
                                        "ncclAllGather",
                                        "ncclAllReduce",
                                        "ncclAlltoAll",
                                        "ncclBcast",
                                        "ncclBroadcast",
                                        "ncclCommAbort",
                                        "ncclCommDestroy",
                                        "ncclCommFinalize",
                                        "ncclCommGetAsyncError",
                                        "ncclCommGrow",
                                        "ncclCommInitAll",
                                        "ncclCommInitRank",
                                        "ncclCommInitRankConfig",
                                        "ncclCommInitRankScalable",
                                        "ncclCommRevoke",
                                        "ncclCommShrink",
                                        "ncclCommSplit",
                                        "ncclCommSuspend",
                                        "ncclGather",
                                        "ncclGroupEnd",
                                        "ncclGroupSimulateEnd",
                                        "ncclGroupStart",
                                        "ncclRecv",
                                        "ncclReduce",
                                        "ncclReduceScatter",
                                        "ncclScatter",
                                        "ncclSend"};

}  // namespace

TEST_CASE("the preload library needs libc alone and has no name to be linked by") {
  const Outcome dynamic = run_plain({"readelf", "-dW", INTERPOSE_SHIM}, {});
  REQUIRE(dynamic.code == 0);
  CHECK(matches(dynamic.out, R"(\(NEEDED\)[^\[]*\[([^\]]*)\])") == std::vector<std::string>{"libc.so.6"});
  for (const std::string& name : matches(dynamic.out, R"(\(SONAME\)[^\[]*\[([^\]]*)\])"))
    CHECK(name.find("nccl") == std::string::npos);
  CHECK(dynamic.out.find("TEXTREL") == std::string::npos);
  CHECK(dynamic.out.find("RPATH") == std::string::npos);
  CHECK(dynamic.out.find("RUNPATH") == std::string::npos);
}

TEST_CASE("the preload library exports dlsym and the wrapped names, nothing else") {
  const Outcome symbols = run_plain({"nm", "-D", "--defined-only", INTERPOSE_SHIM}, {});
  REQUIRE(symbols.code == 0);
  const std::vector<std::string> names = matches(symbols.out, R"( [A-Za-z] (\S+)\n)");
  CHECK(std::set<std::string>(names.begin(), names.end()) == kExports);
}

TEST_CASE("a thread of any process pays a few words for the preload library") {
  const Outcome headers = run_plain({"readelf", "-lW", INTERPOSE_SHIM}, {});
  const std::vector<std::string> sizes =
      matches(headers.out, R"(\n +TLS +\S+ +\S+ +\S+ +\S+ +0x([0-9a-f]+))");
  REQUIRE(sizes.size() == 1);
  CHECK(std::stoul(sizes[0], nullptr, 16) <= 64);
  const Outcome symbols = run_plain({"nm", "-D", "--undefined-only", INTERPOSE_SHIM}, {});
  CHECK(symbols.out.find("__tls_get_addr") == std::string::npos);
}

TEST_CASE("the sources never call plain dlsym, which would come back to themselves, nor exit or abort") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(INTERPOSE_SOURCES)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("preload", 0) != 0 || entry.path().extension() != ".c") continue;
    ++files;
    const std::string text = read_text(entry.path());
    CAPTURE(name);
    CHECK_FALSE(std::regex_search(text, std::regex(R"((^|[^\w])_?dl_?sym\s*\()")));
    CHECK_FALSE(std::regex_search(text, std::regex(R"((^|[^\w])(_exit|exit|abort)\s*\()")));
  }
  CHECK(files >= 4);
}

TEST_CASE("processes without NCCL are left alone") {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"bash", "-c", "true"},
                                                  {"bash", "-c", "ls / > /dev/null; true"},
                                                  {INTERPOSE_PYTHON, "-c", "pass"}}) {
    if (command[0].empty()) continue;  // no Python here
    const Outcome outcome = run_watched(command, {{"ECHO_TP_LOG", "1"}});
    CAPTURE(outcome.text());
    CHECK(outcome.code == 0);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.empty());
    CHECK(outcome.log.empty());
  }
}

TEST_CASE("a job that loads NCCL but makes no communicator gets neither output nor an engine") {
  const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "lookups", FAKE_NCCL});
  CAPTURE(outcome.text());
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CHECK(outcome.lines("engine").empty());
}

TEST_CASE("another preload library keeps finding the next function, before us and behind us") {
  for (const std::string preload :
       {INTERPOSE_OTHER_PRELOAD ":" INTERPOSE_SHIM, INTERPOSE_SHIM ":" INTERPOSE_OTHER_PRELOAD}) {
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{INTERPOSE_DLOPEN, "other"}, {INTERPOSE_LINKED, "split"}}) {
      const Outcome outcome = run_watched(command, {{"LD_PRELOAD", preload}});
      CAPTURE(preload);
      CAPTURE(outcome.text());
      CHECK(outcome.code == 0);
      CHECK(outcome.out == "hello\n");
      CHECK(outcome.lines("other puts") == std::vector<std::string>{"other puts next=libc"});
    }
  }
}
