// SPDX-License-Identifier: Apache-2.0
#include "shim/coverage_report.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "shim/coverage.h"

namespace echotp {
namespace {

constexpr std::string_view kPrefix = "coverage-";

// "coverage-<host>-<pid>"; a host may hold dashes.
std::optional<ProcessCoverage> read_one(const std::filesystem::path& path) {
  EchoTpCoverage content{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(&content), sizeof content)) return std::nullopt;
  if (std::memcmp(content.magic, ECHO_TP_COVERAGE_MAGIC, sizeof content.magic) != 0) return std::nullopt;
  if (content.nccl_all_reduces < 0 || content.forwarded < 0 || content.compressed < 0) return std::nullopt;
  ProcessCoverage out;
  const std::string name = path.filename().string().substr(kPrefix.size());
  out.name = name.substr(0, name.rfind('-')) + " pid " + std::to_string(content.pid);
  out.listening = content.listening != 0;
  out.nccl = content.nccl_all_reduces;
  out.forwarded = content.forwarded;
  out.compressed = content.compressed;
  return out;
}

}  // namespace

std::vector<ProcessCoverage> read_coverage(const std::string& folder, std::vector<std::string>& problems) {
  std::vector<std::filesystem::path> paths;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string name = at->path().filename().string();
    // One with ".new" in it belongs to a process that ended while making it: it has counted nothing.
    if (name.starts_with(kPrefix) && name.find(".new") == std::string::npos) paths.push_back(at->path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<ProcessCoverage> out;
  for (const std::filesystem::path& path : paths) {
    if (auto one = read_one(path)) {
      out.push_back(*std::move(one));
    } else {
      problems.push_back(path.string() + ": not a coverage file");
    }
  }
  return out;
}

}  // namespace echotp
