// SPDX-License-Identifier: Apache-2.0
// Numbers in a job's output.
#include "cli/metric.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace echotp;

namespace {

std::vector<Metric> metrics(std::initializer_list<const char*> arguments) {
  std::vector<Metric> out;
  for (const char* argument : arguments) {
    auto metric = parse_metric(argument, "--metric");
    REQUIRE(metric);
    out.push_back(*std::move(metric));
  }
  return out;
}

std::optional<double> last_in(const char* expression, std::string_view output) {
  const auto which = metrics({expression});
  MetricWatch watch(which);
  watch.add(JobStream::kStdout, output);
  watch.finish();
  return watch.values()[0];
}

}  // namespace

TEST_CASE("an expression is a name and an expression only where it names something itself") {
  const auto check = [](const char* argument, const char* name, const char* expression) {
    const auto metric = parse_metric(argument, "--metric");
    REQUIRE(metric);
    CHECK(metric->name == name);
    CHECK(metric->expression == expression);
  };
  check("loss=([0-9.]+)", "loss", "loss=([0-9.]+)");
  check("loss=\\s*([0-9.]+)", "loss", "loss=\\s*([0-9.]+)");
  check("loss=[ a-z]*([0-9.]+)", "loss", "loss=[ a-z]*([0-9.]+)");
  check("final=val_loss: ([0-9.]+)", "final", "val_loss: ([0-9.]+)");
  check("final=loss=([0-9.]+)", "final", "loss=([0-9.]+)");
  check("loss: ([0-9.]+)", "loss", "loss: ([0-9.]+)");
  check("([0-9.]+) loss", "metric", "([0-9.]+) loss");
  check("step loss=x ([0-9.]+)", "step", "step loss=x ([0-9.]+)");
}

TEST_CASE("an expression without a group, or that is none, is refused") {
  CHECK_FALSE(parse_metric("loss=[0-9]+", "--metric"));
  CHECK_FALSE(parse_metric("loss=(", "--metric"));
  CHECK(parse_metric("loss=[0-9]+", "--metric").error().code == ErrorCode::kBadInput);
}

TEST_CASE("the last match counts, also within a line") {
  CHECK(last_in("loss=([0-9.]+)", "loss=3\nloss=2 loss=1.5\nother\n") == 1.5);
  CHECK_FALSE(last_in("loss=([0-9.]+)", "lost\n"));
}

TEST_CASE("a last line without its end counts, and so does a progress bar") {
  CHECK(last_in("loss=([0-9.]+)", "loss=1\nloss=2") == 2);
  CHECK(last_in("^loss=([0-9.]+)$", "loss=1\rloss=2\r") == 2);
}

TEST_CASE("pieces are joined however they arrive") {
  const auto which = metrics({"loss=([0-9.]+)"});
  MetricWatch watch(which);
  for (const char c : std::string_view("x loss=12.25 y\n")) watch.add(JobStream::kStdout, {&c, 1});
  CHECK(watch.values()[0] == 12.25);
}

TEST_CASE("standard output goes before standard error, whose lines do not mix with it") {
  const auto which = metrics({"loss=([0-9.]+)", "acc=([0-9.]+)"});
  MetricWatch watch(which);
  watch.add(JobStream::kStdout, "los");
  watch.add(JobStream::kStderr, "loss=9\nacc=7\n");
  watch.add(JobStream::kStdout, "s=1\n");
  watch.finish();
  CHECK(watch.values() == std::vector<std::optional<double>>{1.0, 7.0});
}

TEST_CASE("a loss that became NaN is a value; words are none") {
  CHECK(std::isnan(last_in("loss=(\\S+)", "loss=1\nloss=nan\n").value()));
  CHECK(last_in("loss=(\\S+)", "loss=-1e-3\nloss=soon\n") == -1e-3);
}

TEST_CASE("a line of many megabytes neither overflows nor hides the next") {
  std::string output(8 << 20, 'x');
  output += "\nloss=4\n";
  CHECK(last_in("(?:.*)loss=([0-9.]+)", output) == 4);
}
