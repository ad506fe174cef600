// SPDX-License-Identifier: Apache-2.0
// What user threads do with a Monitor.
#include "control/monitor/monitor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>

#include "base/text.h"
#include "base/thread.h"
#include "control/interrupt.h"
#include "control/wording.h"

namespace megadp {
namespace {

constexpr uint64_t kGoodbyeNs = 1'000'000'000;  // leaving waits this long at most: TCP sends a lost packet again twice meanwhile
constexpr auto kGoodbyeLook = std::chrono::milliseconds(1);
constexpr uint64_t kSequences = uint64_t{1} << 40;  // of a line: the lines' numbers follow each other
static_assert(World::kLines <= UINT64_MAX / kSequences + 1);
constexpr uint64_t kLastWordNs = 1'000'000'000;  // for the relay to say who is missing, or to be told of a failure

}  // namespace

Monitor::Monitor(int rank, uint64_t timeout_ns, std::vector<Process> table)
    : rank_(rank), timeout_ns_(timeout_ns), table_(std::move(table)), left_(new std::atomic<bool>[table_.size()]()) {
  relay_ = std::make_unique<Relay>(
      [this](int to, const OperationKey& key, const std::shared_ptr<const Relay::Answer>& answer) { emit(to, key, answer); },
      [this](int of) { return describe_locked(of); });
}

void Monitor::add_connection(Connection connection, std::vector<Frame> early) {
  std::lock_guard<std::mutex> lock(mutex_);
  // The serving side takes one contribution at a time; the other side gets those of all members.
  const uint64_t part = kMaxExchangeBytes + sizeof(uint64_t);
  const uint64_t rest = 65536 + sizeof(int32_t) * table_.size();
  connection.link->set_max_payload(connection.serving ? part + rest : part * table_.size() + rest);
  connections_.push_back(std::move(connection));
  for (Frame& frame : early) {
    if (!handle(connections_.back(), frame)) {
      found(Status(Code::corrupt, text(name(connections_.back().rank), " sent a message that makes no sense"),
                   Blame{connections_.back().rank}));
    }
  }
  wake();
}

Status Monitor::start() {
  wake_fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_.valid()) return system_error("making an eventfd", errno);
  running_ = true;
  auto thread = start_thread("megadp-monitor", [self = shared_from_this()] { self->run(); });
  if (!thread.ok()) {
    running_ = false;
    return thread.status();
  }
  pthread_detach(*thread);
  return {};
}

void Monitor::wake() noexcept {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake.
  if (wake_fd_.valid()) (void)!::write(wake_fd_.get(), &one, sizeof one);
}

Monitor::Connection* Monitor::connection_to(int rank, bool control) {
  for (Connection& c : connections_) {
    if (c.rank == rank && c.link && (control ? c.control : c.descriptors)) return &c;
  }
  return nullptr;
}

void Monitor::send(Connection& to, FrameType type, std::shared_ptr<const std::string> payload, std::vector<std::shared_ptr<const Fd>> fds) {
  if (!to.link) return;
  to.link->send(type, std::move(payload), std::move(fds));
  to.link->flush();
  if (!to.link->idle()) wake();
}

void Monitor::broadcast(FrameType type, std::string payload, int except) {
  const auto shared = std::make_shared<const std::string>(std::move(payload));
  for (Connection& c : connections_) {
    if (c.control && c.rank != except) send(c, type, shared);
  }
}

Status Monitor::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Monitor::set_failure(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

// What this rank has found goes out on every connection: to the hub, and on its node by way of the leader, for the hub may be what is lost.
// What another has reported goes on to those served here.
void Monitor::spread_failure(int reporter, const Status& why) {
  FrameWriter writer;
  writer.i32(reporter);
  writer.status(why);
  const auto payload = std::make_shared<const std::string>(writer.take());
  const bool own = reporter == rank_ || (reporter < 0 && is_hub());
  for (Connection& c : connections_) {
    if (own || (c.serving && c.rank != reporter)) send(c, FrameType::failure, payload);
  }
}

void Monitor::fail(const Status& why) {
  if (why.ok()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return;
  set_failure(why);
  spread_own_failure();
}

void Monitor::spread_own_failure() noexcept {
  is_untold_ = !attempt([&] {
                  spread_failure(rank_, failure_);
                  return Status();
                }).ok();
}

void Monitor::found(const Status& why) {
  if (!failure_.ok()) return;
  set_failure(why);
  spread_failure(is_hub() ? -1 : rank_, why);
}

std::string Monitor::name(int rank) const {
  const Process& process = table_[static_cast<size_t>(rank)];
  return text("rank ", rank, " (pid ", process.pid, " on ", process.host_name, ")");
}

std::string Monitor::describe(int rank) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return describe_locked(rank);
}

std::string Monitor::describe_locked(int rank) const {
  if (has_left(rank)) return name(rank) + " has left";
  if (rank == rank_) return name(rank) + " is this one";
  uint64_t silence = 0;
  bool connected = false;
  for (const Connection& c : connections_) {
    if (c.rank != rank || !c.control) continue;
    silence = c.silence_ns;
    connected = c.link != nullptr;
  }
  if (is_hub() && !connected) return name(rank) + " is gone";
  const auto reported = reported_silence_.find(rank);
  if (reported != reported_silence_.end()) silence = reported->second;
  if (silence < 1'000'000'000) return name(rank) + " is alive";
  return text(name(rank), " has not been heard of for ", seconds(silence), ": stopped, or its node is gone");
}

// An answer of the relay to one member.
void Monitor::emit(int rank, const OperationKey& key, const std::shared_ptr<const Relay::Answer>& answer) {
  if (rank == rank_) return answer_pending(key, answer);
  Connection* const to = connection_to(rank, key.kind != OperationKind::share);
  if (to == nullptr) return;
  if (encoded_answer_ != answer) {  // the same bytes go to all members
    FrameWriter writer;
    write_key(&writer, key, false);
    if (!answer->status.ok()) {
      writer.status(answer->status);
    } else {
      if (key.kind == OperationKind::compare) writer.u32(answer->other);
      for (const auto& part : answer->parts) writer.bytes(part->bytes);
    }
    encoded_payload_ = std::make_shared<const std::string>(writer.take());
    encoded_answer_ = answer;
  }
  std::vector<std::shared_ptr<const Fd>> fds;
  for (const auto& part : answer->parts) {
    if (part->fd) fds.push_back(part->fd);
  }
  send(*to, answer->status.ok() ? FrameType::result : FrameType::undone, encoded_payload_, std::move(fds));
}

void Monitor::answer_pending(const OperationKey& key, std::shared_ptr<const Relay::Answer> answer) {
  const auto at = pending_.find(key);
  if (at == pending_.end()) return;  // its caller has given up
  at->second->answer = std::move(answer);
  at->second->done = true;
  pending_.erase(at);
  changed_.notify_all();
}

// The list of members travels once.
void Monitor::give(Connection& relay, const OperationKey& key, const Contribution& part) {
  FrameWriter writer;
  writer.reserve(part.bytes.size() + part.what.size() + 64 + 4 * key.members.size());
  bool& told = relay.told[MemberLists::digest(key.members)];
  write_key(&writer, key, !told);
  writer.bytes(part.what);
  writer.bytes(part.bytes);
  std::vector<std::shared_ptr<const Fd>> fds;
  if (part.fd) fds.push_back(part.fd);
  send(relay, FrameType::give, std::make_shared<const std::string>(writer.take()), std::move(fds));
  told = true;  // not before: what runs out of memory above is given once more
}

// The relay is this rank, or there is a connection to it.
void Monitor::give_to_relay(const OperationKey& key, Contribution part) {
  const int relay = relay_rank(key.kind);
  if (relay == rank_) {
    relay_->give(rank_, key, std::move(part));
  } else {
    give(*connection_to(relay, key.kind != OperationKind::share), key, part);
  }
}

Result<std::shared_ptr<const Relay::Answer>> Monitor::operate(OperationKind kind, const std::vector<int>& members, Contribution part,
                                                              uint64_t line) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  uint64_t& sequence = sequences_.try_emplace({kind, line, members}, line * kSequences).first->second;
  const OperationKey key{kind, {members.begin(), members.end()}, sequence + 1};
  const int relay_rank = this->relay_rank(kind);
  if (relay_rank != rank_ && connection_to(relay_rank, kind != OperationKind::share) == nullptr) {
    return Status(Code::peer, text(name(relay_rank), ", which relays control messages, has left"), Blame{relay_rank});
  }
  if (!lists_.add(key.members)) return internal_error("two lists of ranks have one digest");
  const auto pending = std::make_shared<Pending>();
  pending_[key] = pending;
  struct Forget {  // also if something below runs out of memory
    std::map<OperationKey, std::shared_ptr<Pending>>& pending;
    const OperationKey& key;
    ~Forget() { pending.erase(key); }
  } const forget{pending_, key};
  give_to_relay(key, std::move(part));
  sequence = key.sequence;  // it has been given: the next is another one
  const auto ended = [&] { return pending->done || !failure_.ok(); };
  const uint64_t begun = now_ns();
  Deadline deadline = line == 0 ? Deadline::after_ns(timeout_ns_) : Deadline::never();
  while (!ended() && !deadline.passed()) {
    if (interrupted(lock)) return interruption();
    changed_.wait_until(lock, ask_by(deadline).time_point(), ended);
  }
  if (!ended()) {
    const uint64_t waited = now_ns() - begun;
    if (relay_rank == rank_) {
      relay_->withdraw(rank_, key, waited);
    } else if (Connection* const still = connection_to(relay_rank, kind != OperationKind::share)) {
      FrameWriter writer;
      write_key(&writer, key, false);
      writer.u64(waited);
      send(*still, FrameType::withdraw, writer.take());
    }
    deadline = Deadline::after_ns(kLastWordNs);
    while (!ended() && !deadline.passed()) changed_.wait_until(lock, deadline.time_point(), ended);
  }
  if (pending->done && pending->answer->status.ok()) return pending->answer;
  // All members are answered the same, and the first of them to read it may have spread it already.
  if (pending->done && pending->answer->status.code() != Code::peer) return pending->answer->status;
  // A rank that fails often leaves right after; what it said first is the better reason.
  if (!failure_.ok()) return failure_;
  if (pending->done) return pending->answer->status;
  return Status(Code::timeout,
                text(list_ranks(members), " could not exchange messages within ", seconds(timeout_ns_), "; ", describe_locked(relay_rank),
                     ", and it was the one to carry them"),
                Blame{relay_rank});
}

World::Ended Monitor::end_line(const std::vector<int>& members, uint64_t line) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    for (const OperationKind kind : {OperationKind::exchange, OperationKind::compare, OperationKind::broadcast}) {
      sequences_.erase({kind, line, members});
    }
    if (members.size() < 2) return nullptr;
    // A last operation of the line, of a number that no other one has, for whose answer no thread waits.
    const OperationKey key{OperationKind::compare, {members.begin(), members.end()}, (line + 1) * kSequences - 1};
    if (!failure_.ok() || (!is_hub() && connection_to(0, true) == nullptr) || !lists_.add(key.members)) return nullptr;
    const auto end = std::make_shared<Pending>();
    pending_[key] = end;
    give_to_relay(key, {"the end of a line", {}, {}});
    return {end, &end->done};
  } catch (const std::bad_alloc&) {  // then something is kept of it, and nobody is told
    return nullptr;
  }
}

void Monitor::leave() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (leaving_) return;
  leaving_ = true;
  leaving_since_ns_ = now_ns();
  left_[static_cast<size_t>(rank_)].store(true, std::memory_order_release);
  FrameWriter writer;
  writer.i32(rank_);
  const auto payload = std::make_shared<const std::string>(writer.take());
  for (Connection& c : connections_) {
    if (!c.link) continue;
    if (!failure_.ok() && !c.control) {  // it must not look like leaving in peace, and the hub's word may come later
      FrameWriter reason;
      reason.i32(rank_);
      reason.status(failure_);
      send(c, FrameType::failure, reason.take());
    }
    send(c, FrameType::goodbye, payload);
    if (!c.serving && !c.over_tcp && c.link->idle()) {
      // At once, because this process may end before the thread comes to it; closing alone is no end of file while a forked child
      // holds the socket too.
      c.link->shut_down_sending();
      c.done_sending = true;
    }
  }
  relay_->leave(rank_);
  wake();
  // Over TCP the goodbye could still be lost if this process ended while something it has not read is in its socket: then the system sends
  // nothing again. UNIX sockets lose nothing.
  const Deadline moment = Deadline::after_ns(kGoodbyeNs);
  const auto has_arrived = [](const Connection& c) { return !c.link || (c.over_tcp ? c.link->has_arrived() : c.link->idle()); };
  const auto gone = [&] { return !running_ || std::all_of(connections_.begin(), connections_.end(), has_arrived); };
  while (!gone() && !moment.passed()) changed_.wait_for(lock, kGoodbyeLook);
}

}  // namespace megadp
