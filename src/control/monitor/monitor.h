// SPDX-License-Identifier: Apache-2.0
// Monitor: the living part of a World. It owns the sockets to the other ranks once they have met, and one thread that serves them:
// heartbeats, deaths, goodbyes, and small collectives. User threads and the thread share one mutex; the thread alone closes sockets.
//
// The thread keeps the Monitor alive, so that it can go on after the World is gone: as hub or node leader until everyone it serves has
// left, otherwise just until the goodbye is on its way. It then ends by itself and nothing of it is left.
//
// What counts as a death: an end of file without a goodbye before it; the end of the process (by pidfd, which a living child of it does
// not hide) without a goodbye. What counts as stopped or vanished: silence for longer than the timeout. Silence is added up in ticks of
// half a second at most, so a process that was itself stopped, or a machine that slept, does not blame the others when it wakes.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "control/join/process.h"
#include "control/monitor/relay.h"
#include "control/net/link.h"
#include "control/world.h"

namespace megadp {

constexpr uint64_t kMaxExchangeBytes = 64ULL * 1024 * 1024;
constexpr uint64_t kMaxWhatBytes = 100;
constexpr uint64_t kMaxReasonBytes = 4096;  // of a rank that has no descriptor to share

class Monitor : public std::enable_shared_from_this<Monitor> {
 public:
  // A socket to another rank, and what it is for.
  struct Connection {
    int rank = -1;
    bool control = false;      // to or from the hub
    bool descriptors = false;  // to or from the node leader
    bool over_tcp = false;
    bool serving = false;  // the other rank depends on this one
    std::unique_ptr<Link> link;
    uint64_t silence_ns = 0;
    bool done_sending = false;
    std::map<uint64_t, bool> told;  // by digest of a list of members: whether the relay behind it has had it from this rank
  };

  Monitor(int rank, uint64_t timeout_ns, std::vector<Process> table);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(table_.size()); }
  uint64_t timeout_ns() const noexcept { return timeout_ns_; }
  const std::vector<Process>& table() const noexcept { return table_; }

  // `early`: frames that were received before the connection was handed over.
  void add_connection(Connection connection, std::vector<Frame> early = {});
  // Which rank relays descriptors on this node.
  void set_leader(int leader) {
    std::lock_guard<std::mutex> lock(mutex_);
    leader_ = leader;
  }
  Status start();

  bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
  Status failure() const;
  void fail(const Status& why);
  bool has_left(int rank) const noexcept { return left_[static_cast<size_t>(rank)].load(std::memory_order_acquire); }
  std::string describe(int rank) const;
  // Gives `part` and returns what all members are answered. `line`: see World::exchange.
  Result<std::shared_ptr<const Relay::Answer>> operate(OperationKind kind, const std::vector<int>& members, Contribution part,
                                                       uint64_t line = 0);
  World::Ended end_line(const std::vector<int>& members, uint64_t line) noexcept;  // see World

  // Says goodbye and lets the thread end. Waits 1 s at most, for the goodbye to have arrived.
  void leave();

 private:
  struct Pending {
    std::atomic<bool> done{false};  // may be looked at without mutex_; `answer` may not
    std::shared_ptr<const Relay::Answer> answer;
  };
  struct Watch {
    Fd pidfd;
    std::vector<int> ranks;
  };

  // ── monitor.cc: what user threads do; all of these under mutex_ ──
  bool is_hub() const noexcept { return rank_ == 0; }
  int relay_rank(OperationKind kind) const noexcept { return kind == OperationKind::share ? leader_ : 0; }
  void give(Connection& relay, const OperationKey& key, const Contribution& part);
  Connection* connection_to(int rank, bool control);
  void send(Connection& to, FrameType type, std::shared_ptr<const std::string> payload, std::vector<std::shared_ptr<const Fd>> fds = {});
  void send(Connection& to, FrameType type, std::string payload) {
    send(to, type, std::make_shared<const std::string>(std::move(payload)));
  }
  void broadcast(FrameType type, std::string payload, int except);
  void wake() noexcept;
  void set_failure(const Status& why);
  void spread_failure(int reporter, const Status& why);
  void spread_own_failure() noexcept;
  void found(const Status& why);  // fail, on behalf of this monitor
  void emit(int rank, const OperationKey& key, const std::shared_ptr<const Relay::Answer>& answer);
  void answer_pending(const OperationKey& key, std::shared_ptr<const Relay::Answer> answer);
  void give_to_relay(const OperationKey& key, Contribution part);
  std::string name(int rank) const;
  std::string describe_locked(int rank) const;

  // ── monitor_thread.cc: what the thread does; under mutex_ except while it polls ──
  void run();
  void serve();
  void watch_processes();
  void list_polled();
  void serve_connection(size_t index);
  void close_connection(size_t index);
  void process_ended(const Watch& watch);
  void tick(uint64_t now);
  void check_suspects(uint64_t now);
  void send_heartbeats();
  bool finish_sending();
  bool handle(Connection& from, Frame& frame);  // false: it makes no sense
  bool handle_heartbeat(FrameReader reader);
  bool handle_failure(const Connection& from, FrameReader reader);
  bool handle_goodbye(const Connection& from, FrameReader reader);
  bool handle_give(const Connection& from, Frame& frame);
  bool handle_answer(Frame& frame);
  bool receive_from(Connection& connection);
  void mark_left(int rank);
  void died(int rank);
  void drop_links(int rank);

  const int rank_;
  const uint64_t timeout_ns_;
  const std::vector<Process> table_;
  int leader_ = 0;

  std::atomic<bool> failed_{false};
  std::unique_ptr<std::atomic<bool>[]> left_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status failure_;
  bool is_untold_ = false;               // there was no memory to spread it: done at the next tick
  std::vector<Connection> connections_;  // a closed one keeps its place, without its link
  std::vector<Watch> watches_;
  std::map<int, uint64_t> suspects_;          // rank → when its process, known to have ended, is taken for dead
  std::map<int, uint64_t> reported_silence_;  // what the hub says of the others
  MemberLists lists_;
  std::map<OperationKey, std::shared_ptr<Pending>> pending_;                             // not answered yet, nor given up
  std::map<std::tuple<OperationKind, uint64_t, std::vector<int>>, uint64_t> sequences_;  // by kind, line and members: the last one's
  std::unique_ptr<Relay> relay_;
  std::shared_ptr<const Relay::Answer> encoded_answer_;  // the answer that encoded_payload_ was made of
  std::shared_ptr<const std::string> encoded_payload_;   // both are let go at the next tick
  Fd wake_fd_;
  // What the thread polls. Kept here, where it is found when the program ends while the thread runs: known to the thread alone, its memory
  // would look lost.
  std::vector<pollfd> polled_;
  bool leaving_ = false;
  bool running_ = false;  // the thread
  uint64_t leaving_since_ns_ = 0;
  uint64_t last_tick_ns_ = 0;
};

}  // namespace megadp
