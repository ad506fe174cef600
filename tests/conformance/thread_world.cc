// SPDX-License-Identifier: Apache-2.0
// Ranks that meet under one mutex.
#include "thread_world.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "control/join/job_key.h"

namespace megadp::test {

// What all ranks share. The k-th exchange among one list of members is one Round, whoever calls it first.
class ThreadHub {
 public:
  ThreadHub(int size, uint64_t timeout_ns, std::vector<int> hosts)
      : timeout_ns(timeout_ns), hosts(std::move(hosts)), left(static_cast<size_t>(size)), calls(static_cast<size_t>(size)) {}

  struct Contribution {
    std::string what;
    std::string bytes;
    std::vector<Fd> fds;  // one for each member
  };
  struct Round {
    std::vector<std::optional<Contribution>> given;  // by place among the members
    size_t arrived = 0, taken = 0;
  };
  using Key = std::tuple<std::vector<int>, uint64_t, uint64_t>;  // members, line, number

  // Gives `mine`; `take` gets the finished round, under the mutex.
  template <class Take>
  Status meet(int rank, const std::vector<int>& members, uint64_t line, Contribution mine, Take take) {
    std::unique_lock lock(mutex);
    const Key key{members, line, calls[static_cast<size_t>(rank)][{members, line}]++};
    Round& round = rounds[key];
    round.given.resize(members.size());
    round.given[place(members, rank)] = std::move(mine);
    round.arrived += 1;
    changed.notify_all();
    const Deadline deadline = line == 0 ? Deadline::after_ns(timeout_ns) : Deadline::never();
    while (round.arrived < members.size()) {
      if (has_failed) return failure;
      for (size_t i = 0; i < members.size(); ++i) {
        if (!round.given[i] && left[static_cast<size_t>(members[i])]) {
          return {Code::peer, text("rank ", members[i], " has left"), Blame{.rank = members[i]}};
        }
      }
      if (deadline.passed()) return {Code::timeout, "an exchange among threads was not complete in time"};
      changed.wait_for(lock, std::chrono::milliseconds(20));
    }
    for (size_t i = 1; i < members.size(); ++i) {
      const std::string &first = round.given[0]->what, &other = round.given[i]->what;
      if (first == other) continue;
      return {Code::desync, text("rank ", members[0], " called ", first, ", rank ", members[i], " called ", other),
              Blame{.rank = members[i]}};
    }
    take(round);
    if (++round.taken == members.size()) rounds.erase(key);
    return {};
  }

  static size_t place(const std::vector<int>& members, int rank) {
    size_t at = 0;
    while (members[at] != rank) ++at;
    return at;
  }

  const uint64_t timeout_ns;
  const std::vector<int> hosts;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::atomic<bool>> left;  // by rank
  Status failure;
  std::atomic<bool> has_failed{false};
  std::vector<std::map<std::pair<std::vector<int>, uint64_t>, uint64_t>> calls;  // by rank, members and line: how many exchanges so far
  std::map<Key, Round> rounds;
};

namespace {

class ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<ThreadHub> hub, int rank, int size) : hub_(std::move(hub)), rank_(rank), size_(size), pid_(getpid()) {}
  ~ThreadWorld() override {
    if (!in_forked_child()) hub_->left[static_cast<size_t>(rank_)] = true;
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  uint64_t timeout_ns() const noexcept override { return hub_->timeout_ns; }
  int node(int rank) const noexcept override { return hub_->hosts.empty() ? 0 : hub_->hosts[static_cast<size_t>(rank)]; }
  int process(int) const noexcept override { return pid_; }
  const std::string& host_name(int) const noexcept override { return host_name_; }
  const std::string& address() const noexcept override { return address_; }
  std::array<uint8_t, 32> key_for(std::string_view purpose) const override { return derived_key({}, purpose); }
  bool in_forked_child() const noexcept override { return pid_ != getpid(); }

  bool failed() const noexcept override { return hub_->has_failed.load(std::memory_order_relaxed); }
  Status failure() const override {
    const std::lock_guard lock(hub_->mutex);
    return hub_->failure;
  }
  void fail(const Status& why) override {
    const std::lock_guard lock(hub_->mutex);
    if (hub_->has_failed) return;
    hub_->failure = Status(why.code(), text(why.text(), " (reported by rank ", rank_, ")"), why.blame());
    hub_->has_failed = true;
    hub_->changed.notify_all();
  }
  bool has_left(int rank) const noexcept override { return hub_->left[static_cast<size_t>(rank)]; }
  std::string describe(int rank) const override { return text("rank ", rank, " (a thread) is alive"); }

  Result<std::vector<std::string>> exchange(const std::vector<int>& members, const char* what, const std::string& mine,
                                            uint64_t line) override {
    std::vector<std::string> all;
    Status met = hub_->meet(rank_, members, line, {what, mine, {}}, [&](ThreadHub::Round& round) {
      for (const auto& given : round.given) all.push_back(given->bytes);
    });
    if (!met.ok()) return ended(met);
    return all;
  }

  Result<std::optional<Mismatch>> compare(const std::vector<int>& members, const char* what, const std::string& mine,
                                          uint64_t line) override {
    auto all = exchange(members, what, mine, line);
    if (!all.ok()) return all.status();
    for (size_t i = 1; i < all->size(); ++i) {
      if ((*all)[i] != all->front()) return std::optional(Mismatch{members[0], members[i], all->front(), (*all)[i]});
    }
    return std::optional<Mismatch>();
  }

  Result<std::string> broadcast(const std::vector<int>& members, const char* what, const std::string& mine, uint64_t line) override {
    auto all = exchange(members, what, mine, line);
    if (!all.ok()) return all.status();
    return all->front();
  }

  Result<std::vector<Fd>> share(const std::vector<int>& members, const char* what, const Fd& mine) override {
    ThreadHub::Contribution contribution{what, {}, {}};
    for (size_t i = 0; i < members.size(); ++i) contribution.fds.emplace_back(fcntl(mine.get(), F_DUPFD_CLOEXEC, 0));
    const size_t own = ThreadHub::place(members, rank_);
    std::vector<Fd> all;
    Status met = hub_->meet(rank_, members, 0, std::move(contribution), [&](ThreadHub::Round& round) {
      for (auto& given : round.given) all.push_back(std::move(given->fds[own]));
    });
    if (!met.ok()) return ended(met);
    return all;
  }

 private:
  Status ended(const Status& why) {
    if (why.code() == Code::timeout || why.code() == Code::peer || why.code() == Code::desync) fail(why);
    return why;
  }

  const std::shared_ptr<ThreadHub> hub_;
  const int rank_, size_;
  const int pid_;
  const std::string host_name_ = "threads", address_ = "127.0.0.1";
};

}  // namespace

std::vector<std::shared_ptr<World>> create_thread_worlds(int size, uint64_t timeout_ns, std::vector<int> hosts) {
  const auto hub = std::make_shared<ThreadHub>(size, timeout_ns, std::move(hosts));
  std::vector<std::shared_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank) worlds.push_back(std::make_shared<ThreadWorld>(hub, rank, size));
  return worlds;
}

}  // namespace megadp::test
