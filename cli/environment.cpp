// SPDX-License-Identifier: Apache-2.0
// Plans over the environment of a job.
#include "cli/environment.hpp"

#include <algorithm>
#include <utility>

#include "cli/text.hpp"

extern char** environ;

namespace echotp {
namespace {

constexpr std::string_view kShimFile = "libecho-tp-shim.so";
constexpr std::string_view kWitnessFile = "libecho-tp-witness.so";
constexpr std::string_view kRecorderFile = "libecho-tp-recorder.so";

bool names(const std::string& entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

bool is_file_named(std::string_view path, std::string_view file) {
  return path == file || (path.ends_with(file) && path[path.size() - file.size() - 1] == '/');
}

// ld.so splits LD_PRELOAD at colons and spaces.
std::vector<std::string> preloads(const std::string& value) {
  std::vector<std::string> out;
  for (std::size_t start = 0; start <= value.size();) {
    const std::size_t end = std::min(value.find_first_of(": ", start), value.size());
    if (end > start) out.push_back(value.substr(start, end - start));
    start = end + 1;
  }
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ":") + word;
  return out;
}

}  // namespace

Environment Environment::current() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry && *entry; ++entry) entries.emplace_back(*entry);
  return Environment(std::move(entries));
}

std::optional<std::string> Environment::get(std::string_view name) const {
  for (const std::string& entry : entries_) {
    if (names(entry, name)) return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

void Environment::set(std::string_view name, std::string_view value) {
  std::string entry = std::string(name) + "=" + std::string(value);
  const auto at = std::find_if(entries_.begin(), entries_.end(),
                               [&](const std::string& held) { return names(held, name); });
  if (at == entries_.end()) {
    entries_.push_back(std::move(entry));
  } else {
    *at = std::move(entry);
  }
}

void Environment::unset(std::string_view name) {
  std::erase_if(entries_, [&](const std::string& entry) { return names(entry, name); });
}

std::vector<std::string> inject_recorder(Environment& environment, const RecordPlan& plan) {
  struct Way {
    const char* variable;
    const char* lost;
  };
  constexpr Way kWays[] = {
      {"CUDA_INJECTION64_PATH", "no device times (CUPTI)"},
      {"NVTX_INJECTION64_PATH",
       "message sizes come from NCCL's profiler plugin alone, and step ranges are not seen"},
      {"NCCL_PROFILER_PLUGIN", "counts and data types come from NVTX alone"},
  };
  std::vector<std::string> skipped;
  for (const Way& way : kWays) {
    const auto held = environment.get(way.variable);
    if (held && !held->empty() && !is_file_named(*held, kRecorderFile) &&
        !is_file_named(*held, kWitnessFile)) {
      skipped.push_back(std::string(way.variable) + " is set already, to " + plain(*held) + ": kept, so " +
                        way.lost);
      continue;
    }
    environment.set(way.variable, plan.recorder);
  }
  environment.set("ECHO_TP_RECORD_DIR", plan.folder);
  if (plan.options.empty()) {
    environment.unset("ECHO_TP_RECORD_OPTIONS");
  } else {
    environment.set("ECHO_TP_RECORD_OPTIONS", plan.options);
  }
  return skipped;
}

std::vector<std::string> inject_shim(Environment& environment, const ShimPlan& plan) {
  std::vector<std::string> lines;
  std::vector<std::string> order = {plan.shim};
  for (std::string& other : preloads(environment.get("LD_PRELOAD").value_or(""))) {
    if (!is_file_named(other, kShimFile)) order.push_back(std::move(other));
  }
  environment.set("LD_PRELOAD", joined(order));
  if (plan.policy.empty()) {
    environment.unset("ECHO_TP_POLICY");
  } else {
    environment.set("ECHO_TP_POLICY", plan.policy);
  }
  environment.set("ECHO_TP_MODE", plan.mode);
  environment.set("ECHO_TP_RUN_DIR", plan.folder);
  environment.set("ECHO_TP_ENGINE", plan.engine);
  constexpr const char* kNvtx = "NVTX_INJECTION64_PATH";
  const std::string held = environment.get(kNvtx).value_or("");
  if (held.empty() || is_file_named(held, kWitnessFile)) {
    if (plan.witness.empty()) {
      environment.unset(kNvtx);
    } else {
      environment.set(kNvtx, plan.witness);
    }
  } else if (!plan.witness.empty()) {
    lines.push_back(std::string(kNvtx) + " is set already, to " + plain(held) +
                    ": kept, so that all-reduces which pass echo-tp by are not noticed");
  }
  if (environment.get("ECHO_TP") == "off") lines.push_back("ECHO_TP=off is set: the job runs without Echo");
  return lines;
}

void remove_ours(Environment& environment) {
  for (const char* name : {"ECHO_TP_POLICY", "ECHO_TP_MODE", "ECHO_TP_RUN_DIR", "ECHO_TP_ENGINE",
                           "ECHO_TP_RECORD_DIR", "ECHO_TP_RECORD_OPTIONS"})
    environment.unset(name);
  for (const char* name : {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NCCL_PROFILER_PLUGIN"}) {
    if (const auto held = environment.get(name);
        held && (is_file_named(*held, kRecorderFile) || is_file_named(*held, kWitnessFile)))
      environment.unset(name);
  }
  if (const auto held = environment.get("LD_PRELOAD")) {
    std::vector<std::string> order = preloads(*held);
    if (std::erase_if(order, [](const std::string& path) { return is_file_named(path, kShimFile); }) > 0) {
      if (order.empty()) {
        environment.unset("LD_PRELOAD");
      } else {
        environment.set("LD_PRELOAD", joined(order));
      }
    }
  }
}

}  // namespace echotp
