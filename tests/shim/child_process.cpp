// SPDX-License-Identifier: Apache-2.0
#include "tests/shim/child_process.hpp"

#include <filesystem>
#include <iterator>

namespace echotp::test {

int open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all))) - 1;  // without the one that lists
}

}  // namespace echotp::test
