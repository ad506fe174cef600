// SPDX-License-Identifier: Apache-2.0
// Groups on streams of their own: what is submitted to one stream and what to another may be in an order that differs from rank to rank.
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "device_array.h"
#include "suite.h"

namespace megadp::test {
namespace {

constexpr size_t kCount = 48;  // of one rank; of any number of ranks up to four

// One group with a stream, a window and arrays. Its operations come in one order, which is the same on all of its ranks.
class Channel {
 public:
  Channel(Rank& rank, Group& parent, const std::vector<int>& members, int number)
      : rank_(rank),
        number_(number),
        group_(rank.must(parent.split(members))),
        stream_(rank.must(rank.backend().create_stream(text("channel ", number).c_str()))),
        window_(rank.must(group_->allocate_window(kCount * sizeof(float)))),
        mine_(rank, kCount * sizeof(int64_t)),
        all_(rank, kCount * members.size() * sizeof(int64_t)),
        sum_(rank, kCount * sizeof(int64_t)) {}

  static constexpr int kOperations = 5;

  void begin(int round) {
    put_values(rank_, window_->data(), std::vector<float>(kCount, static_cast<float>(given(round, group_->rank()))));
    put_values(rank_, mine_.data(), std::vector<int64_t>(kCount, given(round, group_->rank())));
  }
  void submit(int operation, int round) {
    switch (operation) {
      case 0:
        return rank_.must(group_->all_reduce(*stream_, *window_, DType::f32, 0, kCount, 1, {}));
      case 1:
        return rank_.must(group_->all_gather(*stream_, mine_.data(), all_.data(), kCount, DType::i64, {}));
      case 2:
        return rank_.must(group_->barrier(*stream_, {}));
      case 3:
        return rank_.must(group_->all_reduce(*stream_, mine_.data(), sum_.data(), kCount, DType::i64, Op::sum, {}));
      default:
        return rank_.must(group_->broadcast(*stream_, mine_.data(), kCount, DType::i64, round % group_->size(), {}));
    }
  }
  void end(int round) {
    rank_.must(finish(*stream_));
    int64_t sum = 0;
    std::vector<int64_t> all;
    for (int member = 0; member < group_->size(); ++member) {
      sum += given(round, member);
      all.insert(all.end(), kCount, given(round, member));
    }
    const auto is = [&](const char* what, bool good) { rank_.check(good, text(what, " of group ", number_, " in round ", round)); };
    is("the window", get_values<float>(rank_, window_->data(), kCount) == std::vector<float>(kCount, static_cast<float>(sum)));
    is("the all-gather", get_values<int64_t>(rank_, all_.data(), all.size()) == all);
    is("the sum", get_values<int64_t>(rank_, sum_.data(), kCount) == std::vector<int64_t>(kCount, sum));
    is("the broadcast",
       get_values<int64_t>(rank_, mine_.data(), kCount) == std::vector<int64_t>(kCount, given(round, round % group_->size())));
  }

 private:
  int64_t given(int round, int member) const { return 1 + 1000 * number_ + 10 * round + member; }

  Rank& rank_;
  const int number_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Window> window_;
  DeviceArray mine_, all_, sum_;
};

// All ranks, all of them the other way round, and (of four) the pairs across.
std::vector<int> members_of(Rank& rank, int number) {
  std::vector<int> members = rank.everyone();
  if (number == 1) std::reverse(members.begin(), members.end());
  if (number == 2 && rank.size() == 4) members = {rank.rank() % 2, rank.rank() % 2 + 2};
  return members;
}

void mix(Rank& rank, int channels) {
  std::mt19937 random(static_cast<unsigned>(100 * rank.size() + 10 * channels + rank.rank()));
  auto world = rank.must(rank.backend().create_group(rank.everyone()));
  std::vector<std::unique_ptr<Channel>> all;
  for (int number = 0; number < channels; ++number) {
    all.push_back(std::make_unique<Channel>(rank, *world, members_of(rank, number), number));
  }
  for (int round = 0; round < 6; ++round) {
    std::vector<int> order, next(all.size(), 0);
    for (int number = 0; number < channels; ++number) order.insert(order.end(), Channel::kOperations, number);
    std::shuffle(order.begin(), order.end(), random);
    for (auto& channel : all) channel->begin(round);
    for (const int number : order) {
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
      const auto at = static_cast<size_t>(number);
      all[at]->submit(next[at]++, round);
    }
    for (size_t i = 0; i < all.size(); ++i) all[rank.rank() % 2 == 0 ? i : all.size() - 1 - i]->end(round);
  }
}

void mixed_orders(Suite& suite) {
  for (const int size : {2, 3, 4}) {
    for (const int channels : {2, 3}) suite.run(size, [channels](Rank& rank) { mix(rank, channels); });
  }
}

// One rank has submitted everything to one stream and waits for it before it comes to the other; what is on the other cannot begin, and
// holds up nothing.
void one_after_the_other(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto world = rank.must(rank.backend().create_group(rank.everyone()));
    Channel one(rank, *world, members_of(rank, 0), 0), two(rank, *world, members_of(rank, 1), 1);
    for (int round = 0; round < 6; ++round) {
      one.begin(round);
      two.begin(round);
      if (rank.rank() == 1) {
        for (int i = 0; i < Channel::kOperations; ++i) two.submit(i, round);
      }
      for (int i = 0; i < Channel::kOperations; ++i) one.submit(i, round);
      one.end(round);
      if (rank.rank() == 0) {
        for (int i = 0; i < Channel::kOperations; ++i) two.submit(i, round);
      }
      two.end(round);
    }
  });
}

// Two threads of a rank exchange on a line each; which of them comes first differs from rank to rank.
void lines_cross(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      const auto exchange = [&](uint64_t line) -> Status {
        auto all = rank.world().exchange(rank.everyone(), line == 1 ? "one" : "two", text(line, " ", rank.rank(), " ", round), line);
        if (!all) return all.status();
        for (size_t r = 0; r < all->size(); ++r) {
          const std::string wanted = text(line, " ", r, " ", round);
          if ((*all)[r] != wanted) return internal_error("line ", line, " gave '", (*all)[r], "', not '", wanted, "'");
        }
        return {};
      };
      const uint64_t first = 1 + static_cast<uint64_t>(rank.rank() + round) % 2;
      Status before;
      std::thread thread([&] { before = exchange(first); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const Status after = exchange(3 - first);
      thread.join();
      rank.ok(before);
      rank.ok(after);
    }
  });
}

}  // namespace

std::vector<Case> order_cases() {
  return {{"group.mixed_orders", mixed_orders}, {"group.one_after_the_other", one_after_the_other}, {"group.lines_cross", lines_cross}};
}

}  // namespace megadp::test
