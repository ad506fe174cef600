// SPDX-License-Identifier: Apache-2.0
// Streams and events: order, failures that stick, notification, time stamps, destruction at any moment.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "device_array.h"
#include "suite.h"

namespace megadp::test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

void order(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("order"));
    auto memory = rank.must(rank.backend().allocate(4096));
    auto* const data = static_cast<float*>(memory->data());
    const float seven = 7;
    rank.must(rank.backend().write(data, &seven, 4));
    // Each copy needs the one before it.
    for (int i = 0; i < 1000; ++i) rank.must(rank.backend().cast(*stream, data + i + 1, DType::f32, data + i, DType::f32, 1));
    auto event = rank.must(stream->record());
    rank.ok(event->wait(Deadline::after_ns(60 * kSecondNs)));
    float last = 0;
    rank.must(rank.backend().read(&last, data + 1000, 4));
    rank.check(last == 7, text("the last of 1000 dependent copies is ", last));
  });
}

void events(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("events"));
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    const uint64_t begin_ns = now_ns();
    auto first = rank.must(stream->record());
    rank.ok(first->wait(Deadline::after_ns(60 * kSecondNs)));
    rank.check(first->done(), "an event that was waited for is not done");
    rank.check(first->time_ns() >= begin_ns && first->time_ns() <= now_ns(), "the time of the event is not between begin and now");
    if (rank.rank() == 1) {
      // Rank 0 cannot finish its barrier before this rank submits its own.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      rank.must(group->barrier(*stream, {}));
      rank.ok(finish(*stream));
      return;
    }
    rank.must(group->barrier(*stream, {}));
    auto second = rank.must(stream->record());
    if (!second->done()) {
      rank.check(second->time_ns() == 0 || second->done(), "an event that is not done has a time");
      rank.fails(second->status().code() == Code::ok ? Status(Code::pending, "") : second->status(), Code::pending, {});
    }
    Status early = second->wait(Deadline::after_ns(1'000'000));
    rank.check(early.code() == Code::pending || second->done(), "a wait that timed out is not pending");
    rank.ok(stream->make_caller_wait(nullptr, *second));
    if (on_device(rank)) rank.ok(second->wait(Deadline::after_ns(60 * kSecondNs)));  // the caller's stream waits there, not the caller
    rank.check(second->done() && second->time_ns() >= first->time_ns(), "events are out of order");
  });
}

void notification(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    auto stream = rank.must(rank.backend().create_stream("notify"));
    auto memory = rank.must(rank.backend().allocate(size_t{1} << 20));
    for (int round = 0; round < 100; ++round) {
      if (round % 2 == 0) rank.must(rank.backend().zero(*stream, memory->data(), memory->bytes()));  // else there is nothing to wait for
      auto event = rank.must(stream->record(std::make_shared<Notice>(fd)));
      pollfd polled{fd, POLLIN, 0};
      rank.check(poll(&polled, 1, 60'000) == 1, "the descriptor did not become readable");
      rank.check(event->done(), "the descriptor is readable before the event is done");
      uint64_t count = 0;
      rank.check(read(fd, &count, 8) == 8 && count == 1, text("the descriptor holds ", count));
    }
    close(fd);
  });
}

void caller_streams(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("caller"));
    auto event = rank.must(stream->record());
    if (!on_device(rank)) {
      int thing = 0;
      rank.fails(stream->make_caller_wait(&thing, *event), Code::invalid, {"host streams are NULL"});
      rank.fails(stream->wait_for_caller(&thing), Code::invalid, {"host streams are NULL"});
    }
    rank.ok(stream->make_caller_wait(nullptr, *event));
    rank.ok(stream->wait_for_caller(nullptr));
    rank.ok(finish(*stream));
  });
}

// The first failure stays; later work is dropped, and says why.
void failure_sticks(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("failing"));
    auto memory = rank.must(rank.backend().allocate(64));
    rank.ok(stream->failure());
    auto before = rank.must(stream->record());
    rank.must(rank.backend().cast(*stream, memory->data(), DType::f32, memory->data(), DType::u8, 4));  // no such conversion
    Status failed = finish(*stream);
    rank.fails(failed, Code::unsupported, {"u8", "f32"});
    rank.ok(before->wait(Deadline::never()));
    rank.fails(stream->failure(), Code::unsupported, {failed.text()});
    rank.fails(rank.backend().zero(*stream, memory->data(), 64), Code::unsupported, {failed.text()});
    auto after = rank.must(stream->record());
    rank.fails(after->wait(Deadline::never()), Code::unsupported, {failed.text()});
    rank.fails(stream->make_caller_wait(nullptr, *after), Code::unsupported, {failed.text()});
    auto other = rank.must(rank.backend().create_stream("other"));
    rank.must(rank.backend().zero(*other, memory->data(), 64));
    rank.ok(finish(*other));
  });
}

// Many threads submit to one stream, wait for its events, and one destroys it under them.
void many_threads(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("busy"));
    auto memory = rank.must(rank.backend().allocate(4096));
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          const bool submitted = rank.backend().zero(*stream, static_cast<std::byte*>(memory->data()) + 1024 * t, 1024).ok();
          auto event = stream->record();
          if (submitted && event.ok() && (*event)->wait(Deadline::never()).ok()) ++good;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    rank.check(good == 800, text(good.load(), " of 800 pieces of work succeeded"));
  });
}

void destroyed_with_work(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    auto memory = rank.must(rank.backend().allocate(1 << 20));
    for (int round = 0; round < 50; ++round) {
      auto stream = rank.must(rank.backend().create_stream("short"));
      for (int i = 0; i < round; ++i) rank.must(rank.backend().zero(*stream, memory->data(), 1 << 20));
      auto event = rank.must(stream->record());
      std::thread waiter([event] { (void)event->wait(Deadline::never()); });
      stream.reset();
      // A device goes on without the host.
      rank.check(event->done() || on_device(rank), "an event of a destroyed stream is not done");
      waiter.join();
      rank.check(event->done(), "an event of a destroyed stream was never done");
    }
  });
}

// A rank that waits for its peers lets go when its stream is destroyed.
void destroyed_while_waiting(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    auto window = rank.must(group->allocate_window(1 << 20));
    auto signals = rank.must(rank.backend().create_group(rank.everyone()));
    auto signal = rank.must(rank.backend().create_stream("signal"));
    auto stream = rank.must(rank.backend().create_stream("waiting"));
    if (rank.rank() == 0) {
      rank.must(group->all_reduce(*stream, *window, DType::f32, 0, 100'000, 1, {}));
      auto event = rank.must(stream->record());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const uint64_t begin_ns = now_ns();
      stream.reset();
      rank.check(now_ns() - begin_ns < 10 * kSecondNs, "destroying a stream waited for another rank");
      rank.fails(event->status(), Code::aborted, {"destroyed"});
    }
    rank.must(signals->barrier(*signal, {}));  // rank 0 is still there for other groups
    rank.must(finish(*signal));
    if (rank.rank() == 0) return;
    rank.must(group->all_reduce(*stream, *window, DType::f32, 0, 100'000, 1, {}));
    rank.fails(finish(*stream), Code::peer, {"rank 0", "left", "all_reduce"});
  });
}

// What a forked child destroys stays with the parent.
void forked_child(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("parent"));
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    auto window = rank.must(group->allocate_window(4096));
    auto event = rank.must(stream->record());
    const pid_t child = fork();
    if (child == 0) {
      event.reset();
      window.reset();
      group.reset();
      stream.reset();
      _exit(0);
    }
    int status = -1;
    rank.check(waitpid(child, &status, 0) == child && status == 0, text("the child ended with wait status ", status));
    put_values<float>(rank, window->data(), {static_cast<float>(rank.rank() + 1)});
    rank.must(group->all_reduce(*stream, *window, DType::f32, 0, 1, 1, {}));
    rank.ok(finish(*stream));
    rank.check(get_values<float>(rank, window->data(), 1)[0] == 3, "the group does not work after a child has destroyed its copies");
  });
}

}  // namespace

std::vector<Case> stream_cases() {
  return {{"stream.order", order},
          {"stream.events", events},
          {"stream.notification", notification},
          {"stream.caller_streams", caller_streams},
          {"stream.failure_sticks", failure_sticks},
          {"stream.many_threads", many_threads},
          {"stream.destroyed_with_work", destroyed_with_work},
          {"stream.destroyed_while_waiting", destroyed_while_waiting},
          {"stream.forked_child", forked_child}};
}

}  // namespace megadp::test
