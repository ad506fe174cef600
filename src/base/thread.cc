// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <memory>
#include <thread>
#include <utility>

#include "base/text.h"

namespace megadp {
namespace {

struct Start {
  std::string name;
  std::function<void()> body;
};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  pthread_setname_np(pthread_self(), start->name.c_str());
  // A thread inherits how its creator rounds and whether it flushes what is subnormal, and results would depend on it.
  std::fesetenv(FE_DFL_ENV);
  start->body();
  return nullptr;
}

}  // namespace

SignalsBlocked::SignalsBlocked() noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Result<pthread_t> start_thread(const std::string& name, std::function<void()> body) {
  auto start = std::make_unique<Start>(Start{name.substr(0, 15), std::move(body)});
  const SignalsBlocked blocked;
  pthread_t thread{};
  errno = 0;
  int error = pthread_create(&thread, nullptr, &run, start.get());
  if (error == EAGAIN && errno == ENOMEM) error = ENOMEM;  // glibc says of too little memory what it says of too many threads
  if (error != 0) return system_error(text("cannot start the thread \"", name, "\""), error);
  [[maybe_unused]] const auto* const taken_by_the_thread = start.release();
  return thread;
}

int usable_processors() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);  // more processors than a cpu_set_t has
}

}  // namespace megadp
