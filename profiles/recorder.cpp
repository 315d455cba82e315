// SPDX-License-Identifier: Apache-2.0
// Life of the recorder: start, what it knows about the process, fork, end. The writer thread is
// recorder_writer.cpp.
#include "profiles/recorder.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

extern char** environ;

namespace echotp::recorder {
namespace {

constexpr std::size_t kNotes = 32;
constexpr auto kExitPatience = std::chrono::seconds(5);

/// Set in a forked child whose parent used CUPTI: CUPTI's threads are gone there and its locks may be held
/// for ever.
std::atomic<bool> forbidden{false};
/// Held over a fork, so that a child never inherits it locked.
std::mutex& start_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

thread_local ThreadLog* this_log = nullptr;
thread_local bool this_thread_ends = false;

/// Tells the writer that a thread is gone, so that its log can go too.
struct LogHolder {
  bool armed = false;
  ~LogHolder() {
    this_thread_ends = true;
    ThreadLog* log = this_log;
    this_log = nullptr;
    if (log) log->finished.store(true, std::memory_order_release);
  }
};
thread_local LogHolder this_holder;

std::string file_text(const char* path, std::size_t limit) {
  std::string text;
  std::FILE* file = std::fopen(path, "re");
  if (!file) return text;
  text.resize(limit);
  text.resize(std::fread(text.data(), 1, limit, file));
  std::fclose(file);
  return text;
}

std::string command_line() {
  std::string text = file_text("/proc/self/cmdline", 4096);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

/// "580.159.03" out of /proc/driver/nvidia/version.
std::string driver_version() {
  const std::string text = file_text("/proc/driver/nvidia/version", 512);
  std::size_t at = text.find("Module");
  while (at != std::string::npos && at < text.size()) {
    const std::size_t start = text.find_first_of("0123456789", at);
    if (start == std::string::npos) return {};
    const std::size_t end = text.find_first_not_of("0123456789.", start);
    const std::string token = text.substr(start, end - start);
    if (token.find('.') != std::string::npos) return token;
    at = end;
  }
  return {};
}

std::string cuda_version() {
  const int version = cuda_driver_version();
  if (version <= 0) return {};
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool secret(const std::string& name) {
  for (const char* word : {"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"}) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

std::vector<std::pair<std::string, std::string>> allowed_environment() {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = text.substr(0, equals);
    const bool wanted = name.rfind("NCCL_", 0) == 0 || name == "CUDA_VISIBLE_DEVICES" ||
                        name == "CUDA_DEVICE_MAX_CONNECTIONS";
    if (!wanted || secret(name) || name == "NCCL_PROFILER_PLUGIN") continue;
    out.emplace_back(name, text.substr(equals + 1));
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0 || !name[0]) return "localhost";
  return name;
}

/// A host name as part of a file name.
std::string file_word(std::string text) {
  for (char& c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '_';
    if (!plain) c = '_';
  }
  return text;
}

void before_fork() {
  start_mutex().lock();
}
void parent_after_fork() {
  start_mutex().unlock();
}

}  // namespace

std::atomic<Recorder*> Recorder::active_{nullptr};

std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

Options parse_options(const char* text) {
  Options options;
  if (!text) return options;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return options;
  const auto number = [&](const char* key, std::int64_t low, std::int64_t high, std::int64_t& to) {
    const auto it = json.find(key);
    if (it != json.end() && it->is_number_integer()) to = std::clamp(it->get<std::int64_t>(), low, high);
  };
  number("max_records", 0, 1'000'000'000, options.max_records);
  number("flush_ms", 10, 60'000, options.flush_ms);
  if (const auto it = json.find("launch_callbacks"); it != json.end() && it->is_boolean())
    options.launch_callbacks = it->get<bool>();
  if (const auto it = json.find("cupti"); it != json.end() && it->is_string())
    options.cupti = it->get<std::string>();
  return options;
}

Recorder* Recorder::start() noexcept {
  if (Recorder* running = active()) return running;
  if (forbidden.load() || !std::getenv("ECHO_TP_RECORD_DIR")) return nullptr;
  try {
    const std::lock_guard<std::mutex> lock(start_mutex());
    if (Recorder* running = active()) return running;
    static bool failed = false;
    if (failed) return nullptr;
    auto* made = new Recorder;
    made->options_ = parse_options(std::getenv("ECHO_TP_RECORD_OPTIONS"));
    made->epoch_ns_ = now_ns();
    made->process_.host = host_name();
    made->process_.pid = static_cast<std::int32_t>(getpid());
    made->process_.program = command_line();
    made->process_.driver = driver_version();
    made->process_.cuda = cuda_version();
    made->process_.environment = allowed_environment();
    made->encoder_ = std::make_unique<SectionEncoder>(made->epoch_ns_);
    failed = !made->open_file();
    if (failed) {
      delete made;
      return nullptr;
    }
    // Signals belong to the job: the writer takes none of them.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([made] { made->run_writer(); }).detach();
    } catch (...) {
      failed = true;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (failed) return nullptr;
    static bool hooked = false;
    if (!hooked) {
      hooked = true;
      pthread_atfork(before_fork, parent_after_fork, child_after_fork);
      std::atexit(at_exit);
    }
    active_.store(made, std::memory_order_release);
    return made;
  } catch (...) {
    return nullptr;
  }
}

bool Recorder::open_file() {
  const std::string folder = std::getenv("ECHO_TP_RECORD_DIR");
  const std::string stem = folder + "/" + file_word(process_.host) + "-" + std::to_string(process_.pid);
  for (int attempt = 1; attempt < 100; ++attempt) {
    path_ = stem + (attempt > 1 ? "-" + std::to_string(attempt) : "") + ".echoprof.part";
    file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ >= 0) return true;
    if (errno != EEXIST) return false;
  }
  return false;
}

void Recorder::child_after_fork() {
  Recorder* parents = active_.exchange(nullptr);
  this_log = nullptr;
  if (parents) {
    if (parents->cupti_.tried()) forbidden = true;
    close(parents->file_);
  }
  start_mutex().unlock();
}

ThreadLog* Recorder::existing_log() noexcept {
  return this_log;
}

ThreadLog* Recorder::log() noexcept {
  if (this_log && this_log->owner == this) return this_log;
  if (this_thread_ends) return nullptr;
  try {
    auto made = std::make_unique<ThreadLog>();
    made->owner = this;
    made->thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
    const std::lock_guard<std::mutex> lock(logs_mutex_);
    logs_.push_back(made.get());
    this_holder.armed = true;  // its destructor now runs at the end of this thread
    this_log = made.release();
    return this_log;
  } catch (...) {
    return nullptr;
  }
}

void Recorder::push(ThreadLog& log, const HostRecord& record) noexcept {
  if (!log.ring.push(record)) dropped_.fetch_add(1, std::memory_order_relaxed);
  if (log.ring.half_full()) wake();
}

CommunicatorState& Recorder::communicator(std::uint64_t hash) {
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  auto& state = communicators_[hash];
  if (!state) {
    state = std::make_unique<CommunicatorState>();
    state->hash = hash;
  }
  return *state;
}

void Recorder::learn_communicator(std::uint64_t hash, const std::string& name, std::int32_t ranks,
                                  std::int32_t rank) {
  const std::string line = communicator_line(hash, name, ranks, rank);
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  communicator_lines_.push_back(line);
}

void Recorder::learn_nccl(const void* address_in_nccl) {
  Dl_info info{};
  if (!address_in_nccl || !dladdr(address_in_nccl, &info) || !info.dli_fname) return;
  void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return;
  using GetVersion = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  const bool known = get && get(&version) == 0 && version > 0;
  dlclose(library);
  if (!known) return;
  const int major = version / (version >= 10000 ? 10000 : 1000);
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  process_.nccl = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

std::uint32_t Recorder::range_name(std::string_view text) {
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  const auto [it, added] = range_names_.try_emplace(std::string(text.substr(0, 256)),
                                                    static_cast<std::uint32_t>(range_names_.size()));
  if (added) new_range_names_.push_back(it->first);
  return it->second;
}

void Recorder::tier(const char* name) {
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  auto& tiers = process_.tiers;
  if (std::find(tiers.begin(), tiers.end(), name) == tiers.end()) tiers.emplace_back(name);
}

void Recorder::note(const std::string& text) {
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  auto& notes = process_.notes;
  if (notes.size() < kNotes && std::find(notes.begin(), notes.end(), text) == notes.end())
    notes.push_back(text);
}

void Recorder::start_cupti() noexcept {
  try {
    static std::mutex* mutex = new std::mutex;
    const std::lock_guard<std::mutex> lock(*mutex);
    if (cupti_.tried()) return;
    std::string why;
    if (cupti_.start(options_, why)) {
      tier("cupti");
      if (cupti_.clock_offset_ns() != 0)
        note("CUPTI's clock differs from the host's: host times are shifted to it");
    } else {
      note(why);
    }
  } catch (...) {
  }
}

void Recorder::wake() noexcept {
  // Without the lock a wake-up can be missed; the period then takes its place.
  if (!woken_.exchange(true, std::memory_order_relaxed)) wake_condition_.notify_one();
}

void Recorder::finish() noexcept {
  try {
    std::unique_lock<std::mutex> lock(wake_mutex_);
    stopping_ = true;
    wake_condition_.notify_one();
    done_condition_.wait_for(lock, kExitPatience, [this] { return done_; });
  } catch (...) {
  }
}

void Recorder::at_exit() {
  if (Recorder* recorder = active()) recorder->finish();
}

}  // namespace echotp::recorder
