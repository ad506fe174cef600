// SPDX-License-Identifier: Apache-2.0
// What the thread of a Monitor does.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <tuple>

#include "base/log.h"
#include "base/text.h"
#include "control/monitor/monitor.h"
#include "control/wording.h"

namespace megadp {
namespace {

constexpr uint64_t kTickNs = 250'000'000;
constexpr uint64_t kMinSilenceNs = 1'000'000'000;  // a few heartbeats, however short the timeout: a busy machine is no stopped rank
constexpr uint64_t kSuspicionNs = 1'000'000'000;   // for a goodbye that is on its way by another road than the news of the process's end
constexpr uint64_t kWorthReportingNs = 1'000'000'000;
constexpr uint64_t kCloseNs = 2'000'000'000;  // for the other side of a TCP connection to close it too
constexpr int kDescriptorRetryMs = 5;

}  // namespace

void Monitor::run() {
  try {
    serve();
  } catch (const std::exception&) {
    std::lock_guard<std::mutex> lock(mutex_);
    set_failure(Status::out_of_memory());
    spread_own_failure();  // if that cannot be, the end of the connections tells
  }
  std::lock_guard<std::mutex> lock(mutex_);
  connections_.clear();
  watches_.clear();
  running_ = false;
  changed_.notify_all();
}

void Monitor::watch_processes() {
  // Several ranks may be threads of one. The same numbers in two containers are two processes.
  std::map<std::tuple<uint64_t, int, uint64_t>, std::vector<int>> processes;
  const Process& own = table_[static_cast<size_t>(rank_)];
  for (int r = 0; r < size(); ++r) {
    const Process& process = table_[static_cast<size_t>(r)];
    if (process.host_key != own.host_key || (process.pid == own.pid && process.pid_namespace == own.pid_namespace)) continue;
    processes[{process.pid_namespace, process.pid, process.start_time}].push_back(r);
  }
  for (auto& [id, ranks] : processes) {
    ProcessWatch seen = watch_process(table_[static_cast<size_t>(ranks.front())]);
    if (seen.ended) {
      process_ended({Fd(), ranks});
    } else if (seen.pidfd.valid()) {
      watches_.push_back({std::move(seen.pidfd), ranks});
    }
  }
}

void Monitor::list_polled() {
  polled_.assign(1, {wake_fd_.get(), POLLIN, 0});
  for (const Watch& w : watches_) polled_.push_back({w.pidfd.get(), POLLIN, 0});
  for (const Connection& c : connections_) {
    const bool blocked = c.link && !c.link->idle() && !c.link->waits_for_descriptors();
    polled_.push_back({c.link ? c.link->fd() : -1, static_cast<short>(POLLIN | (blocked ? POLLOUT : 0)), 0});
  }
}

void Monitor::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  watch_processes();
  last_tick_ns_ = now_ns();
  while (!(leaving_ && finish_sending())) {
    list_polled();
    const uint64_t since_tick = now_ns() - last_tick_ns_;
    int wait_ms = since_tick >= kTickNs ? 0 : static_cast<int>((kTickNs - since_tick) / 1'000'000 + 1);
    for (const Connection& c : connections_) {
      if (c.link && c.link->waits_for_descriptors()) wait_ms = std::min(wait_ms, kDescriptorRetryMs);
    }
    const size_t watched = watches_.size();
    lock.unlock();
    ::poll(polled_.data(), polled_.size(), wait_ms);
    lock.lock();
    if (polled_[0].revents != 0) {
      uint64_t count = 0;
      (void)!::read(wake_fd_.get(), &count, sizeof count);
    }
    // Sockets before processes: what a process sent before it ended is heard first. Connections added meanwhile have their turn next time.
    for (size_t i = 0; i < polled_.size() - 1 - watched; ++i) {
      if (polled_[1 + watched + i].revents != 0) serve_connection(i);
    }
    for (size_t i = watched; i-- > 0;) {
      if (polled_[1 + i].revents == 0) continue;
      const Watch ended = std::move(watches_[i]);
      watches_.erase(watches_.begin() + static_cast<ptrdiff_t>(i));
      process_ended(ended);
    }
    for (Connection& c : connections_) {
      if (c.link && !c.link->idle()) c.link->flush();
    }
    const uint64_t now = now_ns();
    if (now - last_tick_ns_ >= kTickNs) tick(now);
  }
}

// Reads once and handles what has come; false when nothing had. What a busy connection still holds waits until the others have been served.
bool Monitor::receive_from(Connection& connection) {
  std::vector<Frame> frames;
  if (!connection.link || !connection.link->receive(&frames)) return false;
  connection.silence_ns = 0;
  for (Frame& frame : frames) {
    if (connection.link && !handle(connection, frame)) {
      found(Status(Code::corrupt, text(name(connection.rank), " sent a message that makes no sense"), Blame{connection.rank}));
      if (connection.link) connection.link->flush();
      connection.link.reset();
    }
  }
  return true;
}

void Monitor::serve_connection(size_t index) {
  Connection& connection = connections_[index];
  receive_from(connection);
  if (!connection.link || connection.link->state() == Link::State::open) return;
  const int rank = connection.rank;
  if (connection.link->state() == Link::State::starved) {
    found(Status(Code::system, name(rank_) + " has reached its limit of open descriptors (ulimit -n) and lost some that were passed to it",
                 Blame{rank_}));
    connection.link.reset();
    return;
  }
  if (connection.link->state() == Link::State::corrupt) {
    const Status why(Code::corrupt, text(name(rank), " sent ", connection.link->error()), Blame{rank});
    found(why);
    connection.link.reset();
    return;
  }
  close_connection(index);
}

void Monitor::close_connection(size_t index) {
  const int rank = connections_[index].rank;
  const bool was_serving = connections_[index].serving;
  if (!has_left(rank) && !leaving_) died(rank);
  if (!has_left(rank) && leaving_ && was_serving) died(rank);  // a lingering hub tells those that are still there
  connections_[index].link.reset();
  if (was_serving) return;
  // The relay has left and is gone: nobody will answer what is still asked of it.
  const auto answer = std::make_shared<const Relay::Answer>(
      Relay::Answer{Status(Code::peer, text(name(rank), ", which relays control messages, has left"), Blame{rank}), {}});
  for (auto at = pending_.begin(); at != pending_.end();) {
    if (relay_rank(at->first.kind) != rank) {
      ++at;
      continue;
    }
    at->second->answer = answer;
    at->second->done = true;
    at = pending_.erase(at);
  }
  changed_.notify_all();
}

void Monitor::process_ended(const Watch& watch) {
  for (const int rank : watch.ranks) {
    for (Connection& c : connections_) {
      // Its last words: no more of them than the socket's buffers hold, for nobody is left to send.
      while (c.rank == rank && receive_from(c)) {
      }
    }
    if (has_left(rank)) continue;
    // Over a UNIX socket everything the process ever sent has been read by now. A goodbye that goes another way gets a moment.
    const bool direct =
        std::any_of(connections_.begin(), connections_.end(), [&](const Connection& c) { return c.rank == rank && c.link && !c.over_tcp; });
    if (direct) {
      died(rank);
    } else {
      suspects_[rank] = now_ns() + kSuspicionNs;
    }
  }
  // A child of the process may hold its sockets open for ever.
  for (size_t i = 0; i < connections_.size(); ++i) {
    const bool of_it = std::find(watch.ranks.begin(), watch.ranks.end(), connections_[i].rank) != watch.ranks.end();
    if (of_it && connections_[i].link && !connections_[i].over_tcp) close_connection(i);
  }
}

void Monitor::died(int rank) {
  found(Status(Code::peer, name(rank) + " died", Blame{rank}));
  suspects_.erase(rank);
}

void Monitor::mark_left(int rank) {
  if (left_[static_cast<size_t>(rank)].exchange(true)) return;
  suspects_.erase(rank);
  relay_->leave(rank);
  if (is_hub()) {
    FrameWriter writer;
    writer.i32(rank);
    broadcast(FrameType::goodbye, writer.take(), rank);
  }
  changed_.notify_all();
}

void Monitor::tick(uint64_t now) {
  const uint64_t step = std::min(now - last_tick_ns_, 2 * kTickNs);
  last_tick_ns_ = now;
  encoded_answer_.reset();
  encoded_payload_.reset();
  if (is_untold_) spread_own_failure();
  send_heartbeats();
  check_suspects(now);
  const uint64_t limit = std::max(timeout_ns_, kMinSilenceNs);
  for (Connection& c : connections_) {
    if (!c.control || !c.link) continue;
    c.silence_ns += step;
    if (c.silence_ns <= limit) continue;
    if (!has_left(c.rank)) {
      found(Status(
          Code::timeout,
          text(name(c.rank), " has not been heard of for ", seconds(c.silence_ns), " on ", table_[static_cast<size_t>(rank_)].host_name,
               ": it is stopped, its node is gone, or the network has failed in between"),
          Blame{c.rank}));
    }
    // Its end of file may never come; a hub that lingers must not wait for it for ever.
    if (leaving_ || has_left(c.rank)) c.link.reset();
  }
}

void Monitor::check_suspects(uint64_t now) {
  for (auto at = suspects_.begin(); at != suspects_.end();) {
    const int rank = at->first;
    if (now < at->second) {
      ++at;
      continue;
    }
    at = suspects_.erase(at);
    // Without the hub no goodbye can be heard, so a process that has ended is taken to have left.
    if (has_left(0) && !is_hub() && connection_to(0, true) == nullptr) {
      mark_left(rank);
    } else if (!has_left(rank)) {
      died(rank);
    }
    drop_links(rank);
  }
}

void Monitor::drop_links(int rank) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].rank == rank && connections_[i].link) close_connection(i);
  }
}

void Monitor::send_heartbeats() {
  FrameWriter writer;
  if (is_hub()) {
    uint32_t silent = 0;
    FrameWriter list;
    for (const Connection& c : connections_) {
      if (!c.control || !c.link || c.silence_ns < kWorthReportingNs || has_left(c.rank)) continue;
      ++silent;
      list.i32(c.rank);
      list.u64(c.silence_ns);
    }
    writer.u32(silent);
    writer.append(list.take());
  }
  const auto payload = std::make_shared<const std::string>(writer.take());
  for (Connection& c : connections_) {
    // One that does not read gets no more to read.
    if (c.control && c.link && c.link->idle() && !c.done_sending) send(c, FrameType::heartbeat, payload);
  }
}

// While leaving: true once nothing is left to do.
bool Monitor::finish_sending() {
  const bool serving = std::any_of(connections_.begin(), connections_.end(), [](const Connection& c) { return c.serving && c.link; });
  if (serving) return false;
  const bool late = now_ns() - leaving_since_ns_ > kCloseNs;
  bool finished = true;
  for (Connection& c : connections_) {
    if (!c.link) continue;
    if (c.link->idle() && !c.over_tcp) {
      c.link->shut_down_sending();
      c.link.reset();
      continue;
    }
    if (c.link->idle() && !c.done_sending) {
      c.link->shut_down_sending();
      c.done_sending = true;
    }
    if (!late) finished = false;
  }
  return finished;
}

}  // namespace megadp
