// SPDX-License-Identifier: Apache-2.0
// Probing the machine.
#include "cli/doctor_probe.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "cli/text.hpp"

namespace echotp {
namespace fs = std::filesystem;
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// --- GPUs
// ---------------------------------------------------------------------------------------------------------------

// The few driver entry points that we use, by the driver's stable ABI.
struct CudaDriver {
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*uuid)(unsigned char*, int) = nullptr;
  int (*error_text)(int, const char**) = nullptr;
};

template <class F>
void bind(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
}

constexpr int kComputeMode = 20;      // CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;

std::optional<std::string> driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  bool after_module = false;
  // "NVRM version: NVIDIA UNIX ... Kernel Module  580.159.03  ..."
  while (file >> word) {
    const bool dotted = !word.empty() && word.find_first_not_of("0123456789.") == std::string::npos &&
                        word.find('.') != std::string::npos;
    if (after_module && dotted) return word;
    after_module = after_module || word == "Module";
  }
  return std::nullopt;
}

std::string uuid_text(const std::array<unsigned char, 16>& bytes) {
  std::string out = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::array<char, 4> hex;
    std::snprintf(hex.data(), hex.size(), i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
    out += hex.data();
  }
  return out;
}

// --- files
// --------------------------------------------------------------------------------------------------------------

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(at, start), text.size());
    if (end > start) out.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return out;
}

// Paths in the loader's cache whose file name starts with `stem`.
std::vector<std::string> from_loader_cache(const std::string& stem) {
  std::vector<std::string> out;
  std::FILE* pipe = ::popen("PATH=/sbin:/usr/sbin:$PATH ldconfig -p 2>/dev/null", "re");
  if (!pipe) return out;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe)) {
    const std::string text = line.data();
    const std::size_t arrow = text.find("=> ");
    if (arrow == std::string::npos) continue;
    const std::string path = text.substr(arrow + 3, text.find_last_not_of(" \n") - arrow - 2);
    if (fs::path(path).filename().string().starts_with(stem)) out.push_back(path);
  }
  ::pclose(pipe);
  return out;
}

void add_python_folders(const fs::path& parent, std::vector<fs::path>& out) {
  std::error_code failed;
  for (fs::directory_iterator at(parent, failed), end; !failed && at != end; at.increment(failed)) {
    if (!at->path().filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) out.push_back(at->path() / packages);
  }
}

// The folders of Python packages.
std::vector<fs::path> python_folders() {
  std::vector<fs::path> out;
  for (const std::string& root : {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), std::string("/usr"),
                                  std::string("/usr/local"), variable("HOME") + "/.local"}) {
    if (!root.empty()) add_python_folders(fs::path(root) / "lib", out);
  }
  out.push_back("/usr/lib/python3/dist-packages");
  return out;
}

std::vector<fs::path> library_folders(const std::vector<std::string>& wheel_folders) {
  std::vector<fs::path> out;
  for (const std::string& folder : split(variable("LD_LIBRARY_PATH"), ':')) out.push_back(folder);
  for (std::string root : {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (root.empty()) continue;
    for (const char* below : {"lib64", "targets/x86_64-linux/lib", "extras/CUPTI/lib64"})
      out.push_back(fs::path(root) / below);
  }
  for (const fs::path& python : python_folders()) {
    for (const std::string& wheel : wheel_folders) out.push_back(python / "nvidia" / wheel / "lib");
  }
  return out;
}

std::vector<std::string> find_library(const std::string& stem,
                                      const std::vector<std::string>& wheel_folders) {
  std::vector<std::string> found = from_loader_cache(stem);
  for (const fs::path& folder : library_folders(wheel_folders)) {
    std::error_code failed;
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
      if (at->path().filename().string().starts_with(stem)) found.push_back(at->path().string());
    }
  }
  std::set<std::string> unique;
  for (const std::string& path : found) {
    std::error_code failed;
    const fs::path real = fs::canonical(path, failed);
    if (!failed && fs::is_regular_file(real, failed)) unique.insert(real.string());
  }
  return {unique.begin(), unique.end()};
}

// "2.28.9" of a name such as libnccl.so.2.28.9.
std::optional<std::string> version_in_name(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const std::size_t at = name.find(".so.");
  if (at == std::string::npos ||
      std::count(name.begin() + static_cast<std::ptrdiff_t>(at) + 4, name.end(), '.') < 2)
    return std::nullopt;
  return name.substr(at + 4);
}

/// What `read` makes of a file's content; nothing if it can't be mapped.
template <class Read>
auto from_content(const std::string& path, Read read) -> decltype(read(std::string_view())) {
  decltype(read(std::string_view())) out{};
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return out;
  struct stat facts {};
  if (::fstat(file, &facts) == 0 && facts.st_size > 0) {
    const auto size = static_cast<std::size_t>(facts.st_size);
    if (void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0); map != MAP_FAILED) {
      out = read(std::string_view(static_cast<const char*>(map), size));
      ::munmap(map, size);
    }
  }
  ::close(file);
  return out;
}

// NCCL holds the text "NCCL version 2.28.9+cuda13.0"; wheels have no version in the file's name.
std::optional<std::string> version_in_nccl(const std::string& path) {
  return from_content(path, [](std::string_view text) -> std::optional<std::string> {
    constexpr std::string_view kMark = "NCCL version ";
    for (std::size_t at = 0; (at = text.find(kMark, at)) != std::string_view::npos; ++at) {
      const std::size_t start = at + kMark.size();
      const std::size_t end = std::min(text.find_first_not_of("0123456789.", start), text.size());
      if (end > start + 2) return std::string(text.substr(start, end - start));
    }
    return std::nullopt;
  });
}

// Whether a library that holds NCCL shows its functions, which is how the shim reaches the real ones.
bool shows_nccl(const std::string& path) {
  constexpr std::string_view kName("\0pncclAllReduce\0", 16);
  return from_content(path,
                      [&](std::string_view text) { return text.find(kName) != std::string_view::npos; });
}

}  // namespace

GpuFacts probe_gpus() {
  GpuFacts out;
  out.driver = driver_version();
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    out.problem = "no NVIDIA driver: libcuda.so.1 was not found";
    return out;
  }
  CudaDriver cuda;
  bind(library, "cuInit", cuda.init);
  bind(library, "cuDriverGetVersion", cuda.version);
  bind(library, "cuDeviceGetCount", cuda.count);
  bind(library, "cuDeviceGet", cuda.get);
  bind(library, "cuDeviceGetName", cuda.name);
  bind(library, "cuDeviceGetAttribute", cuda.attribute);
  bind(library, "cuDeviceGetUuid", cuda.uuid);
  bind(library, "cuGetErrorString", cuda.error_text);
  if (!cuda.init || !cuda.version || !cuda.count || !cuda.get || !cuda.name || !cuda.attribute) {
    out.problem = "libcuda.so.1 is not a CUDA driver that echo-tp knows";
    return out;
  }
  if (const int rc = cuda.init(0); rc != 0) {
    const char* text = nullptr;
    if (!cuda.error_text || cuda.error_text(rc, &text) != 0 || !text) text = "unknown error";
    out.problem = "no usable GPU: the driver says " + std::to_string(rc) + " (" + text + ")";
    return out;
  }
  int version = 0;
  if (cuda.version(&version) == 0)
    out.cuda = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  int count = 0;
  if (cuda.count(&count) != 0 || count == 0) {
    out.problem =
        "no GPU is visible" + (variable("CUDA_VISIBLE_DEVICES").empty()
                                   ? std::string()
                                   : "; CUDA_VISIBLE_DEVICES is '" + variable("CUDA_VISIBLE_DEVICES") + "'");
    return out;
  }
  for (int i = 0; i < count; ++i) {
    int device = 0, major = 0, minor = 0, mode = 0;
    std::array<char, 256> name{};
    std::array<unsigned char, 16> uuid{};
    if (cuda.get(&device, i) != 0) continue;
    GpuDevice found;
    if (cuda.name(name.data(), static_cast<int>(name.size()) - 1, device) == 0) found.name = name.data();
    if (cuda.attribute(&major, kCapabilityMajor, device) == 0 &&
        cuda.attribute(&minor, kCapabilityMinor, device) == 0)
      found.capability = std::to_string(major) + "." + std::to_string(minor);
    if (cuda.uuid && cuda.uuid(uuid.data(), device) == 0) found.uuid = uuid_text(uuid);
    if (cuda.attribute(&mode, kComputeMode, device) == 0)
      found.compute_mode = mode == 0   ? "default"
                           : mode == 2 ? "prohibited"
                           : mode == 3 ? "exclusive_process"
                                       : "";
    found.memory = probe_memory_sharing(library, device, i, count);
    out.devices.push_back(std::move(found));
  }
  return out;
}

std::vector<LibraryCopy> find_nccl() {
  std::vector<LibraryCopy> out;
  for (const std::string& path : find_library("libnccl.so", {"nccl", "cu13", "cu12"})) {
    auto version = version_in_name(path);
    out.push_back({path, version ? version : version_in_nccl(path)});
  }
  for (const fs::path& python : python_folders()) {
    const std::string path = (python / "torch/lib/libtorch_cuda.so").string();
    if (const auto version = version_in_nccl(path))
      out.push_back({path, version, "PyTorch", !shows_nccl(path)});
  }
  return out;
}

std::vector<LibraryCopy> find_cupti() {
  std::vector<LibraryCopy> out;
  for (const std::string& path : find_library("libcupti.so", {"cuda_cupti", "cu13", "cu12"}))
    out.push_back({path, version_in_name(path)});
  return out;
}

std::optional<std::string> probe_mps() {
  const std::string given = variable("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = given.empty() ? "/tmp/nvidia-mps" : given;
  std::ifstream file(folder + "/nvidia-cuda-mps-control.pid");
  long pid = 0;
  if (!(file >> pid) || pid <= 0 || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno != EPERM))
    return std::nullopt;
  return "control daemon, process " + std::to_string(pid) + ", in " + folder;
}

}  // namespace echotp
