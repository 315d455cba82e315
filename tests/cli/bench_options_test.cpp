// SPDX-License-Identifier: Apache-2.0
// The bench worker's command line.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cli/bench_options.hpp"

using namespace echotp;

namespace {

Result<BenchOptions> read(std::vector<std::string> words) {
  std::vector<char*> argv{const_cast<char*>("worker")};
  for (std::string& word : words) argv.push_back(word.data());
  return read_bench_options(static_cast<int>(argv.size()), argv.data());
}

std::string refused(std::vector<std::string> words) {
  auto options = read(std::move(words));
  return options ? "accepted" : options.error().text();
}

}  // namespace

TEST_CASE("bench: sizes are sorted and unique") {
  auto options =
      read({"--sizes", "64MiB,1MiB,1048576,2", "--output", "c.json", "--dtype", "fp16", "--check"});
  REQUIRE(options);
  CHECK(options->sizes == std::vector<std::int64_t>{2, 1048576, 67108864});
  CHECK(options->dtype == DataType::kFp16);
  CHECK(options->check);
}

TEST_CASE("bench: bad command lines name the option") {
  CHECK(refused({"--output", "c"}).starts_with("--sizes: missing"));
  CHECK(refused({"--sizes", "1MiB"}).starts_with("--output: missing"));
  CHECK(refused({"--sizes", "1MiB,", "--output", "c"}).starts_with("--sizes: '' is not a size"));
  CHECK(refused({"--sizes", "3", "--output", "c"})
            .starts_with("--sizes: '3' is not a whole number of elements of 2 bytes"));
  CHECK(refused({"--sizes", "6", "--output", "c", "--dtype", "fp32"})
            .starts_with("--sizes: '6' is not a whole number of elements of 4 bytes"));
  CHECK(refused({"--sizes", "8", "--output", "c", "--iterations", "0"}).starts_with("--iterations: '0'"));
  CHECK(refused({"--sizes", "8", "--output", "c", "--budget", "-1"}).starts_with("--budget: '-1'"));
  CHECK(refused({"--bogus"}).starts_with("--bogus: unknown option"));
  CHECK(refused({"--sizes"}).starts_with("--sizes: needs a value"));
}
