// SPDX-License-Identifier: Apache-2.0
// What a job's environment gets and keeps.
#include "cli/environment.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace echotp;

namespace {
const RecordPlan kRecord = {"/lib/libecho-tp-recorder.so", "/parts", ""};
const ShimPlan kShim = {
    "/lib/libecho-tp-shim.so",   "/lib/libecho-tp-engine.so", "/policy.json", "compress", "/receipts",
    "/lib/libecho-tp-witness.so"};
}  // namespace

TEST_CASE("variables: names are whole names, order and duplicates of others stay") {
  Environment environment({"PATH=/bin", "PATHS=/x", "EMPTY=", "EQUALS=a=b"});
  CHECK(environment.get("PATH") == "/bin");
  CHECK_FALSE(environment.get("PAT"));
  CHECK(environment.get("EMPTY") == "");
  CHECK(environment.get("EQUALS") == "a=b");
  environment.set("PATH", "/usr/bin");
  environment.unset("EMPTY");
  environment.set("NEW", "1");
  CHECK(environment.entries() ==
        std::vector<std::string>{"PATH=/usr/bin", "PATHS=/x", "EQUALS=a=b", "NEW=1"});
}

TEST_CASE("a way in that another tool holds is kept and named, the others are taken") {
  Environment environment({"NVTX_INJECTION64_PATH=/nsys.so", "CUDA_INJECTION64_PATH="});
  const auto lines = inject_recorder(environment, kRecord);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("NVTX_INJECTION64_PATH is set already, to /nsys.so") == 0);
  CHECK(environment.get("NVTX_INJECTION64_PATH") == "/nsys.so");
  CHECK(environment.get("CUDA_INJECTION64_PATH") == kRecord.recorder);
  CHECK(environment.get("NCCL_PROFILER_PLUGIN") == kRecord.recorder);
  CHECK(environment.get("ECHO_TP_RECORD_DIR") == "/parts");
  CHECK_FALSE(environment.get("ECHO_TP_RECORD_OPTIONS"));
}

TEST_CASE("our own recorder in a way in is no other tool") {
  Environment environment(
      {"CUDA_INJECTION64_PATH=/old/libecho-tp-recorder.so", "ECHO_TP_RECORD_OPTIONS=old"});
  CHECK(inject_recorder(environment, kRecord).empty());
  CHECK(environment.get("CUDA_INJECTION64_PATH") == kRecord.recorder);
  CHECK_FALSE(environment.get("ECHO_TP_RECORD_OPTIONS"));
}

TEST_CASE("the shim comes first, what is preloaded stays in order, an old shim goes") {
  Environment environment({"LD_PRELOAD=/a.so:/old/libecho-tp-shim.so /b.so"});
  CHECK(inject_shim(environment, kShim).empty());
  CHECK(environment.get("LD_PRELOAD") == "/lib/libecho-tp-shim.so:/a.so:/b.so");
  CHECK(environment.get("ECHO_TP_MODE") == "compress");
  CHECK(environment.get("ECHO_TP_ENGINE") == kShim.engine);
}

TEST_CASE("a file that only ends like ours is not ours") {
  Environment environment({"LD_PRELOAD=/x/notlibecho-tp-shim.so"});
  remove_ours(environment);
  CHECK(environment.get("LD_PRELOAD") == "/x/notlibecho-tp-shim.so");
}

TEST_CASE("without a policy the variable goes, so that an old one is not used") {
  Environment environment({"ECHO_TP_POLICY=/old.json"});
  ShimPlan plan = kShim;
  plan.policy.clear();
  inject_shim(environment, plan);
  CHECK_FALSE(environment.get("ECHO_TP_POLICY"));
}

TEST_CASE("the witness hears NVTX, unless another tool does") {
  Environment environment({"NVTX_INJECTION64_PATH=/old/libecho-tp-witness.so"});
  CHECK(inject_shim(environment, kShim).empty());
  CHECK(environment.get("NVTX_INJECTION64_PATH") == kShim.witness);
  Environment taken({"NVTX_INJECTION64_PATH=/nsys.so"});
  const auto lines = inject_shim(taken, kShim);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("NVTX_INJECTION64_PATH is set already, to /nsys.so: kept") == 0);
  CHECK(taken.get("NVTX_INJECTION64_PATH") == "/nsys.so");
  ShimPlan without = kShim;
  without.witness.clear();
  CHECK(inject_shim(taken, without).empty());
  inject_shim(environment, without);
  CHECK_FALSE(environment.get("NVTX_INJECTION64_PATH"));
}

TEST_CASE("a recording inside a run takes the witness's place: it needs more of NVTX") {
  Environment environment({});
  inject_shim(environment, kShim);
  CHECK(inject_recorder(environment, kRecord).empty());
  CHECK(environment.get("NVTX_INJECTION64_PATH") == kRecord.recorder);
}

TEST_CASE("ECHO_TP=off is told") {
  Environment environment({"ECHO_TP=off"});
  CHECK(inject_shim(environment, kShim).size() == 1);
}

TEST_CASE("remove_ours undoes both plans and nothing else") {
  const std::vector<std::string> before = {"HOME=/root", "LD_PRELOAD=/a.so", "CUDA_VISIBLE_DEVICES=0"};
  Environment environment(before);
  inject_shim(environment, kShim);
  inject_recorder(environment, kRecord);
  remove_ours(environment);
  CHECK(environment.entries() == before);
  Environment bare({"HOME=/root"});
  inject_shim(bare, kShim);
  remove_ours(bare);
  CHECK(bare.entries() == std::vector<std::string>{"HOME=/root"});
}
