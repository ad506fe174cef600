// SPDX-License-Identifier: Apache-2.0
// Frames on a socket pair: whatever the pieces they arrive in, with hundreds of descriptors, and with garbage in their place; and the
// bookkeeping of small collectives without any socket.
#include <fcntl.h>
#include <poll.h>
#include <rapidcheck.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "check.h"
#include "control/monitor/relay.h"
#include "control/net/link.h"

using namespace megadp;
using namespace megadp::test;

namespace {

struct Pair {
  Fd a, b;
  Pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return;
    a = Fd(ends[0]);
    b = Fd(ends[1]);
  }
};

std::string bytes_of(FrameType type, const std::string& payload) {
  const FrameHeader header{kFrameMagic, static_cast<uint16_t>(type), 0, payload.size()};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

void frames_survive_any_cutting() {
  rc::check("frames arrive whole however they are cut",
            [] {
              Pair pair;
              Link link(std::move(pair.b), 1 << 20);
              const auto payloads = *rc::gen::container<std::vector<std::string>>(rc::gen::arbitrary<std::string>());
              std::string stream;
              for (const std::string& payload : payloads) stream += bytes_of(FrameType::give, payload);
              std::vector<Frame> got;
              for (size_t at = 0; at < stream.size();) {
                const size_t piece = std::min<size_t>(*rc::gen::inRange<size_t>(1, 40), stream.size() - at);
                RC_ASSERT(::send(pair.a.get(), stream.data() + at, piece, 0) == static_cast<ssize_t>(piece));
                at += piece;
                link.receive(&got);
              }
              RC_ASSERT(got.size() == payloads.size());
              for (size_t i = 0; i < got.size(); ++i) RC_ASSERT(got[i].payload == payloads[i]);
              RC_ASSERT(link.state() == Link::State::open);
            }) ||
      check(false, "property failed");
}

void garbage_is_corrupt_and_nothing_worse() {
  rc::check("garbage never becomes a frame",
            [] {
              Pair pair;
              Link link(std::move(pair.b), 1000);
              std::string garbage = *rc::gen::arbitrary<std::string>();
              garbage.resize(std::max<size_t>(garbage.size(), sizeof(FrameHeader)), 'g');
              garbage[0] = static_cast<char>(garbage[0] == 'M' ? 'x' : garbage[0]);
              RC_ASSERT(::send(pair.a.get(), garbage.data(), garbage.size(), 0) == static_cast<ssize_t>(garbage.size()));
              std::vector<Frame> got;
              link.receive(&got);
              RC_ASSERT(got.empty());
              RC_ASSERT(link.state() == Link::State::corrupt);
              RC_ASSERT(!link.error().empty());
            }) ||
      check(false, "property failed");

  rc::check("contents are read within their bounds",
            [] {
              const std::string garbage = *rc::gen::arbitrary<std::string>();
              FrameReader reader(garbage);
              OperationKey key;
              MemberLists lists;
              if (read_key(&reader, 8, &lists, &key)) {
                RC_ASSERT(key.members.size() >= 2u && key.members.size() <= 8u);
                reader.bytes();
              }
              FrameReader status_reader(garbage);
              RC_ASSERT(!status_reader.status().ok());
            }) ||
      check(false, "property failed");
}

void a_frame_may_be_too_long() {
  Pair pair;
  Link sender(std::move(pair.a), 1 << 20), receiver(std::move(pair.b), 99);
  sender.send(FrameType::give, std::string(99, 'x'));
  sender.send(FrameType::give, std::string(100, 'x'));
  sender.flush();
  std::vector<Frame> got;
  receiver.receive(&got);
  check_equal(got.size(), size_t{1}, "frames");
  check(receiver.state() == Link::State::corrupt, "the second is refused");
  check(receiver.error().find("100 bytes, more than the 99 allowed") != std::string::npos, receiver.error());
}

void the_end_of_file_comes_last() {
  Pair pair;
  Link receiver(std::move(pair.b), 1 << 20);
  {
    Link sender(std::move(pair.a), 1 << 20);
    for (int i = 0; i < 10; ++i) sender.send(FrameType::goodbye, text(i));
    sender.flush();
    check(sender.idle(), "sent");
  }
  std::vector<Frame> got;
  receiver.receive(&got);
  check_equal(got.size(), size_t{10}, "frames before the end");
  check(receiver.state() == Link::State::closed, "then the end");
}

// More than the kernel takes in one message (253), and large frames around them.
void hundreds_of_descriptors_travel_with_their_frame() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  Pair pair;
  Link sender(std::move(pair.a), 1 << 24), receiver(std::move(pair.b), 1 << 24);
  std::vector<std::shared_ptr<const Fd>> fds;
  std::vector<Fd> read_ends;
  for (int i = 0; i < 600; ++i) {
    int ends[2];
    if (!check(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "pipe")) return;
    read_ends.emplace_back(ends[0]);
    fds.push_back(std::make_shared<const Fd>(ends[1]));
  }
  const auto payload = std::make_shared<const std::string>(std::string(3'000'000, 'p'));
  sender.send(FrameType::result, payload);
  sender.send(FrameType::result, payload, fds);
  sender.send(FrameType::result, "between");
  sender.send(FrameType::result, std::make_shared<const std::string>("few"), {fds[5], fds[7]});
  fds.clear();
  std::vector<Frame> got;
  for (int i = 0; i < 100'000 && got.size() < 4 && receiver.state() == Link::State::open; ++i) {
    sender.flush();
    receiver.receive(&got);
  }
  if (!check_equal(got.size(), size_t{4}, "frames")) return;
  check(got[0].fds.empty() && got[2].fds.empty(), "frames without descriptors have none");
  check_equal(got[1].fds.size(), size_t{600}, "descriptors");
  check_equal(got[3].fds.size(), size_t{2}, "descriptors");
  check(got[1].payload == *payload, "payload");
  for (size_t i = 0; i < got[1].fds.size(); ++i) {
    char byte = static_cast<char>(i);
    check(::write(got[1].fds[i].get(), &byte, 1) == 1 && ::read(read_ends[i].get(), &byte, 1) == 1, text("descriptor ", i));
  }
  check(::write(got[3].fds[1].get(), "x", 1) == 1, "write");
  char byte = 0;
  check(::read(read_ends[7].get(), &byte, 1) == 1 && byte == 'x', "descriptors keep their order");
}

void lost_descriptors_are_noticed() {
  Pair pair;
  Link sender(std::move(pair.a), 1 << 20), receiver(std::move(pair.b), 1 << 20);
  sender.send(FrameType::result, std::make_shared<const std::string>("x"),
              {std::make_shared<const Fd>(::dup(1)), std::make_shared<const Fd>(::dup(1))});
  sender.flush();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{3, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  std::vector<Frame> got;
  receiver.receive(&got);
  ::setrlimit(RLIMIT_NOFILE, &before);
  check(got.empty() && receiver.state() == Link::State::starved, "the loss is noticed");
}

void descriptors_nobody_announced_are_refused() {
  Pair pair;
  Link receiver(std::move(pair.b), 1 << 20);
  std::string bytes = bytes_of(FrameType::give, "x");
  iovec vector{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = 1;
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  check(::sendmsg(pair.a.get(), &message, 0) > 0, "sendmsg");
  std::vector<Frame> got;
  receiver.receive(&got);
  check(receiver.state() == Link::State::corrupt, "a stray descriptor");
}

// ── Relay ──

struct Told {
  int rank;
  Code code;
  std::string words;
};

struct Harness {
  std::vector<Told> told;
  Relay relay{[this](int rank, const OperationKey&, const std::shared_ptr<const Relay::Answer>& answer) {
                std::string words = answer->status.text();
                for (const auto& part : answer->parts) words += part->bytes;
                told.push_back({rank, answer->status.code(), words});
              },
              [](int rank) { return text("<", rank, ">"); }};
};

OperationKey key_of(std::vector<int32_t> members, uint64_t sequence = 1) {
  return {OperationKind::exchange, std::move(members), sequence};
}

void relay_hands_everything_to_everyone() {
  Harness h;
  const OperationKey key = key_of({4, 1, 3});
  check(h.relay.give(1, key, {"split", "b", nullptr}) && h.relay.give(3, key, {"split", "c", nullptr}), "two give");
  check(!h.relay.give(3, key, {"split", "c", nullptr}), "nobody gives twice");
  check(!h.relay.give(2, key, {"split", "x", nullptr}), "only members give");
  check(h.told.empty(), "nothing before all have given");
  check(h.relay.give(4, key, {"split", "a", nullptr}), "the last");
  check_equal(h.told.size(), size_t{3}, "answers");
  for (const Told& t : h.told) check(t.code == Code::ok && t.words == "abc", t.words);
  check(h.relay.withdraw(4, key, 1), "giving up what has ended is nothing");
  check_equal(h.told.size(), size_t{3}, "answers");
}

void relay_compares_and_broadcasts() {
  std::vector<std::shared_ptr<const Relay::Answer>> answers;
  Relay relay{[&](int, const OperationKey&, const std::shared_ptr<const Relay::Answer>& answer) { answers.push_back(answer); },
              [](int) { return std::string(); }};
  const auto all_give = [&](OperationKind kind, uint64_t sequence, const std::vector<std::string>& bytes) {
    answers.clear();
    for (size_t i = bytes.size(); i-- > 0;) {  // the last member comes first
      relay.give(static_cast<int>(i), {kind, {0, 1, 2, 3}, sequence}, {"test", bytes[i], nullptr});
    }
    check(answers.size() == 4 && answers[0] == answers[3], "one answer for all");
    return answers.empty() ? Relay::Answer{} : *answers.front();
  };
  const auto same = all_give(OperationKind::compare, 1, {"a", "a", "a", "a"});
  check(same.other == 0 && same.parts.empty(), "all gave the same");
  const auto differ = all_give(OperationKind::compare, 2, {"a", "a", "c", "d"});
  check_equal(differ.other, uint32_t{2}, "the first that differs");
  check(differ.parts.size() == 2 && differ.parts[0]->bytes == "a" && differ.parts[1]->bytes == "c", "what the two gave");
  const auto first = all_give(OperationKind::broadcast, 1, {"mine", "", "x", ""});
  check(first.parts.size() == 1 && first.parts[0]->bytes == "mine", "the first member's");
}

void lists_of_members_travel_once() {
  MemberLists sender, receiver;
  const OperationKey key = key_of({4, 1, 3});
  const auto travels = [&](bool with_members) {
    FrameWriter writer;
    write_key(&writer, key, with_members);
    const std::string bytes = writer.take();
    FrameReader reader(bytes);
    OperationKey got;
    return read_key(&reader, 8, &receiver, &got) && got.members == key.members && got.sequence == key.sequence;
  };
  check(!travels(false), "an unknown list is refused");
  check(travels(true), "a list that comes along");
  check(travels(false), "a list that came before");
  FrameWriter forged;  // another list under the digest of the first
  forged.u32(1);
  forged.u64(1);
  forged.u64(MemberLists::digest(key.members));
  forged.u32(2);
  forged.i32(0);
  forged.i32(1);
  const std::string bytes = forged.take();
  FrameReader reader(bytes);
  OperationKey got;
  check(!read_key(&reader, 8, &receiver, &got), "a digest of another list");
}

void relay_answers_everyone_once() {
  rc::check("every member of an operation gets exactly one answer, and all the same",
            [] {
              Harness h;
              const int nranks = *rc::gen::inRange(2, 6);
              std::vector<int32_t> members;
              for (int r = 0; r < nranks; ++r) members.push_back(r);
              std::map<std::pair<uint64_t, int>, bool> gave;
              std::vector<bool> left(static_cast<size_t>(nranks));
              std::vector<uint64_t> next(static_cast<size_t>(nranks), 1);  // each member goes on when it has been answered
              const int steps = *rc::gen::inRange(1, 60);
              for (int i = 0; i < steps; ++i) {
                const int rank = *rc::gen::inRange(0, nranks);
                const auto at = static_cast<size_t>(rank);
                const int action = *rc::gen::inRange(0, 10);
                const OperationKey key = key_of(members, next[at]);
                if (left[at]) continue;
                if (action == 0) {
                  left[at] = true;
                  h.relay.leave(rank);
                } else if (!gave[{next[at], rank}]) {
                  gave[{next[at], rank}] = true;
                  RC_ASSERT(h.relay.give(rank, key, {"split", "x", nullptr}));
                } else if (action < 3) {
                  RC_ASSERT(h.relay.withdraw(rank, key, 1));
                }
                for (const Told& t : h.told) {
                  if (left[static_cast<size_t>(t.rank)]) continue;
                  RC_ASSERT((gave[{next[static_cast<size_t>(t.rank)], t.rank}]));  // no answer to a question not yet asked
                  ++next[static_cast<size_t>(t.rank)];
                }
                h.told.clear();
              }
            }) ||
      check(false, "property failed");
}

void relay_remembers_failures_for_those_who_come_later() {
  Harness h;
  const OperationKey key = key_of({0, 1, 2});
  h.relay.give(0, key, {"split", {}, nullptr});
  h.relay.give(1, key, {"split", {}, nullptr});
  check(h.relay.withdraw(0, key, 5'000'000'000), "rank 0 gives up");
  check_equal(h.told.size(), size_t{2}, "those who came are told");
  check(h.told[0].words.find("rank 2 did not come to split") != std::string::npos, h.told[0].words);
  check(h.told[0].words.find("<2>") != std::string::npos, h.told[0].words);
  h.relay.give(2, key, {"split", {}, nullptr});
  check_equal(h.told.size(), size_t{3}, "the late one is told");
  check(h.told[2].words == h.told[0].words && h.told[2].code == Code::timeout, "the same");
  h.relay.leave(1);
  h.relay.give(0, key_of({0, 1}, 2), {"split", {}, nullptr});
  check(h.told.back().code == Code::peer && h.told.back().words.find("rank 1 has left") != std::string::npos, h.told.back().words);
}

// A frame announces as many descriptors as come with it; one of too few is no frame.
void announced_descriptors_must_be_there() {
  for (const uint16_t announced : {uint16_t{1}, uint16_t{2}, uint16_t{3}, uint16_t{300}}) {
    for (const bool one_comes : {false, true}) {
      if (one_comes && announced == 1) continue;
      Pair pair;
      Link link(std::move(pair.b), 1000);
      const FrameHeader header{kFrameMagic, static_cast<uint16_t>(FrameType::give), announced, 0};
      iovec bytes{const_cast<FrameHeader*>(&header), sizeof header};
      alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &bytes;
      message.msg_iovlen = 1;
      if (one_comes) {
        message.msg_control = room;
        message.msg_controllen = sizeof room;
        cmsghdr* const c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        const int fd = 1;
        std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
      }
      check(::sendmsg(pair.a.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof header), "the header is sent");
      std::vector<Frame> got;
      link.receive(&got);
      check(got.empty() && link.state() == Link::State::corrupt, text("a frame without its ", announced, " descriptors"));
      check(link.error().find(text("announces ", announced, " descriptors without them")) != std::string::npos, link.error());
    }
  }
}

// A call that failed is kept for those who have not heard of it, and forgotten when the last of them has heard or left: then the same key
// is a new call.
void relay_forgets_what_all_know() {
  Harness h;
  const OperationKey key = key_of({0, 1, 2});
  check(h.relay.give(0, key, {"split", {}, nullptr}) && h.relay.withdraw(0, key, 5'000'000'000), "rank 0 comes and gives up");
  check(!h.relay.give(0, key, {"split", {}, nullptr}), "a call that is kept is not given twice");
  h.relay.leave(1);
  h.relay.leave(2);
  const size_t before = h.told.size();
  check(h.relay.give(0, key, {"split", {}, nullptr}), "a call that nobody has to hear of is forgotten");
  check(h.told.size() > before && h.told.back().code == Code::peer, "and comes to an answer of its own");
}

void the_first_missing_rank_is_blamed() {
  Blame blame;
  Relay relay([&](int, const OperationKey&, const std::shared_ptr<const Relay::Answer>& answer) { blame = answer->status.blame(); },
              [](int of) { return text(of); });
  const OperationKey key = key_of({3, 1, 2, 0});
  relay.give(3, key, {"split", {}, nullptr});
  relay.withdraw(3, key, 5'000'000'000);
  check_equal(blame.rank, 1, "the rank to blame");
}

void relay_tells_everyone_of_different_calls() {
  Harness h;
  const OperationKey key = key_of({5, 0, 2});
  h.relay.give(2, key, {"grid", "x", nullptr});
  h.relay.give(0, key, {"split", "y", nullptr});
  h.relay.give(5, key, {"split", "z", nullptr});
  check_equal(h.told.size(), size_t{3}, "answers");
  for (const Told& t : h.told) {
    check(t.code == Code::desync && t.words.find("rank 5 called split, rank 2 called grid") != std::string::npos, t.words);
  }
}

// A sentence of any length arrives, cut where it is longer than anybody reads; one that was not cut is nobody's of ours.
void a_long_sentence_is_cut() {
  constexpr size_t kLongest = 64 * 1024;
  for (const size_t length : {size_t{0}, size_t{1000}, kLongest - 1, kLongest, kLongest + 1, 10 * kLongest}) {
    FrameWriter writer;
    writer.status(Status(Code::peer, std::string(length, 'x'), Blame{.rank = 3, .bucket = 4, .param = 5, .operation = 6}));
    const std::string payload = writer.take();
    FrameReader reader(payload);
    const Status read = reader.status();
    check(reader.finished() && read.code() == Code::peer,
          text("a sentence of ", length, " bytes cannot be read: ", read.text().substr(0, 80)));
    check_equal(read.text().size(), std::min(length, kLongest), "length of the sentence");
    const Blame blame = read.blame();
    check(blame.rank == 3 && blame.bucket == 4 && blame.param == 5 && blame.operation == 6, "the blame arrives");
  }
  FrameWriter too_long;
  too_long.i32(static_cast<int32_t>(Code::peer));
  for (int i = 0; i < 2; ++i) too_long.i32(-1);
  too_long.i64(-1);
  too_long.u64(0);
  too_long.bytes(std::string(kLongest + 1, 'x'));
  const std::string payload = too_long.take();
  FrameReader reader(payload);
  check(reader.status().code() == Code::corrupt && !reader.ok(), "a sentence that was not cut is refused");
}

}  // namespace

int main() {
  set_property_runs(300);
  frames_survive_any_cutting();
  garbage_is_corrupt_and_nothing_worse();
  a_frame_may_be_too_long();
  the_end_of_file_comes_last();
  hundreds_of_descriptors_travel_with_their_frame();
  lost_descriptors_are_noticed();
  descriptors_nobody_announced_are_refused();
  relay_hands_everything_to_everyone();
  relay_compares_and_broadcasts();
  lists_of_members_travel_once();
  relay_answers_everyone_once();
  relay_remembers_failures_for_those_who_come_later();
  announced_descriptors_must_be_there();
  relay_forgets_what_all_know();
  the_first_missing_rank_is_blamed();
  relay_tells_everyone_of_different_calls();
  a_long_sentence_is_cut();
  return finish();
}
