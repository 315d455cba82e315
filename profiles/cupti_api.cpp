// SPDX-License-Identifier: Apache-2.0
// Which libcupti, and its functions; see cupti_api.hpp.
#include "profiles/cupti_api.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <vector>

namespace echotp {
namespace {

static_assert(offsetof(CuptiCudaEvent, sync_id) == sizeof(CUpti_ActivityCudaEvent) + 24);
static_assert(offsetof(CuptiSynchronization, sync_id) == sizeof(CUpti_ActivitySynchronization));

/// Folders of objects that are mapped into this process and whose file name starts with `stem`, and their
/// paths.
struct Mapped {
  std::string path;
  std::string folder;
};

std::vector<Mapped> mapped_objects(const std::string& stem) {
  std::vector<Mapped> found;
  std::set<std::string> seen;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return found;
  char* line = nullptr;
  std::size_t size = 0;
  while (getline(&line, &size, maps) > 0) {
    const std::string text(line);
    const std::size_t slash = text.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = text.substr(slash, text.find('\n') - slash);
    const std::size_t name = path.rfind('/') + 1;
    if (path.compare(name, stem.size(), stem) != 0 || !seen.insert(path).second) continue;
    found.push_back({path, path.substr(0, name)});
  }
  std::free(line);
  std::fclose(maps);
  return found;
}

template <class Function>
bool bind(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

/// Functions of an open library; false when a needed one is missing.
bool bind_all(CuptiApi& api) {
  bind(api.handle, "cuptiSubscribe_v2", api.subscribe_v2);
  bind(api.handle, "cuptiSetThreadIdType", api.set_thread_id_type);
  bind(api.handle, "cuptiGetGraphNodeId", api.graph_node_id);
  bind(api.handle, "cuptiActivityEnableRuntimeApi", api.enable_runtime_api);
  bind(api.handle, "cuptiActivityEnableDriverApi", api.enable_driver_api);
  bind(api.handle, "cuptiActivityEnableAllSyncRecords", api.enable_all_sync_records);
  return bind(api.handle, "cuptiGetVersion", api.get_version) &&
         bind(api.handle, "cuptiGetResultString", api.result_string) &&
         bind(api.handle, "cuptiSubscribe", api.subscribe) &&
         bind(api.handle, "cuptiUnsubscribe", api.unsubscribe) &&
         bind(api.handle, "cuptiEnableCallback", api.enable_callback) &&
         bind(api.handle, "cuptiActivityRegisterCallbacks", api.register_callbacks) &&
         bind(api.handle, "cuptiActivityEnable", api.enable) &&
         bind(api.handle, "cuptiActivityDisable", api.disable) &&
         bind(api.handle, "cuptiActivityFlushAll", api.flush_all) &&
         bind(api.handle, "cuptiActivityGetNextRecord", api.next_record) &&
         bind(api.handle, "cuptiActivityGetNumDroppedRecords", api.dropped_records) &&
         bind(api.handle, "cuptiGetTimestamp", api.timestamp);
}

std::string path_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) && info.dli_fname ? info.dli_fname : "";
}

struct Candidate {
  std::string name;
  int flags = 0;
  int major = 0;  // 0: any
};

std::vector<Candidate> candidates(const std::string& preferred) {
  std::vector<Candidate> list;
  if (!preferred.empty()) return {{preferred, 0, 0}};
  static constexpr int kMajors[] = {13, 12};
  for (const int major : kMajors)
    list.push_back({"libcupti.so." + std::to_string(major), RTLD_NOLOAD, major});
  for (const Mapped& object : mapped_objects("libcupti.so")) list.push_back({object.path, RTLD_NOLOAD, 0});
  // PyTorch's wheels keep CUPTI beside libcudart (CUDA 13) or in a folder next to it (CUDA 12).
  for (const Mapped& object : mapped_objects("libcudart")) {
    for (const int major : kMajors) {
      const std::string file = "libcupti.so." + std::to_string(major);
      list.push_back({object.folder + file, 0, major});
      list.push_back({object.folder + "../../cuda_cupti/lib/" + file, 0, major});
      list.push_back({object.folder + "../extras/CUPTI/lib64/" + file, 0, major});
    }
  }
  for (const int major : kMajors) {
    const std::string file = "libcupti.so." + std::to_string(major);
    for (const char* folder :
         {"/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"}) {
      list.push_back({folder + file, 0, major});
    }
    list.push_back({file, 0, major});
  }
  return list;
}

}  // namespace

std::string CuptiApi::error_text(CUptiResult result) const {
  const char* text = nullptr;
  if (result_string && result_string(result, &text) == CUPTI_SUCCESS && text) return text;
  return "CUPTI error " + std::to_string(static_cast<int>(result));
}

int cuda_driver_version() {
  void* libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!libcuda) return 0;
  using GetVersion = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(dlsym(libcuda, "cuDriverGetVersion"));
  int version = 0;
  if (!get || get(&version) != 0) version = 0;
  dlclose(libcuda);
  return version;
}

Result<CuptiApi> open_cupti(const std::string& preferred) {
  const int driver_major = cuda_driver_version() / 1000;
  std::string tried;
  for (const Candidate& candidate : candidates(preferred)) {
    const bool too_new = driver_major > 0 && candidate.major > driver_major && candidate.flags == 0;
    if (too_new) continue;
    CuptiApi api;
    api.handle = dlopen(candidate.name.c_str(), RTLD_LAZY | RTLD_LOCAL | candidate.flags);
    if (!api.handle) continue;
    if (!bind_all(api)) {
      tried = candidate.name + " lacks functions that the recorder needs";
      dlclose(api.handle);
      continue;
    }
    api.path = path_of(reinterpret_cast<void*>(api.get_version));
    if (api.get_version(&api.version) != CUPTI_SUCCESS) api.version = 0;
    return api;
  }
  if (!tried.empty()) return Error{ErrorCode::kNotFound, tried, ""};
  return Error{ErrorCode::kNotFound,
               preferred.empty() ? "libcupti.so.13 or .12 was not found" : preferred + " cannot be opened",
               ""};
}

}  // namespace echotp
