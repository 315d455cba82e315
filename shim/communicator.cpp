// SPDX-License-Identifier: Apache-2.0
#include "shim/communicator.hpp"

namespace echotp {

void CommunicatorTable::add(std::shared_ptr<KnownCommunicator> entry) {
  const std::lock_guard lock(mutex_);
  auto& slot = live_[entry->comm];
  if (slot) {  // ended behind our back
    slot->ended = true;
    ended_.push_back(slot);
  }
  slot = std::move(entry);
}

std::shared_ptr<KnownCommunicator> CommunicatorTable::find(void* comm) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(comm);
  return found == live_.end() ? nullptr : found->second;
}

bool CommunicatorTable::remove(void* comm, bool abort) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(comm);
  if (found == live_.end()) return false;
  found->second->ended = true;
  // Set before a communicator is added and taken away only after it is removed: no lock needed, and none is
  // waited for, since another thread may be stuck inside a call.
  if (found->second->backend) found->second->backend->end(abort);
  ended_.push_back(std::move(found->second));
  live_.erase(found);
  return true;
}

int CommunicatorTable::async_error(void* comm) const {
  const std::lock_guard lock(mutex_);  // keeps the backend alive; see remove()
  const auto found = live_.find(comm);
  return found == live_.end() || !found->second->backend ? kNcclSuccess
                                                         : found->second->backend->async_error();
}

void CommunicatorTable::collect() {
  std::vector<std::shared_ptr<KnownCommunicator>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = ended_;
  }
  std::vector<std::unique_ptr<Backend>> idle;  // freed at the end of this function
  for (const auto& entry : ended) {
    const std::unique_lock held(entry->mutex, std::try_to_lock);
    if (!held.owns_lock() || !entry->backend || !entry->backend->idle()) continue;
    const std::lock_guard receipt_lock(entry->receipt_mutex);
    entry->receipt.nonfinite_groups = entry->backend->facts().nonfinite_groups;
    idle.push_back(std::move(entry->backend));
  }
}

std::vector<std::shared_ptr<KnownCommunicator>> CommunicatorTable::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<KnownCommunicator>> entries = ended_;
  for (const auto& [comm, entry] : live_) entries.push_back(entry);
  return entries;
}

}  // namespace echotp
