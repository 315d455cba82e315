// SPDX-License-Identifier: Apache-2.0
// A forked child of a test, killed and collected at the end of its scope.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace echotp::test {

class ChildProcess {
 public:
  /// Runs `body` in a child; its answer is the exit code.
  explicit ChildProcess(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    alarm(60);  // never outlives a test that hangs
    int code = 99;
    try {
      code = body();
    } catch (...) {
    }
    _exit(code);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (pid_ > 0) kill_now(), wait();
  }

  pid_t pid() const { return pid_; }
  void kill_now() const { kill(pid_, SIGKILL); }

  /// Exit code, or 128 + signal.
  int wait() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, 0) != pid_) return -1;
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

/// Open descriptors of this process.
int open_descriptors();

}  // namespace echotp::test
