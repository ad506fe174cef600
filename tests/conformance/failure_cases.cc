// SPDX-License-Identifier: Apache-2.0
// What goes wrong between ranks: different calls, a rank that leaves, does not come, or ends the world. Every rank gets an error that
// names ranks and operation, and no memory is overwritten.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "device_array.h"
#include "suite.h"

namespace megadp::test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

struct Bench {
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Group> group;
  std::unique_ptr<Window> window;
  explicit Bench(Rank& rank) {
    stream = rank.must(rank.backend().create_stream("failures"));
    group = rank.must(rank.backend().create_group(rank.everyone()));
    window = rank.must(group->allocate_window(1 << 20));
    // Operation 1: what goes wrong later must not find a rank still setting up.
    rank.must(group->barrier(*stream, {}));
    finish_set_up(rank, *stream);
  }
};

// Rank 1 calls something else than the others.
using Call = Status (*)(Bench& bench, bool odd);
struct Difference {
  Call call;
  std::vector<std::string> words;
};

std::vector<Difference> differences() {
  return {
      {[](Bench& b, bool odd) {
         return odd ? b.group->all_gather(*b.stream, *b.window, DType::f32, 0, 60'000, {1, "parameters"})
                    : b.group->all_reduce(*b.stream, *b.window, DType::f32, 0, 60'000, 1, {1, "gradients"});
       },
       {"all_gather", "all_reduce", "bucket 1", "parameters", "gradients"}},
      {[](Bench& b, bool odd) { return b.group->all_reduce(*b.stream, *b.window, DType::f32, 0, odd ? 999 : 60'000, 1, {}); },
       {"999", "60000"}},
      {[](Bench& b, bool odd) { return b.group->all_reduce(*b.stream, *b.window, odd ? DType::bf16 : DType::f16, 0, 64, 1, {}); },
       {"bf16", "f16"}},
      {[](Bench& b, bool odd) { return b.group->all_reduce(*b.stream, *b.window, DType::f32, odd ? 128 : 64, 64, 1, {}); }, {"128", "64"}},
      {[](Bench& b, bool odd) { return b.group->all_reduce(*b.stream, *b.window, DType::f32, 0, 64, odd ? 0.25F : 0.5F, {}); },
       {"0.25", "0.5"}},
      {[](Bench& b, bool odd) {
         return b.group->all_reduce(*b.stream, *b.window, DType::f32, 0, 64, 1, {5, odd ? "parameters" : "gradients"});
       },
       {"parameters", "gradients", "bucket 5"}},
      {[](Bench& b, bool odd) { return b.group->broadcast(*b.stream, *b.window, DType::f32, 0, 64, odd ? 1 : 0, {}); },
       {"from rank 1", "from rank 0"}},
      {[](Bench& b, bool odd) {
         return b.group->all_reduce(*b.stream, b.window->data(), b.window->data(), 8, DType::f32, odd ? Op::max : Op::min, {});
       },
       {"max", "min"}},
      {[](Bench& b, bool odd) {
         return odd ? b.group->barrier(*b.stream, {}) : b.group->broadcast(*b.stream, b.window->data(), 8, DType::u8, 0, {});
       },
       {"barrier", "broadcast"}},
  };
}

void different_calls(Suite& suite) {
  for (const Difference& difference : differences()) {
    suite.run(3, [&](Rank& rank) {
      Bench bench(rank);
      const Bytes before = get(rank, bench.window->data(), bench.window->bytes());
      rank.must(difference.call(bench, rank.rank() == 1));
      const Status status = finish(*bench.stream);
      rank.fails(status, Code::desync, difference.words);
      rank.fails(status, Code::desync, {"ranks 0 and 1", "operation 2 of the group"});
      rank.check(status.blame().rank == 1 && status.blame().operation == 2, "the blame is not on rank 1 and operation 2");
      rank.check(get(rank, bench.window->data(), before.size()) == before, "the window was changed");
      rank.check(rank.world().failed(), "the world did not learn of it");
      // It is over for this group, on any stream.
      auto other = rank.must(rank.backend().create_stream("other"));
      rank.must(bench.group->barrier(*other, {}));
      rank.check(!finish(*other).ok(), "the group works on after ranks called different operations");
    });
  }
}

// A rank leaves instead of taking part.
void peer_leaves(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    rank.must(bench.group->all_reduce(*bench.stream, *bench.window, DType::f32, 0, 10'000, 1, {}));
    rank.must(finish(*bench.stream));
    if (rank.rank() == 1) return;
    rank.must(bench.group->all_reduce(*bench.stream, *bench.window, DType::f32, 0, 10'000, 1, {4, "gradients"}));
    const Status status = finish(*bench.stream);
    rank.fails(status, Code::peer, {"rank 1", "left", "all_reduce", "bucket 4", "operation 3"});
    rank.check(status.blame().rank == 1 && status.blame().bucket == 4 && status.blame().operation == 3, "the blame is not complete");
    rank.check(rank.world().failed(), "the world did not learn of it");
  });
}

// A rank that leaves having done its part is not missed, however long the others take.
void peer_leaves_after_its_part(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    {
      Bench bench(rank);
      if (rank.rank() == 2) sleep_ms(100);
      rank.must(bench.group->all_reduce(*bench.stream, *bench.window, DType::f32, 0, 100'000, 1, {}));
      rank.ok(finish(*bench.stream));
      if (rank.rank() == 1) return;
    }
    sleep_ms(100);
    rank.check(!rank.world().failed(), "the world failed: " + rank.world().failure().text());
  });
}

void world_fails_during_a_wait(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    if (rank.rank() == 1) {
      sleep_ms(100);
      rank.world().fail(Status(Code::aborted, "the lid is on fire", Blame{.rank = 1}));
      sleep_ms(300);
      return;
    }
    rank.must(bench.group->barrier(*bench.stream, {2, "waiting"}));
    const uint64_t begin_ns = now_ns();
    const Status status = finish(*bench.stream);
    rank.fails(status, Code::aborted, {"the lid is on fire"});
    rank.check(status.blame().rank == 1, "the blame is not on rank 1");
    rank.check(now_ns() - begin_ns < 20 * kSecondNs, "it took long to notice");
    if (on_device(rank)) {  // an event of a device knows the failure, not the collective that it met; and a stream cannot be had any more
      rank.fails(bench.group->barrier(*bench.stream, {}), Code::aborted, {"the lid is on fire"});
      return;
    }
    rank.fails(status, Code::aborted, {"barrier", "waiting"});
    rank.check(status.blame().bucket == 2 && status.blame().operation == 2, "the blame is not complete");
    // What comes later does not start.
    auto other = rank.must(rank.backend().create_stream("other"));
    rank.must(bench.group->barrier(*other, {}));
    rank.check(!finish(*other).ok(), "the group works on in a world that failed");
  });
}

void peer_does_not_come(Suite& suite) {
  Setting setting = suite.setting();
  setting.timeout_ns = 2 * kSecondNs;
  suite.run(setting, 3, [](Rank& rank) {
    Bench bench(rank);
    if (rank.rank() == 2) {
      for (int i = 0; i < 1000 && !rank.world().failed(); ++i) sleep_ms(20);
      rank.fails(rank.world().failure(), Code::timeout, {"rank 2", "reduce_scatter"});
      const Status late = bench.group->reduce_scatter(*bench.stream, *bench.window, DType::f32, 0, 30'000, 1, {7, "gradients"});
      if (on_device(rank)) {
        rank.fails(late, Code::timeout, {"rank 2", "reduce_scatter"});
        return;
      }
      rank.must(late);
      rank.fails(finish(*bench.stream), Code::timeout, {"rank 2", "reduce_scatter"});
      return;
    }
    rank.must(bench.group->reduce_scatter(*bench.stream, *bench.window, DType::f32, 0, 30'000, 1, {7, "gradients"}));
    const uint64_t begin_ns = now_ns();
    const Status status = finish(*bench.stream);
    rank.fails(status, Code::timeout, {"reduce_scatter", "bucket 7", "operation 2"});
    if (on_device(rank)) {
      rank.fails(status, Code::timeout, {"rank 2 has not come to it", "2000 ms"});
    } else {
      rank.fails(status, Code::timeout, {"rank 2", "alive", "2 s"});
    }
    // A rank of another node cannot tell who beside its partners is late.
    const bool one_node = rank.world().node(1) == rank.world().node(2);
    rank.check((status.blame().rank == 2 || !one_node) && status.blame().bucket == 7 && status.blame().operation == 2,
               "the blame is not complete");
    rank.check(now_ns() - begin_ns < 20 * kSecondNs, "the timeout came late");
  });
}

// Rank 1's process dies in the middle of a stream of collectives.
void killed(Suite& suite) {
  Setting setting = suite.setting();
  setting.killed = 1;
  for (const int after_ms : {0, 3, 20, 50}) {
    suite.run(setting, 3, [after_ms](Rank& rank) {
      Bench bench(rank);
      std::thread killer;
      if (rank.rank() == 1) {
        killer = std::thread([after_ms] {
          sleep_ms(after_ms);
          kill(getpid(), SIGKILL);
        });
      }
      Status status;
      uint64_t begin_ns = now_ns();
      for (int i = 0; status.ok(); ++i) {
        begin_ns = now_ns();
        status = bench.group->all_reduce(*bench.stream, *bench.window, DType::f32, 0, i % 2 == 0 ? 100 : 250'000, 1, {});
        if (status.ok()) status = finish(*bench.stream);
      }
      if (killer.joinable()) killer.join();
      rank.fails(status, Code::peer, {"rank 1", "all_reduce"});
      rank.check(status.blame().rank == 1, "the blame is not on rank 1");
      rank.check(now_ns() - begin_ns < 5 * kSecondNs, "it took more than 5 s to notice");
    });
  }
}

// Rank 1's process is stopped: nothing ends, nothing answers.
void stopped(Suite& suite) {
  Setting setting = suite.setting();
  setting.killed = 1;
  setting.timeout_ns = 2 * kSecondNs;
  suite.run(setting, 3, [](Rank& rank) {
    Bench bench(rank);
    if (rank.rank() == 1) raise(SIGSTOP);
    rank.must(bench.group->all_gather(*bench.stream, *bench.window, DType::f32, 0, 30'000, {}));
    const uint64_t begin_ns = now_ns();
    const Status status = finish(*bench.stream);
    rank.check(status.code() == Code::timeout || status.code() == Code::peer, text("a stopped rank: ", status.text()));
    rank.fails(status, status.code(), {"rank 1", "all_gather"});
    rank.check(status.blame().rank == 1, "the blame is not on rank 1");
    rank.check(now_ns() - begin_ns < 20 * kSecondNs, "it took long to notice");
    if (rank.rank() == 0) kill(rank.world().process(1), SIGKILL);
  });
}

// A collective call that sets things up, made by all ranks but one.
void set_up_without_a_peer(Suite& suite) {
  Setting setting = suite.setting();
  setting.timeout_ns = 2 * kSecondNs;
  suite.run(setting, 2, [](Rank& rank) {
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    if (rank.rank() == 1) {
      sleep_ms(4000);
      return;
    }
    const Status status = group->allocate_window(4096).status();
    rank.check(status.code() == Code::timeout || status.code() == Code::peer, "allocate_window without a peer: " + status.text());
    rank.fails(status, status.code(), {"allocate_window"});
  });
}

// One rank sets up a group while another allocates a window.
void different_set_up(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    const Status status = rank.rank() == 0 ? group->allocate_window(4096).status() : rank.backend().create_group(rank.everyone()).status();
    rank.fails(status, Code::desync, {"rank 0 called allocate_window", "rank 1 called create_group"});
  });
}

// An operation that a failed stream dropped is missing on every stream: the group says so instead of running out of step.
void dropped_operation(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    Bench bench(rank);
    auto memory = rank.must(rank.backend().allocate(64));
    Status submitted(Code::pending, "");
    // The barrier is to be submitted before the stream has failed; where it came too late it was refused, and nothing is missing.
    for (int attempt = 0; attempt < 1000 && !submitted.ok(); ++attempt) {
      auto blocked = rank.must(rank.backend().create_stream("blocked"));
      rank.must(rank.backend().zero(*blocked, bench.window->data(), bench.window->bytes()));
      rank.must(rank.backend().cast(*blocked, memory->data(), DType::f32, memory->data(), DType::u8, 1));
      submitted = bench.group->barrier(*blocked, {});
      rank.check(!finish(*blocked).ok(), "the stream did not fail");
    }
    rank.must(submitted);
    rank.must(bench.group->barrier(*bench.stream, {}));
    rank.fails(finish(*bench.stream), Code::state, {"did not run before it", "its stream failed"});
  });
}

// Work that fails on one rank takes the collectives behind it away from the others, which are not left to wait for their timeout.
void failed_work(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    auto memory = rank.must(rank.backend().allocate(64));
    if (rank.rank() == 1) rank.must(rank.backend().cast(*bench.stream, memory->data(), DType::f32, memory->data(), DType::u8, 1));
    static_cast<void>(bench.group->barrier(*bench.stream, {}));  // refused where the failure is known already
    const uint64_t begin_ns = now_ns();
    rank.fails(finish(*bench.stream), Code::unsupported, {"convert u8 elements to f32"});
    rank.check(now_ns() - begin_ns < 20 * kSecondNs, "it took long to learn of it");
    rank.fails(rank.world().failure(), Code::unsupported, {"convert u8 elements to f32"});
  });
}

// What a collective that has failed leaves in an array is not given to who copies it to the host, in the order of the same stream.
void copy_behind_a_failure(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    Bench bench(rank);
    if (rank.rank() == 1) {
      sleep_ms(100);  // the other one waits in the copy by now
      rank.world().fail(Status(Code::aborted, "that is enough"));
      return;
    }
    DeviceArray array(rank, 64);
    Bytes host(64);
    rank.must(bench.group->all_reduce(*bench.stream, array.data(), array.data(), 16, DType::f32, Op::sum, {}));
    Status status = bench.stream->make_caller_wait_for_all(nullptr);
    if (status.ok()) status = rank.backend().copy(flat(host.data(), 64), flat(array.data(), 64), false, nullptr);
    rank.fails(status, Code::aborted, {"that is enough"});
  });
}

}  // namespace

std::vector<Case> failure_cases() {
  return {{"failure.different_calls", different_calls},
          {"failure.peer_leaves", peer_leaves},
          {"failure.peer_leaves_after_its_part", peer_leaves_after_its_part},
          {"failure.world_fails_during_a_wait", world_fails_during_a_wait},
          {"failure.peer_does_not_come", peer_does_not_come},
          {"failure.set_up_without_a_peer", set_up_without_a_peer},
          {"failure.different_set_up", different_set_up},
          {"failure.dropped_operation", dropped_operation},
          {"failure.failed_work", failed_work},
          {"failure.copy_behind_a_failure", copy_behind_a_failure},
          {"failure.killed", killed, true},
          {"failure.stopped", stopped, true}};
}

}  // namespace megadp::test
