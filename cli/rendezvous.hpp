// SPDX-License-Identifier: Apache-2.0
// RENDEZVOUS: how the processes of one launch agree on an ncclUniqueId: rank 0 writes it to a file that the
// launcher named, the others wait for the file. Used by programs that are ranks themselves.
#pragma once

#include <nccl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "shim/result.hpp"

namespace echotp {

/// Place of this process in the job, from RANK, WORLD_SIZE and LOCAL_RANK (as torchrun and launch-ranks.sh
/// set them).
struct RankPlace {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
};

/// Reads the environment; without RANK and WORLD_SIZE the process is the only rank.
inline Result<RankPlace> rank_place() {
  RankPlace place;
  const struct {
    const char* name;
    int* value;
    int lowest;
  } wanted[] = {
      {"RANK", &place.rank, 0}, {"WORLD_SIZE", &place.ranks, 1}, {"LOCAL_RANK", &place.local_rank, 0}};
  for (const auto& variable : wanted) {
    const char* text = std::getenv(variable.name);
    if (text == nullptr) continue;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < variable.lowest || value > 100000)
      return Error{ErrorCode::kBadInput, std::string("'") + text + "' is not a rank or a number of ranks",
                   variable.name};
    *variable.value = static_cast<int>(value);
  }
  if (place.rank >= place.ranks)
    return Error{ErrorCode::kBadInput, "must be below WORLD_SIZE " + std::to_string(place.ranks), "RANK"};
  return place;
}

/// Agrees on the id: rank 0 creates and publishes it under `path` (temporary name, then rename), the others
/// poll for at most `deadline`. The file must not exist before the launch. One rank alone needs no path.
inline Result<ncclUniqueId> agree_on_id(const RankPlace& place, const char* path,
                                        std::chrono::seconds deadline = std::chrono::seconds(120)) {
  ncclUniqueId id{};
  if (place.rank == 0) {
    if (const ncclResult_t rc = ncclGetUniqueId(&id); rc != ncclSuccess)
      return Error{ErrorCode::kSystem, ncclGetErrorString(rc), "ncclGetUniqueId"};
    if (place.ranks == 1) return id;
  }
  if (path == nullptr || *path == '\0')
    return Error{ErrorCode::kBadInput, "not set; start the ranks with share/launch-ranks.sh",
                 "ECHO_TP_RENDEZVOUS"};
  if (place.rank == 0) {
    const std::string part = std::string(path) + ".part";
    std::FILE* file = std::fopen(part.c_str(), "wb");
    bool written = file != nullptr && std::fwrite(&id, sizeof id, 1, file) == 1;
    if (file != nullptr) written = std::fclose(file) == 0 && written;
    if (!written || std::rename(part.c_str(), path) != 0)
      return Error{ErrorCode::kSystem, "can't be written", path};
    return id;
  }
  const auto end = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    if (std::FILE* file = std::fopen(path, "rb"); file != nullptr) {
      const bool complete = std::fread(&id, sizeof id, 1, file) == 1;
      std::fclose(file);
      if (complete) return id;
      return Error{ErrorCode::kBadInput, "holds no ncclUniqueId", path};
    }
    if (std::chrono::steady_clock::now() > end)
      return Error{
          ErrorCode::kSystem,
          "rank 0 has not published its ncclUniqueId after " + std::to_string(deadline.count()) + " s", path};
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace echotp
