// SPDX-License-Identifier: Apache-2.0
// World: ranks that are killed, stopped, leave or go mad. The ranks are processes; see be_a_rank for what they can do.
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <random>

#include "base/log.h"
#include "control/join/rendezvous.h"
#include "control/monitor/relay.h"
#include "world_ranks.h"

namespace megadp::test {
namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string in_one_line(const Status& status) {
  return text(code_name(status.code()), " rank ", status.blame().rank, ": ", status.text());
}

// ── behaviours of a rank that is a process of its own ──

void wait_for_failure(const World& world) {
  wait_until([&] { return world.failed(); }, 60 * kSecond);
  say("failed " + in_one_line(world.failure()));
}

void exchange_until_it_fails(World& world) {
  for (int round = 0;; ++round) {
    const Status status = world.exchange(ranks_below(world.size()), "test", "x").status();
    if (!status.ok()) {
      say("failed " + in_one_line(status));
      return;
    }
    if (round == 100) say("busy");
  }
}

// The child keeps every socket of the rank open, long after the rank is gone.
void fork_a_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(1);
    ::alarm(60);
    for (;;) ::pause();
  }
  say(text("child ", child));
}

}  // namespace

int be_a_rank_of_the_environment() {
  const auto launch = launch_from_environment();
  if (!launch.ok()) {
    say(in_one_line(launch.status()));
    return 1;
  }
  return join_and_tell(*launch);
}

int join_and_tell(const Launch& launch) {
  const auto world = World::join(launch, 30 * kSecond);
  if (!world.ok()) {
    say(in_one_line(world.status()));
    return 1;
  }
  const auto got = (*world)->exchange(ranks_below(launch.nranks), "test", text((*world)->rank()));
  std::string line = text(launch.launcher, ": rank ", launch.rank, " of ", launch.nranks, ", heard");
  for (int r = 0; got.ok() && r < launch.nranks; ++r) line += text(" ", (*got)[static_cast<size_t>(r)], "@", (*world)->node(r));
  say(line);
  return got.ok() ? 0 : 1;
}

int be_a_rank(int argc, char** argv) {
  if (argc < 8) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string behaviour = argv[6];
  Launch launch = launch_of(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  if (const size_t without = behaviour.find(" without a secret"); without != std::string::npos) {
    behaviour.erase(without);
    launch.secret = {};
  }
  if (std::string(argv[7]).size() > 0) {
    const std::string root = argv[7];
    launch.root_host = root.substr(0, root.rfind(':'));
    launch.root_port = static_cast<uint16_t>(std::atoi(root.c_str() + root.rfind(':') + 1));
  }
  auto world = World::join(launch, static_cast<uint64_t>(std::atoi(argv[5])) * 1'000'000);
  if (!world.ok()) {
    say("did not join " + in_one_line(world.status()));
    return 1;
  }
  say("joined");
  if (behaviour == "watch") wait_for_failure(**world);
  if (behaviour == "watch a second") {  // of the same name, and the first has left
    world = World::join(launch, 20 * kSecond);
    if (world.ok()) wait_for_failure(**world);
  }
  if (behaviour == "exchange") exchange_until_it_fails(**world);
  if (behaviour == "fork" || behaviour == "fork and leave") fork_a_child();
  if (behaviour == "fork") wait_for_failure(**world);
  if (behaviour == "hosts") {
    std::string hosts;
    for (int r = 0; r < (*world)->size(); ++r) hosts += text(r == 0 ? "" : " ", (*world)->node(r));
    say("hosts " + hosts);
    std::vector<int> mates;
    for (int r = 0; r < (*world)->size(); ++r) {
      if ((*world)->node(r) == (*world)->node((*world)->rank())) mates.push_back(r);
    }
    const auto shared = (*world)->share(mates, "test", Fd(::dup(1)));
    say(shared.ok() ? text("shared ", shared->size()) : "not shared " + in_one_line(shared.status()));
    const Status across = (*world)->share(ranks_below((*world)->size()), "test", Fd(::dup(1))).status();
    say("across " + in_one_line(across));
    const Status all = (*world)->exchange(ranks_below((*world)->size()), "test", "x").status();
    say("exchanged " + in_one_line(all));
    wait_for_failure(**world);
  }
  if (behaviour == "abort") (*world)->fail(Status(Code::aborted, "had enough"));
  return 0;  // "leave"
}

namespace {

using Ranks = std::vector<std::unique_ptr<RankProcess>>;

Ranks start(int nranks, int timeout_ms, const std::vector<std::string>& behaviours, Place at = Place::current(),
            const std::string& root = "") {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int r = 0; r < nranks; ++r) {
    const std::string& behaviour = behaviours[static_cast<size_t>(r) % behaviours.size()];
    ranks.push_back(std::make_unique<RankProcess>(job, r, nranks, timeout_ms, behaviour, std::vector<std::string>{}, root));
  }
  for (int r = 0; r < nranks; ++r) {
    const std::string line = ranks[static_cast<size_t>(r)]->read_line(20 * kSecond);
    check(line == "joined", text("rank ", r, " said '", line, "'"), at);
  }
  return ranks;
}

// All but `victim` say within 5 s that they failed, for this reason, and end.
void expect_failure(Ranks& ranks, int victim, const std::vector<std::string>& words, Place at = Place::current(),
                    uint64_t limit_ns = 5 * kSecond) {
  const Deadline deadline = Deadline::after_ns(limit_ns);
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    if (r == victim) continue;
    const std::string line = ranks[static_cast<size_t>(r)]->read_line(deadline.left_ns());
    if (!check(!line.empty(), text("rank ", r, " did not notice in time"), at)) continue;
    says(line, words, at);
    check(WEXITSTATUS(ranks[static_cast<size_t>(r)]->wait_for_end()) == 0, text("rank ", r, " did not end well"), at);
  }
}

void a_killed_rank_is_named() {
  for (const std::string behaviour : {"watch", "exchange"}) {
    for (const int victim : {0, 1, 3}) {
      Ranks ranks = start(4, 20000, {behaviour});
      if (behaviour == "exchange") {
        for (auto& rank : ranks) check(rank->read_line(20 * kSecond) == "busy", "the ranks exchange");
      }
      const int pid = ranks[static_cast<size_t>(victim)]->pid();
      ranks[static_cast<size_t>(victim)]->signal(SIGKILL);
      expect_failure(ranks, victim, {text("MDP_E_PEER rank ", victim), text("rank ", victim, " (pid ", pid, " on "), "died"});
    }
  }
}

void a_living_child_hides_no_death() {
  for (const int victim : {0, 2}) {
    std::vector<std::string> behaviours(3, "watch");
    behaviours[static_cast<size_t>(victim)] = "fork";
    Ranks ranks = start(3, 20000, behaviours);
    const std::string line = ranks[static_cast<size_t>(victim)]->read_line(20 * kSecond);
    if (!check(line.rfind("child ", 0) == 0, "the child is started: " + line)) continue;
    const int child = std::atoi(line.c_str() + 6);
    ranks[static_cast<size_t>(victim)]->signal(SIGKILL);
    expect_failure(ranks, victim, {text("MDP_E_PEER rank ", victim), "died"});
    check(::kill(child, 0) == 0, "the child was alive all the time");
    ::kill(child, SIGKILL);
  }
}

void a_stopped_rank_is_named() {
  for (const int victim : {0, 1}) {
    Ranks ranks = start(3, 1500, {"watch"});
    ranks[static_cast<size_t>(victim)]->signal(SIGSTOP);
    const uint64_t begun = now_ns();
    expect_failure(ranks, victim, {text("MDP_E_TIMEOUT rank ", victim), text("rank ", victim, " (pid "), "has not been heard of for"},
                   Place::current(), 10 * kSecond);
    check(now_ns() - begun > kSecond, "not before its time");
    // Told as soon as it runs again, in spite of all the others being gone.
    ranks[static_cast<size_t>(victim)]->signal(SIGCONT);
    const std::string line = ranks[static_cast<size_t>(victim)]->read_line(10 * kSecond);
    says(line, {"failed MDP_E_"});
  }
}

void a_short_stop_is_forgiven() {
  Ranks ranks = start(3, 4000, {"watch", "watch", "exchange"});
  for (auto& rank : ranks) rank->signal(SIGSTOP);  // the whole machine slept, as far as they can tell
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  for (auto& rank : ranks) rank->signal(SIGCONT);
  // Rank 2 waits for the others, who never come to its exchange.
  says(ranks[2]->read_line(20 * kSecond), {"MDP_E_TIMEOUT", "ranks 0 and 1 did not come"});
  check(ranks[2]->wait_for_end() == 0, "rank 2 ends well");
  // Of that the others are told; and of nothing else.
  for (const size_t r : {0, 1}) says(ranks[r]->read_line(20 * kSecond), {"MDP_E_TIMEOUT", "ranks 0 and 1 did not come"});
}

void leaving_processes_are_not_dead() {
  for (const int stays : {1, 2}) {
    std::vector<std::string> behaviours(4, "leave");
    behaviours[static_cast<size_t>(stays)] = "watch";
    Ranks ranks = start(4, 20000, behaviours);
    for (int r = 0; r < 4; ++r) {
      if (r != stays) check(ranks[static_cast<size_t>(r)]->wait_for_end() == 0, text("rank ", r, " ends well"));
    }
    const std::string line = ranks[static_cast<size_t>(stays)]->read_line(2500'000'000);
    check(line.empty(), "the others left, and yet: " + line);
  }
}

// A hub lingers until the others have left, however many children of theirs live on.
void a_living_child_holds_no_hub() {
  const std::string job = fresh_job();
  RankProcess other(job, 1, 2, 20000, "fork and leave");
  auto world = World::join(launch_of(job, 0, 2), 20 * kSecond);
  if (!check(world.ok(), world.status().text())) return;
  check(other.read_line(20 * kSecond) == "joined", "joined");
  const std::string line = other.read_line(20 * kSecond);
  if (!check(line.rfind("child ", 0) == 0, "the child is started: " + line)) return;
  const int child = std::atoi(line.c_str() + 6);
  check(other.wait_for_end() == 0, "rank 1 ends well");
  check(wait_until([&] { return (*world)->has_left(1); }, 10 * kSecond) && !(*world)->failed(), "rank 1 has left");
  world->reset();
  check(wait_until([] { return count_threads() == quiet_threads; }, 10 * kSecond), "the hub does not wait for the child");
  check(::kill(child, SIGKILL) == 0, "the child was alive all the time");
}

void an_abort_outruns_its_process() {
  for (const int culprit : {0, 2}) {
    std::vector<std::string> behaviours(3, "watch");
    behaviours[static_cast<size_t>(culprit)] = "abort";
    Ranks ranks = start(3, 20000, behaviours);
    expect_failure(ranks, culprit, {"MDP_E_ABORTED", text("rank ", culprit, " reported: had enough")});
  }
}

// Nothing outside tells when a rank has arrived. So it is killed after a while; if that was too soon, after a longer one.
void a_kill_during_the_rendezvous_is_named() {
  for (const int victim : {0, 1}) {
    bool named = false;
    std::string lines;
    for (const int patience_s : {1, 4, 16}) {
      if (named) break;
      const std::string job = fresh_job();
      Ranks ranks;
      for (int r = 0; r < 3; ++r) ranks.push_back(std::make_unique<RankProcess>(job, r, 4, 60000, "leave"));  // rank 3 never comes
      std::this_thread::sleep_for(std::chrono::seconds(patience_s));
      ranks[static_cast<size_t>(victim)]->signal(SIGKILL);
      named = true;
      lines.clear();
      for (int r = 0; r < 3; ++r) {
        if (r == victim) continue;
        const std::string line = ranks[static_cast<size_t>(r)]->read_line(10 * kSecond);
        lines += line + "\n";
        named = named && line.find(text("did not join MDP_E_PEER rank ", victim)) != std::string::npos &&
                line.find(text("rank ", victim, " (pid ")) != std::string::npos &&
                line.find("died during the rendezvous") != std::string::npos;
      }
    }
    check(named, text("rank ", victim, " was killed, and the others said: ", lines));
  }
}

// ── a rank that knows the secret and then sends nonsense ──

std::string frame_of(FrameType type, const std::string& payload, uint64_t length, uint32_t magic = kFrameMagic) {
  const FrameHeader header{magic, static_cast<uint16_t>(type), 0, length};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}
std::string frame_of(FrameType type, const std::string& payload) {
  return frame_of(type, payload, payload.size());
}

std::string key_of(std::vector<int32_t> members, OperationKind kind = OperationKind::exchange) {
  FrameWriter writer;
  write_key(&writer, {kind, std::move(members), 1}, true);
  return writer.take();
}

std::vector<std::string> kinds_of_nonsense() {
  FrameWriter goodbye_of_another, failure_of_another, share_without_fd, bytes_past_end;
  goodbye_of_another.i32(1);
  failure_of_another.i32(1);
  failure_of_another.status(Status(Code::aborted, "not mine"));
  share_without_fd.append(key_of({0, 2}, OperationKind::share));
  share_without_fd.bytes("");
  bytes_past_end.append(key_of({0, 2}));
  bytes_past_end.u64(UINT64_MAX);
  FrameWriter empty_part;
  empty_part.bytes("");
  const std::string no_bytes = empty_part.take();
  std::mt19937 random(1);
  std::string noise;
  for (int i = 0; i < 100'000; ++i) noise.push_back(static_cast<char>(random()));
  const std::string give_twice = frame_of(FrameType::give, key_of({0, 2}) + no_bytes);
  return {noise,
          "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
          std::string(64, '\0'),
          frame_of(FrameType::give, "", UINT64_MAX),
          frame_of(FrameType::give, "", 1ULL << 40),
          frame_of(static_cast<FrameType>(999), ""),
          frame_of(FrameType::hello, "again"),
          frame_of(FrameType::heartbeat, "too much"),
          frame_of(FrameType::goodbye, goodbye_of_another.take()),
          frame_of(FrameType::goodbye, ""),
          frame_of(FrameType::failure, failure_of_another.take()),
          frame_of(FrameType::failure, "short"),
          frame_of(FrameType::result, key_of({0, 2})),
          frame_of(FrameType::undone, key_of({0, 2})),
          frame_of(FrameType::give, "short"),
          frame_of(FrameType::give, bytes_past_end.take()),
          frame_of(FrameType::give, key_of({0, 1}) + no_bytes),  // not a member
          frame_of(FrameType::give, key_of({2, 2}) + no_bytes),  // twice the same
          frame_of(FrameType::give, key_of({2, 3}) + no_bytes),  // no such rank
          frame_of(FrameType::give, key_of({2}) + no_bytes),     // too few
          frame_of(FrameType::give, share_without_fd.take()),    // a descriptor is missing
          frame_of(FrameType::withdraw, key_of({0, 2})),         // how long?
          give_twice + give_twice};
}

void nonsense_fails_its_sender_alone() {
  const auto kinds = kinds_of_nonsense();
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string job = fresh_job();
    on_threads(3, [&](int rank) {
      if (rank < 2) {
        auto world = World::join(launch_of(job, rank, 3), 20 * kSecond);
        if (!check(world.ok(), world.status().text())) return;
        check(wait_until([&] { return (*world)->failed(); }, 10 * kSecond), text("nonsense ", i, " is noticed"));
        fails((*world)->failure(), Code::corrupt, {"rank 2 (pid ", " sent "});
        check((*world)->failure().blame().rank == 2, "rank 2 is to blame");
        return;
      }
      const Launch launch = launch_of(job, 2, 3);
      JoinRequest meeting{{socket_name(launch, "hub"), "", 0}, auth_key_of(launch), 3, {0, 1, 2}, 0, 2, this_process(),
                          Deadline::after_ns(20 * kSecond),    20 * kSecond,        {}};
      auto party = join_as_client(meeting);
      if (!check(party.ok(), party.status().text())) return;
      const int fd = party->links.front()->fd();
      size_t sent = 0;
      wait_until(
          [&] {
            const ssize_t n = ::send(fd, kinds[i].data() + sent, kinds[i].size() - sent, MSG_NOSIGNAL);
            if (n > 0) sent += static_cast<size_t>(n);
            return sent == kinds[i].size() || (n < 0 && errno != EAGAIN);
          },
          5 * kSecond);
      std::vector<Frame> frames;
      check(wait_until([&] { return !party->links.front()->receive(&frames) && party->links.front()->state() != Link::State::open; },
                       10 * kSecond),
            text("nonsense ", i, ": the hub closes the connection"));
    });
  }
}

}  // namespace

void failure_cases() {
  a_killed_rank_is_named();
  a_living_child_hides_no_death();
  a_stopped_rank_is_named();
  a_short_stop_is_forgiven();
  leaving_processes_are_not_dead();
  a_living_child_holds_no_hub();
  an_abort_outruns_its_process();
  a_kill_during_the_rendezvous_is_named();
  nonsense_fails_its_sender_alone();
}

}  // namespace megadp::test
