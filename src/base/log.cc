// SPDX-License-Identifier: Apache-2.0
// The queue behind log() and deliver_logs().
#include "base/log.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/text.h"

namespace megadp {
namespace {

constexpr size_t kMaxQueued = 256;

struct Message {
  LogLevel level;
  std::string words;
};

struct Sink {
  std::mutex mutex;
  std::condition_variable delivered;
  std::deque<Message> queue;
  uint64_t dropped = 0;
  LogFn fn = nullptr;
  void* user = nullptr;
  bool delivering = false;
  std::thread::id deliverer;
  std::atomic<bool> pending{false};  // lets deliver_logs() of a quiet library cost one load
};

// Never destroyed: monitor threads may log while the process is exiting.
Sink& sink() {
  static Sink* const the_sink = [] {
    Sink* made = new Sink;
    // A child of fork() must not inherit a lock that another thread held. It starts with an empty queue: what is in it is the parent's to
    // tell.
    ::pthread_atfork([] { sink().mutex.lock(); }, [] { sink().mutex.unlock(); },
                     [] {
                       sink().queue.clear();
                       sink().dropped = 0;
                       sink().delivering = false;
                       sink().mutex.unlock();
                     });
    return made;
  }();
  return *the_sink;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warning:
      return "warning";
    case LogLevel::info:
      return "info";
    case LogLevel::debug:
      return "debug";
  }
  return "?";
}

void hand_over(LogFn fn, void* user, const Message& message) {
  if (fn != nullptr) {
    fn(user, static_cast<int32_t>(message.level), message.words.c_str(), message.words.size());
  } else {
    std::fprintf(stderr, "megadp: %s: %s\n", level_name(message.level), message.words.c_str());
  }
}

}  // namespace

void set_log(LogFn fn, void* user) {
  Sink& s = sink();
  std::unique_lock<std::mutex> lock(s.mutex);
  // A callback that replaces itself cannot wait for its own end.
  s.delivered.wait(lock, [&] { return !s.delivering || s.deliverer == std::this_thread::get_id(); });
  s.fn = fn;
  s.user = user;
}

void log(LogLevel level, std::string message) noexcept {
  try {
    Sink& s = sink();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (s.fn == nullptr && level > LogLevel::warning) return;
    if (s.queue.size() >= kMaxQueued) {
      ++s.dropped;
      return;
    }
    s.queue.push_back({level, std::move(message)});
    s.pending.store(true, std::memory_order_release);
  } catch (...) {
    // Out of memory: a message is what can be done without.
  }
}

void deliver_logs() noexcept {
  Sink& s = sink();
  if (!s.pending.load(std::memory_order_acquire)) return;
  try {
    std::unique_lock<std::mutex> lock(s.mutex);
    if (s.delivering) return;  // another thread is at it, or the callback called the library: the loop below gets there
    s.delivering = true;
    s.deliverer = std::this_thread::get_id();
    while (!s.queue.empty()) {
      const Message message = std::move(s.queue.front());
      s.queue.pop_front();
      if (s.queue.empty() && s.dropped > 0) {
        s.queue.push_back({LogLevel::warning, text(s.dropped, " further messages were dropped because nobody collected them")});
        s.dropped = 0;
      }
      const LogFn fn = s.fn;
      void* const user = s.user;
      lock.unlock();
      try {
        hand_over(fn, user, message);
      } catch (...) {
        // The callback is C and must not throw; if it does, the queue goes on.
      }
      lock.lock();
    }
    s.delivering = false;
    s.pending.store(false, std::memory_order_release);
    s.delivered.notify_all();
  } catch (...) {
    std::lock_guard<std::mutex> lock(s.mutex);
    s.delivering = false;
    s.delivered.notify_all();
  }
}

void print_logs() noexcept {
  Sink& s = sink();
  if (!s.pending.load(std::memory_order_acquire)) return;
  bool to_stderr = false;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    to_stderr = s.fn == nullptr;
  }
  if (to_stderr) deliver_logs();
}

}  // namespace megadp
