// SPDX-License-Identifier: Apache-2.0
#include "shim/communicator.hpp"

namespace echotp {

void CommunicatorTable::add(std::shared_ptr<KnownCommunicator> entry) {
  const std::lock_guard lock(mutex_);
  auto& slot = live_[entry->comm];
  if (slot) ended_.push_back(slot);  // ended behind our back
  slot = std::move(entry);
}

std::shared_ptr<KnownCommunicator> CommunicatorTable::find(void* comm) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(comm);
  return found == live_.end() ? nullptr : found->second;
}

void CommunicatorTable::remove(void* comm) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(comm);
  if (found == live_.end()) return;
  ended_.push_back(std::move(found->second));
  live_.erase(found);
}

void CommunicatorTable::collect() {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : ended_) {
    const std::unique_lock held(entry->mutex, std::try_to_lock);
    if (!held.owns_lock() || !entry->backend || !entry->backend->idle()) continue;
    const std::lock_guard receipt_lock(entry->receipt_mutex);
    entry->receipt.nonfinite_groups = entry->backend->facts().nonfinite_groups;
    entry->backend.reset();
  }
}

std::vector<std::shared_ptr<KnownCommunicator>> CommunicatorTable::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<KnownCommunicator>> entries = ended_;
  for (const auto& [comm, entry] : live_) entries.push_back(entry);
  return entries;
}

}  // namespace echotp
