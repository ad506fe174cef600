// SPDX-License-Identifier: Apache-2.0
// A host stream alone, with work of the test's own: which failure stays, who is told, and how it ends.
#include "host/stream.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/fd.h"
#include "check.h"

using namespace megadp;
using namespace megadp::host;
using namespace megadp::test;

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

std::unique_ptr<HostStream> make(const char* name, HostStream::OnFailure on_failure = {}) {
  auto stream = HostStream::create(name, std::move(on_failure));
  check(stream.ok(), stream.status().text());
  return *std::move(stream);
}

Status outcome(HostStream& stream) {
  auto event = stream.record(nullptr);
  return event.ok() ? (*event)->wait(Deadline::after_ns(20 * kSecondNs)) : event.status();
}

struct Told {
  std::atomic<int> times{0};
  Status first;
  HostStream::OnFailure function() {
    return [this](const Status& why) {
      if (times++ == 0) first = why;
    };
  }
};

void the_first_failure_is_told_once() {
  Told told;
  auto stream = make("failing", told.function());
  std::atomic<int> ran{0};
  check(stream->submit([&](const Stop&) { return ++ran, Status(); }).ok(), "work is taken");
  check(stream->submit([](const Stop&) { return Status(Code::numeric, "the first"); }).ok(), "work is taken");
  (void)stream->submit([&](const Stop&) { return ++ran, Status(Code::peer, "the second"); });
  fails(outcome(*stream), Code::numeric, {"the first"});
  fails(stream->failure(), Code::numeric, {"the first"});
  fails(stream->submit([](const Stop&) { return Status(); }), Code::numeric, {"the first"});
  check_equal(ran.load(), 1, "pieces of work that ran");
  check_equal(told.times.load(), 1, "how often the failure was told");
  fails(told.first, Code::numeric, {"the first"});
}

// What is still queued when the stream goes is told why the stream had failed, not that it was destroyed.
void destroying_does_not_replace_a_failure() {
  auto stream = make("failed");
  std::atomic<bool> begun{false};
  const auto fails_when_told_to_stop = [&](const Stop& stop) {
    begun = true;
    while (!stop.passed()) sleep_ms(1);
    return Status(Code::numeric, "the first");
  };
  check(stream->submit(fails_when_told_to_stop).ok(), "work is taken");
  auto event = stream->record(nullptr);
  auto later = stream->record(nullptr);
  while (!begun) sleep_ms(1);
  stream.reset();
  if (!check(event.ok() && later.ok() && (*event)->done() && (*later)->done(), "events of a destroyed stream are done")) return;
  fails((*event)->status(), Code::numeric, {"the first"});
  fails((*later)->status(), Code::numeric, {"the first"});
}

// Without a failure what is left is aborted, and nobody is told: the stream went of its own accord.
void destroying_aborts_what_is_left() {
  Told told;
  auto stream = make("waiting", told.function());
  std::atomic<bool> begun{false};
  std::atomic<int> ran{0};
  const auto waits_until_told_to_stop = [&](const Stop& stop) {
    begun = true;
    while (!stop.passed()) sleep_ms(1);
    return Status(Code::aborted, "it was told to stop");
  };
  check(stream->submit(waits_until_told_to_stop).ok(), "work is taken");
  (void)stream->submit([&](const Stop&) { return ++ran, Status(); });
  auto event = stream->record(nullptr);
  while (!begun) sleep_ms(1);
  stream.reset();
  if (!check(event.ok() && (*event)->done(), "an event of a destroyed stream is done")) return;
  fails((*event)->status(), Code::aborted, {"it was told to stop"});
  check_equal(ran.load(), 0, "pieces of dropped work that ran");
  check_equal(told.times.load(), 0, "how often it was told as a failure");
}

void what_work_throws_is_its_failure() {
  Told told;
  auto stream = make("throwing", told.function());
  check(stream->submit([](const Stop&) -> Status { throw std::runtime_error("the lid is on fire"); }).ok(), "work is taken");
  fails(outcome(*stream), Code::internal, {"threw", "the lid is on fire"});
  check_equal(told.times.load(), 1, "how often it was told");
  auto poor = make("poor", told.function());
  check(poor->submit([](const Stop&) -> Status { throw std::bad_alloc(); }).ok(), "work is taken");
  fails(outcome(*poor), Code::memory, {"out of memory", "\"poor\""});
  check_equal(told.times.load(), 2, "how often both were told");
}

// A stream that waits for another one's event is destroyed before that event comes, and without it.
void a_wait_ends_with_its_stream() {
  auto slow = make("slow"), waiting = make("waiting");
  std::atomic<bool> go{false};
  check(slow->submit([&](const Stop&) {
              while (!go) sleep_ms(1);
              return Status();
            })
            .ok(),
        "work is taken");
  auto event = slow->record(nullptr);
  if (!check(event.ok() && waiting->wait_for(*event).ok(), "a stream waits for another")) return;
  auto after = waiting->record(nullptr);
  // Lets the slow one go in the end, so that a stream that does wait is found out and not waited for.
  std::atomic<bool> destroyed{false};
  std::thread patience([&] {
    for (int i = 0; i < 5000 && !destroyed; ++i) sleep_ms(1);
    go = true;
  });
  waiting.reset();
  check(!(*event)->done(), "destroying a stream waited for the event that its work waits for");
  destroyed = true;
  patience.join();
  check(after.ok() && (*after)->done(), "its own events are done");
  fails((*after)->status(), Code::aborted, {"destroyed"});
  check(outcome(*slow).ok(), "the other stream goes on");
}

// And it hands on the other one's failure.
void a_wait_fails_with_its_event() {
  auto first = make("first"), second = make("second");
  check(first->submit([](const Stop&) { return Status(Code::numeric, "not a number"); }).ok(), "work is taken");
  auto event = first->record(nullptr);
  check(event.ok() && second->wait_for(*event).ok(), "a stream waits for another");
  fails(outcome(*second), Code::numeric, {"not a number"});
}

// What is retained goes when the work before it has ended, and not before; also if the stream fails.
void retained_things_outlive_the_work() {
  for (const bool failing : {false, true}) {
    auto stream = make("retaining");
    std::atomic<bool> go{false};
    auto thing = std::make_shared<int>(7);
    const std::weak_ptr<int> watched = thing;
    check(stream
              ->submit([&](const Stop&) {
                while (!go) sleep_ms(1);
                return failing ? Status(Code::numeric, "not a number") : Status();
              })
              .ok(),
          "work is taken");
    stream->retain(std::move(thing));
    check(!watched.expired(), "it is kept while work before it runs");
    go = true;
    check(outcome(*stream).ok() != failing, "the work ends");
    stream.reset();
    check(watched.expired(), "it goes afterwards");
  }
}

// The last reference may be dropped by the stream's own work: a thread cannot wait for itself.
void a_stream_may_end_in_its_own_work() {
  std::atomic<bool> go{false}, ended{false};
  auto holder = std::make_shared<std::unique_ptr<HostStream>>(make("own"));
  HostStream* const stream = holder->get();
  check(stream
            ->submit([holder, &go, &ended](const Stop&) {
              while (!go) sleep_ms(1);  // no stream may go while a call of it, this submit(), is still on its way
              holder->reset();
              ended = true;
              return Status();
            })
            .ok(),
        "work is taken");
  holder.reset();
  go = true;
  for (int i = 0; i < 20'000 && !ended; ++i) sleep_ms(1);
  check(ended, "a stream can be destroyed by its own work");
}

// A worker is its own: it takes no signal of the program, and computes as every other does, whatever its maker was doing.
void a_worker_inherits_nothing() {
  const int before = std::fegetround();
  std::fesetround(FE_UPWARD);
  auto stream = make("heir");
  std::fesetround(before);
  std::atomic<int> rounding{-1}, open_signals{0};
  check(stream
            ->submit([&](const Stop&) {
              rounding = std::fegetround();
              sigset_t blocked;
              pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
              for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1, SIGUSR2})
                open_signals += sigismember(&blocked, signal) == 0;
              return Status();
            })
            .ok(),
        "work is taken");
  check(outcome(*stream).ok(), "the work ends");
  check_equal(rounding.load(), FE_TONEAREST, "rounding mode of the worker");
  check_equal(open_signals.load(), 0, "signals that a worker may be given");
}

// Where a caller waits at once the work is done on its thread, in the library's way with floats; what others submit meanwhile comes after
// it.
void what_is_waited_for_at_once() {
  Told told;
  auto stream = make("waited for", told.function());
  const auto here = std::this_thread::get_id();
  std::thread::id first, second, third;
  int rounding = -1;
  std::atomic<int> order{0};
  int first_was = 0, second_was = 0;
  std::fesetround(FE_UPWARD);
  {
    const CallerWaits waits(*stream, true);
    check(stream
              ->submit([&](const Stop&) {
                first = std::this_thread::get_id();
                rounding = std::fegetround();
                std::thread([&] {
                  check(stream->record(nullptr).ok(), "an event is taken");
                  stream->retain(std::make_shared<int>(1));
                }).join();
                sleep_ms(20);
                first_was = ++order;
                return Status();
              })
              .ok(),
          "work is taken");
    check_equal(first_was, 1, "the work was done when it was submitted");
  }
  check_equal(std::fegetround(), FE_UPWARD, "rounding mode of the caller");
  std::fesetround(FE_TONEAREST);
  check(first == here, "on the caller's thread");
  check_equal(rounding, FE_TONEAREST, "rounding mode of the work");
  check(stream
            ->submit([&](const Stop&) {
              sleep_ms(20);
              second = std::this_thread::get_id();
              second_was = ++order;
              return Status();
            })
            .ok(),
        "work is taken");
  {
    const CallerWaits waits(*stream, true);  // the worker has something to do: it goes behind that
    check(stream
              ->submit([&](const Stop&) {
                third = std::this_thread::get_id();
                return Status(Code::numeric, "the third");
              })
              .ok(),
          "work is taken");
  }
  fails(outcome(*stream), Code::numeric, {"the third"});
  check_equal(second_was, 2, "the order of the work");
  check(second != here && third == second, "on the worker");
  check_equal(told.times.load(), 1, "how often the failure was told");
}

void what_fails_on_the_callers_thread() {
  Told told;
  auto failing = make("failing here", told.function());
  {
    const CallerWaits waits(*failing, true);
    check(failing->submit([](const Stop&) -> Status { throw std::bad_alloc(); }).ok(), "work is taken");
  }
  fails(outcome(*failing), Code::memory, {"failing here"});
  check_equal(told.times.load(), 1, "how often the failure was told");
}

// However giving and taking meet, an event loop finds a one for each that was given and not taken, and nobody waits for one that never
// comes.
void notices() {
  const Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  const auto ones = [&fd] {  // takes them
    int found = 0;
    for (uint64_t one; read(fd.get(), &one, sizeof one) == static_cast<ssize_t>(sizeof one);) found += 1;
    return found;
  };
  for (const char* const order : {"g", "gt", "tg", "gtt", "tgt", "ttg", "tgtt"}) {
    Notice notice(fd.get());
    for (const char* call = order; *call != 0; ++call) *call == 'g' ? notice.give() : notice.take();
    check_equal(ones(), std::string(order) == "g" ? 1 : 0, order);
  }
  for (int round = 0; round < 300; ++round) {
    Notice seen(fd.get()), unseen(fd.get());
    unseen.give();
    std::atomic<bool> go{false};
    std::thread giver([&] {
      while (!go) continue;
      seen.give();
    });
    go = true;
    seen.take();
    giver.join();
    seen.take();
    check_equal(ones(), 1, "what is left of two, of which one was taken");
  }
}

// Whoever writes the one is held up for long, as by a full counter that blocks: it is taken all the same.
void a_notice_is_taken_while_it_is_given() {
  const Fd fd(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC));
  const uint64_t full = UINT64_MAX - 1;
  uint64_t one = 0;
  check(write(fd.get(), &full, sizeof full) == sizeof full, "the counter is full");
  Notice notice(fd.get());
  std::atomic<pid_t> thread{0};
  std::thread giver([&] {
    thread = gettid();
    notice.give();
  });
  const auto sleeps = [&thread] {
    std::string line;
    std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::getline(stat, line, ')');
    char state = 0;
    return (stat >> state) && state == 'S';
  };
  while (thread == 0 || !sleeps()) sleep_ms(1);
  std::atomic<bool> taken{false};
  std::thread taker([&] {
    notice.take();
    taken = true;
  });
  sleep_ms(200);
  check(!taken, "whoever takes waits for whoever gives");
  check(read(fd.get(), &one, sizeof one) == sizeof one, "the counter has room");
  giver.join();
  taker.join();
  check(fcntl(fd.get(), F_SETFL, O_NONBLOCK) == 0 && write(fd.get(), &one, sizeof one) == sizeof one,
        "its own one is taken, so that there is room for another");
}

}  // namespace

int main() {
  notices();
  a_notice_is_taken_while_it_is_given();
  what_is_waited_for_at_once();
  what_fails_on_the_callers_thread();
  the_first_failure_is_told_once();
  destroying_does_not_replace_a_failure();
  destroying_aborts_what_is_left();
  what_work_throws_is_its_failure();
  a_wait_ends_with_its_stream();
  a_wait_fails_with_its_event();
  retained_things_outlive_the_work();
  a_stream_may_end_in_its_own_work();
  a_worker_inherits_nothing();
  return finish();
}
