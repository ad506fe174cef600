// SPDX-License-Identifier: Apache-2.0
// World: small collectives among threads, leaving, forking, and what is left over. The other cases are beside this file.
#include <malloc.h>

#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "world_ranks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;  // their allocators keep what is freed
constexpr size_t kLarge = 2 * 1024 * 1024;
#else
constexpr bool kCountsMemory = true;
constexpr size_t kLarge = 24 * 1024 * 1024;
#endif

namespace megadp::test {
namespace {

// Under a sanitizer the C library's own heap is never set up, and mallinfo2 cannot read it.
size_t bytes_in_use() {
  return kCountsMemory ? mallinfo2().uordblks : 0;
}

void one_rank_needs_nothing() {
  const int descriptors = count_entries("/proc/self/fd");
  const int threads = count_threads();
  auto world = World::join(launch_of("", 0, 1), kSecond);
  if (!check(world.ok(), "one rank joins")) return;
  check(count_entries("/proc/self/fd") == descriptors, "a single rank opens no descriptor");
  check(count_threads() == threads, "a single rank starts no thread");
  check((*(*world)->exchange({0}, "test", "mine")) == std::vector<std::string>{"mine"}, "it gets its own message");
  const Fd mine(::dup(1));
  check((*world)->share({0}, "test", mine)->size() == 1, "it gets its own descriptor");
  check(!(*world)->failed() && (*world)->failure().ok(), "it has not failed");
  (*world)->fail(Status(Code::aborted, "enough"));
  check((*world)->failed(), "it can fail");
  fails((*world)->exchange({0}, "test", "").status(), Code::aborted, {"enough"});
  (*world)->fail(Status(Code::peer, "later"));
  fails((*world)->failure(), Code::aborted, {"enough"});
}

void bad_arguments_are_refused() {
  fails(World::join(launch_of("j", 0, 0), kSecond).status(), Code::invalid, {"size is 0"});
  fails(World::join(launch_of("j", 2, 2), kSecond).status(), Code::invalid, {"rank is 2", "below size, which is 2"});
  fails(World::join(launch_of("j", -1, 2), kSecond).status(), Code::invalid, {"rank is -1"});
  fails(World::join(launch_of("j", 0, 2), 0).status(), Code::invalid, {"timeout is 0"});
  fails(World::join(launch_of("", 0, 2), kSecond).status(), Code::invalid, {"no name"});
  in_world(2, [](int rank, const WorldPtr& world) {
    fails(world->exchange({1 - rank}, "test", "").status(), Code::invalid,
          {text("members: rank ", rank, ", which makes the call, is not among them")});
    fails(world->exchange({0, 1, 1}, "test", "").status(), Code::invalid, {"rank 1 is listed twice"});
    fails(world->exchange({0, 1, 2}, "test", "").status(), Code::invalid, {"members: 2 is not a rank", "ranks are 0 to 1"});
    fails(world->exchange({}, "test", "").status(), Code::invalid, {"not among them"});
    fails(world->share({0, 1}, "test", Fd()).status(), Code::system, {"descriptor -1"});
    fails(world->exchange({0, 1}, "test", std::string(64 * 1024 * 1024 + 1, 'x')).status(), Code::invalid, {"67108865 bytes"});
    check(world->exchange({0, 1}, "test", "still").ok(), "a refused call changes nothing");
  });
}

void messages_reach_every_member() {
  in_world(5, [](int rank, const WorldPtr& world) {
    check(world->rank() == rank && world->size() == 5, "rank and size");
    check(world->node(4) == 0 && world->process(4) == ::getpid() && !world->host_name(4).empty(), "table");
    for (int round = 0; round < 50; ++round) {
      const auto got = world->exchange(ranks_below(5), "test", text(rank, ":", round));
      if (!check(got.ok(), got.status().text())) return;
      for (int r = 0; r < 5; ++r) check((*got)[static_cast<size_t>(r)] == text(r, ":", round), "message in the wrong place");
    }
    // Two groups at once, in an order of their own, and both with the hub outside and inside.
    const std::vector<int> group = rank % 2 == 0 ? std::vector<int>{4, 0, 2} : std::vector<int>{3, 1};
    for (int round = 0; round < 50; ++round) {
      const auto got = world->exchange(group, "test", std::string(static_cast<size_t>(rank) * 1000, 'a'));
      if (!check(got.ok(), got.status().text())) return;
      for (size_t i = 0; i < group.size(); ++i) check((*got)[i].size() == static_cast<size_t>(group[i]) * 1000, "message of another size");
    }
  });
}

void ranks_learn_whether_all_gave_the_same() {
  in_world(5, [](int rank, const WorldPtr& world) {
    for (int round = 0; round < 20; ++round) {
      const auto same = world->compare(ranks_below(5), "test", text("round ", round));
      if (!check(same.ok() && !*same, same.status().text())) return;
      const std::vector<int> others = {3, 0, 4, 1};
      if (rank == 2) continue;
      const auto differ = world->compare(others, "test", text("rank ", rank == 4 || rank == 1 ? rank : 0));
      if (!check(differ.ok() && *differ, differ.status().text())) return;
      check((*differ)->first == 3 && (*differ)->other == 4, "the first that differs from the first");
      check((*differ)->first_bytes == "rank 0" && (*differ)->other_bytes == "rank 4", "what the two gave");
      const auto told = world->broadcast(others, "test", text("rank ", rank));
      check(told.ok() && *told == "rank 3", told.ok() ? *told : told.status().text());
    }
  });
  in_world(1, [](int, const WorldPtr& world) {
    const auto same = world->compare({0}, "test", "mine");
    check(same.ok() && !*same, "alone");
    const auto told = world->broadcast({0}, "test", "mine");
    check(told.ok() && *told == "mine", "alone");
  });
  in_world(2, [](int rank, const WorldPtr& world) {
    fails(world->compare({0, 1}, rank == 0 ? "one call" : "another call", "").status(), Code::desync,
          {"rank 0 called one call, rank 1 called another call"});
  });
}

// Two threads of each rank, on a line each, in orders that differ; and one that comes later than the timeout allows.
void lines_do_not_wait_for_each_other() {
  in_world(3, [](int rank, const WorldPtr& world) {
    const auto on_line = [&](uint64_t line) {
      const char* const what = line == 1 ? "one" : "two";
      for (int round = 0; round < 20; ++round) {
        const auto mine = [&](int r) { return text(line, ":", r, ":", round); };
        const auto all = world->exchange(ranks_below(3), what, mine(rank), line);
        if (!check(all.ok(), all.status().text())) return;
        for (int r = 0; r < 3; ++r) check((*all)[static_cast<size_t>(r)] == mine(r), "a message of another line");
        const auto differ = world->compare(ranks_below(3), what, mine(rank), line);
        if (!check(differ.ok() && *differ, differ.status().text())) return;
        check((*differ)->first_bytes == mine(0) && (*differ)->other_bytes == mine(1), "compared with another line");
        const auto told = world->broadcast(ranks_below(3), what, mine(rank), line);
        check(told.ok() && *told == mine(0), told.ok() ? *told : told.status().text());
      }
    };
    const uint64_t first = 1 + static_cast<uint64_t>(rank) % 2;
    std::thread thread([&] { on_line(first); });
    on_line(3 - first);
    thread.join();
  });
  in_world(
      2,
      [](int rank, const WorldPtr& world) {
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        const auto all = world->exchange({0, 1}, "late", "", 1);
        check(all.ok(), all.status().text());
        if (rank == 0) fails(world->exchange({0, 1}, "never", "", 1).status(), Code::peer, {"rank 1 has left", "never"});
      },
      kSecond);
}

void lines_leave_nothing_over() {
  in_world(2, [](int rank, const WorldPtr& world) {
    const auto lines = [&](uint64_t begin, uint64_t end) {
      for (uint64_t line = begin; line < end; ++line) {
        if (!check(world->exchange({0, 1}, "test", "", line).ok(), "exchange")) return;
        if (!check(world->compare({0, 1}, "test", "", line).ok(), "compare")) return;
        if (!check(world->broadcast({0, 1}, "test", "", line).ok(), "broadcast")) return;
        world->end_line({0, 1}, line);
      }
      check(world->exchange({0, 1}, "test", "").ok(), "the first line goes on");
    };
    lines(1, 100);
    const size_t bytes = bytes_in_use();
    lines(100, 2100);
    if (kCountsMemory && rank == 0) check(bytes_in_use() < bytes + 64'000, text(bytes_in_use() - bytes, " bytes are left of 2,000 lines"));
    check(world->exchange({0, 1}, "test", "").ok(), "until it has been counted");
  });
}

void messages_may_be_large() {
  in_world(3, [](int rank, const WorldPtr& world) {
    std::string mine(kLarge + static_cast<size_t>(rank), static_cast<char>('a' + rank));
    const auto got = world->exchange({2, 1, 0}, "test", mine);
    if (!check(got.ok(), got.status().text())) return;
    for (int r = 0; r < 3; ++r) {
      const std::string& part = (*got)[static_cast<size_t>(2 - r)];
      check(part.size() == kLarge + static_cast<size_t>(r), "size of a large message");
      check(part.find_first_not_of(static_cast<char>('a' + r)) == std::string::npos, "contents of a large message");
    }
    check(world->exchange({0, 1, 2}, "test", "after").ok(), "a small one afterwards");
    check(world->describe(0).find("rank 0 (pid ") == 0, world->describe(0));
  });
}

void descriptors_reach_every_member() {
  in_world(4, [](int rank, const WorldPtr& world) {
    for (const std::vector<int>& members : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{3, 1, 0}, std::vector<int>{2, 3}}) {
      if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
      int ends[2];
      if (!check(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "pipe")) return;
      const Fd read_end(ends[0]), write_end(ends[1]);
      const auto fds = world->share(members, "test", write_end);
      if (!check(fds.ok(), fds.status().text())) return;
      for (const Fd& fd : *fds) {
        const char byte = static_cast<char>('0' + rank);
        check(::write(fd.get(), &byte, 1) == 1, "writing to a shared descriptor");
        check((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0, "shared descriptors are close-on-exec");
      }
      if (!check(world->exchange(members, "test", "").ok(), "barrier")) return;
      char got[16] = {};
      check(::read(read_end.get(), got, sizeof got) == static_cast<ssize_t>(members.size()), "everyone has written once");
      for (const int member : members) check(std::strchr(got, '0' + member) != nullptr, text("rank ", member, " has not written"));
    }
  });
}

// The one that waited, the others that had come, and the one that comes too late get the same failure, which ends the world.
void a_missing_member_is_named() {
  std::atomic<int> timed_out{0};
  in_world(
      4,
      [&](int rank, const WorldPtr& world) {
        if (rank == 2) wait_until([&] { return timed_out == 3; }, 30 * kSecond);
        const Status status = world->exchange(ranks_below(4), "test", "").status();
        fails(status, Code::timeout, {"rank 2 did not come", "ranks 0 to 3", "rank 2 (pid", "is alive"});
        check(status.blame().rank == 2, "rank 2 is to blame");
        ++timed_out;
        fails(world->failure(), Code::timeout, {"rank 2 did not come to test"});
        fails(world->exchange({3, 2, 1, 0}, "test", "x").status(), Code::timeout, {"rank 2 did not come"});
      },
      kSecond);
}

// It used to pair them up: what one call sent was read by another.
void different_calls_do_not_pair_up() {
  in_world(3, [](int rank, const WorldPtr& world) {
    const Status status = world->exchange({0, 1, 2}, rank == 1 ? "mdp_grid_create" : "mdp_comm_split", "x").status();
    fails(status, Code::desync, {"rank 0 called mdp_comm_split, rank 1 called mdp_grid_create"});
    check(status.blame().rank == 1, "rank 1 is to blame");
    fails(world->failure(), Code::desync, {"rank 1 called mdp_grid_create"});
  });
  in_world(2, [](int rank, const WorldPtr& world) {
    fails(world->share({0, 1}, rank == 0 ? "a" : "b", Fd(::dup(1))).status(), Code::desync, {"rank 0 called a, rank 1 called b"});
  });
}

// The others used to wait out their timeout for a rank that had run out of descriptors.
void a_rank_without_a_descriptor_is_named() {
  for (const int culprit : {0, 1, 2}) {  // one of them is the first of the list
    in_world(3, [&](int rank, const WorldPtr& world) {
      const Status status = world->share({2, 1, 0}, "test", rank == culprit ? Fd() : Fd(::dup(1))).status();
      fails(status, Code::system, {text("rank ", culprit, " has no descriptor to share"), "descriptor -1"});
      check(status.blame().rank == culprit, "it is to blame");
      check(world->share({2, 1, 0}, "test", Fd(::dup(1))).ok(), "the next time it has one");
    });
  }
}

void failures_spread() {
  for (int culprit = 0; culprit < 3; ++culprit) {
    in_world(3, [&](int rank, const WorldPtr& world) {
      check(world->exchange({0, 1, 2}, "test", "").ok(), "all are there");
      if (rank == culprit) {
        world->fail(Status(Code::desync, "the layouts differ", Blame{1, 5, 7, 9}));
        world->fail(Status(Code::aborted, "too late"));
      } else {
        check(wait_until([&] { return world->failed(); }, 10 * kSecond), "the failure arrives");
      }
      const Status why = world->failure();
      fails(why, Code::desync, {"the layouts differ"});
      if (rank != culprit) says(why.text(), {text("rank ", culprit, " reported")});
      check(why.blame().rank == 1 && why.blame().bucket == 5 && why.blame().param == 7 && why.blame().operation == 9, "blame");
      fails(world->exchange({0, 1, 2}, "test", "").status(), Code::desync, {"the layouts differ"});
      fails(world->share({0, 1, 2}, "test", Fd(::dup(1))).status(), Code::desync, {"the layouts differ"});
    });
  }
}

void a_failure_ends_waits() {
  in_world(3, [&](int rank, const WorldPtr& world) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      world->fail(Status(Code::aborted, "stop"));
    } else {
      fails(world->exchange({0, 1, 2}, "test", "").status(), Code::aborted, {"rank 1 reported: stop"});
    }
  });
}

// Whoever leaves is no failure, whoever it is, and the others can go on.
void leaving_is_no_death() {
  for (int leaver = 0; leaver < 4; ++leaver) {
    std::atomic<int> done{0}, looked{0};
    in_world(4, [&](int rank, WorldPtr world) {
      if (rank == leaver) {
        world.reset();
        wait_until([&] { return done == 3; }, 30 * kSecond);
        return;
      }
      check(wait_until([&] { return world->has_left(leaver); }, 10 * kSecond), "the goodbye arrives");
      std::vector<int> rest = ranks_below(4);
      rest.erase(rest.begin() + leaver);
      for (int round = 0; round < 20; ++round) {
        const auto got = world->exchange(rest, "test", text(rank));
        if (!check(got.ok(), got.status().text())) break;
      }
      check(world->share(rest, "test", Fd(::dup(1))).ok(), "descriptors are still passed");
      check(!world->failed(), "leaving is no failure");
      ++looked;
      wait_until([&] { return looked == 3; }, 30 * kSecond);
      fails(world->exchange(ranks_below(4), "test", "").status(), Code::peer, {text("rank ", leaver, " has left")});
      says(world->describe(leaver), {"has left"});
      fails(world->failure(), Code::peer, {text("rank ", leaver, " has left and will not come to test")});
      world.reset();
      ++done;
    });
  }
}

void a_forked_child_leaves_no_trace() {
  in_world(2, [](int rank, WorldPtr world) {
    check(!world->in_forked_child(), "this is no child");
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        const bool knows = world->in_forked_child();
        world.reset();
        ::_exit(knows ? 0 : 1);
      }
      int status = -1;
      check(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child knows and ends");
    }
    check(world->exchange({0, 1}, "test", "").ok(), "the parent goes on");
    check(!world->has_left(1 - rank) && !world->failed(), "nobody noticed");
    check(world->exchange({0, 1}, "test", "").ok(), "and on");
  });
}

void nothing_is_left_over() {
  const auto cycles = [](int count) {
    const std::string job = fresh_job();  // one name: every rendezvous must be able to follow the one before
    on_threads(2, [&](int rank) {
      for (int i = 0; i < count; ++i) {
        auto world = World::join(launch_of(job, rank, 2), 20 * kSecond);
        if (!check(world.ok(), text("cycle ", i, ": ", world.status().text()))) return;
        if (i % 10 == 0) check((*world)->exchange({0, 1}, "test", "x").ok(), "exchange");
      }
    });
  };
  cycles(50);
  const auto quiet = [] { return count_threads() == quiet_threads; };
  check(wait_until(quiet, 10 * kSecond), "threads are left after 50 cycles");
  const int descriptors = count_entries("/proc/self/fd");
  const size_t bytes = bytes_in_use();
  cycles(1000);
  check(wait_until(quiet, 10 * kSecond), text(count_threads() - quiet_threads, " threads are left after 1,000 cycles"));
  check(count_entries("/proc/self/fd") == descriptors,
        text(count_entries("/proc/self/fd"), " descriptors instead of ", descriptors, " after 1,000 cycles"));
  // What the cycles leave behind would be counted a thousand times.
  if (kCountsMemory) check(bytes_in_use() < bytes + 64'000, text(bytes_in_use() - bytes, " bytes are left after 1,000 cycles"));
}

}  // namespace

void collective_cases() {
  one_rank_needs_nothing();
  bad_arguments_are_refused();
  messages_reach_every_member();
  ranks_learn_whether_all_gave_the_same();
  lines_do_not_wait_for_each_other();
  lines_leave_nothing_over();
  messages_may_be_large();
  descriptors_reach_every_member();
  a_missing_member_is_named();
  different_calls_do_not_pair_up();
  a_rank_without_a_descriptor_is_named();
  failures_spread();
  a_failure_ends_waits();
  leaving_is_no_death();
  nothing_is_left_over();
  a_forked_child_leaves_no_trace();
}

}  // namespace megadp::test

int main(int argc, char** argv) {
  using namespace megadp::test;
  if (argc > 1 && std::string(argv[1]) == "--rank") return be_a_rank(argc, argv);
  if (argc > 1 && std::string(argv[1]) == "--environment") return be_a_rank_of_the_environment();
  if (argc > 4 && std::string(argv[1]) == "--bootstrap") return be_a_rank_of_a_bootstrap(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  const std::string only = argc > 1 ? argv[1] : "";
  const auto run = [&](const char* name, void (*cases)()) {
    if (!only.empty() && only != name) return;
    const uint64_t begun = megadp::now_ns();
    cases();
    std::fprintf(stderr, "%s: %.1f s\n", name, static_cast<double>(megadp::now_ns() - begun) / 1e9);
  };
  std::thread([] {}).join();  // sanitizers start a thread of their own together with the first
  quiet_threads = least_threads();
  // Refused strangers are logged; the cases that provoke them look at the messages themselves.
  megadp::set_log([](void*, int32_t, const char*, size_t) {}, nullptr);
  run("collective", collective_cases);
  run("rendezvous", rendezvous_cases);
  run("guard", guard_cases);
  run("failure", failure_cases);
  run("network", network_cases);
  std::cerr << checks << " checks, " << failures << " failed\n";
  return failures == 0 && checks > 0 ? 0 : 1;
}
