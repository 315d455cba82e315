// SPDX-License-Identifier: Apache-2.0
// Documents of estimate and ab against their JSON Schemas, by python3-jsonschema. Keys that a schema does not
// name are errors here, so that neither side grows alone. Exit code 77: that package is not installed.
// Arguments: folder of the schemas, scratch folder.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "profiles/ab_compare.hpp"
#include "profiles/estimate.hpp"
#include "synthetic_trace.hpp"

namespace {

using namespace echotp;

const char* const kJudge = R"(
import json, sys
try:
    import jsonschema
except ImportError:
    sys.exit(77)
def close(node):
    if isinstance(node, dict):
        if 'properties' in node and '$id' not in node.get('properties', {}) and 'allOf' not in node:
            if node['properties'].get('schema', {}).get('const') != 'echo-tp/policy/1':
                node.setdefault('additionalProperties', False)
        for key, value in node.items():
            close(value)
    elif isinstance(node, list):
        for value in node:
            close(value)
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
close(schema)
if sys.argv[1].endswith('ab.schema.json'):
    schema['$defs']['result']['properties']['gain'] = {}
bad = 0
for name in sys.argv[2:]:
    for error in jsonschema.Draft202012Validator(schema).iter_errors(json.load(open(name))):
        print(name, list(error.absolute_path), error.message[:200])
        bad += 1
sys.exit(1 if bad else 0)
)";

std::string folder;

std::string write(const std::string& name, const std::string& text) {
  const std::string path = folder + "/" + name;
  std::ofstream(path) << text;
  return path;
}

std::vector<std::string> estimates() {
  std::vector<std::string> out;
  const auto add = [&](const Trace& trace, const EstimateOptions& options) {
    const auto it = estimate(trace, options);
    if (!it) {
      std::printf("no estimate: %s\n", it.error().text().c_str());
      std::exit(1);
    }
    out.push_back(write("estimate" + std::to_string(out.size()) + ".json", estimate_json(*it)));
  };
  EstimateOptions measured;
  measured.costs.emplace();
  measured.costs->entries.resize(1);
  measured.costs->entries[0].bytes = 16 << 20;
  measured.costs->entries[0].nccl_us = CostSpread{80, 75, 90, 20};
  measured.costs->entries[0].echo_us = CostSpread{30, 28, 33, 20};
  measured.costs_label = "costs.json";
  measured.profile_label = "job.echoprof";
  add(test::serial_job({.ranks = 2, .jitter = 0.1}).trace(), measured);
  add(test::serial_job({.ranks = 2, .transfer_us = 5000, .range = ""}).trace(), EstimateOptions{});
  add(test::serial_job({.ranks = 1}).trace(), measured);
  add(test::overlapped_job({.ranks = 3}, [](int, int) { return 200.0; }).trace(), measured);
  // Little is known: no type, no operator, ranks missing, a bypassing kernel.
  Trace poor = test::serial_job({.ranks = 2, .host_records = false}).trace();
  poor.names.push_back("vllm::cross_device_reduce_1stage");
  for (CollectiveCall& call : poor.calls) {
    call.op.clear();
    if (call.sequence % 2 == 0) call.bytes = call.count = -1;
  }
  for (std::size_t i = 0; i < poor.device_ops.size(); i += 9) {
    if (poor.device_ops[i].call < 0)
      poor.device_ops[i].name = static_cast<std::int32_t>(poor.names.size()) - 1;
  }
  poor.communicators[0].ranks = 8;
  add(poor, measured);
  return out;
}

std::vector<std::string> reports() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  AbReport report;
  report.command = {"job"};
  AbOptions options;
  options.name = "loss";
  options.tolerance = 0.03;
  report.metrics.push_back(*compare({2}, {2}, options));
  report.metrics.push_back(*compare({1, 1, 1, 1}, {1.04, 0.96, 1.05, 0.97}, options));
  report.metrics.push_back(*compare({1}, {nan}, options));
  const std::string without = write("ab0.json", ab_json(report));
  options.tolerance.reset();
  options.name = "step_time_us";
  report.step_time = *compare({100, 101}, {50, 51}, options);
  report.policy_path = "policy.json";
  report.notes = {"note"};
  return {without, write("ab1.json", ab_json(report))};
}

int judge(const std::string& schema, const std::vector<std::string>& documents) {
  std::string command = "python3 '" + write("judge.py", kJudge) + "' '" + schema + "'";
  for (const std::string& document : documents) command += " '" + document + "'";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  folder = argv[2];
  std::filesystem::create_directories(folder);
  const std::string schemas = argv[1];
  const int first = judge(schemas + "/estimate.schema.json", estimates());
  const int second = judge(schemas + "/ab.schema.json", reports());
  if (first == 77) std::printf("SKIPPED (python3-jsonschema is not installed)\n");
  return first != 0 ? first : second;
}
