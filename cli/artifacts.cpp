// SPDX-License-Identifier: Apache-2.0
// Files that we find, name and make.
#include "cli/artifacts.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

namespace echotp {
namespace fs = std::filesystem;
namespace {

std::string make_folder(const std::string& parent) {
  std::string pattern = parent + "/.echo-tp-XXXXXX";
  return ::mkdtemp(pattern.data()) ? pattern : "";
}

}  // namespace

Installation find_installation() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  const fs::path prefix = self.parent_path().parent_path();
  Installation out;
  const fs::path libraries = prefix / "lib" / "echo-tp";
  out.shim = (libraries / "libecho-tp-shim.so").string();
  out.engine = (libraries / "libecho-tp-engine.so").string();
  out.recorder = (libraries / "libecho-tp-recorder.so").string();
  out.bench_worker = (libraries / "echo-tp-bench-worker").string();
  out.share = (prefix / "share" / "echo-tp").string();
#ifdef ECHO_TP_SOURCE_SHARE
  // Only the build tree has no share of its own.
  if (!fs::is_directory(out.share, failed) && prefix == fs::path(ECHO_TP_BUILD_TREE))
    out.share = ECHO_TP_SOURCE_SHARE;
#endif
  return out;
}

bool is_file(const std::string& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed) && ::access(path.c_str(), R_OK) == 0;
}

Status need_file(const std::string& path, const std::string& what) {
  if (is_file(path)) return Unit{};
  return Error{
      ErrorCode::kSystem,
      "not there: this echo-tp was built without a CUDA toolkit, or was moved without its lib folder; " +
          what + " needs it",
      path};
}

std::string default_name(const std::string& stem, const std::string& extension) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> stamp;
  std::strftime(stamp.data(), stamp.size(), "%Y%m%dT%H%M%SZ", &utc);
  const std::string name = stem + "-" + stamp.data();
  std::string path = name + extension;
  std::error_code failed;
  for (int i = 2; fs::exists(path, failed); ++i) path = name + "-" + std::to_string(i) + extension;
  return path;
}

Status claim_output(const std::string& path, bool force) {
  std::error_code failed;
  if (path.empty()) return Error{ErrorCode::kBadInput, "an empty file name", ""};
  if (path.back() == '/' || fs::is_directory(path, failed))
    return Error{ErrorCode::kBadInput, "is a folder; give a file name in it", path};
  if (fs::exists(path, failed) && !force)
    return Error{ErrorCode::kBadInput, "exists already; --force overwrites it", path};
  fs::create_directories(folder_of(path), failed);
  if (failed) return Error{ErrorCode::kBadInput, "its folder can't be made: " + failed.message(), path};
  if (::access(folder_of(path).c_str(), W_OK) != 0)
    return Error{ErrorCode::kBadInput, std::string("its folder can't be written to: ") + std::strerror(errno),
                 path};
  return Unit{};
}

std::string absolute_path(const std::string& path) {
  std::error_code failed;
  const fs::path out = fs::weakly_canonical(path, failed);
  return failed ? fs::absolute(path, failed).string() : out.string();
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

Result<Scratch> Scratch::make(const std::string& beside) {
  const char* temporary = std::getenv("TMPDIR");
  for (const std::string& parent : {beside, std::string(temporary ? temporary : ""), std::string("/tmp")}) {
    if (parent.empty()) continue;
    if (std::string path = make_folder(absolute_path(parent)); !path.empty()) return Scratch(std::move(path));
  }
  return Error{ErrorCode::kSystem, std::string("no temporary folder can be made: ") + std::strerror(errno),
               "/tmp"};
}

Scratch::Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, "")), kept_(other.kept_) {}

Scratch::~Scratch() {
  std::error_code ignored;
  if (!path_.empty() && !kept_) fs::remove_all(path_, ignored);
}

std::vector<std::string> Scratch::files(const std::string& ending) const {
  std::vector<std::string> out;
  std::error_code failed;
  for (fs::directory_iterator at(path_, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->path().filename().string().ends_with(ending)) out.push_back(at->path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace echotp
