// SPDX-License-Identifier: Apache-2.0
// The proposed policy: thresholds, calls per pass, what ends a pass.
#include "profiles/proposal.hpp"

#include <doctest/doctest.h>

#include "synthetic_trace.hpp"

namespace echotp {
namespace {

using test::SyntheticJob;

struct Proposed {
  Policy policy;
  PassPattern pass;
};

// Everything of at least 1 MiB is compressed.
Proposed propose(const Trace& trace) {
  const auto study = study_trace(trace, "");
  REQUIRE(study);
  ProposalInput input;
  for (const Collective& it : study->set.collectives)
    input.compressed.push_back(is_all_reduce(trace.calls[it.call].function) && it.bytes >= 1 << 20);
  input.min_bytes[{DataType::kBf16, 2}] = 1 << 20;
  return {propose_policy(trace, *study, input), pass_pattern(trace, *study, input.compressed, 0)};
}

TEST_CASE("inference: the calls of a step are a pass, the gather at its end a signal") {
  SyntheticJob job(2);
  for (int step = 0; step < 6; ++step) {
    job.begin_step();
    for (int layer = 0; layer < 8; ++layer) {
      job.kernel(7, "gemm", [](int) { return 50.0; });
      job.collective(7, "AllReduce", 4 << 20, 30);
    }
    job.collective(7, "AllReduce", 1024, 5);
    job.collective(7, "AllGather", 1 << 16, 10);
    job.synchronise(7);
    job.end_step();
  }
  const Proposed it = propose(job.trace());
  REQUIRE(it.policy.rules.size() == 1);
  const PolicyRule& rule = it.policy.rules[0];
  CHECK(*rule.pass.calls == 8);
  CHECK(rule.pass.resync == std::vector<std::string>{"all_gather"});
  CHECK(rule.match.min_bytes == 1 << 20);
  CHECK(rule.match.min_ranks == 2);
  CHECK(rule.match.max_ranks == 2);
  CHECK(rule.match.dtypes == std::vector<DataType>{DataType::kBf16});
  CHECK(rule.match.ops == std::vector<ReduceOp>{ReduceOp::kSum});
  CHECK(rule.compensation == Compensation{});
}

TEST_CASE("a gather between the compressed calls ends nothing") {
  SyntheticJob job(2);
  for (int step = 0; step < 6; ++step) {
    job.begin_step();
    job.kernel(7, "gemm", [](int) { return 50.0; });
    job.collective(7, "AllReduce", 4 << 20, 30);
    job.collective(7, "AllGather", 1 << 16, 10);
    job.collective(7, "AllReduce", 4 << 20, 30);
    job.synchronise(7);
    job.end_step();
  }
  CHECK(propose(job.trace()).pass.resync.empty());
}

SyntheticJob training(int forward, int backward) {
  SyntheticJob job(2);
  for (int step = 0; step < 6; ++step) {
    job.begin_step();
    for (const auto& [thread, calls] : {std::pair{1u, forward}, std::pair{2u, backward}}) {
      job.use_thread(thread);
      for (int layer = 0; layer < calls; ++layer) {
        job.kernel(7, thread == 1 ? "forward" : "backward", [](int) { return 50.0; });
        job.collective(7, "AllReduce", 4 << 20, 30);
      }
    }
    job.use_thread(1);
    job.synchronise(7);
    job.end_step();
  }
  return job;
}

TEST_CASE("training: forward and backward are passes of their own threads") {
  CHECK(*propose(training(6, 6).trace()).pass.calls == 6);
  CHECK_FALSE(propose(training(6, 5).trace()).pass.calls.has_value());
}

TEST_CASE("a number of calls that changes from step to step is not stated") {
  SyntheticJob job(2);
  for (int step = 0; step < 8; ++step) {
    job.begin_step();
    job.kernel(7, "gemm", [](int) { return 500.0; });
    for (int layer = 0; layer < 8 + step % 2; ++layer) job.collective(7, "AllReduce", 4 << 20, 30);
    job.synchronise(7);
    job.end_step();
  }
  CHECK_FALSE(propose(job.trace()).pass.calls.has_value());
}

TEST_CASE("nothing compressed, no rule") {
  SyntheticJob job(2);
  for (int step = 0; step < 6; ++step) {
    job.begin_step();
    job.kernel(7, "gemm", [](int) { return 500.0; });
    job.collective(7, "AllReduce", 1024, 5);
    job.synchronise(7);
    job.end_step();
  }
  CHECK(propose(job.trace()).policy.rules.empty());
}

}  // namespace
}  // namespace echotp
