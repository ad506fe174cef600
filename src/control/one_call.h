// SPDX-License-Identifier: Apache-2.0
// OneCall: a part of what one thread at a time may use. A call of the library takes it (api/handle.h) and has it until it ends; another one
// that comes meanwhile learns which call that is, and is refused: threads that break the rule are told, before they meet in memory.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <optional>

namespace megadp {

class CallInWait;

class OneCall {
 public:
  // A call that has it.
  struct Holder {
    const char* name;  // null if it is only just beginning, or ending
    bool on_this_thread;
  };

  OneCall() = default;
  OneCall(const OneCall&) = delete;
  OneCall& operator=(const OneCall&) = delete;

  // For the call under way on this thread, which may have it already. Nothing: taken. Does not wait. owner: what this is a part of, whose
  // last handle may go before the call has ended.
  std::optional<Holder> take(std::shared_ptr<void> owner) noexcept;

 private:
  friend class CallInWait;
  void give_back() noexcept;

  std::atomic<const CallInWait*> holder_{nullptr};
  std::atomic<const char*> name_{nullptr};
  std::atomic<pthread_t> thread_{};
  std::shared_ptr<void> owner_;  // while it is taken
  OneCall* next_ = nullptr;      // what the same call has besides
};

}  // namespace megadp
