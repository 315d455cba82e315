// SPDX-License-Identifier: Apache-2.0
// FRAMES: a file as a sequence of zstd frames. The reader hands out whole frames and tells a cut tail from
// damage; the writer collects text into frames of about a megabyte and renames the file when it is whole.
#pragma once

#include <zstd.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/result.hpp"

namespace echotp {

class FrameReader {
 public:
  FrameReader() = default;
  ~FrameReader();
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  /// Opens `path` and checks that it starts as a zstd file. Fails with kNotFound or kBadInput.
  Status open(const std::string& path, std::int64_t max_frame_bytes);
  /// The next whole frame, or nothing at the end of the file; truncated() tells whether that end is a cut.
  Result<std::optional<std::string>> next();
  bool truncated() const { return truncated_; }
  std::int64_t frames() const { return frames_; }

 private:
  bool fill();
  std::string path_;
  std::FILE* file_ = nullptr;
  ZSTD_DCtx* context_ = nullptr;
  std::vector<char> input_;
  std::size_t at_ = 0;
  std::size_t size_ = 0;
  std::int64_t offset_ = 0;  // of input_[0] in the file
  std::int64_t max_frame_bytes_ = 0;
  std::int64_t frames_ = 0;
  bool truncated_ = false;
};

class FrameFile {
 public:
  FrameFile() = default;
  ~FrameFile();
  FrameFile(const FrameFile&) = delete;
  FrameFile& operator=(const FrameFile&) = delete;

  /// Creates "<path>.tmp.<pid>".
  Status create(const std::string& path);
  /// Adds whole lines; a frame is written whenever a megabyte has come together.
  Status add(std::string_view text);
  /// Writes what is left and renames the file to its final name; returns its size in bytes.
  Result<std::int64_t> finish();

 private:
  Status write_frame();
  std::string path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
  std::string text_;
  std::int64_t bytes_ = 0;
};

}  // namespace echotp
