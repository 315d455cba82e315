// SPDX-License-Identifier: Apache-2.0
// echo-tp: entry point. Everything else is in the library, where tests reach it.
#include <string>
#include <vector>

#include "cli/command.hpp"

int main(int argc, char** argv) {
  return echotp::run_program(std::vector<std::string>(argv, argv + argc));
}
