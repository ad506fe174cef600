// SPDX-License-Identifier: Apache-2.0
// Bytes of another rank: a Link cuts them into frames, and the monitors of rank 0, which serves, and of rank 1, which is served, read
// these. An input is who reads, how many descriptors come along, and the bytes.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/text.h"
#include "control/join/process.h"
#include "control/monitor/monitor.h"
#include "control/monitor/relay.h"
#include "control/net/link.h"
#include "fuzz.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr size_t kLongestFrame = 256;  // well below the longest input, so that whole frames exceed it
constexpr int kRanks = 4;
constexpr uint64_t kSecondNs = 1'000'000'000;

struct Ends {
  Fd ours, theirs;
};
Ends make_ends() {
  int ends[2] = {-1, -1};
  must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "no pair of sockets");
  return {Fd(ends[0]), Fd(ends[1])};
}

void write_all(const Fd& to, std::string_view bytes, size_t descriptors) {
  static const int any = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  iovec vector{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(3 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    for (size_t i = 0; i < descriptors; ++i) std::memcpy(CMSG_DATA(header) + i * sizeof any, &any, sizeof any);
  }
  must(bytes.empty() || ::sendmsg(to.get(), &message, 0) == static_cast<ssize_t>(bytes.size()), "the bytes do not fit into a socket");
}

Monitor::Connection connection_of(int rank, bool control, bool serving, std::vector<Fd>* kept) {
  Ends ends = make_ends();
  kept->push_back(std::move(ends.theirs));
  Monitor::Connection made;
  made.rank = rank;
  made.control = control;
  made.descriptors = !control;
  made.serving = serving;
  made.link = std::make_unique<Link>(std::move(ends.ours), kLongestFrame);
  return made;
}

// Frames that came before the connection was handed over are read at once: no thread is started.
std::string read_frames(int rank, bool control, std::vector<Frame> frames) {
  const bool serves = rank == 0;
  std::vector<Fd> kept;
  auto monitor = std::make_shared<Monitor>(rank, kSecondNs, std::vector<Process>(kRanks));
  for (int other = serves ? 2 : 0; serves && other < kRanks; ++other) monitor->add_connection(connection_of(other, true, true, &kept));
  monitor->add_connection(connection_of(serves ? 1 : 0, control, serves, &kept), std::move(frames));
  std::string outcome = text("failure '", monitor->failure().text(), "'");
  for (int other = 0; other < kRanks; ++other) outcome += monitor->has_left(other) ? " left" : " here";
  return outcome;
}

std::string run(const std::string& input) {
  Bytes bytes(input);
  const auto reader = bytes.number<uint8_t>(), descriptors = bytes.number<uint8_t>();
  Ends ends = make_ends();
  write_all(ends.theirs, bytes.rest(), descriptors % 4);
  ends.theirs = Fd();
  Link link(std::move(ends.ours), kLongestFrame);
  std::vector<Frame> frames;
  while (link.state() == Link::State::open) link.receive(&frames);
  std::string outcome = text(static_cast<int>(link.state()), " '", link.error(), "' ");
  MemberLists lists;
  for (const Frame& frame : frames) {
    must(frame.payload.size() <= kLongestFrame, "a frame longer than the longest");
    FrameReader contents(frame.payload);
    OperationKey key;
    FrameReader words(frame.payload);
    words.bytes();
    (void)words.status();
    must(words.left() <= frame.payload.size(), "a reader is beyond its frame");
    if (read_key(&contents, kRanks, &lists, &key))
      must(key.members.size() >= 2 && key.members.size() <= kRanks, "an operation of too many");
  }
  return outcome + read_frames(reader & 1, (reader & 2) == 0, std::move(frames));
}

std::string frame(FrameType type, std::string payload, uint16_t descriptors = 0) {
  return bytes_of(FrameHeader{kFrameMagic, static_cast<uint16_t>(type), descriptors, payload.size()}) + payload;
}

std::string operation(FrameType type, OperationKind kind, const std::function<void(FrameWriter*)>& rest, uint16_t descriptors = 0) {
  FrameWriter writer;
  write_key(&writer, {kind, {0, 1}, 1}, true);
  rest(&writer);
  return frame(type, writer.take(), descriptors);
}

std::vector<std::string> valid() {
  const std::string hub("\0\0", 2), served("\1\0", 2), hub_fd("\2\1", 2), served_fds("\3\2", 2);
  const auto contribution = [](FrameWriter* w) { w->bytes("mdp_split"), w->bytes("contribution"); };
  const auto contributions = [](FrameWriter* w) { w->bytes("one"), w->bytes("two"); };
  const auto differing = [](FrameWriter* w) { w->u32(1), w->bytes("one"), w->bytes("two"); };
  const auto why = [](FrameWriter* w) { w->status({Code::timeout, "rank 1 did not come", Blame{1}}); };
  FrameWriter silences, failed, left;
  silences.u32(2), silences.i32(2), silences.u64(5), silences.i32(3), silences.u64(kSecondNs);
  failed.i32(1), failed.status({Code::system, "no memory", Blame{1}});
  left.i32(1);
  const std::string goodbye = frame(FrameType::goodbye, left.take()), failure = frame(FrameType::failure, failed.take());
  const std::string give = operation(FrameType::give, OperationKind::exchange, contribution);
  const std::string withdraw = operation(FrameType::withdraw, OperationKind::exchange, [](FrameWriter* w) { w->u64(kSecondNs); });
  return {hub + frame(FrameType::heartbeat, ""),
          hub + give + withdraw,
          hub + operation(FrameType::give, OperationKind::compare, contribution),
          hub + operation(FrameType::give, OperationKind::broadcast, contribution),
          hub + give + goodbye,
          hub + failure,
          hub + frame(FrameType::give_up, bytes_of(kSecondNs)),
          hub_fd + operation(FrameType::give, OperationKind::share, contribution, 1),
          served + frame(FrameType::heartbeat, silences.take()),
          served + operation(FrameType::result, OperationKind::exchange, contributions),
          served + operation(FrameType::result, OperationKind::compare, differing),
          served + operation(FrameType::result, OperationKind::broadcast, [](FrameWriter* w) { w->bytes("one"); }),
          served + operation(FrameType::undone, OperationKind::exchange, why),
          served + failure,
          served_fds + operation(FrameType::result, OperationKind::share, contributions, 2)};
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz(argc, argv, {valid(), {}, run});
}
