// SPDX-License-Identifier: Apache-2.0
#include "core/spill.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace megadp {

struct Spill::Store {
  std::mutex mutex;
  std::multimap<size_t, std::unique_ptr<Memory>> free;  // by size
  uint64_t free_bytes = 0, used = 0, peak = 0;

  std::unique_ptr<Memory> find(size_t bytes) {
    const auto at = free.find(bytes);
    if (at == free.end()) return nullptr;
    std::unique_ptr<Memory> found = std::move(at->second);
    free.erase(at);
    free_bytes -= bytes;
    return found;
  }

  void give_back(std::unique_ptr<Memory> memory) {
    const size_t bytes = memory->bytes();
    const std::lock_guard lock(mutex);
    used -= bytes;
    try {
      free.emplace(bytes, std::move(memory));
      free_bytes += bytes;
    } catch (const std::bad_alloc&) {  // then it is not kept
    }
  }

  void drop_largest() {
    const auto last = std::prev(free.end());
    free_bytes -= last->first;
    free.erase(last);
  }
};

Spill::Spill(Backend& backend, uint64_t limit) : backend_(backend), limit_(limit), store_(std::make_shared<Store>()) {}

Result<std::shared_ptr<Memory>> Spill::take(size_t bytes) {
  while (!left_.empty() && left_.front().passed->done()) left_.pop_front();
  std::unique_lock lock(store_->mutex);
  const uint64_t used = store_->used + bytes;
  if (limit_ != 0 && used > limit_) {
    return Status(Code::memory,
                  text("gradients outside the pool would come to ", used, " bytes, and mdp_buffer_config.spill_limit is ", limit_,
                       "; register parameters in the order of the forward pass (mdp_param.use_order, mdp_buffer_use_order), raise "
                       "pool_buckets, or raise the limit"));
  }
  std::unique_ptr<Memory> memory = store_->find(bytes);
  if (memory == nullptr) {
    while (store_->free_bytes > 0 && used + store_->free_bytes > std::max(used, store_->peak)) store_->drop_largest();
    auto made = backend_.allocate(bytes);
    if (!made) return made.status();
    memory = *std::move(made);
  }
  store_->used = used;
  store_->peak = std::max(store_->peak, used);
  lock.unlock();  // the pointer may be given back as it is made
  return std::shared_ptr<Memory>(memory.release(), [store = store_](Memory* taken) { store->give_back(std::unique_ptr<Memory>(taken)); });
}

bool Spill::leave(std::shared_ptr<Memory>& memory, const std::shared_ptr<Event>& passed) noexcept {
  try {
    left_.push_back({passed, memory});
  } catch (const std::bad_alloc&) {
    return false;
  }
  memory.reset();
  return true;
}

uint64_t Spill::peak() const {
  const std::lock_guard lock(store_->mutex);
  return store_->peak;
}

}  // namespace megadp
