// SPDX-License-Identifier: Apache-2.0
// The JSON Schemas and the readers must accept and refuse the same documents. Mutates valid documents one
// value at a time, asks the reader, and lets python3-jsonschema judge the same texts. Exit code 77: that
// package is not installed.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shim/costs.hpp"
#include "shim/policy_json.hpp"
#include "shim/receipt.hpp"
#include "shim/run_report.hpp"
#include "tests/shim/temp_dir.hpp"

using namespace echotp;
using Json = nlohmann::json;

namespace {

const TempDir* scratch = nullptr;

bool policy_accepts(const std::string& text) {
  return static_cast<bool>(parse_policy(text, "p", ""));
}
bool costs_accepts(const std::string& text) {
  return static_cast<bool>(parse_costs(text, "c"));
}
bool receipt_accepts(const std::string& text) {
  scratch->write("receipt-x-1.json", text);
  std::vector<std::string> problems;
  return read_receipts(scratch->path(""), problems).size() == 1;
}

const char* const kPolicy = R"({"schema":"echo-tp/policy/1","rules":[{"note":"n",
  "match":{"dtype":["bf16","fp32"],"op":["sum","avg"],"min_bytes":1024,"max_bytes":"1GiB","ranks":[2,8],
           "communicator":{"name":"TP*"},"capture":true},
  "codec":{"bits":4,"group":32,"first_leg_bits":8},"transport":"staged",
  "compensation":{"mode":"both","a":0.5,"bf":0.25,"b":0.5,"bs":0.5,"state":"int8"},
  "pass":{"calls":3,"resync":["all_gather"],"direction":"none","last_call_bits":8},"max_state_bytes":1}]})";

const char* const kDriftPolicy = R"({"schema":"echo-tp/policy/1","rules":[{"codec":{"group":32},
  "compensation":{"mode":"drift","channels":128,"gain":0.25}}]})";

const char* const kCosts =
    R"({"schema":"echo-tp/costs/1","environment":{"gpu":"g","driver":"d","cuda":"c","nccl":"n",
  "host":"h","link":"l","nccl_env":{"A":"b"}},
  "settings":{"background_path":"p","background_alone_gbs":2},"entries":[{"ranks":2,"dtype":"bf16","bytes":100,"transport":"staged",
  "codec":{"bits":4,"group":32,"first_leg_bits":8},"background":"copy","background_nccl_gbs":3,"why_not":"w",
  "compensation":{"mode":"both","a":0.9,"bf":0,"b":0.1,"bs":0.9,"state":"int8"},
  "nccl_us":{"median":10,"p10":9,"p90":11,"samples":5},"echo_us":{"median":5,"p10":4,"p90":6,"samples":5},
  "wire_bytes":7,"bytes_equal":true}]})";

// Values that a place may be given, right or wrong; the reader decides which.
const char* const kValues[] = {"null",
                               "true",
                               "false",
                               "0",
                               "1",
                               "2",
                               "4",
                               "7",
                               "64",
                               "65",
                               "128",
                               "-1",
                               "0.5",
                               "1.0",
                               "4.0",
                               "2.5",
                               "1e300",
                               "[]",
                               "{}",
                               "[2,4]",
                               "[1,4]",
                               "[2]",
                               "[2,\"4\"]",
                               "[2,4,8]",
                               "[2.0,4.0]",
                               "[\"sum\"]",
                               "[\"bf16\"]",
                               "[\"bf16\",\"bf16\"]",
                               "[\"send\",\"recv\"]",
                               "[7]",
                               "\"\"",
                               "\"auto\"",
                               "\"1MiB\"",
                               "\"1 KB\"",
                               "\"1TiB\"",
                               "\"-1\"",
                               "\"none\"",
                               "\"owner\"",
                               "\"ef\"",
                               "\"staged\"",
                               "\"p2p\"",
                               "\"thread\"",
                               "\"fp16\"",
                               "\"sum\"",
                               "9223372036854775807",
                               "1000000",
                               "1000001",
                               "{\"name\":\"x\"}",
                               "{\"name\":1}",
                               "{\"other\":1}",
                               "{\"mode\":\"ef\"}",
                               "{\"mode\":\"ef\",\"a\":1}",
                               "{\"mode\":\"none\"}",
                               "{\"median\":1}",
                               "{\"median\":0}",
                               "\"0x0123456789abcdef\"",
                               "\"0x1\"",
                               "[\"text\"]",
                               "{\"no_rule\":1}",
                               "{\"no_rule\":-1}",
                               "{\"bogus\":1}",
                               "[{\"bytes\":1,\"calls\":2,\"compressed\":3}]",
                               "[{\"bytes\":-1}]"};

struct Document {
  std::string kind;
  std::string text;
  bool accepted;
};

// What the reader checks beyond the schema; a document with such a fault says nothing about agreement.
bool beyond_schema(const std::string& kind, const Json& document) {
  if (kind != "policy" || !document.is_object() || !document.contains("rules") ||
      !document["rules"].is_array())
    return false;
  for (const Json& rule : document["rules"]) {
    if (!rule.is_object()) continue;
    const Json match = rule.value("match", Json());
    const auto ranks = match.is_object() ? match.value("ranks", Json()) : Json();
    if (ranks.is_array() && ranks.size() == 2 && ranks[0].is_number() && ranks[1].is_number() &&
        ranks[0] > ranks[1])
      return true;
    if (match.is_object() && match.contains("max_bytes")) {
      const Json& high = match["max_bytes"];
      const Json low = match.value("min_bytes", Json());
      const double limit = high.is_number() ? high.get<double>()
                           : high == "1GiB" ? 1073741824.0
                           : high == "1MiB" ? 1048576.0
                                            : 1000.0;
      const double least = low.is_number() ? low.get<double>()
                           : low == "1MiB" ? 1048576.0
                           : low == "1 KB" ? 1000.0
                                           : 0.0;
      if (least > limit) return true;
    }
    const Json gains = rule.value("compensation", Json());
    if (gains.is_object() && gains.value("mode", Json()) != "ef" && gains.contains("a") &&
        gains.contains("b") && gains["a"].is_number() && gains["b"].is_number() &&
        gains["a"].get<double>() + gains["b"].get<double>() != 1) {
      return true;
    }
  }
  return false;
}

void add_mutations(const std::string& kind, const std::string& base,
                   const std::function<bool(const std::string&)>& accepts, std::vector<Document>& out) {
  const auto add = [&](const Json& document) {
    if (!beyond_schema(kind, document)) out.push_back({kind, document.dump(), accepts(document.dump())});
  };
  const Json document = Json::parse(base);
  add(document);
  if (!out.back().accepted) {
    std::fprintf(stderr, "the %s to start from is refused\n", kind.c_str());
    std::exit(1);
  }
  std::vector<std::string> places = {""};
  const Json flat = document.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (std::size_t end = pointer.size(); end != std::string::npos && end > 0;
         end = pointer.rfind('/', end - 1)) {
      places.push_back(pointer.substr(0, end));
    }
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  for (const std::string& place : places) {
    const Json::json_pointer at(place);
    for (const char* value : kValues) {
      Json changed = document;
      changed[at] = Json::parse(value);
      add(changed);
    }
    if (!place.empty() && document[at.parent_pointer()].is_object()) {
      Json changed = document;
      changed[at.parent_pointer()].erase(at.back());
      add(changed);
    }
    if (document[at].is_object()) {
      Json changed = document;
      changed[at]["unheard_of"] = 1;
      add(changed);
    }
  }
}

RunReport sample_report() {
  Receipt receipt;
  receipt.host = "h";
  receipt.policy_hash = 5;
  CommunicatorReceipt c;
  c.rank = 0;
  c.ranks = 2;
  c.calls = 3;
  c.by_reason.fill(1);
  c.by_bytes = {{8, {1, 1}}};
  c.echo_wire_bytes = 10;
  receipt.communicators = {c, CommunicatorReceipt{}};
  return merge_receipts(
      {.command = {"x"}, .exit_code = 139, .mode = "compress", .policy_path = "p", .policy_hash = 5},
      {receipt}, {});
}

const char* const kJudge = R"(
import json, sys
from jsonschema import Draft202012Validator
schemas = {k: json.load(open(f'{sys.argv[1]}/{k}.schema.json')) for k in ('policy', 'costs', 'receipt', 'run')}
for s in schemas.values():
    Draft202012Validator.check_schema(s)
judges = {k: Draft202012Validator(s) for k, s in schemas.items()}
wrong = accepted = total = 0
for line in open(sys.argv[2]):
    case = json.loads(line)
    errors = [e.message for e in judges[case['kind']].iter_errors(json.loads(case['text']))]
    total += 1
    accepted += case['accepted']
    if (not errors) != case['accepted']:
        wrong += 1
        if wrong <= 20:
            print(case['kind'], 'reader', 'accepts' if case['accepted'] else 'refuses', [e[:80] for e in errors[:1]], case['text'][:1000])
print(f'{total} documents, {accepted} accepted, {wrong} disagreements')
sys.exit(1 if wrong or accepted < 100 or total - accepted < 1000 else 0)
)";

}  // namespace

int main() {
  if (std::system("python3 -c 'import jsonschema; jsonschema.Draft202012Validator' 2>/dev/null") != 0) {
    std::puts("SKIPPED (python3-jsonschema is not installed)");
    return 77;
  }
  const TempDir dir;
  const TempDir receipts;
  scratch = &receipts;
  std::vector<Document> documents;
  add_mutations("policy", kPolicy, policy_accepts, documents);
  add_mutations("policy", kDriftPolicy, policy_accepts, documents);
  add_mutations("costs", kCosts, costs_accepts, documents);
  const RunReport report = sample_report();
  add_mutations("receipt", receipt_json(report.processes[0]), receipt_accepts, documents);
  documents.push_back({"run", run_report_json(report), true});
  documents.push_back({"run",
                       run_report_json(merge_receipts(
                           {.command = {}, .exit_code = {}, .mode = "observe", .policy_path = ""}, {}, {})),
                       true});
  documents.push_back({"policy", policy_json(*parse_policy(kPolicy, "p", "")), true});
  for (const auto& entry : std::filesystem::directory_iterator(ECHO_TP_SOURCE_SHARE "/policies")) {
    std::ifstream file(entry.path());
    documents.push_back({"policy", std::string(std::istreambuf_iterator<char>(file), {}), true});
  }
  std::string lines;
  for (const Document& document : documents) {
    lines +=
        Json{{"kind", document.kind}, {"text", document.text}, {"accepted", document.accepted}}.dump() + "\n";
  }
  dir.write("documents.jsonl", lines);
  dir.write("judge.py", kJudge);
  const std::string command = "python3 '" + dir.path("judge.py") + "' '" ECHO_TP_SOURCE_SHARE "/schemas' '" +
                              dir.path("documents.jsonl") + "'";
  return std::system(command.c_str()) == 0 ? 0 : 1;
}
