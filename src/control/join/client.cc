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

#include "base/text.h"
#include "control/join/handshake.h"
#include "control/join/listener.h"
#include "control/join/rendezvous.h"
#include "control/wording.h"

namespace megadp {
namespace {

constexpr int kSliceMs = 100;
constexpr uint64_t kAnswerNs = 5'000'000'000;    // whoever listens may be a stranger, until the handshake
constexpr uint64_t kLastWordNs = 1'000'000'000;  // for the host's answer to giving up, which knows who is missing
constexpr uint64_t kMaxTableEntry = 2 * kMaxHello;

class Guest {
 public:
  explicit Guest(const Meeting& meeting) : meeting_(meeting) {}

  Result<Party> run() {
    int pause_ms = 5;
    for (;;) {
      Outcome outcome = connect_and_greet();
      if (outcome == Outcome::met) outcome = wait_for_table();
      if (outcome == Outcome::met) return std::move(party_);
      if (outcome == Outcome::failed) return failure_;
      link_.reset();
      if (meeting_.interrupted) {
        Status status = meeting_.interrupted();
        if (!status.ok()) return status;
      }
      if (meeting_.deadline.passed()) return could_not_reach();
      const uint64_t left_ms = meeting_.deadline.left_ns() / 1'000'000 + 1;
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

  // Met when both sides have proved themselves.
  Outcome connect_and_greet() {
    auto socket = connect_to(meeting_.endpoint, meeting_.deadline);
    if (!socket.ok()) {
      reason_ = socket.status().text();
      return Outcome::again;
    }
    // Names of abstract sockets belong to whoever is first: another user is not even spoken to.
    const auto credentials = peer_credentials(socket->get());
    if (credentials && credentials->uid != ::getuid()) {
      reason_ = text("process ", credentials->pid, " of user ", credentials->uid, " listens at ", meeting_.endpoint.describe());
      return Outcome::again;
    }
    const Deadline answer = Deadline::after_ns(std::min(kAnswerNs, meeting_.deadline.left_ns()));
    Status interruption;
    const auto interrupted = [&] {
      if (meeting_.interrupted) interruption = meeting_.interrupted();
      return interruption;
    };
    const Status greeted = greet_host(socket->get(), meeting_.guard, answer, interrupted);
    if (!interruption.ok()) {
      failure_ = interruption;
      return Outcome::failed;
    }
    if (!greeted.ok()) {
      // An attempt that was cut short by the end of the meeting says less than the one before it.
      if (meeting_.deadline.passed() && !reason_.empty()) return Outcome::again;
      reason_ = text(meeting_.endpoint.describe(), " ", greeted.text());
      return Outcome::again;
    }
    link_ = std::make_unique<Link>(*std::move(socket), kMaxTableEntry * meeting_.expected.size() + kMaxHello);
    link_->send(FrameType::hello, write_hello({kProtocolVersion, meeting_.rank, meeting_.nranks, meeting_.self}));
    link_->flush();
    return Outcome::met;
  }

  // The host has proved itself: it is waited for as long as the connection is there. A rank that left might be let in a moment later, and
  // would then seem to have died.
  Outcome wait_for_table() {
    welcome_ = false;
    watch_ = {};
    party_ = {};  // of an attempt that failed
    for (;;) {
      if (meeting_.interrupted) {
        failure_ = meeting_.interrupted();
        if (!failure_.ok()) return Outcome::failed;
      }
      if (meeting_.deadline.passed()) return give_up();
      const auto outcome = read_answers(kSliceMs);
      if (outcome) return *outcome;
    }
  }

  std::optional<Outcome> read_answers(uint64_t wait_ms) {
    pollfd polled[2] = {{link_->fd(), POLLIN, 0}, {watch_.pidfd.get(), POLLIN, 0}};
    wait_ms = std::min(wait_ms, meeting_.deadline.left_ns() / 1'000'000 + 1);
    ::poll(polled, watch_.pidfd.valid() ? 2 : 1, static_cast<int>(wait_ms));
    const bool ended = watch_.ended || (watch_.pidfd.valid() && (polled[1].revents & POLLIN) != 0);
    std::vector<Frame> frames;
    link_->receive(&frames);
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto outcome = read_answer(frames[i]);
      if (!outcome) continue;
      // The table is the last frame of a rendezvous; what follows it is for whoever gets the link next.
      std::move(frames.begin() + static_cast<ptrdiff_t>(i) + 1, frames.end(), std::back_inserter(party_.early));
      return outcome;
    }
    if (link_->state() == Link::State::corrupt) return spoiled(link_->error());
    if (!ended && link_->state() == Link::State::open) return std::nullopt;
    if (!welcome_) {
      reason_ = text(meeting_.endpoint.describe(),
                     " closed the connection without an answer: another job's rank or another service may listen there");
      return Outcome::again;
    }
    failure_ =
        Status(Code::peer, text("rank ", meeting_.host_rank, " (pid ", host_.pid, " on ", host_.host_name, ") died during the rendezvous"),
               Blame{meeting_.host_rank});
    return Outcome::failed;
  }

  std::optional<Outcome> read_answer(const Frame& frame) {
    FrameReader reader(frame.payload);
    switch (frame.type) {
      case FrameType::welcome:
        host_ = read_process(&reader);
        if (!reader.finished()) return spoiled("a welcome that cannot be read");
        welcome_ = true;
        watch_ = watch_process(host_);
        return std::nullopt;
      case FrameType::refused: {
        const bool may_try_again = reader.u32() != 0;
        const Status why = reader.status();
        if (!reader.finished()) return spoiled("a refusal that cannot be read");
        reason_ = text("rank ", meeting_.host_rank, " refused this rank: ", why.text());
        failure_ = Status(why.code(), reason_, why.blame());
        return may_try_again ? Outcome::again : Outcome::failed;
      }
      case FrameType::broken:
        failure_ = reader.status();
        return Outcome::failed;
      case FrameType::table:
        for (size_t i = 0; i < meeting_.expected.size(); ++i) party_.table.push_back(read_process(&reader));
        if (!reader.finished()) return spoiled("a table that cannot be read");
        party_.links.push_back(std::move(link_));
        return Outcome::met;
      default:
        return spoiled("a message that has no place in a rendezvous");
    }
  }

  // Before the welcome it may be anybody who happens to listen there, and the host itself may come later.
  Outcome spoiled(const std::string& what) {
    reason_ = text(meeting_.endpoint.describe(), " sent ", what);
    if (!welcome_) return Outcome::again;
    failure_ = Status(Code::corrupt, text("rank ", meeting_.host_rank, " at ", reason_), Blame{meeting_.host_rank});
    return Outcome::failed;
  }

  // The host knows who is missing; it tells everybody.
  Outcome give_up() {
    FrameWriter writer;
    writer.u64(meeting_.timeout_ns);
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
                                 text("rank ", meeting_.host_rank, " (pid ", host_.pid, " on ", host_.host_name,
                                      ") had not called all ranks together after ", seconds(meeting_.timeout_ns), " and does not answer"),
                                 Blame{meeting_.host_rank})
                        : could_not_reach();
    return Outcome::failed;
  }

  Status could_not_reach() const {
    return {Code::timeout,
            text("rank ", meeting_.rank, " could not meet rank ", meeting_.host_rank, " at ", meeting_.endpoint.describe(), " within ",
                 seconds(meeting_.timeout_ns), ": ", reason_.empty() ? "no answer" : reason_, hint()),
            Blame{meeting_.host_rank}};
  }

  // The name of the socket holds the user: to one of another user there is no socket, and the system says no more.
  std::string hint() const {
    if (!meeting_.endpoint.is_unix()) return "";
    const std::string users = text("; all ranks of a host must be started by one user, and this one belongs to user ", ::getuid());
    const bool whole_world = meeting_.expected.size() == static_cast<size_t>(meeting_.nranks);
    return whole_world ? users + ". If it is on another host, give both MEGADP_ROOT=host:port" : users;
  }

  const Meeting& meeting_;
  std::unique_ptr<Link> link_;
  Party party_;
  Process host_;
  ProcessWatch watch_;  // of the host's process
  bool welcome_ = false;
  std::string reason_;  // why the last attempt came to nothing
  Status failure_;
};

}  // namespace

Result<Party> attend_meeting(const Meeting& meeting) {
  return Guest(meeting).run();
}

}  // namespace megadp
