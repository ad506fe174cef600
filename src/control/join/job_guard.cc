// SPDX-License-Identifier: Apache-2.0
#include "control/join/job_guard.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/text.h"
#include "control/join/process.h"
#include "control/net/socket.h"

namespace megadp {
namespace {

constexpr uint64_t kHolderNs = 10'000'000'000;  // with a process that holds the name but may be ending

struct Name {
  Fd socket;
  int times = 0;
};

struct AllHeld {
  std::mutex mutex;
  std::map<std::string, Name> by_name;
};

// Never destroyed: a process may fork while it is exiting. A child gives up what it has inherited: else its parent's job would not end
// before it does.
AllHeld& all_held() {
  static AllHeld* const made = [] {
    auto* const created = new AllHeld;
    ::pthread_atfork([] { all_held().mutex.lock(); }, [] { all_held().mutex.unlock(); },
                     [] {
                       all_held().by_name.clear();
                       all_held().mutex.unlock();
                     });
    return created;
  }();
  return *made;
}

void give_up(const std::string& name) noexcept {
  AllHeld& all = all_held();
  const std::lock_guard lock(all.mutex);
  const auto held = all.by_name.find(name);
  if (held != all.by_name.end() && --held->second.times == 0) all.by_name.erase(held);
}

Status hold(const std::string& name) {
  AllHeld& all = all_held();
  const std::lock_guard lock(all.mutex);
  const auto held = all.by_name.find(name);
  if (held != all.by_name.end()) {
    ++held->second.times;
    return {};
  }
  auto sockets = listen_at({name, "", 0});
  if (!sockets.ok()) return sockets.status();
  all.by_name.emplace(name, Name{std::move(sockets->front()), 1});
  return {};
}

// Whether whoever listens at the other end has closed it, within a moment. Nothing else ever comes from there.
bool hangs_up(const Fd& door) {
  pollfd polled{door.get(), POLLIN, 0};
  return ::poll(&polled, 1, 100) > 0;
}

bool is_ancestor(pid_t pid) {
  const auto all = ancestors();
  return std::any_of(all.begin(), all.end(), [&](const Ancestor& each) { return each.pid == pid; });
}

}  // namespace

JobGuard::JobGuard(JobGuard&& other) noexcept : name_(std::exchange(other.name_, {})), taken_in_(other.taken_in_) {}

JobGuard::~JobGuard() {
  if (!name_.empty() && process_id() == taken_in_) give_up(name_);
}

Result<JobGuard> JobGuard::take(const std::string& name, Deadline deadline, const std::function<Status()>& interrupted) {
  const Deadline patience = Deadline::after_ns(std::min(kHolderNs, deadline.left_ns()));
  for (;;) {
    const Status held = hold(name);
    if (held.ok()) return JobGuard(name);
    const auto door = connect_to({name, "", 0}, patience);  // once, however long it takes: the other never accepts any
    const auto holder = door.ok() ? peer_credentials(door->get()) : std::nullopt;
    if (holder && is_ancestor(holder->pid)) return JobGuard();
    do {
      Status status = interrupted();
      if (!status.ok()) return status;
      if (patience.passed() && !holder) return held;
      if (patience.passed()) {
        return invalid(
            describe(*holder),
            " is rank 0 of a job of this name already: ranks of the two may have met. Give each job an address or port of its own, "
            "or end the other first");
      }
    } while (holder && !hangs_up(*door));
    if (!holder) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace megadp
