// SPDX-License-Identifier: Apache-2.0
// The server's side of a rendezvous. The others' side is client.cc.
#include "control/join/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "control/interrupt.h"
#include "control/join/listener.h"
#include "control/wording.h"

namespace megadp {
namespace {

constexpr int kSliceMs = 100;  // how soon an interruption is noticed
constexpr size_t kStrangers = 64;
constexpr uint64_t kLatecomersNs = 2'000'000'000;  // the server of a failed rendezvous stays this long at most for those still to come
constexpr uint64_t kHurriedNs = 300'000'000;       // and this long if somebody wants its thread back

class Server {
 public:
  explicit Server(const JoinRequest& request) : request_(request) {
    result_.table.resize(request.expected.size());
    result_.links.resize(request.expected.size());
    watches_.resize(request.expected.size());
    told_.resize(request.expected.size());
    early_.resize(request.expected.size());
    const size_t own = *place_of(request.rank);
    result_.table[own] = request.self;
    present_ = 1;
  }

  Result<JoinResult> run() {
    Status status = listen();
    if (!status.ok()) return status;
    while (present_ < request_.expected.size()) {
      status = wait_and_serve();
      if (!status.ok()) return break_up(status);
    }
    listener_.reset();
    FrameWriter writer;
    for (const Process& process : result_.table) write_process(&writer, process);
    send_to_all(FrameType::table, writer.take());
    return std::move(result_);
  }

 private:
  std::optional<size_t> place_of(int rank) const {
    const auto at = std::find(request_.expected.begin(), request_.expected.end(), rank);
    if (at == request_.expected.end()) return std::nullopt;
    return static_cast<size_t>(at - request_.expected.begin());
  }

  // The name or port may still be held by an earlier rendezvous of the same job, or by another job's hub that is just leaving.
  Status listen() {
    const uint64_t asks_ns = now_ns() + kLatecomersNs;  // who has failed has left by then
    for (;;) {
      const bool given = request_.listeners != nullptr && !request_.listeners->empty();
      auto listeners = given ? std::exchange(*request_.listeners, {}) : listen_at(request_.endpoint);
      if (listeners.ok()) {
        const size_t max_pending = kStrangers + request_.expected.size();
        listener_ = std::make_unique<Listener>(*std::move(listeners), request_.key, max_pending, request_.endpoint.describe());
        return {};
      }
      if (listeners.status().code() == Code::invalid) return listeners.status();  // time does not help
      if (request_.interrupted) {
        Status status = request_.interrupted();
        if (!status.ok()) return status;
      }
      if (request_.deadline.passed()) {
        if (!holder_) holder_ = holder_of_the_name();
        return {Code::timeout, text("rank ", request_.rank, " could not listen for the other ranks within ", seconds(request_.timeout_ns),
                                    ": ", listeners.status().text(), held(": ", " listens there"))};
      }
      if (!holder_ && now_ns() > asks_ns) holder_ = holder_of_the_name();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::optional<PeerCredentials> holder_of_the_name() const {
    return request_.endpoint.is_unix() ? who_listens_at(request_.endpoint.unix_name) : std::nullopt;
  }

  std::string held(const char* before, const char* after) const {
    if (!holder_) return "";
    const bool is_own = holder_->pid == ::getpid();
    return text(before, describe(*holder_), after, is_own ? "" : text(": was it started as rank ", request_.rank, " too?"));
  }

  Status wait_and_serve() {
    if (request_.interrupted) {
      Status status = request_.interrupted();
      if (!status.ok()) return status;
    }
    if (request_.deadline.passed()) return gave_up(request_.rank, request_.timeout_ns);
    std::vector<pollfd> polled;
    listener_->add_to(&polled);
    for (size_t i = 0; i < result_.links.size(); ++i) {
      if (!result_.links[i]) continue;
      const short write = result_.links[i]->idle() ? 0 : POLLOUT;
      polled.push_back({result_.links[i]->fd(), static_cast<short>(POLLIN | write), 0});
      if (watches_[i].pidfd.valid()) polled.push_back({watches_[i].pidfd.get(), POLLIN, 0});
    }
    const auto left_ms = static_cast<int>(std::min<uint64_t>(ask_by(request_.deadline).left_ns() / 1'000'000 + 1, kSliceMs));
    ::poll(polled.data(), polled.size(), left_ms);
    std::vector<Accepted> arrivals;
    listener_->serve(&arrivals);
    for (Accepted& arrival : arrivals) admit(std::move(arrival));
    for (size_t i = 0; i < result_.links.size(); ++i) {
      if (!result_.links[i]) continue;
      Status status = listen_to(i);
      if (!status.ok()) return status;
    }
    return {};
  }

  void admit(Accepted arrival) {
    const Hello& hello = arrival.hello;
    const int rank = hello.rank;
    const auto place = place_of(rank);
    if (!may_come(arrival, place)) return;
    FrameWriter writer;
    write_process(&writer, request_.self);
    arrival.link->send(FrameType::welcome, writer.take());
    arrival.link->flush();
    watches_[*place] = watch_process(hello.process);
    result_.table[*place] = hello.process;
    result_.links[*place] = std::move(arrival.link);
    early_[*place] = std::move(arrival.early);
    refusals_.erase(rank);
    ++present_;
  }

  // False when it has been refused.
  bool may_come(Accepted& arrival, std::optional<size_t> place) {
    const Hello& hello = arrival.hello;
    const int rank = hello.rank;
    if (hello.version != kProtocolVersion) {
      return refuse(arrival, false,
                    unsupported("it speaks version ", hello.version, " of the protocol and rank ", request_.rank, " speaks version ",
                                kProtocolVersion, ": all ranks must use the same version of megadp"));
    }
    if (hello.nranks != request_.nranks) {
      return refuse(arrival, false,
                    invalid("rank ", rank, " was started as one of ", hello.nranks, " ranks, but rank ", request_.rank, " as one of ",
                            request_.nranks, ": all ranks must be started with the same number"));
    }
    if (!place || rank == request_.rank) {
      return refuse(arrival, rank == request_.rank,
                    invalid("rank ", rank, " is not among the ranks expected here: ", list_ranks(request_.expected), " without ",
                            request_.rank, ", which is this process ", request_.self.pid));
    }
    const auto credentials = peer_credentials(arrival.link->fd());
    if (credentials && hello.process.pid_namespace == request_.self.pid_namespace && credentials->pid != hello.process.pid) {
      return refuse(arrival, false, invalid("it says it is process ", hello.process.pid, ", but it is process ", credentials->pid));
    }
    if (result_.links[*place]) {
      const Process& first = result_.table[*place];
      return refuse(
          arrival, true,
          invalid("rank ", rank, " is there already, as process ", first.pid, " on ", first.host_name, "; every rank may come once"));
    }
    return true;
  }

  bool refuse(Accepted& arrival, bool may_try_again, const Status& why) {
    FrameWriter writer;
    writer.u32(may_try_again ? 1 : 0);
    writer.status(why);
    arrival.link->send(FrameType::refused, writer.take());
    arrival.link->flush();
    std::string& before = refusals_[arrival.hello.rank];
    if (before != why.text()) log(LogLevel::warning, text("refused rank ", arrival.hello.rank, ": ", why.text()));
    before = why.text();
    return false;
  }

  Status listen_to(size_t place) {
    Link& link = *result_.links[place];
    const int rank = request_.expected[place];
    const Process& process = result_.table[place];
    pollfd watch{watches_[place].pidfd.get(), POLLIN, 0};
    const bool ended = watches_[place].ended || (watches_[place].pidfd.valid() && ::poll(&watch, 1, 0) > 0);
    std::vector<Frame> frames = std::exchange(early_[place], {});
    link.receive(&frames);
    link.flush();
    for (const Frame& frame : frames) {
      FrameReader reader(frame.payload);
      if (frame.type == FrameType::give_up) {
        const uint64_t waited_ns = reader.u64();
        if (reader.finished()) return gave_up(rank, waited_ns);
      } else if (frame.type == FrameType::broken) {
        const Status why = reader.status();
        if (reader.finished()) return why;
      }
      return {Code::corrupt, text("rank ", rank, " sent a message that has no place in a rendezvous"), Blame{rank}};
    }
    if (link.state() == Link::State::corrupt) return {Code::corrupt, text("rank ", rank, " sent ", link.error()), Blame{rank}};
    if (ended || link.state() == Link::State::closed) {
      return {Code::peer, text("rank ", rank, " (pid ", process.pid, " on ", process.host_name, ") died during the rendezvous"),
              Blame{rank}};
    }
    return {};
  }

  // The first deadline that passes anywhere ends the rendezvous: that rank leaves, so it could not succeed any more.
  Status gave_up(int rank, uint64_t waited_ns) const {
    std::vector<int> missing;
    std::string more;
    for (size_t i = 0; i < request_.expected.size(); ++i) {
      if (!result_.links[i] && request_.expected[i] != request_.rank) missing.push_back(request_.expected[i]);
    }
    for (const auto& [who, why] : refusals_) more += text("; rank ", who, " came but was refused: ", why);
    const Blame blame{missing.empty() ? -1 : missing.front()};
    more += held("; at first ", " listened there");
    return {Code::timeout,
            text(list_ranks(missing), " did not come to the rendezvous of ", list_ranks(request_.expected), " at ",
                 request_.endpoint.describe(), " (rank ", rank, " gave up after waiting ", seconds(waited_ns), ")", more),
            blame};
  }

  // Those that are on their way shall learn the reason too, and not wait out their timeout for nobody: the server stays for them a little.
  Result<JoinResult> break_up(const Status& why) {
    FrameWriter writer;
    writer.status(why);
    const std::string reason = writer.take();
    send_to_all(FrameType::broken, reason);
    for (size_t i = 0; i < told_.size(); ++i) {
      const int rank = request_.expected[i];
      // A rank that was too late may still come; one that is to blame for anything else has been here.
      const bool culprit = rank == why.blame().rank && why.code() != Code::timeout;
      told_[i] = result_.links[i] != nullptr || rank == request_.rank || culprit;
    }
    const Deadline end = Deadline::after_ns(std::min(interrupted() ? kHurriedNs : kLatecomersNs, request_.deadline.left_ns()));
    while (!end.passed() && std::find(told_.begin(), told_.end(), false) != told_.end()) tell_latecomers(reason, end);
    return why;
  }

  void tell_latecomers(const std::string& reason, Deadline end) {
    std::vector<pollfd> polled;
    listener_->add_to(&polled);
    ::poll(polled.data(), polled.size(), static_cast<int>(std::min<uint64_t>(end.left_ns() / 1'000'000 + 1, kSliceMs)));
    std::vector<Accepted> arrivals;
    listener_->serve(&arrivals);
    for (Accepted& arrival : arrivals) {
      const auto place = place_of(arrival.hello.rank);
      if (place && told_[*place]) {  // it knows, and has come for the next rendezvous
        refuse(arrival, true, bad_state("the rendezvous before this one has failed and is being broken up"));
        continue;
      }
      if (!may_come(arrival, place)) continue;
      arrival.link->send(FrameType::broken, reason);
      arrival.link->flush();
      told_[*place] = true;
      late_links_.push_back(std::move(arrival.link));
    }
  }

  // Small enough for the sockets' buffers as a rule; what does not fit at once gets a moment.
  void send_to_all(FrameType type, std::string payload) {
    const auto shared = std::make_shared<const std::string>(std::move(payload));
    for (auto& link : result_.links) {
      if (link) link->send(type, shared);
    }
    const Deadline moment = Deadline::after_ns(500'000'000);
    for (;;) {
      std::vector<pollfd> blocked;
      for (auto& link : result_.links) {
        if (!link) continue;
        link->flush();
        if (!link->idle()) blocked.push_back({link->fd(), POLLOUT, 0});
      }
      if (blocked.empty() || moment.passed()) return;
      ::poll(blocked.data(), blocked.size(), 50);
    }
  }

  const JoinRequest& request_;
  std::unique_ptr<Listener> listener_;
  JoinResult result_;
  std::vector<ProcessWatch> watches_;      // by place
  std::vector<std::vector<Frame>> early_;  // by place
  std::map<int, std::string> refusals_;
  std::optional<PeerCredentials> holder_;          // who listens, or listened, where this rank wants to
  std::vector<bool> told_;                         // by place: knows that the rendezvous has failed
  std::vector<std::unique_ptr<Link>> late_links_;  // of those told late; open until the server leaves
  size_t present_ = 0;
};

}  // namespace

Result<JoinResult> join_as_server(const JoinRequest& request) {
  return Server(request).run();
}

}  // namespace megadp
