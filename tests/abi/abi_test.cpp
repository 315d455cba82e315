// SPDX-License-Identifier: Apache-2.0
// The preload library with every set of functions that NCCL has had: what a version has is found and reaches
// it, what it lacks stays missing, however a job asks.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "shim/decision.hpp"
#include "tests/shim/interpose_process.hpp"

using namespace echotp::testing;

namespace {

struct Version {
  int number;           ///< as ncclGetVersion gives it
  std::string nccl;     ///< a fake of that version
  std::string program;  ///< linked with it
};
const std::vector<Version> kVersions = {
#include "abi_versions.inc"
};

struct Symbol {
  std::string name;
  int since;
};
const std::vector<Symbol> kSymbols = {
#define NCCL_SYMBOL(name, since) {"nccl" #name, since},
#include "tests/abi/nccl_symbols.def"
};

const std::set<std::string> kWrapped = {
#define ECHO_TP_WRAP(name, parameters, arguments, communicator) "nccl" #name,
#include "shim/wrappers.def"
};

/// What the job `symbols` prints for a library of `version`; `ours` is what it says of wrapped functions.
std::string expected_symbols(int version, const std::string& ours) {
  std::string text = "version " + std::to_string(version) + "\n";
  for (const Symbol& symbol : kSymbols) {
    const bool there = symbol.since <= version;
    text += symbol.name + " " + (!there ? "missing" : kWrapped.contains(symbol.name) ? ours : "real") + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("the table of functions knows every function that is wrapped") {
  std::set<std::string> known;
  for (const Symbol& symbol : kSymbols) CHECK(known.insert(symbol.name).second);
  for (const std::string& name : kWrapped) {
    CAPTURE(name);
    CHECK(known.contains(name));
  }
}

TEST_CASE("the documentation names every function that is wrapped and every reason") {
  std::ifstream file(INTERPOSITION_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  for (const std::string& name : kWrapped) {
    CAPTURE(name);
    CHECK(page.find("`" + name + "`") != std::string::npos);
  }
  for (int i = 1; i < static_cast<int>(echotp::Reason::kCount); ++i) {
    const std::string reason = echotp::reason_name(static_cast<echotp::Reason>(i));
    CAPTURE(reason);
    CHECK(page.find("`" + reason + "`") != std::string::npos);
  }
}

TEST_CASE("each fake has exactly its version's functions") {
  for (const Version& version : kVersions) {
    const Outcome outcome = run_plain({INTERPOSE_DLOPEN, "symbols", version.nccl}, {});
    CAPTURE(outcome.text());
    CHECK(outcome.out == expected_symbols(version.number, "real"));
  }
}

TEST_CASE("dlsym gives out ours for what the version has and we wrap, and nothing that it lacks") {
  for (const Version& version : kVersions) {
    const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "symbols", version.nccl});
    CAPTURE(outcome.text());
    CHECK(outcome.code == 0);
    CHECK(outcome.err.empty());
    CHECK(outcome.out == expected_symbols(version.number, "ours"));
  }
}

TEST_CASE("a lookup in the global scope finds what the version has, and nothing that it lacks") {
  for (const Version& version : kVersions) {
    for (const char* state : {"on", "off"}) {
      const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "probe", version.nccl}, {{"ECHO_TP", state}});
      CAPTURE(version.number);
      CAPTURE(state);
      CHECK(outcome.code == 0);
      std::istringstream lines(outcome.out);
      for (int how = 0; how < 3; ++how) {
        CAPTURE(how);  // RTLD_DEFAULT, RTLD_NEXT, the program's own handle
        for (const Symbol& symbol : kSymbols) {
          std::string line;
          std::getline(lines, line);
          const bool there = symbol.since <= version.number;
          CHECK(line == symbol.name + " " +
                            (!there                           ? "missing"
                             : kWrapped.contains(symbol.name) ? "ours"
                                                              : "real"));
        }
      }
    }
  }
}

TEST_CASE("a library that is not loaded has no functions") {
  const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "probe", INTERPOSE_ENGINE});
  CAPTURE(outcome.text());
  CHECK(outcome.out.find(" ours") == std::string::npos);
  CHECK(outcome.out.find(" real") == std::string::npos);
  CHECK(outcome.out.find("without") == std::string::npos);
}

TEST_CASE("jobs of every version are caught and reach it, by link and by dlsym") {
  for (const Version& version : kVersions) {
    const std::string nccl = "nccl" + std::to_string(version.number) + " ";
    const std::string of_version = " nccl=" + std::to_string(version.number);
    for (const std::vector<std::string>& how :
         {std::vector<std::string>{version.program}, {INTERPOSE_DLOPEN, "dlsym", version.nccl}}) {
      for (const std::string scenario : {"all", "two_comms", "config", "split", "group_one", "group_two"}) {
        std::vector<std::string> command = how;
        command.push_back(scenario);
        const Outcome outcome = run_watched(command);
        CAPTURE(scenario);
        CAPTURE(outcome.text());
        CHECK(outcome.code == 0);
        CHECK(outcome.err.empty());
        CHECK_FALSE(outcome.lines("engine comm_created").empty());
        for (const std::string& line : outcome.lines("engine comm_created"))
          CHECK(line.find(of_version) != std::string::npos);
        for (const std::string& line : outcome.lines("engine all_reduce"))
          CHECK(line.find(of_version) != std::string::npos);
        CHECK(outcome.lines("engine all_reduce").size() == outcome.lines(nccl + "AllReduce").size());
        // What was created was announced and ended: nothing passed us by.
        CHECK(outcome.lines("engine comm_ending").size() ==
              outcome.lines(nccl + "CommDestroy").size() + outcome.lines(nccl + "CommFinalize").size());
      }
    }
  }
}

TEST_CASE("the NCCL of this machine has its version's functions, ours where wrapped") {
  if (!std::filesystem::exists(REAL_NCCL)) {
    MESSAGE("SKIPPED (no NCCL library on this machine)");
    return;
  }
  const Outcome outcome = run_watched({INTERPOSE_DLOPEN, "symbols", REAL_NCCL});
  CAPTURE(outcome.text());
  REQUIRE(outcome.out.rfind("version ", 0) == 0);
  CHECK(outcome.out == expected_symbols(std::stoi(outcome.out.substr(8)), "ours"));
}
