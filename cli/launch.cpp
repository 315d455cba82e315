// SPDX-License-Identifier: Apache-2.0
// Fork, exec, signals, wait.
//
// Signals. With a controlling terminal the job shares our process group, as if it had been typed alone: the
// terminal itself sends ^C to both, so only signals that a process sent (kill) are handed on, to the job
// alone. Without a terminal (CI, batch systems, containers) the job leads a group of its own and every signal
// is handed on to that group: a signal to our process and one to our group both reach the job once. Should we
// be killed outright, the job gets SIGTERM.
#include "cli/launch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

namespace echotp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::array<int, 6> kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool has_terminal() {
  const int terminal = ::open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (terminal < 0) return false;
  ::close(terminal);
  return true;
}

/// Blocks what we wait for; puts everything back. Signals that were ignored when we started stay ignored for
/// the job too.
class SignalScope {
 public:
  SignalScope() {
    ::sigemptyset(&watched_);
    ::sigaddset(&watched_, SIGCHLD);
    for (const int number : kForwarded) {
      struct sigaction now {};
      ::sigaction(number, nullptr, &now);
      if (now.sa_handler != SIG_IGN) ::sigaddset(&watched_, number);
    }
    ::pthread_sigmask(SIG_BLOCK, &watched_, &before_);
    // Ignored, children would be reaped without an exit code.
    struct sigaction wanted {};
    wanted.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &wanted, &child_before_);
    pipe_at_start();
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;
  ~SignalScope() {
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    // The same signal sent to our group and to us must not end us between the job and its report. Once the
    // user has asked for the end, the report is all that is left to do: signals stay blocked.
    constexpr timespec kNow{0, 0};
    while (const int number = ::sigtimedwait(&watched_, nullptr, &kNow)) {
      if (number < 0) break;
      interrupted_ = interrupted_ || number != SIGCHLD;
    }
    if (!interrupted_) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  void interrupted() { interrupted_ = true; }
  const sigset_t& watched() const { return watched_; }
  void restore_in_child() const {
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    ::sigaction(SIGPIPE, &pipe_at_start(), nullptr);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  /// From the first job on a closed pipe must not keep us from writing reports; every job gets what we were
  /// started with.
  static const struct sigaction& pipe_at_start() {
    static const struct sigaction before = [] {
      struct sigaction ignored {
      }, now{};
      ignored.sa_handler = SIG_IGN;
      ::sigaction(SIGPIPE, &ignored, &now);
      return now;
    }();
    return before;
  }
  sigset_t watched_{}, before_{};
  bool interrupted_ = false;
  struct sigaction child_before_ {};
};

struct Pipe {
  int read = -1, write = -1;
  bool open(int flags) {
    int ends[2];
    if (::pipe2(ends, flags) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  void close_read() { drop(read); }
  void close_write() { drop(write); }
  ~Pipe() {
    close_read();
    close_write();
  }
  static void drop(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

/// Passes what arrives on one pipe to a function, until its end or until told to stop.
class Reader {
 public:
  void start(int from, int stop, JobStream stream, std::mutex& mutex,
             const std::function<void(JobStream, std::string_view)>& to) {
    thread_ = std::thread([from, stop, stream, &mutex, &to] {
      std::array<char, 1 << 16> buffer;
      // A process left behind may print for ever: once told to stop, what the pipe can hold is read and no
      // more.
      for (int left = 16; left > 0;) {
        std::array<pollfd, 2> ends = {{{from, POLLIN, 0}, {stop, POLLIN, 0}}};
        if (::poll(ends.data(), ends.size(), -1) < 0 && errno != EINTR) return;
        if (ends[1].revents != 0) --left;
        if (ends[0].revents != 0) {
          const ssize_t length = ::read(from, buffer.data(), buffer.size());
          if (length == 0 || (length < 0 && errno != EINTR)) return;
          if (length > 0) {
            const std::lock_guard lock(mutex);
            to(stream, {buffer.data(), static_cast<std::size_t>(length)});
          }
        } else if (ends[1].revents != 0) {
          return;
        }
      }
    });
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

JobEnd not_started(int code, ErrorCode kind, std::string what, std::string where) {
  JobEnd end;
  end.exit_code = code;
  end.error = Error{kind, std::move(what), std::move(where)};
  return end;
}

// The interpreter that a script names, if the script is there and the interpreter is not.
std::string missing_interpreter(const std::string& program) {
  std::ifstream file(program);
  std::string line;
  if (program.find('/') == std::string::npos || !std::getline(file, line) || !line.starts_with("#!"))
    return "";
  const std::size_t start = line.find_first_not_of(" \t", 2);
  if (start == std::string::npos) return "";
  const std::string interpreter = line.substr(start, line.find_first_of(" \t\r", start) - start);
  std::error_code failed;
  return std::filesystem::exists(interpreter, failed) ? "" : interpreter;
}

JobEnd exec_failed(int error, const std::string& program) {
  if (error == ENOENT || error == ENOTDIR) {
    if (const std::string interpreter = missing_interpreter(program); !interpreter.empty())
      return not_started(127, ErrorCode::kNotFound, "its interpreter was not found: " + interpreter, program);
    return not_started(127, ErrorCode::kNotFound, "command not found", program.empty() ? "''" : program);
  }
  std::error_code failed;
  if (std::filesystem::is_directory(program, failed))
    return not_started(126, ErrorCode::kBadInput, "is a folder, not a command", program);
  if (error == EAGAIN || error == ENOMEM)
    return not_started(125, ErrorCode::kSystem, std::string("can't be started: ") + std::strerror(error),
                       program);
  return not_started(126, ErrorCode::kBadInput, std::string("can't be executed: ") + std::strerror(error),
                     program);
}

[[noreturn]] void exec_in_child(const SignalScope& signals, bool own_group, pid_t parent, int report,
                                char* const* arguments, char* const* environment) {
  if (own_group) ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(125);
  signals.restore_in_child();
  ::execvpe(arguments[0], arguments, environment);
  const int error = errno;
  const ssize_t ignored = ::write(report, &error, sizeof error);
  (void)ignored;
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  return "signal " + std::to_string(number) + (name ? std::string(" (SIG") + name + ")" : "");
}

JobEnd run_job(const JobPlan& plan, double linger_s) {
  const auto system_failure = [&](const char* what) {
    return not_started(125, ErrorCode::kSystem, std::string(what) + ": " + std::strerror(errno),
                       plan.command.front());
  };
  Pipe report, output, errors, stop;
  const bool captures = static_cast<bool>(plan.on_output);
  if (!report.open(O_CLOEXEC) || !stop.open(O_CLOEXEC)) return system_failure("no pipe");
  if (captures && (!output.open(O_CLOEXEC) || !errors.open(O_CLOEXEC))) return system_failure("no pipe");

  const std::vector<char*> arguments = pointers(plan.command);
  const std::vector<char*> environment = pointers(plan.environment);
  const bool own_group = !has_terminal();
  SignalScope signals;
  const pid_t parent = ::getpid();
  const auto start = Clock::now();
  const pid_t child = ::fork();
  if (child < 0) return system_failure("no new process");
  if (child == 0) {
    if (captures) {
      ::dup2(output.write, STDOUT_FILENO);
      ::dup2(errors.write, STDERR_FILENO);
    }
    exec_in_child(signals, own_group, parent, report.write, arguments.data(), environment.data());
  }
  if (own_group) ::setpgid(child, child);  // in both, so that it is done before either goes on
  report.close_write();
  output.close_write();
  errors.close_write();
  int exec_error = 0;
  ssize_t got;
  do {
    got = ::read(report.read, &exec_error, sizeof exec_error);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof exec_error)) {
    ::waitpid(child, nullptr, 0);
    return exec_failed(exec_error, plan.command.front());
  }

  JobEnd end;
  end.started = true;
  std::mutex mutex;
  Reader readers[2];
  if (captures) {
    readers[0].start(output.read, stop.read, JobStream::kStdout, mutex, plan.on_output);
    readers[1].start(errors.read, stop.read, JobStream::kStderr, mutex, plan.on_output);
  }
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno == ECHILD)) break;
    siginfo_t arrived{};
    const int number = ::sigwaitinfo(&signals.watched(), &arrived);
    if (number <= 0 || number == SIGCHLD) continue;
    if (number != SIGUSR1 && number != SIGUSR2) {
      end.interrupted = number;
      signals.interrupted();
    }
    // Sent by the terminal: the job in our group has got it already.
    if (!own_group && arrived.si_code > 0) continue;
    ::kill(own_group ? -child : child, number);
  }
  end.wall_s = seconds_since(start);
  end.killed_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  end.exit_code = end.killed_by ? 128 + end.killed_by : WEXITSTATUS(status);

  const auto deadline = Clock::now() + std::chrono::duration<double>(linger_s);
  while (own_group && ::kill(-child, 0) == 0 && Clock::now() < deadline) {
    timespec wait{0, 20'000'000};
    siginfo_t arrived{};
    const int number = ::sigtimedwait(&signals.watched(), &arrived, &wait);
    if (number > 0 && number != SIGCHLD) {
      end.interrupted = number;
      signals.interrupted();
      ::kill(-child, number);
    }
  }
  if (captures) {
    // What is in the pipes is read; what processes left behind may print later is not waited for.
    stop.close_write();
    for (Reader& reader : readers) reader.join();
  }
  return end;
}

}  // namespace echotp
