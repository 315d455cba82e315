// SPDX-License-Identifier: Apache-2.0
// The command lines of the bench programs, and the candidates that lists stand for.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "cli/bench_candidates.hpp"
#include "cli/bench_options.hpp"
#include "shim/policy_json.hpp"

using namespace echotp;

namespace {

Result<BenchOptions> read(std::vector<std::string> words, BenchProgram program = BenchProgram::kWorker) {
  std::vector<char*> argv{const_cast<char*>("worker")};
  for (std::string& word : words) argv.push_back(word.data());
  return read_bench_options(program, static_cast<int>(argv.size()), argv.data());
}

std::string refused(std::vector<std::string> words, BenchProgram program = BenchProgram::kWorker) {
  auto options = read(std::move(words), program);
  return options ? "accepted" : options.error().text();
}

Policy policy_of(const BenchGrid& grid) {
  auto policy = parse_policy(bench_policy(grid), "p.json", "");
  REQUIRE_MESSAGE(policy, (policy ? "" : policy.error().text()));
  return *std::move(policy);
}

}  // namespace

TEST_CASE("bench: sizes are sorted and unique") {
  auto options = read({"--sizes", "64MiB,1MiB,1048576,2", "--output", "c.json", "--policy", "p.json",
                       "--dtype", "fp16", "--check", "--graph", "--background", "copy"});
  REQUIRE_MESSAGE(options, (options ? "" : options.error().text()));
  CHECK(options->sizes == std::vector<std::int64_t>{2, 1048576, 67108864});
  CHECK(options->dtype == DataType::kFp16);
  CHECK(options->check);
  CHECK(options->graph);
  CHECK(options->background == BenchBackground::kCopy);
  CHECK(options->policy == "p.json");
  options = read({"--sizes", "2", "--output", "c", "--policy", "p", "--ranks", "8"}, BenchProgram::kLoopback);
  REQUIRE_MESSAGE(options, (options ? "" : options.error().text()));
  CHECK(options->ranks == 8);
}

TEST_CASE("bench: bad command lines name the option") {
  const std::vector<std::string> files = {"--output", "c", "--policy", "p"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), files.begin(), files.end());
    return words;
  };
  CHECK(refused(files).starts_with("--sizes: missing"));
  CHECK(refused({"--sizes", "1MiB", "--policy", "p"}).starts_with("--output: missing"));
  CHECK(refused({"--sizes", "1MiB", "--output", "c"}).starts_with("--policy: missing"));
  CHECK(refused(with({"--sizes", "1MiB,"})).starts_with("--sizes: '' is not a size"));
  CHECK(refused(with({"--sizes", "3"}))
            .starts_with("--sizes: '3' is not a whole number of elements of 2 bytes"));
  CHECK(refused(with({"--sizes", "6", "--dtype", "fp32"}))
            .starts_with("--sizes: '6' is not a whole number of elements of 4 bytes"));
  CHECK(refused(with({"--sizes", "8", "--iterations", "0"})).starts_with("--iterations: '0'"));
  CHECK(refused(with({"--sizes", "8", "--budget", "-1"})).starts_with("--budget: '-1'"));
  CHECK(refused(with({"--sizes", "8", "--background", "busy"})).starts_with("--background: expected idle"));
  CHECK(refused({"--bogus"}).starts_with("--bogus: unknown option"));
  CHECK(refused({"--sizes"}).starts_with("--sizes: needs a value"));
  // Each program has its own.
  CHECK(refused(with({"--sizes", "8", "--ranks", "2"})).starts_with("--ranks: unknown option"));
  CHECK(refused(with({"--sizes", "8", "--graph"}), BenchProgram::kLoopback)
            .starts_with("--graph: unknown option"));
  CHECK(refused(with({"--sizes", "8"}), BenchProgram::kLoopback).starts_with("--ranks: missing"));
  CHECK(refused(with({"--sizes", "8", "--ranks", "9"}), BenchProgram::kLoopback)
            .starts_with("--ranks: '9' is not a number from 2 to 8"));
}

TEST_CASE("bench: lists of candidates are read, and bad ones name the option") {
  const std::string transports = "staged", modes = "none,both,none,ef", states = "fp16,int8", legs = "8,4";
  const auto grid = read_bench_grid(&transports, &modes, &states, &legs);
  REQUIRE_MESSAGE(grid, (grid ? "" : grid.error().text()));
  CHECK(grid->transports == std::vector{TransportChoice::kStaged});
  CHECK(grid->modes == std::vector<std::string>{"none", "both", "ef"});
  CHECK(grid->states == std::vector{StateFormat::kFp16, StateFormat::kInt8});
  CHECK(grid->first_leg_bits == std::vector{8, 4});
  const std::string bad = "int4", empty;
  CHECK(read_bench_grid(nullptr, nullptr, &bad, nullptr).error().text() ==
        "--states: 'int4' is not known; expected fp32, fp16, int8, several with commas between");
  CHECK(read_bench_grid(&empty, nullptr, nullptr, nullptr).error().text().starts_with("--transports: ''"));
  CHECK(read_bench_grid(nullptr, nullptr, nullptr, &bad)
            .error()
            .text()
            .starts_with("--first-leg-bits: 'int4'"));
}

TEST_CASE("bench: every candidate is a rule that fits its own communicator alone") {
  BenchGrid grid;
  grid.transports = {TransportChoice::kStaged};
  grid.modes = {"none", "both", "ef"};
  grid.states = {StateFormat::kInt8, StateFormat::kFp32};
  grid.first_leg_bits = {4, 8};
  const Policy policy = policy_of(grid);
  // Without estimates there is no format: 2 for none, 2 * 2 for the other modes.
  REQUIRE(policy.rules.size() == 2 + 2 * 4);
  std::set<std::string> names;
  for (std::size_t i = 0; i < policy.rules.size(); ++i) {
    const PolicyRule& rule = policy.rules[i];
    CHECK(rule.match.communicator_name == candidate_name(rule));
    names.insert(candidate_name(rule));
    const CallFacts facts{.count = 1000,
                          .dtype = DataType::kFp32,
                          .ranks = 2,
                          .communicator_name = rule.match.communicator_name};
    CHECK(match_policy(policy, facts) == static_cast<int>(i));
  }
  CHECK(names.size() == policy.rules.size());
  CHECK(names.contains("staged none 8+4/32"));
  CHECK(names.contains("staged ef fp32 4+4/32"));
  const PolicyRule& last = policy.rules.back();
  CHECK(last.codec == Codec{.bits = 4, .group = 32, .first_leg_bits = 8});
  CHECK(last.compensation.a == 1);
  CHECK(last.compensation.state == StateFormat::kFp32);
  CHECK(match_policy(policy, {.count = 1000, .ranks = 2, .communicator_name = "other"}) == -1);
  grid.transports = {TransportChoice::kStaged, TransportChoice::kAuto};
  grid.modes = {"drift"};
  grid.first_leg_bits = {4};
  const Policy drift = policy_of(grid);  // of one transport, without a format
  REQUIRE(drift.rules.size() == 1);
  CHECK(candidate_name(drift.rules[0]) == "staged drift 4+4/32");
  CHECK(drift.rules[0].match.communicator_name == "staged drift 4+4/32");
  CHECK(drift.rules[0].compensation.channels == kBenchChannels);
}

TEST_CASE("bench: twins differ by their transport alone") {
  PolicyRule staged, p2p;
  staged.transport = TransportChoice::kStaged;
  p2p.transport = TransportChoice::kP2p;
  CHECK(are_twins(staged, p2p));
  CHECK(!are_twins(staged, staged));
  p2p.compensation.state = StateFormat::kFp16;
  CHECK(!are_twins(staged, p2p));
}
