// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of a group: what arrives, in which order, and beside collectives.
#include <algorithm>
#include <random>

#include "p2p_bench.h"

namespace megadp::test {
namespace {

// Nothing, less than a piece of whatever staging there is, about one, several.
constexpr size_t kSizes[] = {0, 1, 7, 1000, 131'071, 131'072, 131'073, 700'001, 5'000'000};

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

// Both halves of an exchange come after what this rank has called before: what is sent has been made, and what comes overwrites nothing
// that is still to be read. Rank 1 comes to the exchange long before rank 0.
void in_order_both_halves(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    const size_t count = 1000;
    DeviceArray in(rank, count * 8), out(rank, count * 8), gate(rank, 8);
    for (int64_t round = 1; round < 4; ++round) {
      const int64_t made = 10 * round, sent = 10 * round + 1;
      put_values(rank, rank.rank() == 0 ? in.data() : out.data(), std::vector<int64_t>(count, rank.rank() == 0 ? made : sent));
      rank.must(bench.group->barrier(*bench.stream, {}));
      if (rank.rank() == 2) {
        rank.must(finish(*bench.stream));
        sleep_ms(50);
        rank.must(bench.send(0, gate, 1, DType::i64));
      } else {
        if (rank.rank() == 0) {
          rank.must(bench.recv(2, gate, 1, DType::i64));
          rank.must(rank.backend().cast(*bench.stream, out.data(), DType::i64, in.data(), DType::i64, count));
        }
        const int other = 1 - rank.rank();
        rank.must(bench.group->send_recv(*bench.stream, {other, out.data(), count, DType::i64}, {other, in.data(), count, DType::i64}));
      }
      rank.must(finish(*bench.stream));
      if (rank.rank() == 2) continue;
      rank.check(get_values<int64_t>(rank, in.data(), count) == std::vector<int64_t>(count, rank.rank() == 0 ? sent : made),
                 text("round ", round, ": something else arrived"));
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

}  // namespace

std::vector<Case> p2p_cases() {
  return {{"p2p.pairs", pairs},
          {"p2p.ring_shifts", ring_shifts},
          {"p2p.open_ends", open_ends},
          {"p2p.halves_do_not_wait", halves_do_not_wait},
          {"p2p.random_pairs", random_pairs},
          {"p2p.in_order", in_order},
          {"p2p.in_order_both_halves", in_order_both_halves},
          {"p2p.sizes_change", sizes_change},
          {"p2p.nothing_waits", nothing_waits},
          {"p2p.two_groups", two_groups},
          {"p2p.no_operation_of_the_group", no_operation_of_the_group},
          {"p2p.bad_arguments", bad_arguments}};
}

}  // namespace megadp::test
