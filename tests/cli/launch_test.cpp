// SPDX-License-Identifier: Apache-2.0
// Starting jobs, from inside one process. Signals and terminals are tested on the executable (cli_test.sh).
#include "cli/launch.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>

#include "cli/environment.hpp"

using namespace echotp;

namespace {

std::string own_status() {
  std::ifstream file("/proc/self/status");
  return {std::istreambuf_iterator<char>(file), {}};
}
const std::string kStatusAtStart = own_status();

// Bits of the signals 1 to 31, in a field such as "SigIgn:\t0000000000001000".
unsigned long mask_in(const std::string& status, const std::string& field) {
  return std::stoul(status.substr(status.find(field) + field.size() + 1, 16), nullptr, 16) & 0x7fffffff;
}

struct Captured {
  JobEnd end;
  std::string out, err;
};

Captured run(const std::string& script,
             std::vector<std::string> environment = Environment::current().entries()) {
  Captured captured;
  JobPlan plan{{"/bin/sh", "-c", script}, std::move(environment), nullptr};
  plan.on_output = [&](JobStream stream, std::string_view piece) {
    (stream == JobStream::kStdout ? captured.out : captured.err) += piece;
  };
  captured.end = run_job(plan);
  return captured;
}

}  // namespace

TEST_CASE("codes and signals of the job") {
  CHECK(run("exit 0").end.exit_code == 0);
  CHECK(run("exit 130").end.exit_code == 130);
  CHECK(run("exit 130").end.killed_by == 0);
  const JobEnd killed = run("kill -TERM $$").end;
  CHECK(killed.exit_code == 143);
  CHECK(killed.killed_by == SIGTERM);
  CHECK(killed.interrupted == 0);
}

TEST_CASE("what can't be started says why") {
  const auto start = [](const std::string& program) { return run_job({{program}, {}, nullptr}); };
  CHECK(start("no-such-program").exit_code == 127);
  CHECK_FALSE(start("no-such-program").started);
  CHECK(start("no-such-program").error.code == ErrorCode::kNotFound);
  CHECK(start("/proc/self/status").exit_code == 126);
  CHECK(start("/").exit_code == 126);
}

TEST_CASE("all output arrives, each stream by itself") {
  const Captured captured =
      run("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo error >&2");
  CHECK(captured.out.size() > 200000);
  CHECK(captured.out.ends_with("line 19999\n"));
  CHECK(captured.err == "error\n");
}

TEST_CASE("the job gets the planned environment and no other") {
  const Captured captured = run("env", {"ONLY=this", "PATH=/usr/bin:/bin"});
  CHECK(captured.out.find("ONLY=this\n") != std::string::npos);
  CHECK(captured.out.find("HOME=") == std::string::npos);
}

TEST_CASE("a process that is left behind with our pipe is not waited for without end") {
  const auto start = std::chrono::steady_clock::now();
  const Captured captured = run("echo out; sleep 30 & exit 3");
  CHECK(captured.end.exit_code == 3);
  CHECK(captured.out == "out\n");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("the job has the signal handling that we were started with, also the second job") {
  run("true");
  const std::string status = run("exec cat /proc/self/status").out;
  for (const char* name : {"SigBlk:", "SigIgn:"}) {
    CAPTURE(name);
    CHECK(mask_in(status, name) == mask_in(kStatusAtStart, name));
  }
}

TEST_CASE("an ignored SIGCHLD does not lose the exit code") {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  CHECK(run("exit 6").end.exit_code == 6);
  std::signal(SIGCHLD, before);
}
