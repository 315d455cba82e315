// SPDX-License-Identifier: Apache-2.0
// echo-tp policy: checks a policy, shows what it says in full, explains what it does to one call.
#include "cli/args.hpp"
#include "cli/text.hpp"
#include "shim/policy.hpp"
#include "shim/policy_json.hpp"

#include <nlohmann/json.hpp>

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp policy check FILE
       echo-tp policy show FILE
       echo-tp policy explain FILE --bytes SIZE --ranks N --dtype TYPE [--op OP] [--communicator NAME] [--capturing]

A policy is an ordered list of rules; the first that matches a call decides how it is compressed; without a match the call
goes to NCCL. check prints every error; show prints the document with all defaults written out; explain says which rule a
call would meet, and why not the ones before it.
All keys, with defaults, units and examples: share/doc/policy.md (installed: share/echo-tp/doc/policy.md).

Options:
      --bytes SIZE          of the message: bytes, or with KiB, MiB, GiB (1024s), KB, MB, GB (1000s), such as 4MiB
      --ranks N             of the communicator
      --dtype TYPE          bf16, fp16 or fp32
      --op OP               sum (default) or avg
      --communicator NAME   its name, if the job gives one
      --capturing           the call is inside CUDA graph capture
      --json                the answer as a document on standard output
  -q, --quiet               results and errors only
      --color WHEN          auto, always or never
  -h, --help                this text

Examples:
  echo-tp policy check policy.json
  echo-tp policy explain policy.json --bytes 4MiB --ranks 2 --dtype bf16

Exit codes: 0 valid; 2 not valid, no such file, or bad usage.
)";

using Json = nlohmann::ordered_json;

struct Options {
  std::optional<std::string> action, file, dtype, op, communicator;
  std::optional<std::int64_t> bytes, ranks;
  bool capturing = false;
  bool json = false;
};

std::string dumped(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int check(Session& session, const Options& options) {
  const std::vector<Error> errors = check_policy(*options.file);
  for (const Error& error : errors) session.terminal->error(error.text());
  if (options.json) {
    Json out;
    out["schema"] = "echo-tp/policy-check/1";
    out["policy"] = *options.file;
    out["valid"] = errors.empty();
    out["errors"] = Json::array();
    for (const Error& error : errors) out["errors"].push_back({{"where", error.where}, {"what", error.what}});
    session.terminal->out(dumped(out));
  } else if (errors.empty()) {
    session.terminal->note(*options.file + " is valid");
  }
  return errors.empty() ? kExitOk : kExitUsage;
}

int show(Session& session, const Policy& policy, const Options& options) {
  session.terminal->out(policy_json(policy));
  if (options.json) return kExitOk;
  if (policy.rules.empty()) session.terminal->note("no rules: every call goes to NCCL");
  for (std::size_t i = 0; i < policy.rules.size(); ++i) {
    const PolicyMatch& match = policy.rules[i].match;
    if (!match.min_bytes_auto) continue;
    session.terminal->note(
        "rule " + std::to_string(i) + ": min_bytes \"auto\" is " +
        (match.min_bytes == INT64_MAX ? std::string("never: Echo is not faster at any measured size")
                                      : show_bytes(match.min_bytes)) +
        (policy.costs.empty() ? ", since the policy names no cost table" : ", from " + policy.costs));
  }
  return kExitOk;
}

int explain_call(Session& session, const Policy& policy, const Options& options) {
  const auto missing = [&](const char* what) {
    return fail(session, kPolicyCommand,
                {ErrorCode::kBadInput,
                 std::string("missing: ") + what + "; for example --bytes 4MiB --ranks 2 --dtype bf16",
                 "policy explain"});
  };
  if (!options.bytes) return missing("--bytes SIZE");
  if (!options.ranks) return missing("--ranks N");
  if (!options.dtype) return missing("--dtype TYPE");
  CallFacts facts;
  facts.dtype = *options.dtype == "bf16"   ? DataType::kBf16
                : *options.dtype == "fp16" ? DataType::kFp16
                                           : DataType::kFp32;
  if (*options.bytes % element_bytes(facts.dtype) != 0)
    return fail(session, kPolicyCommand,
                {ErrorCode::kBadInput, "not a whole number of " + *options.dtype + " elements", "--bytes"});
  facts.count = *options.bytes / element_bytes(facts.dtype);
  facts.ranks = static_cast<int>(*options.ranks);
  facts.op = options.op.value_or("sum") == "sum" ? ReduceOp::kSum : ReduceOp::kAvg;
  const std::string communicator = options.communicator.value_or("");
  facts.communicator_name = communicator;
  facts.capturing = options.capturing;
  if (options.json) {
    Json out;
    out["schema"] = "echo-tp/policy-explain/1";
    const int rule = match_policy(policy, facts);
    out["rule"] = rule >= 0 ? Json(rule) : Json(nullptr);
    out["text"] = explain(policy, facts);
    session.terminal->out(dumped(out));
  } else {
    std::string text = explain(policy, facts);
    if (text.empty() || text.back() != '\n') text += '\n';
    session.terminal->out(text);
  }
  return kExitOk;
}

int run(Session& session) {
  Options options;
  OptionSet set(kPolicyCommand);
  set.positional("check, show or explain", options.action);
  set.positional("FILE", options.file);
  set.bytes("--bytes", options.bytes);
  set.integer("--ranks", options.ranks, 1, 1'000'000);
  set.choice("--dtype", options.dtype, {"bf16", "fp16", "fp32"});
  set.choice("--op", options.op, {"sum", "avg"});
  set.text("--communicator", options.communicator);
  set.flag("--capturing", options.capturing);
  set.json_on_stdout(options.json);
  if (const auto code = set.parse(session)) return *code;
  if (*options.action == "check") return check(session, options);
  if (*options.action != "show" && *options.action != "explain") {
    return fail(session, kPolicyCommand,
                {ErrorCode::kBadInput, unknown_word("action", *options.action, {"check", "show", "explain"}),
                 "policy"});
  }
  const auto policy = read_policy(*options.file);
  if (!policy) return fail(session, kPolicyCommand, policy.error());
  return *options.action == "show" ? show(session, *policy, options)
                                   : explain_call(session, *policy, options);
}

}  // namespace

const Command kPolicyCommand = {"policy", "check, show or explain a policy", kHelp, false, kExitUsage, run};

}  // namespace echotp
