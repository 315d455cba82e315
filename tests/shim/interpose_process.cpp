// SPDX-License-Identifier: Apache-2.0
// Starts jobs with posix_spawn and files for their output.
#include "tests/shim/interpose_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace echotp::testing {
namespace {

struct ScratchDirectory {
  std::string path;
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "echo-tp-interpose.XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

const std::string& scratch_directory() {
  static const ScratchDirectory directory;
  return directory.path;
}

std::vector<std::string> Outcome::lines(const std::string& prefix) const {
  std::vector<std::string> found;
  for (const std::string& line : log)
    if (line.rfind(prefix, 0) == 0) found.push_back(line);
  return found;
}

int Outcome::index(const std::string& prefix, int from) const {
  for (int i = from; i >= 0 && i < static_cast<int>(log.size()); ++i)
    if (log[static_cast<std::size_t>(i)].rfind(prefix, 0) == 0) return i;
  return -1;
}

std::string Outcome::text() const {
  std::string all = "exit " + std::to_string(code) + "\nstdout: " + out + "\nstderr: " + err + "\nlog:\n";
  for (const std::string& line : log) all += "  " + line + "\n";
  return all;
}

Outcome run_plain(const std::vector<std::string>& command, const Environment& environment) {
  static int runs = 0;
  const std::string base = scratch_directory() + "/" + std::to_string(runs++);
  const std::string log = base + ".log";
  std::vector<std::string> variables = {"PATH=/usr/local/bin:/usr/bin:/bin", "FAKE_LOG=" + log};
  for (const auto& [name, value] : environment)
    if (!value.empty()) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, (base + ".out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, (base + ".err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " + command[0]);
  int status = 0;
  waitpid(child, &status, 0);

  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read_file(base + ".out");
  outcome.err = read_file(base + ".err");
  outcome.log = split_lines(read_file(log));
  return outcome;
}

Outcome run_watched(const std::vector<std::string>& command, const Environment& changes) {
  Environment environment = {{"LD_PRELOAD", INTERPOSE_SHIM},
                             {"ECHO_TP_POLICY", "/nonexistent/policy.json"},
                             {"ECHO_TP_ENGINE", INTERPOSE_ENGINE}};
  for (const auto& [name, value] : changes) environment[name] = value;
  return run_plain(command, environment);
}

}  // namespace echotp::testing
