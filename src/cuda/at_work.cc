// SPDX-License-Identifier: Apache-2.0
#include "cuda/at_work.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace megadp::cuda {
namespace {

// Longer than the watch gives to collectives that were left behind. What takes longer waits for others, who may never come.
constexpr auto kMostAtExit = std::chrono::seconds(3);

struct Threads {
  std::mutex mutex;
  std::condition_variable changed;
  int at_work = 0;  // under mutex
  bool exiting = false;
};

Threads& threads() {
  static auto& all = *new Threads;  // never destroyed: threads may run to the very end
  return all;
}

std::atomic<pid_t> process{0};
thread_local int at_work_here = 0;

// A forked child has none of the threads, and perhaps the mutex as one of them held it. Registered more than once, it waits once.
void wait_at_exit() {
  if (::getpid() != process.load()) return;
  Threads& all = threads();
  std::unique_lock lock(all.mutex);
  if (std::exchange(all.exiting, true)) return;
  all.changed.wait_for(lock, kMostAtExit, [&all] { return all.at_work == 0; });
}

}  // namespace

AtWork::AtWork() {
  Threads& all = threads();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&all] { return !all.exiting; });
  ++all.at_work;
  ++at_work_here;
}

AtWork::~AtWork() {
  Threads& all = threads();
  const std::lock_guard lock(all.mutex);
  --at_work_here;
  if (--all.at_work == 0) all.changed.notify_all();
}

bool AtWork::is_this_thread() noexcept {
  return at_work_here > 0;
}

void AtWork::awaited_at_exit(Loaded what) {
  process = ::getpid();
  static std::atomic<bool> registered[static_cast<size_t>(Loaded::products) + 1];
  if (!registered[static_cast<size_t>(what)].exchange(true)) static_cast<void>(std::atexit(wait_at_exit));
}

}  // namespace megadp::cuda
