// SPDX-License-Identifier: Apache-2.0
// The policy: reading and refusing, matching, thresholds "auto", canonical text, hash.
#include <unistd.h>

#include <doctest/doctest.h>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <random>

#include "shim/json_reader.hpp"
#include "shim/policy_json.hpp"
#include "tests/shim/temp_dir.hpp"

using namespace echotp;

namespace {

Policy parsed(const std::string& text, const std::string& base_dir = "") {
  auto policy = parse_policy(text, "p.json", base_dir);
  REQUIRE_MESSAGE(policy, (policy ? "" : policy.error().text()));
  return *std::move(policy);
}

std::string refused(const std::string& text) {
  auto policy = parse_policy(text, "p.json", "");
  return policy ? "accepted" : policy.error().text();
}

std::string with_rule(const std::string& rule) {
  return R"({"schema":"echo-tp/policy/1","rules":[)" + rule + "]}";
}
std::string with_match(const std::string& match) {
  return with_rule(R"({"match":{)" + match + "}}");
}
std::string with_compensation(const std::string& text) {
  return with_rule(R"({"compensation":{)" + text + "}}");
}

const char* const kExample = R"({"schema": "echo-tp/policy/1",
 "rules": [
   {"match": {"dtype": ["bf16", "fp16"], "op": ["sum"], "min_bytes": "256KiB", "max_bytes": "1GiB", "ranks": [2, 8],
              "communicator": {"name": "TP*"}, "capture": false},
    "codec": {"bits": 4, "group": 64}, "transport": "staged",
    "compensation": {"mode": "owner", "a": 0.75, "bf": 0.125, "b": 0.25, "bs": 0.5, "state": "fp16"},
    "pass": {"calls": 73, "resync": ["all_gather"], "direction": "none"},
    "max_state_bytes": "64MiB", "note": "prefill"}]})";

std::string cost_entry(int ranks, std::int64_t bytes, double nccl_us, double echo_us,
                       const std::string& more = "") {
  return R"({"ranks":)" + std::to_string(ranks) + R"(,"bytes":)" + std::to_string(bytes) +
         R"(,"nccl_us":{"median":)" + std::to_string(nccl_us) + R"(},"echo_us":{"median":)" +
         std::to_string(echo_us) + "}" + more + "}";
}
std::string cost_table(const std::string& entries) {
  return R"({"schema":"echo-tp/costs/1","entries":[)" + entries + "]}";
}

}  // namespace

TEST_CASE("policy: every key of a rule is read") {
  const Policy policy = parsed(kExample);
  REQUIRE(policy.rules.size() == 1);
  const PolicyRule& rule = policy.rules[0];
  CHECK(rule.match.dtypes == std::vector{DataType::kBf16, DataType::kFp16});
  CHECK(rule.match.ops == std::vector{ReduceOp::kSum});
  CHECK(rule.match.min_bytes == 262144);
  CHECK(!rule.match.min_bytes_auto);
  CHECK(rule.match.max_bytes == 1073741824);
  CHECK(rule.match.min_ranks == 2);
  CHECK(rule.match.max_ranks == 8);
  CHECK(rule.match.communicator_name == "TP*");
  CHECK(!rule.match.in_capture);
  CHECK(rule.codec == Codec{.bits = 4, .group = 64});
  CHECK(rule.transport == TransportChoice::kStaged);
  CHECK(rule.compensation == Compensation{.mode = CompensationMode::kOwner,
                                          .a = 0.75f,
                                          .bf = 0.125f,
                                          .b = 0.25f,
                                          .bs = 0.5f,
                                          .state = StateFormat::kFp16});
  CHECK(rule.pass.calls == 73);
  CHECK(rule.pass.resync == std::vector<std::string>{"all_gather"});
  CHECK(rule.pass.direction == DirectionSource::kNone);
  CHECK(rule.max_state_bytes == 67108864);
  CHECK(rule.note == "prefill");
}

TEST_CASE("policy: what a rule leaves out takes the documented default") {
  const Policy policy = parsed(with_rule("{}"));
  const PolicyRule& rule = policy.rules.at(0);
  CHECK(rule.match.dtypes == std::vector{DataType::kBf16, DataType::kFp16});
  CHECK(rule.match.ops == std::vector{ReduceOp::kSum});
  CHECK(rule.match.min_bytes == 0);
  CHECK(!rule.match.max_bytes);
  CHECK(rule.match.min_ranks == 2);
  CHECK(rule.match.max_ranks == 64);
  CHECK(rule.match.in_capture);
  CHECK(rule.codec == Codec{.bits = 4, .group = 32});
  CHECK(rule.compensation == Compensation{});
  CHECK(!rule.pass.calls);
  CHECK(!rule.max_state_bytes);
  CHECK(parsed(R"({"schema":"echo-tp/policy/1","rules":[]})").rules.empty());
}

TEST_CASE("policy: the width of the codes, of each leg and of the last call of a pass") {
  const PolicyRule plain = parsed(with_rule(R"({"codec":{"bits":8}})")).rules.at(0);
  CHECK(plain.codec == Codec{.bits = 8, .group = 32, .first_leg_bits = 8});
  const Policy policy =
      parsed(with_rule(R"({"codec":{"first_leg_bits":8},"pass":{"calls":73,"last_call_bits":8}})"));
  const PolicyRule& rule = policy.rules.at(0);
  CHECK(rule.codec == Codec{.bits = 4, .group = 32, .first_leg_bits = 8});
  CHECK(codec_of(rule, false) == rule.codec);
  CHECK(codec_of(rule, true) == Codec{.bits = 8, .group = 32, .first_leg_bits = 8});
  CHECK(codec_of(plain, true) == plain.codec);
  const Policy back = parsed(policy_json(policy));
  CHECK(back.rules.at(0).codec == rule.codec);
  CHECK(back.rules.at(0).pass.last_call_bits == 8);
  CHECK(back.hash == policy.hash);
  CHECK(parsed(with_rule(R"({"pass":{"calls":73}})")).hash !=
        parsed(with_rule(R"({"pass":{"calls":73,"last_call_bits":8}})")).hash);
  CHECK(parsed(with_rule("{}")).hash != parsed(with_rule(R"({"codec":{"first_leg_bits":8}})")).hash);
}

TEST_CASE("policy: gains: one is completed from the other, and ef is both with a = 1") {
  CHECK(parsed(with_compensation(R"("a":0.75)")).rules[0].compensation.b == 0.25f);
  CHECK(parsed(with_compensation(R"("b":1)")).rules[0].compensation.a == 0.0f);
  CHECK(parsed(with_compensation(R"("a":0.9000005,"b":0.1)")).rules.size() == 1);
  const Compensation ef = parsed(with_compensation(R"("mode":"ef","state":"fp32")")).rules[0].compensation;
  CHECK(ef.mode == CompensationMode::kBoth);
  CHECK(ef.a == 1.0f);
  CHECK(ef.b == 0.0f);
  CHECK(ef.bf == 0.0f);
  CHECK(ef.state == StateFormat::kFp32);
  CHECK(parsed(with_compensation(R"("mode":"none")")).rules[0].compensation.mode == CompensationMode::kNone);
}

TEST_CASE("policy: drift needs the channels, and is written as it was read") {
  const Policy policy = parsed(with_rule(
      R"({"codec":{"group":128},"compensation":{"mode":"drift","channels":4096}},{"compensation":{"mode":"none"}})"));
  const Compensation& drift = policy.rules[0].compensation;
  CHECK(drift.mode == CompensationMode::kDrift);
  CHECK(drift.channels == 4096);
  CHECK(drift.gain == 0.5f);
  CHECK(staged_only(drift));
  CHECK(!staged_only(Compensation{}));
  CHECK(compensable(drift, 3 * 4096));
  CHECK(!compensable(drift, 3 * 4096 + 128));
  CHECK(compensable(Compensation{}, 7));
  CHECK(may_drift(policy));
  CHECK(!may_drift(parsed(with_rule("{}"))));
  const Policy other = parsed(with_compensation(R"("mode":"drift","channels":32,"gain":0.25)"));
  const std::string text = policy_json(other);
  CHECK(text.find("\"gain\": 0.25") != std::string::npos);
  CHECK(text.find("\"state\"") == std::string::npos);
  CHECK(parsed(text).rules[0].compensation == other.rules[0].compensation);
  CHECK(parsed(text).hash == other.hash);
  CHECK(other.hash != parsed(with_compensation(R"("mode":"drift","channels":64,"gain":0.25)")).hash);
  CHECK(other.hash != parsed(with_compensation(R"("mode":"drift","channels":32)")).hash);
  CHECK(explain(other, {.count = 64, .ranks = 2}).find("correction") == std::string::npos);
  CHECK(explain(other, {.count = 63, .ranks = 2})
            .find("without correction: the count is no multiple of channels 32") != std::string::npos);
}

TEST_CASE("policy: each fault is refused, at its pointer, with what was expected") {
  struct Case {
    std::string text, pointer, words;
  };
  const Case cases[] = {
      {"{}", "p.json:1:1: the key 'schema'", "echo-tp/policy/1"},
      {R"({"schema":"echo-tp/policy/2","rules":[]})", "/schema", "expected \"echo-tp/policy/1\""},
      {R"({"schema":"echo-tp/policy/1"})", "p.json:1:1", "'rules' is missing"},
      {R"({"schema":"echo-tp/policy/1","rules":{}})", "/rules", "expected an array of rules"},
      {R"({"schema":"echo-tp/policy/1","rules":[],"rule":[]})", "p.json:1:41", "did you mean 'rules'?"},
      {R"({"schema":"echo-tp/policy/1","rules":[],"costs":""})", "/costs", "is empty"},
      {R"({"schema":"echo-tp/policy/1","rules":[],"costs":7})", "/costs", "expected a string"},
      {R"({"schema":"echo-tp/policy/1","rules":[],"costs":"no/such.json"})", "/costs", "No such file"},
      {with_rule("3"), "/rules/0", "expected an object"},
      {with_rule(R"({"kodec":{}})"), "/rules/0", "did you mean 'codec'?"},
      {with_rule(R"({"match":[]})"), "/rules/0/match", "expected an object"},
      {with_match(R"("dtypes":[])"), "/rules/0/match", "did you mean 'dtype'?"},
      {with_match(R"("dtype":"bf16")"), "/rules/0/match/dtype",
       "expected an array such as [\"bf16\", \"fp16\"]"},
      {with_match(R"("dtype":[])"), "/rules/0/match/dtype", "is empty"},
      {with_match(R"("dtype":["bf16","fp8"])"), "/rules/0/match/dtype/1",
       "expected \"bf16\", \"fp16\" or \"fp32\""},
      {with_match(R"("dtype":["bf16","bf16"])"), "/rules/0/match/dtype/1", "is listed twice"},
      {with_match(R"("op":["max"])"), "/rules/0/match/op/0", "expected \"sum\" or \"avg\""},
      {with_match(R"("min_bytes":-4)"), "/rules/0/match/min_bytes", "is -4, negative; expected bytes"},
      {with_match(R"("min_bytes":"1Mib")"), "/rules/0/match/min_bytes", "or \"auto\""},
      {with_match(R"("min_bytes":1.5)"), "/rules/0/match/min_bytes", "is 1.5"},
      {with_match(R"("min_bytes":null)"), "/rules/0/match/min_bytes", "is null"},
      {with_match(R"("min_bytes":18446744073709551616)"), "/rules/0/match/min_bytes", "64 bits"},
      {with_match(R"("min_bytes":9223372036854775808)"), "/rules/0/match/min_bytes", "9223372036854775807"},
      {with_match(R"("max_bytes":"auto")"), "/rules/0/match/max_bytes", "expected bytes"},
      {with_match(R"("max_bytes":1024,"min_bytes":"1MiB")"), "/rules/0/match/max_bytes",
       "below min_bytes 1048576"},
      {with_match(R"("ranks":4)"), "/rules/0/match/ranks", "[2, 8]"},
      {with_match(R"("ranks":[2,4,8])"), "/rules/0/match/ranks", "has 3 elements"},
      {with_match(R"("ranks":[8,2])"), "/rules/0/match/ranks", "smallest number first"},
      {with_match(R"("ranks":[1,2])"), "/rules/0/match/ranks/0", "from 2 to 64"},
      {with_match(R"("ranks":[2,65])"), "/rules/0/match/ranks/1", "from 2 to 64"},
      {with_match(R"("communicator":"TP*")"), "/rules/0/match/communicator", "expected an object"},
      {with_match(R"("communicator":{"names":"x"})"), "/rules/0/match/communicator", "did you mean 'name'?"},
      {with_match(R"("communicator":{"name":1})"), "/rules/0/match/communicator/name", "expected a string"},
      {with_match(R"("capture":"yes")"), "/rules/0/match/capture", "expected true or false"},
      {with_rule(R"({"codec":{"bits":6}})"), "/rules/0/codec/bits", "is 6; expected 4 or 8"},
      {with_rule(R"({"codec":{"first_leg_bits":16}})"), "/rules/0/codec/first_leg_bits",
       "is 16; expected 4 or 8"},
      {with_rule(R"({"pass":{"calls":9,"last_call_bits":4}})"), "/rules/0/pass/last_call_bits",
       "is 4; expected 8"},
      {with_rule(R"({"pass":{"last_call_bits":8}})"), "/rules/0/pass/last_call_bits", "needs \"calls\""},
      {with_rule(R"({"codec":{"group":48}})"), "/rules/0/codec/group", "expected 32, 64 or 128"},
      {with_rule(R"({"codec":{"width":4}})"), "/rules/0/codec", "unknown key 'width'"},
      {with_rule(R"({"max_ctas":0})"), "/rules/0/max_ctas", "1"},
      {with_rule(R"({"max_ctas":2000})"), "/rules/0/max_ctas", "1024"},
      {with_rule(R"({"transport":"tcp"})"), "/rules/0/transport", "\"p2p\""},
      {with_rule(R"({"compensation":"ef"})"), "/rules/0/compensation", "expected an object"},
      {with_compensation(R"("mode":"sender")"), "/rules/0/compensation/mode",
       "\"owner\", \"both\", \"drift\" or \"ef\""},
      {with_compensation(R"("mode":"drift")"), "/rules/0/compensation", "channels"},
      {with_compensation(R"("mode":"drift","channels":0)"), "/rules/0/compensation/channels", "from 1 to"},
      {with_compensation(R"("mode":"drift","channels":48)"), "/rules/0/compensation/channels",
       "is 48; expected a multiple of the codec's group, 32"},
      {with_rule(R"({"compensation":{"mode":"drift","channels":64},"codec":{"group":128}})"),
       "/rules/0/compensation/channels", "a multiple of the codec's group, 128"},
      {with_compensation(R"("mode":"drift","channels":64,"gain":0)"), "/rules/0/compensation/gain",
       "expected a number above 0"},
      {with_compensation(R"("mode":"drift","channels":64,"gain":1.5)"), "/rules/0/compensation/gain",
       "from 0 to 1"},
      {with_compensation(R"("mode":"drift","channels":64,"state":"int8")"), "/rules/0/compensation/state",
       "no meaning with mode \"drift\""},
      {with_compensation(R"("mode":"drift","channels":64,"a":1)"), "/rules/0/compensation/a", "leave it out"},
      {with_compensation(R"("channels":64)"), "/rules/0/compensation/channels", "mode \"drift\" alone"},
      {with_compensation(R"("mode":"none","gain":0.5)"), "/rules/0/compensation/gain",
       "mode \"drift\" alone"},
      {with_compensation(R"("a":0.9,"b":0.2)"), "/rules/0/compensation", "a + b is 1.1; expected 1"},
      {with_compensation(R"("a":0.9,"b":0.100002)"), "/rules/0/compensation", "a + b is 1; expected 1"},
      {with_compensation(R"("a":1.5,"b":-0.5)"), "/rules/0/compensation/a", "from 0 to 1"},
      {with_compensation(R"("bf":1)"), "/rules/0/compensation/bf", "below 1"},
      {with_compensation(R"("bs":-0.1)"), "/rules/0/compensation/bs", "from 0 to 1"},
      {with_compensation(R"("bs":0.99999999999)"), "/rules/0/compensation/bs", "below 1"},
      {with_compensation(R"("mode":"ef","b":0)"), "/rules/0/compensation/b", "fixed by mode \"ef\""},
      {with_compensation(R"("state":"int4")"), "/rules/0/compensation/state",
       "\"fp32\", \"fp16\" or \"int8\""},
      {with_rule(R"({"pass":{"calls":0}})"), "/rules/0/pass/calls", "from 1 to 1000000"},
      {with_rule(R"({"pass":{"resync":"all_gather"}})"), "/rules/0/pass/resync", "[\"all_gather\"]"},
      {with_rule(R"({"pass":{"resync":["all_reduce"]}})"), "/rules/0/pass/resync/0", "\"all_gather\""},
      {with_rule(R"({"pass":{"direction":"stream"}})"), "/rules/0/pass/direction", "\"thread\" or \"none\""},
      {with_rule(R"({"max_state_bytes":-1})"), "/rules/0/max_state_bytes", "negative"},
      {with_rule(R"({"note":1})"), "/rules/0/note", "expected a string"},
      {with_rule(R"({},{},{"codec":{"bits":4,"bits":4}})"), "/rules/2/codec/bits", "duplicate key 'bits'"},
  };
  for (const Case& item : cases) {
    CAPTURE(item.text);
    const std::string error = refused(item.text);
    CAPTURE(error);
    CHECK(error.find(item.pointer) != std::string::npos);
    CHECK(error.find(item.words) != std::string::npos);
    CHECK(error.find("p.json:1:") == 0);
    CHECK(error.find('\n') == std::string::npos);
  }
}

TEST_CASE("policy: an error names line, column and pointer") {
  CHECK(
      refused(
          "{\"schema\": \"echo-tp/policy/1\",\n \"rules\": [{},\n  {\"match\":\n   {\"min_bytes\": -4}}]}") ==
      "p.json:4:18: /rules/1/match/min_bytes: is -4, negative; expected bytes such as 1048576 or \"1MiB\", "
      "or \"auto\"");
}

TEST_CASE("policy check: reports all errors in document order, at most twenty") {
  TempDir dir;
  dir.write("good.json", kExample);
  CHECK(check_policy(dir.path("good.json")).empty());
  dir.write("bad.json",
            with_rule(R"({"match":{"op":["max"],"max_bytes":-1},"codec":{"group":1}},{"transport":"tcp"})"));
  const auto errors = check_policy(dir.path("bad.json"));
  REQUIRE(errors.size() == 4);
  CHECK(errors[0].where.find("/rules/0/match/op/0") != std::string::npos);
  CHECK(errors[1].where.find("/rules/0/match/max_bytes") != std::string::npos);
  CHECK(errors[2].where.find("/rules/0/codec/group") != std::string::npos);
  CHECK(errors[3].where.find("/rules/1/transport") != std::string::npos);
  std::string many = "7";
  for (int i = 0; i < 50; ++i) many += ",7";
  dir.write("many.json", with_rule(many));
  CHECK(check_policy(dir.path("many.json")).size() == 20);
  std::string rules = "{}";
  for (int i = 0; i < 256; ++i) rules += ",{}";
  CHECK(refused(with_rule(rules)).find("expected at most 256") != std::string::npos);
}

TEST_CASE("policy check: files that are no policy give one error") {
  TempDir dir;
  dir.write("empty.json", "");
  dir.write("nul.json", std::string_view("{\"schema\":\0}", 12));
  dir.write("utf8.json", "{\"schema\":\"\xff\"}");
  dir.write("deep.json", std::string(1'000'000, '['));
  dir.write("huge.json", " ");
  REQUIRE(::truncate(dir.path("huge.json").c_str(), 100'000'000) == 0);
  for (const char* name :
       {"empty.json", "nul.json", "utf8.json", "deep.json", "huge.json", "missing.json", ""}) {
    CAPTURE(name);
    const auto errors = check_policy(dir.path(name));
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].where.find(dir.path(name)) == 0);
    CHECK(errors[0].text().size() < 300);
    CHECK(!read_policy(dir.path(name)));
  }
}

TEST_CASE("policy: the written document reads back as the same policy") {
  std::mt19937 random(11);
  const auto pick = [&](unsigned below) { return random() % below; };
  for (int round = 0; round < 300; ++round) {
    PolicyRule rule;
    rule.match.dtypes =
        pick(2) != 0 ? std::vector{DataType::kFp32, DataType::kBf16} : std::vector{DataType::kFp16};
    rule.match.ops = pick(2) != 0 ? std::vector{ReduceOp::kAvg} : std::vector{ReduceOp::kSum, ReduceOp::kAvg};
    rule.match.min_bytes = static_cast<std::int64_t>(pick(1u << 30));
    if (pick(2) != 0) rule.match.max_bytes = rule.match.min_bytes + static_cast<std::int64_t>(pick(1000));
    rule.match.min_ranks = 2 + static_cast<int>(pick(8));
    rule.match.max_ranks = rule.match.min_ranks + static_cast<int>(pick(8));
    if (pick(2) != 0) rule.match.communicator_name = "TP \"*\" \xc3\xa4";
    rule.match.in_capture = pick(2) != 0;
    rule.codec.group = 32 << pick(3);
    rule.transport = static_cast<TransportChoice>(pick(3));
    if (pick(2) == 1) rule.max_ctas = 1 + static_cast<int>(pick(64));
    rule.compensation.mode = pick(2) != 0 ? CompensationMode::kOwner : CompensationMode::kBoth;
    rule.compensation.a = static_cast<float>(pick(1001)) / 1000.0f;
    rule.compensation.b = 1.0f - rule.compensation.a;
    rule.compensation.bf = static_cast<float>(pick(1000)) / 1000.0f;
    rule.compensation.bs = static_cast<float>(pick(1000)) / 1000.0f;
    rule.compensation.state = static_cast<StateFormat>(pick(3));
    if (pick(2) != 0) rule.pass.calls = 1 + pick(100);
    if (pick(2) != 0) rule.pass.resync = {"all_gather", "send"};
    rule.pass.direction = static_cast<DirectionSource>(pick(2));
    if (pick(2) != 0) rule.max_state_bytes = static_cast<std::int64_t>(pick(1u << 30));
    rule.note = "n\n";
    Policy policy;
    policy.rules = {rule, rule};
    const std::string text = policy_json(policy);
    CAPTURE(text);
    const Policy back = parsed(text);
    CHECK(policy_json(back) == text);
    CHECK(back.hash == policy_hash(policy));
    const PolicyRule& read = back.rules.at(1);
    CHECK(read.compensation == rule.compensation);
    CHECK(read.codec == rule.codec);
    CHECK(read.match.min_bytes == rule.match.min_bytes);
    CHECK(read.match.max_bytes == rule.match.max_bytes);
    CHECK(read.match.communicator_name == rule.match.communicator_name);
    CHECK(read.match.in_capture == rule.match.in_capture);
    CHECK(read.match.max_ranks == rule.match.max_ranks);
    CHECK(read.pass.calls == rule.pass.calls);
    CHECK(read.pass.resync == rule.pass.resync);
    CHECK(read.max_state_bytes == rule.max_state_bytes);
    CHECK(read.note == rule.note);
  }
}

TEST_CASE("policy: documents that mean the same have the same hash") {
  const std::uint64_t hash = parsed(with_rule("{}")).hash;
  CHECK(hash != 0);
  const std::string same[] = {
      with_rule(R"({"note":"words"})"),
      with_rule(R"({"match":{"dtype":["fp16","bf16"],"min_bytes":"0B","ranks":[2,64]}})"),
      with_rule(R"({"codec":{"group":32.0,"bits":4},"transport":"auto"})"),
      with_rule("\n {\"compensation\" : {\"bs\":0.90,\"mode\":\"both\",\"a\":9e-1 } , "
                "\"pass\":{\"direction\":\"thread\"}}"),
      R"({"rules":[{}],"schema":"echo-tp/policy/1"})",
  };
  for (const std::string& text : same) {
    CAPTURE(text);
    CHECK(parsed(text).hash == hash);
  }
  CHECK(parsed(with_match(R"("min_bytes":"1MiB")")).hash ==
        parsed(with_match(R"("min_bytes":1048576)")).hash);
  CHECK(parsed(with_compensation(R"("mode":"ef")")).hash == parsed(with_compensation(R"("a":1,"b":0)")).hash);
  CHECK(parsed(with_compensation(R"("mode":"none","a":0.5,"b":0.5)")).hash ==
        parsed(with_compensation(R"("mode":"none","state":"fp32")")).hash);
}

TEST_CASE("policy: whatever changes a call's treatment changes the hash") {
  const std::string different[] = {
      with_rule("{}"),
      with_rule("{},{}"),
      R"({"schema":"echo-tp/policy/1","rules":[]})",
      with_match(R"("dtype":["bf16"])"),
      with_match(R"("op":["sum","avg"])"),
      with_match(R"("min_bytes":1)"),
      with_match(R"("max_bytes":1)"),
      with_match(R"("ranks":[2,8])"),
      with_match(R"("ranks":[3,64])"),
      with_match(R"("communicator":{"name":"TP"})"),
      with_match(R"("capture":false)"),
      with_rule(R"({"codec":{"group":64}})"),
      with_rule(R"({"transport":"staged"})"),
      with_rule(R"({"transport":"p2p"})"),
      with_rule(R"({"max_ctas":8})"),
      with_compensation(R"("mode":"owner")"),
      with_compensation(R"("mode":"none")"),
      with_compensation(R"("a":0.8)"),
      with_compensation(R"("bf":0.1)"),
      with_compensation(R"("bs":0.8)"),
      with_compensation(R"("state":"fp16")"),
      with_rule(R"({"pass":{"calls":3}})"),
      with_rule(R"({"pass":{"resync":["send"]}})"),
      with_rule(R"({"pass":{"direction":"none"}})"),
      with_rule(R"({"max_state_bytes":0})"),
  };
  std::vector<std::uint64_t> hashes;
  for (const std::string& text : different) hashes.push_back(parsed(text).hash);
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end());
}

TEST_CASE("policy: auto without a cost table is 1 MiB, and stays auto in the document") {
  const Policy policy = parsed(with_match(R"("min_bytes":"auto")"));
  CHECK(policy.rules[0].match.min_bytes == 1048576);
  CHECK(policy.rules[0].match.min_bytes_auto);
  CHECK(policy_json(policy).find("\"min_bytes\": \"auto\"") != std::string::npos);
  CHECK(policy.hash == parsed(with_match(R"("min_bytes":1048576)")).hash);
}

TEST_CASE(
    "policy: auto is resolved from the cost table beside the policy file, and the hash follows the "
    "threshold") {
  TempDir dir;
  std::filesystem::create_directory(dir.path("tables"));
  const std::string policy_text = R"({"schema":"echo-tp/policy/1","costs":"tables/c.json",
    "rules":[{"match":{"min_bytes":"auto","ranks":[2,4]}}]})";
  dir.write("p.json", policy_text);
  const auto hash_with = [&](const std::string& entries, std::int64_t threshold) {
    dir.write("tables/c.json", cost_table(entries));
    auto policy = read_policy(dir.path("p.json"));
    REQUIRE_MESSAGE(policy, (policy ? "" : policy.error().text()));
    CHECK(policy->costs == dir.path("tables/c.json"));
    CHECK(policy->rules[0].match.min_bytes == threshold);
    const Policy again = parsed(policy_json(*policy), "/elsewhere");
    CHECK(again.hash == policy->hash);
    return policy->hash;
  };
  const auto first = hash_with(cost_entry(2, 1000, 10, 20) + "," + cost_entry(2, 2000, 20, 10), 2000);
  const auto second = hash_with(cost_entry(2, 1000, 10, 20) + "," + cost_entry(2, 3000, 20, 10), 3000);
  const auto again = hash_with(cost_entry(2, 2000, 99, 10), 2000);
  CHECK(first != second);
  CHECK(first == again);
  hash_with(cost_entry(2, 1000, 10, 20), INT64_MAX);
  dir.write("tables/c.json", cost_table(cost_entry(8, 1000, 10, 5)));
  auto none = read_policy(dir.path("p.json"));
  REQUIRE(!none);
  CHECK(none.error().text().find(
            "/rules/0/match/min_bytes: is \"auto\", but the cost table has no measurement of Echo "
            "for 2 to 4 ranks") != std::string::npos);
  dir.write("tables/c.json", "{");
  const auto errors = check_policy(dir.path("p.json"));
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].text().find("/costs: cost table: " + dir.path("tables/c.json") + ":1:1: not valid JSON") !=
        std::string::npos);
}

TEST_CASE("policy: a threshold of never keeps every message out") {
  TempDir dir;
  dir.write("c.json", cost_table(cost_entry(2, 1000, 10, 20)));
  const Policy policy =
      parsed(R"({"schema":"echo-tp/policy/1","costs":"c.json","rules":[{"match":{"min_bytes":"auto"}}]})",
             dir.path(""));
  CHECK(match_policy(policy, {.count = INT64_MAX, .ranks = 2}) == -1);
  CHECK(explain(policy, {.count = 1 << 30, .ranks = 2}).find("no gain at any size") != std::string::npos);
}

TEST_CASE("policy: each condition decides alone, and its bound belongs to the rule") {
  const Policy policy = parsed(kExample);
  const CallFacts fits{.count = 131072,
                       .dtype = DataType::kBf16,
                       .op = ReduceOp::kSum,
                       .ranks = 8,
                       .communicator_name = "TP0"};
  const auto unmet = [&](auto change) {
    CallFacts facts = fits;
    change(facts);
    CHECK(match_policy(policy, facts) == (unmet_conditions(policy.rules[0], facts) == 0 ? 0 : -1));
    return unmet_conditions(policy.rules[0], facts);
  };
  CHECK(unmet([](CallFacts&) {}) == 0);
  CHECK(unmet([](CallFacts& f) { f.dtype = DataType::kFp16; }) == 0);
  CHECK(unmet([](CallFacts& f) { f.dtype = DataType::kFp32; }) == kUnmetDtype);
  CHECK(unmet([](CallFacts& f) { f.op = ReduceOp::kAvg; }) == kUnmetOp);
  CHECK(unmet([](CallFacts& f) { f.count = 131071; }) == kUnmetMinBytes);
  CHECK(unmet([](CallFacts& f) { f.count = 1 << 29; }) == 0);
  CHECK(unmet([](CallFacts& f) { f.count = (1 << 29) + 1; }) == kUnmetMaxBytes);
  CHECK(unmet([](CallFacts& f) { f.ranks = 2; }) == 0);
  CHECK(unmet([](CallFacts& f) { f.ranks = 1; }) == kUnmetRanks);
  CHECK(unmet([](CallFacts& f) { f.ranks = 9; }) == kUnmetRanks);
  CHECK(unmet([](CallFacts& f) { f.communicator_name = "DP0"; }) == kUnmetName);
  CHECK(unmet([](CallFacts& f) { f.communicator_name = ""; }) == kUnmetName);
  CHECK(unmet([](CallFacts& f) { f.capturing = true; }) == kUnmetCapture);
  CHECK(unmet([](CallFacts& f) { f.capturing = true, f.count = 1; }) == (kUnmetCapture | kUnmetMinBytes));
}

TEST_CASE("policy: the first rule that matches wins") {
  const Policy policy = parsed(
      with_rule(R"({"match":{"min_bytes":1000}},{"match":{"min_bytes":100}},{"match":{"min_bytes":10}})"));
  CHECK(match_policy(policy, {.count = 500, .ranks = 2}) == 0);
  CHECK(match_policy(policy, {.count = 499, .ranks = 2}) == 1);
  CHECK(match_policy(policy, {.count = 49, .ranks = 2}) == 2);
  CHECK(match_policy(policy, {.count = 4, .ranks = 2}) == -1);
  CHECK(match_policy(Policy{}, {.count = 500, .ranks = 2}) == -1);
}

TEST_CASE("policy: name patterns") {
  CHECK(glob_matches("TP*", "TP"));
  CHECK(glob_matches("TP*", "TP_GROUP_0"));
  CHECK(glob_matches("*", ""));
  CHECK(glob_matches("*tensor*par?llel*", "the tensor_model_parallel group"));
  CHECK(glob_matches("a*b*c", "aXbXbc"));
  CHECK(glob_matches("", ""));
  CHECK(glob_matches("[a]", "[a]"));
  CHECK(!glob_matches("TP", "TP0"));
  CHECK(!glob_matches("TP?", "TP"));
  CHECK(!glob_matches("TP*", "tp0"));
  CHECK(!glob_matches("*a", "ab"));
  CHECK(!glob_matches("", "x"));
  CHECK(!glob_matches(std::string(128, '*') + "b", std::string(4096, 'a')));
}

TEST_CASE("policy explain: which rule fires, and why those before it do not") {
  const Policy policy = parsed(with_rule(R"({"match":{"dtype":["fp32"],"min_bytes":4096}},
    {"match":{"communicator":{"name":"TP*"}},"codec":{"group":64},"compensation":{"mode":"owner"}})"));
  CHECK(explain(policy, {.count = 100, .ranks = 2, .communicator_name = "TP1"}) ==
        "rule 0: no: dtype bf16 is not among fp32; 200 bytes is below min_bytes 4096\n"
        "rule 1: matches; compressed with 4 bits in groups of 64, transport auto, compensation owner\n");
  CHECK(explain(policy, {.count = 100, .ranks = 2, .communicator_name = "DP"})
            .find("rule 1: no: communicator \"DP\" does not match \"TP*\"\nno rule matches; forwarded to "
                  "NCCL\n") != std::string::npos);
  CHECK(explain(Policy{}, {}) == "the policy has no rules; forwarded to NCCL\n");
}

TEST_CASE("policy: every policy that is shipped is valid") {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ECHO_TP_SOURCE_SHARE "/policies")) {
    CAPTURE(entry.path().string());
    for (const Error& error : check_policy(entry.path().string())) FAIL_CHECK(error.text());
    ++seen;
  }
  CHECK(seen >= 3);
  const auto policy = read_policy(ECHO_TP_SOURCE_SHARE "/policies/default.json");
  REQUIRE(policy);
  CHECK(match_policy(*policy, {.count = 1 << 19, .ranks = 2}) == 0);
  CHECK(match_policy(*policy, {.count = (1 << 19) - 1, .ranks = 2}) == -1);
}

TEST_CASE("policy: transport and its limit of thread blocks") {
  const auto policy =
      parse_policy(with_rule(R"({"transport":"p2p","max_ctas":16},{"transport":"staged"},{},)"
                             R"({"transport":"p2p","compensation":{"mode":"drift","channels":4096}})"),
                   "p.json", ".");
  REQUIRE(policy);
  REQUIRE(policy->rules.size() == 4);
  CHECK(policy->rules[0].transport == TransportChoice::kP2p);
  CHECK(policy->rules[0].max_ctas == 16);
  CHECK(!policy->rules[2].max_ctas);
  CHECK(allows_p2p(policy->rules[0]));
  CHECK(!allows_p2p(policy->rules[1]));
  CHECK(allows_p2p(policy->rules[2]));
  PolicyRule drift = policy->rules[0];
  drift.compensation.mode = CompensationMode::kDrift;
  drift.match.min_bytes = 1000;
  drift.match.p2p_min_bytes = 10;  // holds for calls that go p2p alone
  CHECK(unmet_conditions(drift, {.count = 100, .ranks = 2, .p2p = true}) == kUnmetMinBytes);
  CHECK(!allows_p2p(policy->rules[3]));  // the fused kernel knows no channels
  CHECK(transport_of(policy->rules[3], 2, 1 << 20) == TransportChoice::kStaged);
}

TEST_CASE("policy: the widest code of any rule, leg or last call decides the transport's scratch") {
  Policy policy;
  CHECK(widest_bits(policy) == 4);
  policy.rules.resize(2);
  CHECK(widest_bits(policy) == 4);
  policy.rules[1].codec.first_leg_bits = 8;
  CHECK(widest_bits(policy) == 8);
  policy.rules[1].codec.first_leg_bits = 4;
  policy.rules[0].pass.last_call_bits = 8;
  CHECK(widest_bits(policy) == 8);
}

TEST_CASE("policy: a cost table that knows both transports settles both thresholds and the choice by size") {
  TempDir dir;
  dir.write("p.json",
            R"({"schema":"echo-tp/policy/1","costs":"c.json","rules":[{"match":{"min_bytes":"auto"}}]})");
  const auto p2p = [](std::string entry) {
    return entry.insert(entry.find('{') + 1, R"("transport":"p2p",)");
  };
  const auto read = [&](const std::string& entries) {
    dir.write("c.json", cost_table(entries));
    auto policy = read_policy(dir.path("p.json"));
    REQUIRE_MESSAGE(policy, (policy ? "" : policy.error().text()));
    return *std::move(policy);
  };
  const std::string staged = cost_entry(2, 1000, 10, 10) + "," + cost_entry(2, 2000, 20, 10);
  const Policy both =
      read(staged + "," + p2p(cost_entry(2, 1000, 10, 5)) + "," + p2p(cost_entry(2, 2000, 20, 12)));
  const PolicyRule& rule = both.rules[0];
  CHECK(rule.match.min_bytes == 2000);
  CHECK(rule.match.p2p_min_bytes == 1000);
  CHECK(transport_of(rule, 2, 1999) == TransportChoice::kP2p);
  CHECK(transport_of(rule, 2, 2000) == TransportChoice::kStaged);
  // The smaller threshold holds only where the ranks agreed on p2p.
  CallFacts facts{.count = 500, .ranks = 2};
  CHECK(unmet_conditions(rule, facts) == kUnmetMinBytes);
  facts.p2p = true;
  CHECK(unmet_conditions(rule, facts) == 0);
  facts.count = 499;
  CHECK(unmet_conditions(rule, facts) == kUnmetMinBytes);
  CHECK(explain(both, facts).find("998 bytes is below min_bytes 1000 (auto)") != std::string::npos);
  // Ranks with another choice by size, or another threshold, have another hash.
  const Policy slower =
      read(staged + "," + p2p(cost_entry(2, 1000, 10, 5)) + "," + p2p(cost_entry(2, 2000, 20, 9)));
  CHECK(transport_of(slower.rules[0], 2, 2000) == TransportChoice::kP2p);
  CHECK(slower.hash != both.hash);
  CHECK(read(staged).hash != both.hash);
  CHECK(!read(staged).rules[0].match.p2p_min_bytes);
  // Measured with p2p alone: without it, nothing says that Echo gains.
  const Policy direct = read(p2p(cost_entry(2, 1000, 10, 5)));
  CHECK(direct.rules[0].match.p2p_min_bytes == 1000);
  CHECK(direct.rules[0].match.min_bytes == INT64_MAX);
}
