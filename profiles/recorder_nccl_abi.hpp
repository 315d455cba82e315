// SPDX-License-Identifier: Apache-2.0
// ABI of NCCL's profiler plugins, versions 2 to 5 (NCCL 2.24 to 2.29), as far as the recorder uses it: the
// layouts are NCCL's, declared here anew because no NCCL package installs them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace echotp::recorder::nccl {

enum EventType : std::uint32_t {
  kGroup = 1,
  kColl = 2,
  kP2p = 4,
  kKernelChannel = 64,  // never asked for: it adds host nodes to captured graphs and costs up to 13% (NCCL
                        // issues 1805, 2355)
  kGroupApi = 256,
  kCollApi = 512,
  kP2pApi = 1024,
  kKernelLaunch = 2048,
};

using Status = int;  // ncclResult_t: 0 is success
using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

/// Version 2: trafficBytes between datatype and the channel count.
struct EventV2 {
  std::uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      const char* name;
      std::uint64_t comm_hash;
      std::uint64_t seq;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
    } coll;
    struct {
      const char* name;
      std::uint64_t comm_hash;
      const char* func;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
    } p2p;
  };
};

/// Version 3 differs from version 2 behind what is read here.
using EventV3 = EventV2;

/// Version 4: name and hash of the communicator moved to init.
struct EventV4 {
  std::uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      std::uint64_t seq;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
    } p2p;
  };
};

/// Version 5: wider type, and events of the API calls themselves.
struct EventV5 {
  std::uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool captured;
    } coll_api;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      void* stream;
      bool captured;
    } p2p_api;
    struct {
      void* stream;
    } kernel_launch;
  };
};

static_assert(offsetof(EventV2, coll.seq) == 40 && offsetof(EventV2, coll.count) == 72 &&
              offsetof(EventV2, coll.datatype) == 88);
static_assert(offsetof(EventV2, p2p.func) == 40 && offsetof(EventV2, p2p.count) == 64);
static_assert(offsetof(EventV4, coll.func) == 32 && offsetof(EventV4, coll.count) == 56 &&
              offsetof(EventV4, coll.datatype) == 72);
static_assert(offsetof(EventV4, p2p.datatype) == 40 && offsetof(EventV4, p2p.count) == 48);
static_assert(offsetof(EventV5, coll_api.func) == 24 && offsetof(EventV5, coll_api.datatype) == 40 &&
              offsetof(EventV5, coll_api.stream) == 56 && offsetof(EventV5, coll_api.captured) == 64);
static_assert(offsetof(EventV5, p2p_api.stream) == 48 && offsetof(EventV5, p2p_api.captured) == 56);

/// What the functions of all versions have in common; `Init` and `Event` differ.
template <class Init, class Event>
struct Plugin {
  const char* name;
  Init init;
  Status (*start_event)(void* context, void** handle, Event* event);
  Status (*stop_event)(void* handle);
  Status (*record_state)(void* handle, int state, void* args);
  Status (*finalize)(void* context);
};

using InitV2 = Status (*)(void** context, int* mask);
using InitV4 = Status (*)(void** context, int* mask, const char* name, std::uint64_t hash, int nodes,
                          int ranks, int rank, Logger log);
using InitV5 = Status (*)(void** context, std::uint64_t hash, int* mask, const char* name, int nodes,
                          int ranks, int rank, Logger log);

}  // namespace echotp::recorder::nccl
