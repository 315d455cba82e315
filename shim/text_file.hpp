// SPDX-License-Identifier: Apache-2.0
// Text files, read whole within a limit and replaced whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "shim/result.hpp"

namespace echotp {

/// The whole of a file, at most `max_bytes`. Directories and larger files are errors.
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

/// Writes a file under a temporary name in the same folder, then renames it over `path`.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace echotp
