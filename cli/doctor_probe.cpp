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
    for (const char* packages : {"site-packages", "dist-packages"})
      out.push_back(at->path() / packages / "nvidia");
  }
}

std::vector<fs::path> library_folders(const std::vector<std::string>& wheel_folders) {
  std::vector<fs::path> out;
  for (const std::string& folder : split(variable("LD_LIBRARY_PATH"), ':')) out.push_back(folder);
  for (std::string root : {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (root.empty()) continue;
    for (const char* below : {"lib64", "targets/x86_64-linux/lib", "extras/CUPTI/lib64"})
      out.push_back(fs::path(root) / below);
  }
  std::vector<fs::path> pythons;
  for (const std::string& root : {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), std::string("/usr"),
                                  std::string("/usr/local"), variable("HOME") + "/.local"}) {
    if (!root.empty()) add_python_folders(fs::path(root) / "lib", pythons);
  }
  pythons.push_back("/usr/lib/python3/dist-packages/nvidia");
  for (const fs::path& python : pythons) {
    for (const std::string& wheel : wheel_folders) out.push_back(python / wheel / "lib");
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

// NCCL holds the text "NCCL version 2.28.9+cuda13.0"; wheels have no version in the file's name.
std::optional<std::string> version_in_nccl(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::optional<std::string> out;
  struct stat facts {};
  if (::fstat(file, &facts) == 0 && facts.st_size > 0) {
    const auto size = static_cast<std::size_t>(facts.st_size);
    if (void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0); map != MAP_FAILED) {
      constexpr std::string_view kMark = "NCCL version ";
      const std::string_view text(static_cast<const char*>(map), size);
      for (std::size_t at = 0; !out && (at = text.find(kMark, at)) != std::string_view::npos; ++at) {
        const std::size_t start = at + kMark.size();
        const std::size_t end = std::min(text.find_first_not_of("0123456789.", start), size);
        if (end > start + 2) out = std::string(text.substr(start, end - start));
      }
      ::munmap(map, size);
    }
  }
  ::close(file);
  return out;
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
    int device = 0, major = 0, minor = 0;
    std::array<char, 256> name{};
    std::array<unsigned char, 16> uuid{};
    if (cuda.get(&device, i) != 0) continue;
    GpuDevice found;
    if (cuda.name(name.data(), static_cast<int>(name.size()) - 1, device) == 0) found.name = name.data();
    if (cuda.attribute(&major, kCapabilityMajor, device) == 0 &&
        cuda.attribute(&minor, kCapabilityMinor, device) == 0)
      found.capability = std::to_string(major) + "." + std::to_string(minor);
    if (cuda.uuid && cuda.uuid(uuid.data(), device) == 0) found.uuid = uuid_text(uuid);
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

std::vector<EnvironmentFinding> probe_environment() {
  struct Known {
    const char* name;
    const char* active_value;  // "*": any; "!x": set to anything but x
    const char* effect;
  };
  constexpr Known kKnown[] = {
      {"ECHO_TP", "off", "echo-tp run leaves the job alone"},
      {"LD_PRELOAD", "*", "kept, behind echo-tp's own library"},
      {"CUDA_INJECTION64_PATH", "*",
       "echo-tp profile records no device times: another tool holds CUPTI's way in"},
      {"NVTX_INJECTION64_PATH", "*", "echo-tp profile sees no NVTX ranges"},
      {"NCCL_PROFILER_PLUGIN", "*", "echo-tp profile has no NCCL profiler plugin"},
      {"NCCL_NVTX_DISABLE", "*", "NCCL emits no NVTX: fewer facts in profiles"},
      {"NCCL_COMM_BLOCKING", "0", "communicators are non-blocking: Echo leaves them to NCCL"},
      {"CUDA_VISIBLE_DEVICES", "*", "limits the GPUs that jobs see"},
  };
  std::vector<EnvironmentFinding> out;
  for (const Known& known : kKnown) {
    const std::string value = variable(known.name);
    if (value.empty()) continue;
    const bool any = std::strcmp(known.active_value, "*") == 0;
    if (any || value == known.active_value) out.push_back({known.name, plain(value), known.effect, true});
  }
  // Traffic that never reaches NCCL. Whether a job uses it can't be seen from here; the switch can.
  struct Path {
    const char* name;
    const char* off_value;  // null: a command line option, not a variable
    const char* effect;
  };
  constexpr Path kPaths[] = {
      {"VLLM_ALLREDUCE_USE_SYMM_MEM", "0",
       "vLLM: 0 turns off PyTorch symmetric-memory all-reduce (on by default)"},
      {"VLLM_ALLREDUCE_USE_FLASHINFER", "0",
       "vLLM: 0 turns off FlashInfer's fused all-reduce; also fuse_allreduce_rms=false"},
      {"VLLM_USE_NCCL_SYMM_MEM", "0", "vLLM: 0 turns off NCCL symmetric windows"},
      {"--disable-custom-all-reduce", nullptr,
       "vLLM, SGLang: turns off their own all-reduce kernels (on by default)"},
      {"--enable-torch-symm-mem", nullptr, "SGLang: uses symmetric memory; leave it out"},
      {"--enable-flashinfer-allreduce-fusion", nullptr, "SGLang: fuses all-reduce and norm; leave it out"},
      {"--enable-mscclpp", nullptr, "SGLang: uses MSCCL++; leave it out"},
      {"--tp-comm-overlap", nullptr, "Megatron: uses user buffers; leave it out"},
      {"allreduce_strategy", nullptr, "TensorRT-LLM: NCCL sends all-reduces through NCCL"},
  };
  for (const Path& path : kPaths) {
    const std::string value = path.off_value ? variable(path.name) : "";
    out.push_back(
        {path.name, plain(value), path.effect, path.off_value && !value.empty() && value != path.off_value});
  }
  return out;
}

}  // namespace echotp
