// SPDX-License-Identifier: Apache-2.0
// A rank's end of a group, with operations of the test's own: what it refuses, and what of its setting up is agreed on.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "../conformance/thread_world.h"
#include "check.h"
#include "control/agreement.h"
#include "control/memory_check.h"
#include "host/group.h"

using namespace megadp;
using namespace megadp::host;
using namespace megadp::test;

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

std::mutex checking;

Operation operation(uint64_t number) {
  Operation one = make_operation(Collective::barrier, DType::u8, 0, {});
  one.number = number;
  return one;
}

Status perform(HostGroup& group, uint64_t number, const Stop& stop, const std::function<Status()>& body) {
  return group.perform(
      number, {.operation = number}, [number] { return describe(operation(number)); }, stop, body);
}

// Nothing is between these nodes; what is posted goes nowhere.
class NoTransport final : public Transport {
 public:
  explicit NoTransport(std::shared_ptr<World> world) : Transport(std::move(world)) {}
  Status send(int, const void*, size_t, Lane, bool*) override { return {}; }
  Status receive(int, void*, size_t, Lane, bool*) override { return {}; }
  Status wait(const Stop&, const Describe&, const Enough&) override { return {}; }
  void give_up() override {}
};

class NoNetwork final : public Network {
 public:
  explicit NoNetwork(std::shared_ptr<World> world) : world_(std::move(world)) {}
  Result<std::unique_ptr<Transport>> connect(const std::vector<int>&, std::shared_ptr<const ThreadPool>) override {
    connected += 1;
    return std::unique_ptr<Transport>(new NoTransport(world_));
  }
  int connected = 0;

 private:
  const std::shared_ptr<World> world_;
};

std::shared_ptr<HostGroup> alone(const std::shared_ptr<World>& world) {
  auto group = HostGroup::create(world, nullptr, {world->rank()});
  check(group.ok(), group.status().text());
  return *std::move(group);
}

// An operation that runs until it is let go.
class Running {
 public:
  Running(HostGroup& group, uint64_t number)
      : thread_([this, &group, number] {
          status_ = perform(group, number, stop_, [this] {
            inside_ = true;
            while (!go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return Status();
          });
          inside_ = true;
        }) {
    while (!inside_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Status end() {
    go_ = true;
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  ~Running() { (void)end(); }

 private:
  const Stop stop_;
  std::atomic<bool> inside_{false}, go_{false};
  Status status_;
  std::thread thread_;
};

// Returns what the refused operation says; its body is not run.
Status refused(HostGroup& group, uint64_t number) {
  bool ran = false;
  const Stop stop;
  const Status status = perform(group, number, stop, [&] { return ran = true, Status(); });
  check(!ran, "an operation that is refused does not run");
  return status;
}

void one_group_runs_one_operation_at_a_time() {
  const auto world = create_thread_worlds(1, kSecondNs).front();
  const auto group = alone(world), other = alone(world);
  Running running(*group, 1);
  fails(refused(*group, 2), Code::state, {"another operation of this group is running on another stream", "one order", "barrier"});
  bool ran = false;
  const Stop stop;
  check(perform(*other, 1, stop, [&] { return ran = true, Status(); }).ok() && ran, "another group is free");
  check(running.end().ok(), "the one that ran first is not disturbed");
  ran = false;
  check(perform(*group, 2, stop, [&] { return ran = true, Status(); }).ok() && ran, "it comes next");
}

void operations_come_in_their_order() {
  const auto world = create_thread_worlds(1, kSecondNs).front();
  const auto group = alone(world);
  fails(refused(*group, 2), Code::state, {"call 1 on this group did not run before it"});
  fails(refused(*group, 1), Code::state, {"call 1 on this group did not run before it"});  // it is over for this group
}

// Runs on every rank; nodes as thread_world.h has them.
void on_ranks(int size, const std::vector<int>& hosts, const std::function<void(const std::shared_ptr<World>&)>& body) {
  const auto worlds = create_thread_worlds(size, 20 * kSecondNs, hosts);
  std::vector<std::thread> threads;
  for (const auto& world : worlds) threads.emplace_back([&body, world] { body(world); });
  for (std::thread& thread : threads) thread.join();
}

// Whoever lost an operation cannot be waited for: the others are told.
void a_lost_operation_ends_the_world() {
  on_ranks(2, {0, 0}, [](const std::shared_ptr<World>& world) {
    auto group = HostGroup::create(world, nullptr, {0, 1});
    const std::lock_guard lock(checking);
    if (!check(group.ok(), group.status().text()) || world->rank() == 1) return;
    fails(refused(**group, 2), Code::state, {"call 1 on this group did not run before it"});
    fails(world->failure(), Code::state, {"call 1 on this group did not run before it"});
  });
}

// A wait that is over leaves the World a moment to say who is stopped: the one that was waited for may only be waiting for another.
void the_worlds_verdict_comes_before_ones_own() {
  const auto worlds = create_thread_worlds(2, 300'000'000, {0, 0});
  std::vector<std::thread> ranks;
  for (const auto& world : worlds) {
    ranks.emplace_back([world] {
      auto group = HostGroup::create(world, nullptr, {0, 1});
      if (!group.ok() || world->rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));  // past the timeout; the moment is a second long
        world->fail(Status(Code::timeout, "rank 7 is stopped", Blame{.rank = 7}));
        return;
      }
      const Stop stop;
      const Operation one = operation(1);
      const Status status = perform(**group, 1, stop, [&] { return (*group)->barrier(one, stop); });
      const std::lock_guard lock(checking);
      fails(status, Code::timeout, {"rank 7 is stopped"});
      check_equal(status.blame().rank, 7, "the rank to blame");
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// A rank whose stream was destroyed in the middle of a meeting had come to it: those that wait for a third do so for that one alone.
void who_left_after_coming_is_not_missed() {
  const auto worlds = create_thread_worlds(3, 20 * kSecondNs, {0, 0, 0});
  std::atomic<int> come{0};
  std::vector<std::thread> ranks;
  for (const auto& world : worlds) {
    ranks.emplace_back([world, &come] {
      auto group = HostGroup::create(world, nullptr, {0, 1, 2});
      const int rank = world->rank();
      Stop stop;
      if (rank == 1) stop.request(0);
      while (rank != 1 && come < (rank == 0 ? 1 : 2)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // some slices, in which rank 0 looks around
      const Operation one = operation(1);
      if (rank == 0) come = 2;
      const Status status = group.ok() ? perform(**group, 1, stop, [&] { return (*group)->barrier(one, stop); }) : group.status();
      if (rank == 1) come = 1;
      const std::lock_guard lock(checking);
      if (rank == 1) {
        fails(status, Code::aborted, {"its stream was destroyed"});
      } else {
        check(status.ok(), text("rank ", rank, ": ", status.text()));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Without one, who did not come is named: all of them, and as ranks of the world, whatever their places in the group.
void whoever_does_not_come_is_named() {
  for (const std::vector<int>& members : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{2, 0, 3}}) {
    const auto worlds = create_thread_worlds(4, 200'000'000, {0, 0, 0, 0});
    std::atomic<bool> over{false};
    std::vector<std::thread> ranks;
    for (const int member : members) {
      ranks.emplace_back([&members, &over, world = worlds[static_cast<size_t>(member)]] {
        auto group = HostGroup::create(world, nullptr, members);
        const bool comes = world->rank() % 2 == 0;
        while (!comes && !over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (!comes || !group.ok()) return;
        const Stop stop;
        const Operation one = operation(1);
        const Status status = perform(**group, 1, stop, [&] { return (*group)->barrier(one, stop); });
        over = true;
        const std::lock_guard lock(checking);
        if (members.size() == 4) {
          fails(status, Code::timeout, {"ranks that did not come", "rank 1 (a thread)", "rank 3 (a thread)"});
        } else {
          fails(status, Code::timeout, {"a rank that did not come", "rank 3 (a thread)"});
        }
        check_equal(status.blame().rank, members.size() == 4 ? 1 : 3, "the rank to blame");
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

// Two ranks that came for operations that differ in anything but the bucket's number are told apart.
void every_field_of_an_operation_is_compared() {
  const Operation one = make_operation(Collective::broadcast, DType::f32, 64, {3, "parameters"});
  const auto differs = [&](const char* what, const std::function<void(Operation&)>& change) {
    Operation other = one;
    change(other);
    check(!same(one, other) && !same(other, one), text("operations that differ in ", what, " are the same"));
  };
  differs("number", [](Operation& o) { o.number = 9; });
  differs("window", [](Operation& o) { o.window = 9; });
  differs("begin", [](Operation& o) { o.begin = 9; });
  differs("count", [](Operation& o) { o.count = 9; });
  differs("kind", [](Operation& o) { o.kind = Collective::all_reduce; });
  differs("type", [](Operation& o) { o.type = DType::f16; });
  differs("op", [](Operation& o) { o.op = Op::max; });
  differs("root", [](Operation& o) { o.root = 9; });
  differs("divisor", [](Operation& o) { o.divisor = 9; });
  differs("microbatch", [](Operation& o) { o.microbatch = 9; });
  differs("pieces", [](Operation& o) { o.pieces = 9; });
  differs("what", [](Operation& o) { o.what[0] = 'q'; });
  Operation elsewhere = one;
  elsewhere.bucket = 9;
  check(same(one, elsewhere), "a bucket's number is each rank's own");
}

// A long entry is cut, and one that a later one has overwritten is not read.
void entries_are_cut() {
  auto page = std::make_unique<SubmissionPage>();
  const std::string words(1000, 'x');
  log_submission(*page, 7, words);
  log_submission(*page, 8, "short");
  const Group::Submission seven = read_submission(*page, 5, 7), eight = read_submission(*page, 5, 8);
  check(seven.member == 5 && seven.last == 8, "who it is, and where");
  check_equal(seven.what.size(), SubmissionPage::kWords * sizeof(uint64_t) - 1, "length of a long entry");
  check(words.find(seven.what) == 0 && eight.what == "short", "what was entered is read");
  log_submission(*page, 7 + SubmissionPage::kEntries, "later");
  check(read_submission(*page, 5, 7).what.empty(), "an entry that is overwritten");
}

// Every group has a transport of its own, where it needs one: what runs in one of them does not keep another from running.
void groups_cross_hosts_side_by_side() {
  on_ranks(4, {0, 0, 1, 1}, [](const std::shared_ptr<World>& world) {
    const auto network = std::make_shared<NoNetwork>(world);
    auto first = HostGroup::create(world, network, {0, 1, 2, 3});
    if (first.ok() && world->rank() < 2) {
      auto near = (*first)->split({0, 1});
      const std::lock_guard lock(checking);
      check(near.ok() && network->connected == 1, "a group of one node needs no transport");
    }
    auto second = first.ok() ? (*first)->split({0, 1, 2, 3}) : first.status();
    const std::lock_guard lock(checking);
    if (!check(first.ok() && second.ok(), first.status().text() + second.status().text())) return;
    check_equal(network->connected, 2, "transports");
    Running running(**first, 1);
    const Stop stop;
    check(perform(static_cast<HostGroup&>(**second), 1, stop, [] { return Status(); }).ok(), "the other group runs meanwhile");
    check(running.end().ok(), "the one that ran first is not disturbed");
  });
}

// The ranks of one node cannot have the memory that they share. Those of the other node must not have a group either.
class WithoutDescriptors final : public World {
 public:
  explicit WithoutDescriptors(std::shared_ptr<World> world) : world_(std::move(world)) {}
  int rank() const noexcept override { return world_->rank(); }
  int size() const noexcept override { return world_->size(); }
  uint64_t timeout_ns() const noexcept override { return world_->timeout_ns(); }
  int node(int rank) const noexcept override { return world_->node(rank); }
  int process(int rank) const noexcept override { return world_->process(rank); }
  const std::string& host_name(int rank) const noexcept override { return world_->host_name(rank); }
  const std::string& address() const noexcept override { return world_->address(); }
  std::array<uint8_t, 32> key_for(std::string_view purpose) const override { return world_->key_for(purpose); }
  bool in_forked_child() const noexcept override { return world_->in_forked_child(); }
  bool failed() const noexcept override { return world_->failed(); }
  Status failure() const override { return world_->failure(); }
  void fail(const Status& why) override { world_->fail(why); }
  bool has_left(int rank) const noexcept override { return world_->has_left(rank); }
  std::string describe(int rank) const override { return world_->describe(rank); }
  Result<std::vector<std::string>> exchange(const std::vector<int>& members, const char* what, const std::string& mine,
                                            uint64_t line) override {
    return world_->exchange(members, what, mine, line);
  }
  Result<std::optional<Mismatch>> compare(const std::vector<int>& members, const char* what, const std::string& mine,
                                          uint64_t line) override {
    return world_->compare(members, what, mine, line);
  }
  Result<std::string> broadcast(const std::vector<int>& members, const char* what, const std::string& mine, uint64_t line) override {
    return world_->broadcast(members, what, mine, line);
  }
  Result<std::vector<Fd>> share(const std::vector<int>&, const char*, const Fd&) override {
    return Status(Code::system, "no descriptor is to be had");
  }

 private:
  const std::shared_ptr<World> world_;
};

void what_one_host_cannot_set_up_no_host_has() {
  for (const int poor : {0, 1}) {
    on_ranks(4, {0, 0, 1, 1}, [poor](const std::shared_ptr<World>& world) {
      const bool here = world->node(world->rank()) == poor;
      const std::shared_ptr<World> seen = here ? std::make_shared<WithoutDescriptors>(world) : world;
      const auto group = HostGroup::create(seen, std::make_shared<NoNetwork>(world), {0, 1, 2, 3});
      const std::lock_guard lock(checking);
      fails(group.status(), Code::system, {"no descriptor is to be had"});
      if (!here) check_equal(group.status().blame().rank, 2 * poor, "the rank to blame");
    });
  }
}

// The same of memory that a group shares later on.
void what_one_host_cannot_share_no_host_has() {
  on_ranks(4, {0, 0, 1, 1}, [](const std::shared_ptr<World>& world) {
    auto group = HostGroup::create(world, std::make_shared<NoNetwork>(world), {0, 1, 2, 3});
    Status made = group.status();
    if (group.ok()) made = (*group)->allocate_window(world->node(world->rank()) == 1 ? size_t{1} << 60 : 4096).status();
    const std::lock_guard lock(checking);
    check(!made.ok(), "ranks of one node have what those of the other have not");
  });
}

// A rank that has failed says why, also if the World fails before the others have heard it.
void ones_own_failure_is_told() {
  on_ranks(2, {0, 0}, [](const std::shared_ptr<World>& world) {
    if (world->rank() == 1) {
      world->fail(Status(Code::aborted, "the lid is on fire"));
      return;
    }
    const Status agreed = agree(*world, {0, 1}, {"setting up"}, Status(Code::memory, "there is no room"));
    const std::lock_guard lock(checking);
    fails(agreed, Code::memory, {"there is no room"});
  });
}

// Too much memory on one node is refused on all.
void what_one_host_has_no_room_for_no_host_takes() {
  on_ranks(4, {0, 0, 1, 1}, [](const std::shared_ptr<World>& world) {
    const uint64_t bytes = world->rank() == 2 ? uint64_t{1} << 60 : 4096;
    const Status checked = check_memory(*world, {0, 1, 2, 3}, "mdp_buffer_register", bytes, false);
    const std::lock_guard lock(checking);
    fails(checked, Code::memory, {"ranks 2 and 3 need together"});
  });
}

}  // namespace

int main() {
  one_group_runs_one_operation_at_a_time();
  operations_come_in_their_order();
  a_lost_operation_ends_the_world();
  the_worlds_verdict_comes_before_ones_own();
  whoever_does_not_come_is_named();
  who_left_after_coming_is_not_missed();
  every_field_of_an_operation_is_compared();
  entries_are_cut();
  groups_cross_hosts_side_by_side();
  what_one_host_cannot_set_up_no_host_has();
  what_one_host_cannot_share_no_host_has();
  ones_own_failure_is_told();
  what_one_host_has_no_room_for_no_host_takes();
  return finish();
}
