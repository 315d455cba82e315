// SPDX-License-Identifier: Apache-2.0
// Reading and writing zstd frames; see frame_io.hpp.
#include "profiles/frame_io.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "profiles/trace_encode.hpp"

namespace echotp {
namespace {

constexpr std::size_t kInputBytes = 256 * 1024;
constexpr std::size_t kFrameText = 1 << 20;
constexpr int kFileLevel = 9;
constexpr unsigned char kMagic[4] = {0x28, 0xB5, 0x2F, 0xFD};

Error foreign(const std::string& path) {
  return {ErrorCode::kBadInput,
          "not an echo-tp profile (expected " + std::string(kProfileSchema) + " in zstd frames)", path};
}

}  // namespace

FrameReader::~FrameReader() {
  if (file_) std::fclose(file_);
  if (context_) ZSTD_freeDCtx(context_);
}

bool FrameReader::fill() {
  offset_ += static_cast<std::int64_t>(size_);
  at_ = 0;
  size_ = std::fread(input_.data(), 1, input_.size(), file_);
  return size_ > 0;
}

Status FrameReader::open(const std::string& path, std::int64_t max_frame_bytes) {
  path_ = path;
  max_frame_bytes_ = max_frame_bytes;
  file_ = std::fopen(path.c_str(), "rbe");
  if (!file_) {
    const bool missing = errno == ENOENT;
    return Error{missing ? ErrorCode::kNotFound : ErrorCode::kBadInput, std::strerror(errno), path};
  }
  context_ = ZSTD_createDCtx();
  if (!context_) return Error{ErrorCode::kSystem, "zstd refused to start", path};
  input_.resize(kInputBytes);
  if (!fill()) {
    if (std::ferror(file_)) return Error{ErrorCode::kBadInput, std::strerror(errno), path};
    return Error{ErrorCode::kBadInput, "empty file, expected an echo-tp profile", path};
  }
  for (std::size_t i = 0; i < sizeof kMagic && i < size_; ++i) {
    if (static_cast<unsigned char>(input_[i]) != kMagic[i]) return foreign(path);
  }
  return Unit{};
}

Result<std::optional<std::string>> FrameReader::next() {
  using Frame = std::optional<std::string>;
  if (truncated_ || (at_ == size_ && !fill())) return Frame{};
  const std::int64_t start = offset_ + static_cast<std::int64_t>(at_);
  ZSTD_DCtx_reset(context_, ZSTD_reset_session_only);
  std::string text;
  std::vector<char> block(ZSTD_DStreamOutSize());
  for (;;) {
    ZSTD_inBuffer in{input_.data(), size_, at_};
    ZSTD_outBuffer out{block.data(), block.size(), 0};
    const std::size_t rest = ZSTD_decompressStream(context_, &out, &in);
    if (ZSTD_isError(rest)) {
      return Error{ErrorCode::kBadInput,
                   "damaged: the frame at byte " + std::to_string(start) + " cannot be read (" +
                       ZSTD_getErrorName(rest) + ")",
                   path_};
    }
    at_ = in.pos;
    text.append(block.data(), out.pos);
    if (static_cast<std::int64_t>(text.size()) > max_frame_bytes_) {
      return Error{ErrorCode::kBadInput,
                   "the frame at byte " + std::to_string(start) + " is larger than any that echo-tp writes",
                   path_};
    }
    if (rest == 0) {
      ++frames_;
      return Frame{std::move(text)};
    }
    if (at_ == size_ && out.pos < out.size && !fill()) {
      truncated_ = true;
      if (frames_ == 0) {
        return Error{ErrorCode::kBadInput, "cut inside its first frame: nothing of the profile can be read",
                     path_};
      }
      return Frame{};
    }
  }
}

FrameFile::~FrameFile() {
  if (!file_) return;
  std::fclose(file_);
  std::remove(temporary_.c_str());
}

Status FrameFile::create(const std::string& path) {
  path_ = path;
  temporary_ = path + ".tmp." + std::to_string(getpid());
  file_ = std::fopen(temporary_.c_str(), "wbe");
  if (!file_)
    return Error{ErrorCode::kSystem, std::string("cannot be written: ") + std::strerror(errno), path};
  return Unit{};
}

Status FrameFile::add(std::string_view text) {
  text_ += text;
  return text_.size() >= kFrameText ? write_frame() : Unit{};
}

Status FrameFile::write_frame() {
  if (text_.empty()) return Unit{};
  const std::string frame = compress_frame(text_, kFileLevel);
  text_.clear();
  if (frame.empty()) return Error{ErrorCode::kSystem, "zstd failed", path_};
  if (std::fwrite(frame.data(), 1, frame.size(), file_) != frame.size()) {
    return Error{ErrorCode::kSystem, std::string("cannot be written: ") + std::strerror(errno), path_};
  }
  bytes_ += static_cast<std::int64_t>(frame.size());
  return Unit{};
}

Result<std::int64_t> FrameFile::finish() {
  if (Status written = write_frame(); !written) return written.error();
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  if (!closed || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const Error error{ErrorCode::kSystem, std::string("cannot be written: ") + std::strerror(errno), path_};
    std::remove(temporary_.c_str());
    return error;
  }
  return bytes_;
}

}  // namespace echotp
