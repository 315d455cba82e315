// SPDX-License-Identifier: Apache-2.0
// ARTIFACTS: files. Finds our own libraries and data relative to the executable, names outputs, refuses to
// overwrite, and makes the scratch folders that jobs write their parts into.
#pragma once

#include <string>
#include <vector>

#include "shim/result.hpp"

namespace echotp {

/// Absolute paths of what is installed beside the executable, in the build tree too. Nothing is checked.
struct Installation {
  std::string shim;      // libecho-tp-shim.so
  std::string engine;    // libecho-tp-engine.so
  std::string recorder;  // libecho-tp-recorder.so
  std::string witness;   // libecho-tp-witness.so
  std::string bench_worker;
  std::string bench_loopback;
  std::string share;  // folder with policies, costs, launch-ranks.sh
};
Installation find_installation();

/// True for a regular file that can be read.
bool is_file(const std::string& path);

/// kSystem error that names the missing file, why it may be missing and the command that builds it.
Status need_file(const std::string& path, const std::string& what);

/// "<stem>-20261201T143207Z<extension>", with "-2", "-3" ... put before the extension while that name is
/// taken.
std::string default_name(const std::string& stem, const std::string& extension);

/// A file of a command line, and the option or argument that named it. An empty path: not given.
struct NamedFile {
  std::string option;
  std::string path;
};

/// Checks before the work that every output can be written in the end, by making a file beside it. Refuses a
/// folder, one that is not there, anything but a plain file, an existing file unless `force`; and whatever
/// `force` says, one that is among `inputs`, or two that are the same.
Status claim_outputs(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs, bool force);

/// An error for a folder in place of a file to read; what else may be wrong is for the reader to say.
Status refuse_folder(const std::string& path);

/// `path` made absolute, links resolved where they exist.
std::string absolute_path(const std::string& path);

/// A new folder that only this user can enter; removed with all its contents when it goes out of scope,
/// unless kept.
class Scratch {
 public:
  /// In `beside` if that can be written to, else in TMPDIR or /tmp.
  static Result<Scratch> make(const std::string& beside);
  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch();

  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }
  /// Files whose names end with `ending`, sorted, as full paths.
  std::vector<std::string> files(const std::string& ending) const;

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
  bool kept_ = false;
};

/// Folder of a file path; "." if it has none.
std::string folder_of(const std::string& path);

}  // namespace echotp
