// SPDX-License-Identifier: Apache-2.0
// Groups: any list of members, many at once, over one World, on one stream and on several; what create_group refuses.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "device_array.h"
#include "oracle.h"
#include "suite.h"

namespace megadp::test {
namespace {

// The world ranks of a group, summed with weights that depend on the place in the group: shows members and their order.
void sum_of_members(Rank& rank, Group& group, Stream& stream, const std::vector<int>& members) {
  rank.check(group.size() == static_cast<int>(members.size()) && group.members() == members, "the group has other members");
  rank.check(members[static_cast<size_t>(group.rank())] == rank.rank(), "the group has another rank");
  DeviceArray mine(rank, 8), all(rank, 8 * members.size());
  put_values<int64_t>(rank, mine.data(), {rank.rank()});
  rank.must(group.all_gather(stream, mine.data(), all.data(), 1, DType::i64, {}));
  rank.must(finish(stream));
  rank.check(get_values<int64_t>(rank, all.data(), members.size()) == std::vector<int64_t>(members.begin(), members.end()),
             "all_gather did not give the members in their order");
}

void any_members(Suite& suite) {
  suite.run(5, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("any members"));
    const std::vector<std::vector<int>> lists = {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {1, 3}, {3, 0, 2}, {2}, {4, 2}, {0, 1, 2, 4}};
    std::vector<std::shared_ptr<Group>> groups(lists.size());
    const auto in = [&](const std::vector<int>& list) { return std::find(list.begin(), list.end(), rank.rank()) != list.end(); };
    for (size_t i = 0; i < lists.size(); ++i) {
      if (in(lists[i])) groups[i] = rank.must(rank.backend().create_group(lists[i]));
    }
    for (int round = 0; round < 20; ++round) {
      for (size_t i = 0; i < lists.size(); ++i) {
        if (groups[i] != nullptr) sum_of_members(rank, *groups[i], *stream, lists[i]);
      }
    }
    // Ranks are numbered in the order of the members: a reversed group adds along the reversed tree. The last has, where
    // ranks are in pairs, one pair and two halves of others.
    for (const size_t i : {size_t{1}, lists.size() - 1}) {
      if (groups[i] == nullptr) continue;
      const size_t count = 4001;
      std::vector<Bytes> inputs;
      for (const int member : lists[i]) inputs.push_back(make_input(DType::f32, count, 3, member));
      DeviceArray own(rank, make_input(DType::f32, count, 3, rank.rank()));
      rank.must(groups[i]->all_reduce(*stream, own.data(), own.data(), count, DType::f32, Op::sum, {}));
      rank.must(finish(*stream));
      rank.check(own.get() == reduce_arrays(DType::f32, Op::sum, 1, inputs), "the sum is not in the order of the members");
    }
    // Destroyed in an order that differs from rank to rank.
    for (size_t i = 0; i < groups.size(); ++i) groups[rank.rank() % 2 == 0 ? i : groups.size() - 1 - i].reset();
    rank.check(!rank.world().failed(), "destroying groups made the world fail");
  });
}

void bad_members(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    Backend& backend = rank.backend();
    rank.fails(backend.create_group({}).status(), Code::invalid, {"members", text("rank ", rank.rank())});
    rank.fails(backend.create_group({1 - rank.rank()}).status(), Code::invalid, {text("rank ", rank.rank()), "not among them"});
    rank.fails(backend.create_group({rank.rank(), rank.rank()}).status(), Code::invalid, {"twice"});
    rank.fails(backend.create_group({0, 1, 2}).status(), Code::invalid, {"2 is not a rank", "0 to 1"});
    rank.fails(backend.create_group({0, -1}).status(), Code::invalid, {"-1 is not a rank"});
    rank.ok(backend.create_group(rank.everyone()).status());
  });
}

// Several groups and windows on one stream, their operations interleaved.
void interleaved(Suite& suite) {
  suite.run(4, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("interleaved"));
    const std::vector<int> half = rank.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3};
    auto all = rank.must(rank.backend().create_group(rank.everyone()));
    auto part = rank.must(rank.backend().create_group(half));
    auto wide = rank.must(all->allocate_window(64 * 4));
    auto narrow = rank.must(part->allocate_window(64 * 4));
    put_values(rank, wide->data(), std::vector<float>(64, 1));
    put_values(rank, narrow->data(), std::vector<float>(64, 1));
    for (int round = 0; round < 5; ++round) {
      rank.must(part->all_reduce(*stream, *narrow, DType::f32, 0, 64, 1, {}));
      rank.must(all->all_reduce(*stream, *wide, DType::f32, 0, 64, 2, {}));
      rank.must(part->barrier(*stream, {}));
    }
    rank.must(finish(*stream));
    const auto a = get_values<float>(rank, wide->data(), 64), b = get_values<float>(rank, narrow->data(), 64);
    rank.check(a == std::vector<float>(64, 32), text("the wide window holds ", a[0]));
    rank.check(b == std::vector<float>(64, 32), text("the narrow window holds ", b[0]));
  });
}

// One group used from two streams, one after the other.
void two_streams(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    auto one = rank.must(rank.backend().create_stream("one"));
    auto two = rank.must(rank.backend().create_stream("two"));
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    for (int round = 0; round < 20; ++round) {
      rank.must(group->barrier(round % 2 == 0 ? *one : *two, {}));
      rank.must(finish(round % 2 == 0 ? *one : *two));
    }
  });
}

// Two groups of the same ranks, each with a stream of its own. Both run at once, and half of the ranks come to them in the other order.
void side_by_side(Suite& suite) {
  static constexpr int64_t kCount = 70'001;  // two turns
  for (const int size : {2, 3, 4}) {
    suite.run(size, [](Rank& rank) {
      std::vector<int> backwards = rank.everyone();
      std::reverse(backwards.begin(), backwards.end());
      std::unique_ptr<Stream> streams[] = {rank.must(rank.backend().create_stream("one")), rank.must(rank.backend().create_stream("two"))};
      std::shared_ptr<Group> groups[] = {rank.must(rank.backend().create_group(rank.everyone())),
                                         rank.must(rank.backend().create_group(backwards))};
      DeviceArray sums[] = {DeviceArray(rank, 8 * kCount), DeviceArray(rank, 8 * kCount)};
      DeviceArray told[] = {DeviceArray(rank, 8), DeviceArray(rank, 8)};
      for (int round = 0; round < 12; ++round) {
        for (int i = 0; i < 2; ++i) {
          std::vector<int64_t> mine(kCount);
          for (int64_t e = 0; e < kCount; ++e) mine[static_cast<size_t>(e)] = e * (i + 1) + rank.rank() + round;
          put_values<int64_t>(rank, sums[i].data(), mine);
          put_values<int64_t>(rank, told[i].data(), {100 * rank.rank() + 10 * round + i});
        }
        // What a device's streams do at once must not wait for each other: there the order is one.
        const int first = on_device(rank) ? 0 : rank.rank() % 2;
        for (const int i : {first, 1 - first}) {
          rank.must(groups[i]->all_reduce(*streams[i], sums[i].data(), sums[i].data(), kCount, DType::i64, Op::sum, {}));
          rank.must(groups[i]->broadcast(*streams[i], told[i].data(), 1, DType::i64, round % rank.size(), {}));
          rank.must(groups[i]->barrier(*streams[i], {}));
          std::this_thread::sleep_for(std::chrono::milliseconds((7 * rank.rank() + 3 * round) % 11));
        }
        const int64_t ranks = rank.size(), others = ranks * (ranks - 1) / 2;
        for (int i = 0; i < 2; ++i) {
          rank.must(finish(*streams[i]));
          const auto found = get_values<int64_t>(rank, sums[i].data(), kCount);
          int64_t wrong = 0;
          for (int64_t e = 0; e < kCount; ++e) wrong += found[static_cast<size_t>(e)] != ranks * (e * (i + 1) + round) + others ? 1 : 0;
          rank.check(wrong == 0, text("group ", i, ", round ", round, ": ", wrong, " sums are wrong"));
          const int64_t root = groups[i]->members()[static_cast<size_t>(round % rank.size())];
          const int64_t heard = get_values<int64_t>(rank, told[i].data(), 1)[0];
          rank.check(heard == 100 * root + 10 * round + i, text("group ", i, ", round ", round, ": the broadcast gave ", heard));
        }
      }
    });
  }
}

// What a rank has sent arrives, though it does nothing more in that group and waits in another one for those that it is sent to.
void sent_arrives(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    auto one = rank.must(rank.backend().create_stream("one"));
    auto two = rank.must(rank.backend().create_stream("two"));
    auto a = rank.must(rank.backend().create_group(rank.everyone()));
    auto b = rank.must(rank.backend().create_group(rank.everyone()));
    // Through sockets of 2 KiB more would take minutes if the ranks sleep in between.
    const size_t most = std::getenv("UCX_TCP_SNDBUF") != nullptr ? 100'000 : 8'000'000;
    DeviceArray array(rank, most);
    for (const size_t count : {1U, 1'000U, 8'000U, 16'000U, 65'000U, 100'000U, 300'000U, 8'000'000U}) {
      if (count > most) break;
      const Bytes sent = make_input(DType::u8, count, 1, 0);
      if (rank.rank() == 0) put(rank, array.data(), sent);
      if (rank.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      rank.must(a->broadcast(*one, array.data(), count, DType::u8, 0, {}));
      if (rank.rank() != 0) rank.must(finish(*one));
      rank.must(b->barrier(*two, {}));
      rank.must(finish(*two));
      rank.must(finish(*one));  // the array is written again
      rank.check(get(rank, array.data(), count) == sent, text("a broadcast of ", count, " bytes brought others"));
    }
  });
}

// The handles may go as soon as the work is submitted, as far as the work goes: memory stays until it is done.
void destroyed_with_work(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("outlives"));
    for (int round = 0; round < 20; ++round) {
      auto group = rank.must(rank.backend().create_group(rank.everyone()));
      auto window = rank.must(group->allocate_window(1 << 20));
      for (int i = 0; i < 3; ++i) rank.must(group->all_reduce(*stream, *window, DType::f32, 0, 1 << 18, 1, {}));
      window.reset();
      group.reset();
      rank.must(finish(*stream));
    }
  });
}

// All ranks on one processor: whoever waits must let the others run.
void one_processor(Suite& suite) {
  suite.run(8, [](Rank& rank) {
    cpu_set_t all, one;
    rank.check(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity failed");
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    rank.check(sched_setaffinity(0, sizeof one, &one) == 0, "sched_setaffinity failed");
    auto stream = rank.must(rank.backend().create_stream("one processor"));
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    DeviceArray shared(rank, 8);
    for (int64_t round = 0; round < 200; ++round) {
      put_values<int64_t>(rank, shared.data(), {round * (rank.rank() + 1)});
      rank.must(group->all_reduce(*stream, shared.data(), shared.data(), 1, DType::i64, Op::sum, {}));
      rank.must(finish(*stream));
      const int64_t value = get_values<int64_t>(rank, shared.data(), 1)[0];
      if (!rank.check(value == round * 36, text("round ", round, " gives ", value))) return;
    }
  });
}

// Who sleeps is woken by the last to come. Without that a barrier takes as long as a sleeper sleeps before it looks again by itself, 25 ms:
// 15 s for those of each rank, which take less than 1 s otherwise, on a busy machine too.
void sleepers_are_woken(Suite& suite) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  static constexpr int kBarriers = 100;  // in their hands a barrier takes long by itself; 100 cannot come to the bound
#else
  static constexpr int kBarriers = 800;
#endif
  static constexpr uint64_t kBoundNs = 4'000'000'000;
  suite.run(4, [](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("sleepers"));
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    rank.must(group->barrier(*stream, {}));
    rank.must(finish(*stream));
    uint64_t asleep_ns = 0;  // on the busiest machine some rounds are slow: each counts for no more than a slice
    for (int i = 0; i < kBarriers; ++i) {
      if (rank.rank() == i % 4) std::this_thread::sleep_for(std::chrono::microseconds(200));  // the others sleep by then
      const uint64_t begin_ns = now_ns();
      rank.must(group->barrier(*stream, {}));
      rank.must(finish(*stream));
      asleep_ns += std::min<uint64_t>(now_ns() - begin_ns, 25'000'000);
    }
    if (on_device(rank)) return;  // its waits are not these
    rank.check(asleep_ns < kBoundNs, text(kBarriers, " barriers took ", asleep_ns / 1'000'000, " ms: nobody wakes the sleepers"));
  });
}

}  // namespace

std::vector<Case> group_cases() {
  return {{"group.any_members", any_members},
          {"group.bad_members", bad_members},
          {"group.interleaved", interleaved},
          {"group.two_streams", two_streams},
          {"group.side_by_side", side_by_side},
          {"group.sent_arrives", sent_arrives},
          {"group.destroyed_with_work", destroyed_with_work},
          {"group.one_processor", one_processor},
          {"group.sleepers_are_woken", sleepers_are_woken}};
}

}  // namespace megadp::test
