// SPDX-License-Identifier: Apache-2.0
// Nothing is left behind: descriptors, threads and mappings of the process are counted over many cycles.
#include <dirent.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "device_array.h"
#include "suite.h"

namespace megadp::test {
namespace {

int entries(const char* path) {
  DIR* const folder = opendir(path);
  if (folder == nullptr) return -1;
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int lines(const char* path, const char* with) {
  std::ifstream file(path);
  int count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(with) != std::string::npos ? 1 : 0;
  return count;
}

struct Footprint {
  int descriptors = entries("/proc/self/fd");
  int threads = entries("/proc/self/task");
  int shared_mappings = lines("/proc/self/maps", "memfd:megadp");
};

void cycle(Rank& rank, int round, bool left_open) {
  auto stream = rank.must(rank.backend().create_stream("cycle"));
  auto group = rank.must(rank.backend().create_group(rank.everyone()));
  auto window = rank.must(group->allocate_window(100'000));
  auto memory = rank.must(rank.backend().allocate(100'000));
  rank.must(group->all_reduce(*stream, *window, DType::f32, 0, 25'000, 1, {}));
  auto event = rank.must(stream->record());
  if (left_open) return;  // destroyed in the reverse order, with work in flight
  rank.ok(event->wait(Deadline::never()));
  if (round % 2 == 0) stream.reset();
  window.reset();
  if (round % 3 == 0) memory.reset();
  group.reset();
}

// Thread-ranks share one process: rank 0 counts while the others wait, between the two exchanges. What may not happen is growth that stays:
// the kernel lists a thread for a moment after it was joined, a monitor closes what it has passed on once that is sent, and a device's
// backend frees on a thread of its own. `enough` says when there is nothing more to wait for.
void counted(Rank& rank, Footprint* out, const std::function<bool(const Footprint&)>& enough) {
  rank.must(rank.world().exchange(rank.everyone(), "counting", ""));
  if (rank.rank() == 0) {
    *out = Footprint();
    const Deadline deadline = Deadline::after_ns(30'000'000'000);
    while (!enough(*out) && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      *out = Footprint();
    }
  }
  rank.must(rank.world().exchange(rank.everyone(), "counting", ""));
}

void count_before(Rank& rank, Footprint* out) {
  counted(rank, out, [](const Footprint&) { return true; });
}

void check_no_growth(Rank& rank, const Footprint& before) {
  Footprint after;
  counted(rank, &after, [&before](const Footprint& now) {
    return now.descriptors <= before.descriptors && now.threads <= before.threads && now.shared_mappings <= before.shared_mappings;
  });
  if (rank.rank() != 0) return;
  rank.check(after.descriptors <= before.descriptors, text(before.descriptors, " descriptors became ", after.descriptors));
  rank.check(after.threads <= before.threads, text(before.threads, " threads became ", after.threads));
  rank.check(after.shared_mappings <= before.shared_mappings, text(before.shared_mappings, " mappings became ", after.shared_mappings));
}

void cycles(Suite& suite) {
  suite.run(2, [rounds = suite.setting().cycles](Rank& rank) {
    auto stream = rank.must(rank.backend().create_stream("watch"));
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    for (int round = 0; round < 5; ++round) cycle(rank, round, false);
    Footprint before;
    count_before(rank, &before);
    for (int round = 0; round < rounds; ++round) cycle(rank, round, false);
    check_no_growth(rank, before);
    if (rank.rank() != 0) return;
    const bool shares = rank.backend().name() == "host" && rank.world().node(0) == rank.world().node(1);
    rank.check(before.shared_mappings > 0 || !shares, "the mappings of windows are not recognised");
  });
}

// Everything dropped with work in flight, by both ranks, as a program does that returns early.
void dropped_in_flight(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    for (int round = 0; round < 20; ++round) cycle(rank, round, true);
  });
}

// One rank gives up a group before the other, which waits there: it gives up too, a moment later, and nothing has failed.
void dropped_one_after_the_other(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    {
      auto stream = rank.must(rank.backend().create_stream("dropped"));
      auto group = rank.must(rank.backend().create_group(rank.everyone()));
      auto memory = rank.must(rank.backend().allocate(64));
      if (rank.rank() == 1) rank.ok(group->all_reduce(*stream, memory->data(), memory->data(), 16, DType::f32, Op::sum, {}));
      if (rank.rank() == 0) group.reset();
      rank.must(rank.world().exchange(rank.everyone(), "dropping", ""));
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // time enough to notice that the other has gone
    }
    rank.must(rank.world().exchange(rank.everyone(), "dropped", ""));
    rank.ok(rank.world().failure());
    cycle(rank, 1, false);
    rank.must(rank.world().exchange(rank.everyone(), "the end", ""));  // what was given up may still wait for who leaves
  });
}

// A set-up that fails leaves nothing.
void failed_set_up(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    const auto fail = [&] {
      rank.check(!group->allocate_window(rank.rank() == 0 ? 4096 : 8192).ok(), "windows of different sizes");
      rank.check(!group->allocate_window(SIZE_MAX / 2).ok(), "a window as large as memory");
    };
    fail();  // starts the threads that a backend has from then on
    Footprint before;
    count_before(rank, &before);
    for (int round = 0; round < 20; ++round) fail();
    check_no_growth(rank, before);
  });
}

}  // namespace

std::vector<Case> lifetime_cases() {
  return {{"lifetime.cycles", cycles},
          {"lifetime.dropped_in_flight", dropped_in_flight},
          {"lifetime.dropped_one_after_the_other", dropped_one_after_the_other},
          {"lifetime.failed_set_up", failed_set_up}};
}

}  // namespace megadp::test
