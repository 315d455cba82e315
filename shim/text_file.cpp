// SPDX-License-Identifier: Apache-2.0
// Reading and replacing of text files.
#include "shim/text_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "shim/units.hpp"

namespace echotp {

Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  const auto refused = [&](int code) {
    return Error{code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kSystem,
                 std::strerror(code), path};
  };
  if (path.find('\0') != std::string::npos)
    return Error{ErrorCode::kBadInput, "the path holds a NUL character", ""};
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return refused(errno);
  struct stat info {};
  if (::fstat(file, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(file);
    return Error{ErrorCode::kBadInput, "is a folder; expected a file", path};
  }
  std::string text;
  char buffer[1 << 16];
  int failed = 0;
  while (text.size() <= max_bytes) {
    const ssize_t got = ::read(file, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failed = errno;
    if (got <= 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(file);
  if (failed != 0) return refused(failed);
  if (text.size() > max_bytes) {
    return Error{ErrorCode::kBadInput, "larger than " + format_bytes(static_cast<std::int64_t>(max_bytes)),
                 path};
  }
  return text;
}

Status write_text_file(const std::string& path, std::string_view text) {
  static std::atomic<unsigned> serial{0};
  const std::string part = path + "." + std::to_string(::getpid()) + "." + std::to_string(serial++) + ".part";
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0)
    return Error{ErrorCode::kSystem, std::string("cannot be written: ") + std::strerror(errno), path};
  int failed = 0;
  while (!text.empty() && failed == 0) {
    const ssize_t put = ::write(file, text.data(), text.size());
    if (put < 0 && errno != EINTR) failed = errno;
    if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::close(file) != 0 && failed == 0) failed = errno;
  if (failed == 0 && ::rename(part.c_str(), path.c_str()) != 0) failed = errno;
  if (failed == 0) return Unit{};
  ::unlink(part.c_str());
  return Error{ErrorCode::kSystem, std::string("cannot be written: ") + std::strerror(failed), path};
}

}  // namespace echotp
