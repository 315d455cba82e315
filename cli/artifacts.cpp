// SPDX-License-Identifier: Apache-2.0
// Files that we find, name and make.
#include "cli/artifacts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "cli/text.hpp"

namespace echotp {
namespace fs = std::filesystem;
namespace {

std::string make_folder(const std::string& parent) {
  std::string pattern = parent + "/.echo-tp-XXXXXX";
  return ::mkdtemp(pattern.data()) ? pattern : "";
}

// Where this executable was built, if it still is there.
std::string build_folder(const fs::path& prefix) {
#ifdef ECHO_TP_BUILD_TREE
  if (prefix == fs::path(ECHO_TP_BUILD_TREE)) return prefix.string();
#endif
  return "";
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code failed;
  return absolute_path(a) == absolute_path(b) || fs::equivalent(a, b, failed);
}

Status claim_output(const std::string& path, bool force) {
  std::error_code failed;
  const auto refused = [&](std::string what) { return Error{ErrorCode::kBadInput, std::move(what), path}; };
  if (path == "-")
    return refused("is not a file name; standard output is for --json alone, and a file of this name is ./-");
  if (path.back() == '/' || fs::is_directory(path, failed))
    return refused("is a folder; expected a file name");
  const std::string folder = folder_of(path);
  if (!fs::is_directory(folder, failed)) return refused("its folder is not there: " + folder);
  const bool taken = fs::exists(fs::symlink_status(path, failed));
  if (taken && !fs::is_regular_file(path, failed))
    return refused("is not a plain file, and would be replaced");
  if (taken && !force) return refused("exists already; --force overwrites it");
  // Rights alone don't tell: the folder may be of a kind that takes no files.
  const std::string probe = path + "." + std::to_string(::getpid()) + ".probe";
  const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return refused(std::string("can't be written: ") + std::strerror(errno));
  ::close(file);
  ::unlink(probe.c_str());
  return Unit{};
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
  out.witness = (libraries / "libecho-tp-witness.so").string();
  out.recorder = (libraries / "libecho-tp-recorder.so").string();
  out.bench_worker = (libraries / "echo-tp-bench-worker").string();
  out.bench_loopback = (libraries / "echo-tp-bench-loopback").string();
  out.share = (prefix / "share" / "echo-tp").string();
#ifdef ECHO_TP_SOURCE_SHARE
  // Only the build tree has no share of its own.
  if (!fs::is_directory(out.share, failed) && !build_folder(prefix).empty()) out.share = ECHO_TP_SOURCE_SHARE;
#endif
  return out;
}

bool is_file(const std::string& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed) && ::access(path.c_str(), R_OK) == 0;
}

Status need_file(const std::string& path, const std::string& what) {
  if (is_file(path)) return Unit{};
  std::error_code failed;
  const std::string folder =
      build_folder(fs::read_symlink("/proc/self/exe", failed).parent_path().parent_path());
  const std::string all = "cmake --build " + (folder.empty() ? "BUILD_FOLDER" : shell_word(folder));
  return Error{ErrorCode::kSystem,
               "not there, and " + what + " needs it: only the target echo-tp was built (" + all +
                   " builds all), or without a CUDA toolkit" +
                   (folder.empty() ? ", or echo-tp was moved without its lib folder" : ""),
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

Status claim_outputs(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs,
                     bool force) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& output = outputs[i];
    if (output.path.empty()) continue;
    for (const NamedFile& input : inputs) {
      if (!input.path.empty() && same_file(output.path, input.path))
        return Error{ErrorCode::kBadInput, output.option + " would overwrite what " + input.option + " reads",
                     output.path};
    }
    for (std::size_t k = 0; k < i; ++k) {
      if (!outputs[k].path.empty() && same_file(output.path, outputs[k].path))
        return Error{ErrorCode::kBadInput,
                     outputs[k].option + " and " + output.option + " name the same file", output.path};
    }
  }
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) continue;
    if (Status status = claim_output(output.path, force); !status) return status;
  }
  return Unit{};
}

Status refuse_folder(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return Unit{};
  return Error{ErrorCode::kBadInput, "is a folder; expected a file", path};
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
