// SPDX-License-Identifier: Apache-2.0
// The side of a rendezvous of those that connect.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "base/text.h"
#include "control/interrupt.h"
#include "control/join/handshake.h"
#include "control/join/listener.h"
#include "control/join/rendezvous.h"
#include "control/wording.h"

namespace megadp {
namespace {

constexpr int kSliceMs = 100;
constexpr uint64_t kAnswerNs = 5'000'000'000;    // whoever listens may be a stranger, until the handshake
constexpr uint64_t kLastWordNs = 1'000'000'000;  // for the server's answer to giving up, which knows who is missing
constexpr uint64_t kMaxTableEntry = 2 * kMaxHello;

class Client {
 public:
  explicit Client(const JoinRequest& request) : request_(request) {}

  Result<JoinResult> run() {
    int pause_ms = 5;
    for (;;) {
      Outcome outcome = connect_and_greet();
      if (outcome == Outcome::met) outcome = wait_for_table();
      if (outcome == Outcome::met) return std::move(result_);
      if (outcome == Outcome::failed) return failure_;
      link_.reset();
      if (request_.interrupted) {
        Status status = request_.interrupted();
        if (!status.ok()) return status;
      }
      if (request_.deadline.passed()) return could_not_reach();
      const uint64_t left_ms = ask_by(request_.deadline).left_ns() / 1'000'000 + 1;
      std::this_thread::sleep_for(std::chrono::milliseconds(std::min<uint64_t>(left_ms, static_cast<uint64_t>(pause_ms))));
      pause_ms = std::min(pause_ms * 2, 200);
    }
  }

 private:
  enum class Outcome {
    met,
    again,
    failed
  };

  // An attempt that was cut short by its deadline says less than the one before it.
  Outcome again(std::string reason) {
    if (!request_.deadline.passed() || reason_.empty()) reason_ = std::move(reason);
    return Outcome::again;
  }

  // Met when both sides have proved themselves.
  Outcome connect_and_greet() {
    auto socket = connect_to(request_.endpoint, request_.deadline);
    if (!socket.ok()) return again(socket.status().text());
    // Names of abstract sockets belong to whoever is first: another user is not even spoken to.
    const auto credentials = peer_credentials(socket->get());
    if (credentials && credentials->uid != ::getuid()) {
      reason_ = text(describe(*credentials), " listens at ", request_.endpoint.describe());
      return Outcome::again;
    }
    const Deadline answer = Deadline::after_ns(std::min(kAnswerNs, request_.deadline.left_ns()));
    Status interruption;
    const auto interrupted = [&] {
      if (request_.interrupted) interruption = request_.interrupted();
      return interruption;
    };
    const Status greeted = greet_server(socket->get(), request_.key, answer, interrupted);
    if (!interruption.ok()) {
      failure_ = interruption;
      return Outcome::failed;
    }
    if (!greeted.ok()) return again(text(request_.endpoint.describe(), " ", greeted.text()));
    link_ = std::make_unique<Link>(*std::move(socket), kMaxTableEntry * request_.expected.size() + kMaxHello);
    link_->send(FrameType::hello, write_hello({kProtocolVersion, request_.rank, request_.nranks, request_.self}));
    link_->flush();
    return Outcome::met;
  }

  // The server has proved itself: it is waited for as long as the connection is there. A rank that left might be let in a moment later, and
  // would then seem to have died.
  Outcome wait_for_table() {
    welcome_ = false;
    watch_ = {};
    result_ = {};  // of an attempt that failed
    for (;;) {
      if (request_.interrupted) {
        failure_ = request_.interrupted();
        if (!failure_.ok()) return break_up();
      }
      if (request_.deadline.passed()) return give_up();
      const auto outcome = read_answers(kSliceMs);
      if (outcome) return *outcome;
    }
  }

  std::optional<Outcome> read_answers(uint64_t wait_ms) {
    pollfd polled[2] = {{link_->fd(), POLLIN, 0}, {watch_.pidfd.get(), POLLIN, 0}};
    wait_ms = std::min(wait_ms, ask_by(request_.deadline).left_ns() / 1'000'000 + 1);
    ::poll(polled, watch_.pidfd.valid() ? 2 : 1, static_cast<int>(wait_ms));
    const bool ended = watch_.ended || (watch_.pidfd.valid() && (polled[1].revents & POLLIN) != 0);
    std::vector<Frame> frames;
    link_->receive(&frames);
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto outcome = read_answer(frames[i]);
      if (!outcome) continue;
      // The table is the last frame of a rendezvous; what follows it is for whoever gets the link next.
      std::move(frames.begin() + static_cast<ptrdiff_t>(i) + 1, frames.end(), std::back_inserter(result_.early));
      return outcome;
    }
    if (link_->state() == Link::State::corrupt) return spoiled(link_->error());
    if (!ended && link_->state() == Link::State::open) return std::nullopt;
    if (!welcome_) {
      reason_ = text(request_.endpoint.describe(),
                     " closed the connection without an answer: another job's rank or another service may listen there");
      return Outcome::again;
    }
    failure_ = Status(Code::peer,
                      text("rank ", request_.server_rank, " (pid ", server_.pid, " on ", server_.host_name, ") died during the rendezvous"),
                      Blame{request_.server_rank});
    return Outcome::failed;
  }

  std::optional<Outcome> read_answer(const Frame& frame) {
    FrameReader reader(frame.payload);
    switch (frame.type) {
      case FrameType::welcome:
        server_ = read_process(&reader);
        if (!reader.finished()) return spoiled("a welcome that cannot be read");
        welcome_ = true;
        watch_ = watch_process(server_);
        return std::nullopt;
      case FrameType::refused: {
        const bool may_try_again = reader.u32() != 0;
        const Status why = reader.status();
        if (!reader.finished()) return spoiled("a refusal that cannot be read");
        reason_ = text("rank ", request_.server_rank, " refused this rank: ", why.text());
        failure_ = Status(why.code(), reason_, why.blame());
        refusal_ = reason_;
        return may_try_again ? Outcome::again : Outcome::failed;
      }
      case FrameType::broken:
        failure_ = reader.status();
        return Outcome::failed;
      case FrameType::table:
        for (size_t i = 0; i < request_.expected.size(); ++i) result_.table.push_back(read_process(&reader));
        if (!reader.finished()) return spoiled("a table that cannot be read");
        result_.links.push_back(std::move(link_));
        return Outcome::met;
      default:
        return spoiled("a message that has no place in a rendezvous");
    }
  }

  // Before the welcome it may be anybody who happens to listen there, and the server itself may come later.
  Outcome spoiled(const std::string& what) {
    reason_ = text(request_.endpoint.describe(), " sent ", what);
    if (!welcome_) return Outcome::again;
    failure_ = Status(Code::corrupt, text("rank ", request_.server_rank, " at ", reason_), Blame{request_.server_rank});
    return Outcome::failed;
  }

  // A connection that closes without a word looks like this rank's death.
  Outcome break_up() {
    FrameWriter writer;
    writer.status(failure_);
    link_->send(FrameType::broken, writer.take());
    link_->flush();
    return Outcome::failed;
  }

  // The server knows who is missing; it tells everybody.
  Outcome give_up() {
    FrameWriter writer;
    writer.u64(request_.timeout_ns);
    link_->send(FrameType::give_up, writer.take());
    link_->flush();
    const Deadline last = Deadline::after_ns(kLastWordNs);
    while (!last.passed()) {
      pollfd polled{link_->fd(), POLLIN, 0};
      ::poll(&polled, 1, kSliceMs);
      const auto outcome = read_answers(0);
      if (outcome == Outcome::again) break;
      if (outcome) return *outcome;
    }
    failure_ = welcome_ ? Status(Code::timeout,
                                 text("rank ", request_.server_rank, " (pid ", server_.pid, " on ", server_.host_name,
                                      ") had not called all ranks together after ", seconds(request_.timeout_ns), " and does not answer"),
                                 Blame{request_.server_rank})
                        : could_not_reach();
    return Outcome::failed;
  }

  Status could_not_reach() const {
    return {Code::timeout,
            text("rank ", request_.rank, " could not meet rank ", request_.server_rank, " at ", request_.endpoint.describe(), " within ",
                 seconds(request_.timeout_ns), ": ", why(), of_the_same_name(), hint()),
            Blame{request_.server_rank}};
  }

  // A refusal says more than what came after it, such as that nobody listens there any more.
  std::string why() const {
    if (refusal_.empty() || refusal_ == reason_) return reason_.empty() ? "no answer" : reason_;
    return text(refusal_, "; then ", reason_);
  }

  // Rank 0 of a job of this name, on this node, that has met its ranks. It may be this one's and have let in another.
  std::string of_the_same_name() const {
    const auto leader = request_.guard.empty() ? std::nullopt : who_listens_at(request_.guard);
    if (!leader) return "";
    return text(
        "; ", describe(*leader),
        " is rank 0 of a job of this name and waits for nobody: where two jobs were given the same address and port, ranks of the two "
        "may have met");
  }

  // The name of the socket holds the user: to one of another user there is no socket, and the system says no more.
  std::string hint() const {
    if (!request_.endpoint.is_unix()) return "";
    const std::string users = text("; all ranks of a node must be started by one user, and this one belongs to user ", ::getuid());
    const bool whole_world = request_.expected.size() == static_cast<size_t>(request_.nranks);
    return whole_world ? users + ". If it is on another node, give both MEGADP_ROOT=host:port" : users;
  }

  const JoinRequest& request_;
  std::unique_ptr<Link> link_;
  JoinResult result_;
  Process server_;
  ProcessWatch watch_;  // of the server's process
  bool welcome_ = false;
  std::string reason_;   // why the last attempt came to nothing
  std::string refusal_;  // why rank 0 would not have this rank, the last time that it said so
  Status failure_;
};

}  // namespace

Result<JoinResult> join_as_client(const JoinRequest& request) {
  return Client(request).run();
}

}  // namespace megadp
