// SPDX-License-Identifier: Apache-2.0
// The log: messages wait for an ordinary call, keep their order, are bounded, and reach nobody twice.
#include "base/log.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "api/error.h"
#include "check.h"
#include "control/one_call.h"

using namespace megadp;
using namespace megadp::test;

namespace {

struct Collected {
  std::vector<std::string> words;
  std::vector<int> levels;
};

void collect(void* user, int32_t level, const char* words, size_t length) {
  auto* const to = static_cast<Collected*>(user);
  to->words.emplace_back(words, length);
  to->levels.push_back(level);
}

// What is written to standard error while body runs.
std::string errors_of(void (*body)()) {
  FILE* const file = ::tmpfile();
  const int before = ::dup(2);
  ::dup2(::fileno(file), 2);
  body();
  ::fflush(stderr);
  ::dup2(before, 2);
  ::close(before);
  std::string all(static_cast<size_t>(::ftell(file) < 0 ? 0 : ::lseek(::fileno(file), 0, SEEK_END)), '\0');
  ::lseek(::fileno(file), 0, SEEK_SET);
  const ssize_t n = ::read(::fileno(file), all.data(), all.size());
  ::fclose(file);
  return all.substr(0, static_cast<size_t>(n < 0 ? 0 : n));
}

void messages_wait_and_keep_their_order() {
  Collected got;
  set_log(collect, &got);
  log(LogLevel::debug, "first");
  log(LogLevel::error, "second");
  check(got.words.empty(), "nothing before an ordinary call");
  deliver_logs();
  check_equal(got.words, std::vector<std::string>{"first", "second"}, "messages");
  check_equal(got.levels, std::vector<int>{3, 0}, "levels");
  deliver_logs();
  check_equal(got.words.size(), size_t{2}, "messages after a second call");
  set_log(nullptr, nullptr);
}

void the_queue_is_bounded() {
  Collected got;
  set_log(collect, &got);
  for (int i = 0; i < 1000; ++i) log(LogLevel::info, text(i));
  deliver_logs();
  check_equal(got.words.size(), size_t{257}, "messages");
  check_equal(got.words[0], std::string("0"), "the oldest is kept");
  check_equal(got.words[255], std::string("255"), "the order is kept");
  check_equal(got.words[256], std::string("744 further messages were dropped because nobody collected them"), "the rest is counted");
  got.words.clear();
  log(LogLevel::info, "again");
  deliver_logs();
  check_equal(got.words, std::vector<std::string>{"again"}, "messages");
  set_log(nullptr, nullptr);
}

void without_a_callback_only_what_matters_is_printed() {
  const std::string printed = errors_of([] {
    log(LogLevel::error, "bad");
    log(LogLevel::warning, "odd");
    log(LogLevel::info, "plain");
    log(LogLevel::debug, "detail");
    deliver_logs();
  });
  check_equal(printed, std::string("megadp: error: bad\nmegadp: warning: odd\n"), "standard error");
}

void a_callback_may_call_the_library() {
  static int calls;
  calls = 0;
  set_log(
      [](void*, int32_t, const char*, size_t) {
        ++calls;
        if (calls == 1) log(LogLevel::info, "from inside");
        deliver_logs();                             // no recursion
        if (calls == 2) set_log(nullptr, nullptr);  // no deadlock
      },
      nullptr);
  log(LogLevel::info, "from outside");
  deliver_logs();
  check_equal(calls, 2, "calls");
}

// It comes when the call has given back what it had alone.
void a_callback_may_use_what_the_call_has_used() {
  static const std::shared_ptr<OneCall> shared = std::make_shared<OneCall>();
  static int calls;
  calls = 0;
  const auto take = [] { return shared->take(shared) ? Status(Code::state, "refused") : Status(); };
  set_log(
      [](void*, int32_t, const char*, size_t) {
        ++calls;
        check(guard([] { return shared->take(shared) ? Status(Code::state, "refused") : Status(); }) == MDP_OK, "taken in the callback");
      },
      nullptr);
  const auto use = [&]() -> Status {
    check(take().ok() && take().ok(), "a call has it, and may take it again");
    check(guard(take) == MDP_E_STATE, "a call within it is refused");
    const auto holder = std::async(std::launch::async, [&] {
                          std::optional<OneCall::Holder> found;
                          guard([&]() -> Status {
                            found = shared->take(shared);
                            return {};
                          });
                          return found;
                        }).get();
    check(holder && std::string(holder->name) == "first" && !holder->on_this_thread, "who has it");
    log(LogLevel::info, "from inside");
    return {};
  };
  check(guard(use, "first") == MDP_OK, "the call");
  check_equal(calls, 1, "calls");
  check(guard(take) == MDP_OK, "taken after the call");
  check(guard([&]() -> Status {
          (void)shared->take(shared);
          throw std::bad_alloc();
        }) == MDP_E_MEMORY,
        "a call that runs out of memory");
  check(guard(take) == MDP_OK, "taken after a call that ran out of memory");
  set_log(nullptr, nullptr);
}

void set_log_waits_for_the_callback_on_another_thread() {
  static std::atomic<int> state;
  state = 0;
  set_log(
      [](void*, int32_t, const char*, size_t) {
        state = 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        state = 2;
      },
      nullptr);
  log(LogLevel::info, "slow");
  std::thread deliverer(deliver_logs);
  while (state == 0) std::this_thread::yield();
  set_log(nullptr, nullptr);
  check_equal(state.load(), 2, "the callback has ended");
  deliverer.join();
}

void threads_lose_nothing() {
  static std::atomic<int> calls;
  calls = 0;
  set_log([](void*, int32_t, const char*, size_t) { ++calls; }, nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 60; ++i) {
        log(LogLevel::info, "x");
        if (i % 3 == 0) deliver_logs();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  deliver_logs();
  check_equal(calls.load(), 240, "calls");
  set_log(nullptr, nullptr);
}

// While another thread of the parent logs without end: the child must not inherit a lock nobody opens.
void a_forked_child_can_log() {
  Collected got;
  set_log(collect, &got);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) log(LogLevel::info, "parent");
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      log(LogLevel::info, "child");
      deliver_logs();
      ::_exit(got.words == std::vector<std::string>{"child"} ? 0 : 1);
    }
    int status = -1;
    check(::waitpid(child, &status, 0) == child && status == 0, "the child logs its own message only");
  }
  stop = true;
  busy.join();
  deliver_logs();
  set_log(nullptr, nullptr);
}

}  // namespace

int main() {
  messages_wait_and_keep_their_order();
  the_queue_is_bounded();
  without_a_callback_only_what_matters_is_printed();
  a_callback_may_call_the_library();
  a_callback_may_use_what_the_call_has_used();
  set_log_waits_for_the_callback_on_another_thread();
  threads_lose_nothing();
  a_forked_child_can_log();
  return finish();
}
