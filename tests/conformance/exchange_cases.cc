// SPDX-License-Identifier: Apache-2.0
// Exchanges between neighbours: any sizes between any ranks, forward and backward, many times; a rank that runs ahead; and what others
// learn of one that goes or stays away.
#include <chrono>
#include <random>
#include <thread>

#include "device_array.h"
#include "suite.h"

namespace megadp::test {
namespace {

struct Bench {
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Group> group;
  explicit Bench(Rank& rank) {
    stream = rank.must(rank.backend().create_stream("exchange cases"));
    group = rank.must(rank.backend().create_group(rank.everyone()));
  }
};

constexpr uint64_t kSecondNs = 1'000'000'000;

using Sizes = std::vector<Counts>;  // bytes from each rank to each

// The same on all ranks: about every third pair has something for each other.
Sizes draw_sizes(int ranks, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto n = static_cast<size_t>(ranks);
  Sizes sizes(n, Counts(n));
  for (size_t r = 0; r < n; ++r) {
    for (size_t s = 0; s < n; ++s) {
      if (r != s && random() % 3 == 0) sizes[r][s] = 1 + random() % (random() % 8 == 0 ? 200'000 : 100);
    }
  }
  return sizes;
}

std::byte content(uint64_t round, int from, int to, size_t i) {
  return static_cast<std::byte>(round * 31 + static_cast<uint64_t>(from) * 7 + static_cast<uint64_t>(to) * 3 + i);
}

struct Job {
  Rank& rank;
  Bench& bench;
  Exchange& exchange;
  const Sizes& sizes;
  uint64_t size(int from, int to, bool back) const {
    return back ? sizes[static_cast<size_t>(to)][static_cast<size_t>(from)] : sizes[static_cast<size_t>(from)][static_cast<size_t>(to)];
  }
  void start(uint64_t round, bool back) const {
    rank.must(exchange.begin(back));
    for (int to = 0; to < rank.size(); ++to) {
      const uint64_t bytes = size(rank.rank(), to, back);
      if (bytes == 0) continue;
      Bytes piece(bytes);
      for (size_t i = 0; i < bytes; ++i) piece[i] = content(round, rank.rank(), to, i);
      rank.must(rank.backend().copy(flat(exchange.outgoing(to), bytes), flat(piece.data(), bytes), false, nullptr));
    }
    rank.must(exchange.start(*bench.stream, nullptr, 0));
  }
  void finish(uint64_t round, bool back) const {
    rank.must(exchange.finish(*bench.stream, nullptr));
    for (int from = 0; from < rank.size(); ++from) {
      const uint64_t bytes = size(from, rank.rank(), back);
      if (bytes == 0) continue;
      Bytes piece(bytes);
      rank.must(rank.backend().copy(flat(piece.data(), bytes), flat(exchange.incoming(from), bytes), false, nullptr));
      size_t wrong = 0;
      for (size_t i = 0; i < bytes; ++i) wrong += piece[i] != content(round, from, rank.rank(), i) ? 1 : 0;
      rank.check(wrong == 0, text("round ", round, back ? ", back" : "", ", from rank ", from, ": ", wrong, " of ", bytes, " bytes wrong"));
    }
    exchange.end();
  }
};

void any_sizes(Suite& suite) {
  for (const int size : {2, 3, 4, 8}) {
    suite.run(size, [](Rank& rank) {
      for (uint64_t seed = 1; seed < 6; ++seed) {
        Bench bench(rank);
        const Sizes sizes = draw_sizes(rank.size(), seed);
        Counts in;
        for (const Counts& from : sizes) in.push_back(from[static_cast<size_t>(rank.rank())]);
        auto exchange = rank.must(bench.group->create_exchange(sizes[static_cast<size_t>(rank.rank())], in, 0));
        const Job job{rank, bench, *exchange, sizes};
        for (uint64_t round = 0; round < 12; ++round) {
          const bool back = round % 3 == 1 || round % 5 == 0;
          job.start(round, back);
          job.finish(round, back);
        }
      }
    });
  }
}

// Each rank takes its time now and then, while its neighbours go on as far as they can.
void at_their_own_pace(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    const Sizes sizes{{0, 40, 0}, {40, 0, 8}, {0, 8, 0}};
    Counts in;
    for (const Counts& from : sizes) in.push_back(from[static_cast<size_t>(rank.rank())]);
    auto exchange = rank.must(bench.group->create_exchange(sizes[static_cast<size_t>(rank.rank())], in, 0));
    const Job job{rank, bench, *exchange, sizes};
    for (uint64_t round = 0; round < 60; ++round) {
      if ((round + static_cast<uint64_t>(rank.rank()) * 7) % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      job.start(round, false);
      if ((round + static_cast<uint64_t>(rank.rank()) * 5) % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      job.finish(round, false);
    }
  });
}

struct Pair {
  Bench bench;
  std::unique_ptr<Exchange> exchange;
  // backward: what rank 1 has for rank 0.
  explicit Pair(Rank& rank, uint64_t forward = 8, uint64_t backward = 8) : bench(rank) {
    const bool first = rank.rank() == 0;
    Counts out(2), in(2);
    out[first ? 1 : 0] = first ? forward : backward;
    in[first ? 1 : 0] = first ? backward : forward;
    exchange = rank.must(bench.group->create_exchange(out, in, 0));
  }
};

void peer_leaves(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto pair = std::make_unique<Pair>(rank);
    if (rank.rank() == 1) return;
    rank.must(pair->exchange->begin(false));
    Status status = pair->exchange->start(*pair->bench.stream, nullptr, 0);
    if (status.ok()) status = pair->exchange->finish(*pair->bench.stream, nullptr);
    rank.check(status.code() == Code::peer, text("who waits for one that left is told: ", status.text()));
    rank.check(status.text().find("rank 1") != std::string::npos, status.text());
  });
}

void peer_stays_away(Suite& suite) {
  Setting setting = suite.setting();
  setting.timeout_ns = kSecondNs / 2;
  suite.run(setting, 2, [](Rank& rank) {
    Pair pair(rank);
    if (rank.rank() == 1) {
      while (!rank.world().failed()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    rank.must(pair.exchange->begin(false));
    Status status = pair.exchange->start(*pair.bench.stream, nullptr, 0);
    if (status.ok()) status = pair.exchange->finish(*pair.bench.stream, nullptr);
    rank.check(status.code() == Code::timeout, text(code_name(status.code()), ": ", status.text()));
    rank.check(status.text().find("rank 1") != std::string::npos, status.text());
    // What is known of the rank is a sentence of its own. Through sockets there is nothing else.
    rank.check(status.text().find("did not come") == std::string::npos ||
                   status.text().find("waiting for a rank that did not come; rank 1") != std::string::npos,
               status.text());
  });
}

void goes_two_ways(Suite& suite, uint64_t forward, uint64_t backward) {
  suite.run(2, [=](Rank& rank) {
    Pair pair(rank, forward, backward);
    rank.must(pair.exchange->begin(rank.rank() == 1));
    rank.must(pair.exchange->start(*pair.bench.stream, nullptr, 0));
    const Status status = pair.exchange->finish(*pair.bench.stream, nullptr);
    rank.check(status.code() == Code::desync, text("two ways: ", status.text()));
    rank.check(status.text().find("forward on rank") != std::string::npos, status.text());
  });
}

// Also where no rank gets anything in the way that it goes.
void other_way(Suite& suite) {
  goes_two_ways(suite, 8, 8);
  goes_two_ways(suite, 8, 0);
}

// What is on its way then still has the memory that it comes to. Many times, since what frees it is another thread.
void destroyed_with_work(Suite& suite) {
  suite.run(2, [rounds = suite.setting().cycles / 10](Rank& rank) {
    for (int round = 0; round < rounds; ++round) {
      Pair pair(rank, 100'000, 100'000);
      if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      rank.must(pair.exchange->begin(false));
      rank.must(pair.exchange->start(*pair.bench.stream, nullptr, 0));
      if (rank.rank() == 1) rank.must(pair.exchange->finish(*pair.bench.stream, nullptr));
      pair.exchange.reset();
      rank.must(finish(*pair.bench.stream));
    }
  });
}

}  // namespace

std::vector<Case> exchange_cases() {
  return {{"exchange.any_sizes", any_sizes},     {"exchange.at_their_own_pace", at_their_own_pace},
          {"exchange.peer_leaves", peer_leaves}, {"exchange.peer_stays_away", peer_stays_away},
          {"exchange.other_way", other_way},     {"exchange.destroyed_with_work", destroyed_with_work}};
}

}  // namespace megadp::test
