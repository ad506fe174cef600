// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of a group: what arrives, in which order, beside collectives, and every way that two ranks can miss each
// other.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "device_array.h"
#include "suite.h"

namespace megadp::test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
// Nothing, less than a piece of whatever staging there is, about one, several.
constexpr size_t kSizes[] = {0, 1, 7, 1000, 131'071, 131'072, 131'073, 700'001, 5'000'000};

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

struct Bench {
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Group> group;
  explicit Bench(Rank& rank) {
    stream = rank.must(rank.backend().create_stream("messages"));
    group = rank.must(rank.backend().create_group(rank.everyone()));
    rank.must(group->barrier(*stream, {}));  // operation 1: what goes wrong later must not find a rank still setting up
    rank.must(finish(*stream));
    if (on_device(rank)) rank.must(rank.world().exchange(rank.everyone(), "bench", ""));  // whose events fail with it, seen or not
  }
  Status send(int to, DeviceArray& data, size_t count, DType type) { return group->send_recv(*stream, {to, data.data(), count, type}, {}); }
  Status recv(int from, DeviceArray& data, size_t count, DType type) {
    return group->send_recv(*stream, {}, {from, data.data(), count, type});
  }
};

// Rank s sends to rank r, for every two of them, one pair at a time.
void pairs(Suite& suite) {
  for (const int size : {2, 3, 4}) {
    suite.run(size, [](Rank& rank) {
      Bench bench(rank);
      uint64_t seed = 0;
      for (const size_t bytes : kSizes) {
        for (int from = 0; from < rank.size(); ++from) {
          const int to = static_cast<int>((static_cast<size_t>(from) + 1 + bytes % 2) % static_cast<size_t>(rank.size()));
          ++seed;
          if (from == to) continue;
          const Bytes sent = make_input(DType::u8, bytes, seed, from);
          if (rank.rank() == from) {
            DeviceArray data(rank, sent);
            rank.must(bench.send(to, data, bytes, DType::u8));
            rank.must(finish(*bench.stream));
            rank.check(data.get() == sent, text("sending ", bytes, " bytes changed them"));
          } else if (rank.rank() == to) {
            DeviceArray data(rank, bytes);
            rank.must(bench.recv(from, data, bytes, DType::u8));
            rank.must(finish(*bench.stream));
            rank.check(data.get() == sent, text(bytes, " bytes from rank ", from, " to rank ", to, " arrived wrong"));
          }
        }
      }
    });
  }
}

// Everyone sends to a rank further on and receives from one further back, at once: `step` 0 is a copy.
void ring_shifts(Suite& suite) {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    suite.run(size, [](Rank& rank) {
      Bench bench(rank);
      uint64_t seed = 100;
      for (const size_t bytes : kSizes) {
        for (int step = 0; step < std::min(rank.size(), 3); ++step) {
          const int to = (rank.rank() + step) % rank.size(), from = (rank.rank() + rank.size() - step) % rank.size();
          ++seed;
          DeviceArray mine(rank, make_input(DType::u8, bytes, seed, rank.rank())), theirs(rank, bytes);
          rank.must(bench.group->send_recv(*bench.stream, {to, mine.data(), bytes, DType::u8}, {from, theirs.data(), bytes, DType::u8}));
          rank.must(finish(*bench.stream));
          rank.check(theirs.get() == make_input(DType::u8, bytes, seed, from), text("shift of ", bytes, " bytes by ", step));
        }
      }
    });
  }
}

// A pipeline: the first stage receives from nobody, the last sends to nobody, and all of them make the same call.
void open_ends(Suite& suite) {
  suite.run(4, [](Rank& rank) {
    Bench bench(rank);
    const size_t count = 1000;
    DeviceArray in(rank, count * 8), out(rank, count * 8);
    for (int64_t round = 0; round < 20; ++round) {
      put_values(rank, out.data(), std::vector<int64_t>(count, 100 * round + rank.rank()));
      const Message next{rank.rank() + 1 < rank.size() ? rank.rank() + 1 : -1, out.data(), count, DType::i64};
      const Message before{rank.rank() - 1, in.data(), count, DType::i64};
      rank.must(bench.group->send_recv(*bench.stream, next, before));
      rank.must(finish(*bench.stream));
      if (rank.rank() == 0) continue;
      rank.check(get_values<int64_t>(rank, in.data(), count) == std::vector<int64_t>(count, 100 * round + rank.rank() - 1),
                 text("round ", round));
    }
    rank.must(bench.group->send_recv(*bench.stream, {}, {}));
    rank.ok(finish(*bench.stream));
  });
}

// One sends and then receives, the other does both at once; of different sizes, types and peers.
void halves_do_not_wait(Suite& suite) {
  for (const size_t count : {size_t{3}, size_t{900'000}}) {
    suite.run(3, [count](Rank& rank) {
      Bench bench(rank);
      const auto me = static_cast<int64_t>(rank.rank());
      DeviceArray mine(rank, count * 8), theirs(rank, count * 8);
      put_values(rank, mine.data(), std::vector<int64_t>(count, me));
      if (rank.rank() == 0) {
        rank.must(bench.group->send_recv(*bench.stream, {1, mine.data(), count, DType::i64}, {1, theirs.data(), count, DType::i64}));
      } else if (rank.rank() == 1) {
        rank.must(bench.recv(0, theirs, count, DType::i64));
        rank.must(bench.send(0, mine, count, DType::i64));
      }
      rank.must(bench.group->barrier(*bench.stream, {}));
      // Rank 0 to 1 and from 2, which come one after the other, the later first.
      if (rank.rank() == 0) {
        rank.must(bench.group->send_recv(*bench.stream, {1, mine.data(), count, DType::i64}, {2, theirs.data(), count * 8, DType::u8}));
      } else if (rank.rank() == 1) {
        rank.must(bench.recv(2, theirs, 1, DType::i64));
        rank.must(bench.recv(0, theirs, count, DType::i64));
      } else {
        rank.must(bench.send(0, mine, count * 8, DType::u8));
        rank.must(bench.send(1, mine, 1, DType::i64));
      }
      rank.must(finish(*bench.stream));
      const int64_t from = rank.rank() == 0 ? 2 : 0;
      if (rank.rank() < 2) {
        rank.check(get_values<int64_t>(rank, theirs.data(), count) == std::vector<int64_t>(count, from), "something else arrived");
      }
    });
  }
}

struct Step {
  int kind, from, to;  // 0 to 2: a message, 3: everyone shifts, 4 to 6: a collective
  size_t count;
};

// All ranks draw the same steps; each submits those that it has a part in, and waits now and then.
void random_pairs(Suite& suite) {
  for (const int size : {2, 3, 4}) {
    suite.run(size, [](Rank& rank) {
      Bench bench(rank);
      const int n = rank.size(), me = rank.rank();
      std::mt19937 shared(static_cast<unsigned>(n)), own(static_cast<unsigned>(100 + me));
      const auto value = [](int step, int from) { return static_cast<int64_t>(1000 * step + from); };
      for (int round = 0; round < 8; ++round) {
        std::vector<std::unique_ptr<DeviceArray>> in, out;
        std::vector<Step> steps;
        for (int i = 0; i < 25; ++i) {
          const int from = static_cast<int>(shared() % static_cast<unsigned>(n));
          const int to = (from + 1 + static_cast<int>(shared() % static_cast<unsigned>(n - 1))) % n;
          const size_t count = shared() % 5 == 0 ? shared() % 200'000 : shared() % 50;
          const Step s{static_cast<int>(shared() % 7), from, to, count};
          steps.push_back(s);
          const size_t parts = s.kind == 5 ? static_cast<size_t>(n) : 1;
          in.push_back(std::make_unique<DeviceArray>(rank, count * 8 * parts));
          out.push_back(std::make_unique<DeviceArray>(rank, count * 8));
          DeviceArray &to_array = *in.back(), &from_array = *out.back();
          put_values(rank, from_array.data(), std::vector<int64_t>(count, value(i, me)));
          if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
          if (s.kind < 3 && me == from) rank.must(bench.send(to, from_array, count, DType::i64));
          if (s.kind < 3 && me == to) rank.must(bench.recv(from, to_array, count, DType::i64));
          if (s.kind == 3) {
            rank.must(bench.group->send_recv(*bench.stream, {(me + 1) % n, from_array.data(), count, DType::i64},
                                             {(me + n - 1) % n, to_array.data(), count, DType::i64}));
          }
          if (s.kind == 4)
            rank.must(bench.group->all_reduce(*bench.stream, from_array.data(), to_array.data(), count, DType::i64, Op::max, {}));
          if (s.kind == 5) rank.must(bench.group->all_gather(*bench.stream, from_array.data(), to_array.data(), count, DType::i64, {}));
          if (s.kind == 6) rank.must(bench.group->broadcast(*bench.stream, from_array.data(), count, DType::i64, from, {}));
          if (own() % 8 == 0) rank.must(finish(*bench.stream));
        }
        rank.must(finish(*bench.stream));
        for (int i = 0; i < 25; ++i) {
          const Step& s = steps[static_cast<size_t>(i)];
          const auto at = static_cast<size_t>(i);
          std::vector<int64_t> expected(s.count, value(i, s.kind == 3 ? (me + n - 1) % n : s.kind == 4 ? n - 1 : s.from));
          if (s.kind < 3 && me != s.to) continue;
          if (s.kind == 5) {
            expected.clear();
            for (int r = 0; r < n; ++r) expected.insert(expected.end(), s.count, value(i, r));
          }
          DeviceArray& array = s.kind == 6 ? *out[at] : *in[at];
          rank.check(get_values<int64_t>(rank, array.data(), expected.size()) == expected,
                     text("round ", round, ", step ", i, " of kind ", s.kind));
        }
      }
    });
  }
}

// Each call begins when what this rank called before has ended: what came is passed on, summed, and overwritten by what comes then.
void in_order(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    const size_t count = 100'000;
    DeviceArray data(rank, count * 8), sum(rank, count * 8);
    for (int64_t round = 1; round < 6; ++round) {
      put_values(rank, data.data(), std::vector<int64_t>(count, rank.rank() == 0 ? 10 * round : -1));
      if (rank.rank() == 0) {
        sleep_ms(10);  // the others have called all of it
        rank.must(bench.send(1, data, count, DType::i64));
      } else {
        rank.must(bench.recv(rank.rank() - 1, data, count, DType::i64));
      }
      if (rank.rank() == 1) rank.must(bench.send(2, data, count, DType::i64));
      rank.must(bench.group->all_reduce(*bench.stream, data.data(), sum.data(), count, DType::i64, Op::sum, {}));
      if (rank.rank() == 0) rank.must(bench.recv(2, data, count, DType::i64));
      if (rank.rank() == 2) rank.must(bench.send(0, sum, count, DType::i64));
      rank.must(finish(*bench.stream));
      rank.check(get_values<int64_t>(rank, sum.data(), count) == std::vector<int64_t>(count, 30 * round), text("sum of round ", round));
      const int64_t last = rank.rank() == 0 ? 30 * round : 10 * round;
      rank.check(get_values<int64_t>(rank, data.data(), count) == std::vector<int64_t>(count, last), text("data of round ", round));
    }
  });
}

// A sender may look at what its receiver expects while that one goes on to a message of another size.
void sizes_change(Suite& suite) {
  suite.run(4, [](Rank& rank) {
    Bench bench(rank);
    const size_t count = 20'000;  // more than one piece
    DeviceArray data(rank, count * 8);
    const bool sends = rank.rank() % 2 == 0;
    const int other = rank.rank() ^ 1;
    for (int round = 0; round < 20; ++round) {
      for (size_t i = 0; i < 200; ++i) {
        const size_t now = i % 2 == 0 ? count : i;
        rank.must(sends ? bench.send(other, data, now, DType::i64) : bench.recv(other, data, now, DType::i64));
      }
      rank.must(finish(*bench.stream));
    }
  });
}

// Also a message of nothing is over when both have come to it.
void nothing_waits(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray data(rank, 8);
    int64_t came_ns = 0;
    if (rank.rank() == 0) {
      rank.must(bench.send(1, data, 1, DType::i64));
      rank.must(bench.send(1, data, 0, DType::i64));
      rank.must(finish(*bench.stream));
      const auto ended_ns = static_cast<int64_t>(now_ns());
      rank.must(bench.recv(1, data, 1, DType::i64));
      rank.must(finish(*bench.stream));
      came_ns = get_values<int64_t>(rank, data.data(), 1)[0];
      rank.check(ended_ns >= came_ns, text("it was over ", came_ns - ended_ns, " ns before its receiver came"));
      return;
    }
    rank.must(bench.recv(0, data, 1, DType::i64));
    rank.must(finish(*bench.stream));
    sleep_ms(50);
    came_ns = static_cast<int64_t>(now_ns());
    rank.must(bench.recv(0, data, 0, DType::i64));
    rank.must(finish(*bench.stream));
    put_values<int64_t>(rank, data.data(), {came_ns});
    rank.must(bench.send(0, data, 1, DType::i64));
    rank.must(finish(*bench.stream));
  });
}

// Ranks come to the messages of two groups in different orders, also to the first.
void two_groups(Suite& suite) {
  for (int round = 0; round < 5; ++round) {
    suite.run(2, [](Rank& rank) {
      Bench first(rank), second(rank);
      Bench &sooner = rank.rank() == 0 ? first : second, &later = rank.rank() == 0 ? second : first;
      const int other = 1 - rank.rank();
      DeviceArray out(rank, 16), in(rank, 16);
      put_values<int64_t>(rank, out.data(), {10 + rank.rank(), 20 + rank.rank()});
      for (Bench* bench : {&sooner, &later}) {
        const size_t at = bench == &first ? 0 : 8;
        rank.must(bench->group->send_recv(*bench->stream, {other, out.data() + at, 1, DType::i64}, {other, in.data() + at, 1, DType::i64}));
        rank.must(bench->group->send_recv(*bench->stream, {other, out.data() + at, 1, DType::i64}, {other, in.data() + at, 1, DType::i64}));
      }
      rank.must(finish(*later.stream));
      rank.must(finish(*sooner.stream));
      rank.check(get_values<int64_t>(rank, in.data(), 2) == std::vector<int64_t>{10 + other, 20 + other}, "something else arrived");
    });
  }
}

// Two ranks that exchange messages while the third does not are not out of step with it; and a group of some of the ranks.
void no_operation_of_the_group(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray data(rank, 80);
    for (int i = 0; i < 50; ++i) {
      if (rank.rank() == 0) rank.must(bench.send(2, data, 10, DType::i64));
      if (rank.rank() == 2) rank.must(bench.recv(0, data, 10, DType::i64));
      if (i % 10 == 0) rank.must(bench.group->all_reduce(*bench.stream, data.data(), data.data(), 10, DType::i64, Op::max, {}));
    }
    rank.ok(finish(*bench.stream));
    const std::vector<int> some = {2, 0};
    auto part = rank.must(bench.group->split(rank.rank() == 1 ? std::vector<int>() : some));
    if (part == nullptr) return;
    put_values<int64_t>(rank, data.data(), {rank.rank() + 5});
    DeviceArray in(rank, 8);
    const int other = 1 - part->rank();
    rank.must(part->send_recv(*bench.stream, {other, data.data(), 1, DType::i64}, {other, in.data(), 1, DType::i64}));
    rank.must(finish(*bench.stream));
    rank.check(get_values<int64_t>(rank, in.data(), 1)[0] == 2 - rank.rank() + 5, "the other member's value");
  });
}

void bad_arguments(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray data(rank, 64);
    rank.fails(bench.send(2, data, 4, DType::f32), Code::invalid, {"send", "the rank is 2", "ranks 0 to 1"});
    rank.fails(bench.recv(-2, data, 4, DType::f32), Code::invalid, {"recv", "the rank is -2"});
    rank.fails(bench.send(rank.rank(), data, 4, DType::f32), Code::invalid, {"itself", "both halves"});
    rank.fails(bench.group->send_recv(*bench.stream, {rank.rank(), data.data(), 4, DType::f32}, {rank.rank(), data.data(), 3, DType::f32}),
               Code::invalid, {"4 f32", "3 f32"});
    rank.must(bench.group->barrier(*bench.stream, {}));
    rank.ok(finish(*bench.stream));
  });
}

// Both learn it, and what each of them said; nothing is written.
void different_messages(Suite& suite) {
  struct Difference {
    size_t sent, expected;
    DType sent_type, expected_type;
    std::vector<std::string> words;
  };
  const std::vector<Difference> all = {{5, 6, DType::f32, DType::f32, {"send of 5 f32 to rank 1", "recv of 6 f32 from rank 0"}},
                                       {0, 1, DType::f32, DType::f32, {"send of 0 f32 to rank 1", "recv of 1 f32 from rank 0"}},
                                       {900'000, 2, DType::f32, DType::f32, {"send of 900000 f32 to rank 1", "recv of 2 f32 from rank 0"}},
                                       {8, 8, DType::bf16, DType::f16, {"send of 8 bf16 to rank 1", "recv of 8 f16 from rank 0"}}};
  for (const Difference& d : all) {
    for (const int late : {0, 1}) {
      suite.run(3, [&d, late](Rank& rank) {
        Bench bench(rank);
        if (rank.rank() == late) sleep_ms(50);
        DeviceArray data(rank, 4'000'000);
        if (rank.rank() == 2) return;
        Status status = rank.rank() == 0 ? bench.send(1, data, d.sent, d.sent_type) : bench.recv(0, data, d.expected, d.expected_type);
        if (status.ok()) status = finish(*bench.stream);  // on a device it may be known already
        rank.fails(status, Code::desync, d.words);
        rank.fails(status, Code::desync, {"ranks 0 and 1 do not agree on a message"});
        rank.check(status.blame().rank == 1 && status.blame().operation == 0, "the blame is not on rank 1 alone");
        rank.check(data.get() == Bytes(4'000'000), "memory was changed");
        rank.check(rank.world().failed(), "the world did not learn of it");
      });
    }
  }
}

// Who waits is told what the other is busy with instead, where that is known: on one node. Both wait for half a second and give up at about
// the same time: who is second may find the other gone already.
void deadlocks(Suite& suite) {
  Setting setting = suite.setting();
  setting.timeout_ns = kSecondNs / 2;
  const auto one_node = [](Rank& rank) { return rank.world().node(0) == rank.world().node(1); };
  const auto fails = [](Rank& rank, const Status& status, std::vector<std::string> words) {
    // Whoever gives up first names its own, and the other may learn it from there.
    rank.check(status.code() == Code::timeout, text(code_name(status.code()), ": ", status.text()));
    for (const std::string& word : words)
      rank.check(status.text().find(word) != std::string::npos, status.text() + " does not say " + word);
  };
  const auto tells_of_the_other = [](Rank& rank, const Status& status) {
    const std::string said = status.text();
    rank.check(said.find("alive") != std::string::npos || said.find("has left") != std::string::npos,
               said + " does not say how the other is");
  };
  for (const size_t count : {size_t{1}, size_t{1'000'000}}) {
    suite.run(setting, 2, [&, count](Rank& rank) {  // both send
      Bench bench(rank);
      DeviceArray data(rank, count * 4);
      rank.must(bench.send(1 - rank.rank(), data, count, DType::f32));
      const Status status = finish(*bench.stream);
      fails(rank, status, {"send of", " f32 to rank ", "rank ", "timed out after"});
      tells_of_the_other(rank, status);
      if (one_node(rank)) fails(rank, status, {"and waits in send of"});
    });
  }
  suite.run(setting, 2, [&](Rank& rank) {  // both receive
    Bench bench(rank);
    DeviceArray data(rank, 12);
    rank.must(bench.recv(1 - rank.rank(), data, 3, DType::f32));
    const Status status = finish(*bench.stream);
    fails(rank, status, {"recv of 3 f32 from rank ", "timed out after"});
    tells_of_the_other(rank, status);
    if (one_node(rank)) fails(rank, status, {"and waits in recv of 3 f32 from rank "});
  });
  suite.run(setting, 2, [&](Rank& rank) {  // one comes to a collective instead
    Bench bench(rank);
    DeviceArray data(rank, 12);
    if (rank.rank() == 0) rank.must(bench.send(1, data, 3, DType::f32));
    if (rank.rank() == 1) {
      sleep_ms(400);  // the sender gives up first
      rank.must(bench.group->barrier(*bench.stream, {}));
    }
    const Status status = finish(*bench.stream);
    fails(rank, status, {"send of 3 f32 to rank 1"});
    if (one_node(rank)) fails(rank, status, {"and waits in operation 2 of the group"});
  });
}

void peer_does_not_come(Suite& suite) {
  Setting setting = suite.setting();
  setting.timeout_ns = kSecondNs / 2;
  for (const bool sends : {true, false}) {
    suite.run(setting, 3, [sends](Rank& rank) {
      Bench bench(rank);
      DeviceArray data(rank, 40);
      if (rank.rank() != 0) {
        for (int i = 0; i < 1000 && !rank.world().failed(); ++i) sleep_ms(20);
        rank.check(rank.world().failed(), "nobody told");
        return;
      }
      rank.must(sends ? bench.send(1, data, 10, DType::f32) : bench.recv(1, data, 10, DType::f32));
      const uint64_t begin_ns = now_ns();
      const Status status = finish(*bench.stream);
      rank.fails(status, Code::timeout, {sends ? "send of 10 f32 to rank 1" : "recv of 10 f32 from rank 1", "0.5 s", "rank 1", "alive"});
      rank.check(status.blame().rank == 1, "the blame is not on rank 1");
      rank.check(now_ns() - begin_ns < 20 * kSecondNs, "the timeout came late");
    });
  }
}

void peer_leaves(Suite& suite) {
  for (const bool sends : {true, false}) {
    suite.run(3, [sends](Rank& rank) {
      Bench bench(rank);
      DeviceArray data(rank, 40);
      if (rank.rank() == 1) return;
      if (rank.rank() == 2) {
        for (int i = 0; i < 1000 && !rank.world().failed(); ++i) sleep_ms(20);
        return;
      }
      rank.must(sends ? bench.send(1, data, 10, DType::f32) : bench.recv(1, data, 10, DType::f32));
      const Status status = finish(*bench.stream);
      // A device's first message needs the control plane, which may be the first to notice.
      rank.fails(status, Code::peer, {"rank 1", "left", on_device(rank) ? "" : sends ? "send of 10 f32" : "recv of 10 f32"});
      rank.check(status.blame().rank == 1, "the blame is not on rank 1");
    });
  }
}

// Who leaves having sent all, and having seen it taken, is not missed.
void peer_leaves_after_its_part(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    {
      Bench bench(rank);
      DeviceArray data(rank, 3'000'000);
      rank.must(rank.rank() == 0 ? bench.send(1, data, data.bytes(), DType::u8) : bench.recv(0, data, data.bytes(), DType::u8));
      rank.ok(finish(*bench.stream));
      if (rank.rank() == 1) return;
    }
    sleep_ms(100);
    rank.check(!rank.world().failed(), "the world failed: " + rank.world().failure().text());
  });
}

// Likewise in an exchange with two ranks, of which the other lets this one wait for so long that it looks around for who has left.
void peer_leaves_after_its_half(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray mine(rank, 4'000), theirs(rank, 4'000);
    const Message out{2, mine.data(), 1000, DType::f32}, in{0, theirs.data(), 1000, DType::f32};
    if (rank.rank() == 2) {
      rank.must(bench.recv(1, theirs, 1000, DType::f32));
      rank.ok(finish(*bench.stream));
      return;
    }
    if (rank.rank() == 0) sleep_ms(2500);
    rank.must(rank.rank() == 0 ? bench.send(1, mine, 1000, DType::f32) : bench.group->send_recv(*bench.stream, out, in));
    rank.ok(finish(*bench.stream));
    rank.check(!rank.world().failed(), "the world failed: " + rank.world().failure().text());
    rank.must(rank.world().exchange({0, 1}, "the end", ""));
  });
}

void world_fails_during_a_wait(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray data(rank, 40);
    if (rank.rank() == 2) {
      sleep_ms(50);
      rank.world().fail(Status(Code::aborted, "the lid is on fire", Blame{.rank = 2}));
      sleep_ms(200);
      return;
    }
    rank.must(bench.recv(1 - rank.rank(), data, 10, DType::f32));
    const uint64_t begin_ns = now_ns();
    const Status status = finish(*bench.stream);
    rank.fails(status, Code::aborted, {"the lid is on fire"});
    rank.check(now_ns() - begin_ns < 20 * kSecondNs, "it took long to notice");
  });
}

// Rank 1's process dies in the middle of a stream of messages.
void killed(Suite& suite) {
  Setting setting = suite.setting();
  setting.killed = 1;
  for (const int after_ms : {0, 3, 20}) {
    suite.run(setting, 2, [after_ms](Rank& rank) {
      Bench bench(rank);
      std::thread killer;
      if (rank.rank() == 1) {
        killer = std::thread([after_ms] {
          sleep_ms(after_ms);
          kill(getpid(), SIGKILL);
        });
      }
      DeviceArray out(rank, 2'000'000), in(rank, 2'000'000);
      Status status;
      uint64_t begin_ns = now_ns();
      for (int i = 0; status.ok(); ++i) {
        begin_ns = now_ns();
        const size_t bytes = i % 2 == 0 ? 100 : out.bytes();
        const int other = 1 - rank.rank();
        status = bench.group->send_recv(*bench.stream, {other, out.data(), bytes, DType::u8}, {other, in.data(), bytes, DType::u8});
        if (status.ok()) status = finish(*bench.stream);
      }
      if (killer.joinable()) killer.join();
      rank.fails(status, Code::peer, {"rank 1", on_device(rank) ? "" : "send of"});  // an event of a device knows the failure alone
      rank.check(status.blame().rank == 1, "the blame is not on rank 1");
      rank.check(now_ns() - begin_ns < 5 * kSecondNs, "it took more than 5 s to notice");
    });
  }
}

// Dropped with messages under way that nobody answers, and with ones that are answered.
void destroyed_with_work(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    DeviceArray out(rank, 3'000'000), in(rank, 3'000'000);
    for (int round = 0; round < 10; ++round) {
      Bench bench(rank);
      const int other = 1 - rank.rank();
      if (round % 2 == 0) {
        rank.must(
            bench.group->send_recv(*bench.stream, {other, out.data(), out.bytes(), DType::u8}, {other, in.data(), in.bytes(), DType::u8}));
      } else {
        rank.must(bench.recv(other, in, 8, DType::u8));
      }
    }
  });
}

}  // namespace

std::vector<Case> p2p_cases() {
  return {{"p2p.pairs", pairs},
          {"p2p.ring_shifts", ring_shifts},
          {"p2p.open_ends", open_ends},
          {"p2p.halves_do_not_wait", halves_do_not_wait},
          {"p2p.random_pairs", random_pairs},
          {"p2p.in_order", in_order},
          {"p2p.sizes_change", sizes_change},
          {"p2p.nothing_waits", nothing_waits},
          {"p2p.two_groups", two_groups},
          {"p2p.no_operation_of_the_group", no_operation_of_the_group},
          {"p2p.bad_arguments", bad_arguments},
          {"p2p.different_messages", different_messages},
          {"p2p.deadlocks", deadlocks},
          {"p2p.peer_does_not_come", peer_does_not_come},
          {"p2p.peer_leaves", peer_leaves},
          {"p2p.peer_leaves_after_its_part", peer_leaves_after_its_part},
          {"p2p.peer_leaves_after_its_half", peer_leaves_after_its_half},
          {"p2p.world_fails_during_a_wait", world_fails_during_a_wait},
          {"p2p.killed", killed, true},
          {"p2p.destroyed_with_work", destroyed_with_work}};
}

}  // namespace megadp::test
