// SPDX-License-Identifier: Apache-2.0
// World: ranks that do not come, do not belong together, come twice, and strangers at the door.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "control/join/handshake.h"
#include "control/join/job_key.h"
#include "control/join/listener.h"
#include "control/join/rendezvous.h"
#include "control/net/socket.h"
#include "world_ranks.h"

namespace megadp::test {
namespace {

// Collects what the library logs while it lives.
class LogCatcher {
 public:
  LogCatcher() {
    set_log([](void* user, int32_t, const char* words, size_t) { static_cast<LogCatcher*>(user)->all_ += text(words, "\n"); }, this);
  }
  ~LogCatcher() {
    set_log([](void*, int32_t, const char*, size_t) {}, nullptr);
  }
  const std::string& all() {
    deliver_logs();
    return all_;
  }

 private:
  std::string all_;
};

// True when all four that come are told who does not, within `timeout_ns`.
bool missing_ranks_are_named_within(uint64_t timeout_ns, const std::string& root_host, uint16_t root_port, std::string* said) {
  const std::string job = fresh_job();
  Status told[6];
  on_threads(6, [&](int rank) {
    if (rank == 2 || rank == 5) return;
    told[rank] = World::join(launch_of(job, rank, 6, root_host, root_port), timeout_ns).status();
  });
  bool named = true;
  for (const int rank : {0, 1, 3, 4}) {
    const std::string& words = told[rank].text();
    *said += words + "\n";
    named = named && told[rank].code() == Code::timeout && told[rank].blame().rank == 2 &&
            words.find("ranks 2 and 5 did not come to the rendezvous of ranks 0 to 5") != std::string::npos &&
            words.find(text("gave up after waiting ", timeout_ns / kSecond, " s")) != std::string::npos;
  }
  return named;
}

// Whoever has not come when the first gives up is named too, and on a busy machine that may be another: then all get more time.
void missing_ranks_are_named_everywhere(const std::string& root_host, uint16_t root_port) {
  std::string said;
  const bool named = missing_ranks_are_named_within(kSecond, root_host, root_port, &said) ||
                     missing_ranks_are_named_within(5 * kSecond, root_host, root_port, &said) ||
                     missing_ranks_are_named_within(30 * kSecond, root_host, root_port, &said);
  check(named, "ranks 2 and 5 are missing, and the others said: " + said);
}

void a_missing_hub_is_named() {
  const std::string job = fresh_job();
  on_threads(3, [&](int rank) {
    if (rank == 0) return;
    const uint64_t begun = now_ns();
    fails(World::join(launch_of(job, rank, 3), 300'000'000).status(), Code::timeout,
          {text("rank ", rank, " could not meet rank 0"), "UNIX socket @megadp-", "0.3 s", "Connection refused", "MEGADP_ROOT"});
    fails(World::join(launch_of(job, rank, 3, "127.0.0.1", 1), 300'000'000).status(), Code::timeout,
          {"could not meet rank 0 at 127.0.0.1:1", "Connection refused"});
    fails(World::join(launch_of(job, rank, 3, "no-such-host.invalid", 1), 300'000'000).status(), Code::timeout,
          {"could not meet rank 0 at no-such-host.invalid:1", "looking up no-such-host.invalid"});
    check(now_ns() - begun < 20 * kSecond, "in good time, whatever name servers do");
  });
}

// True when rank 1, which gives up after `first_s`, has met rank 0 before; then rank 0 must not go on waiting.
bool the_earliest_deadline_counts(uint64_t first_s, std::string* said) {
  const std::string job = fresh_job();
  bool named = true;
  std::mutex mutex;
  on_threads(3, [&](int rank) {
    if (rank == 2) return;
    const Status status = World::join(launch_of(job, rank, 3), (rank == 1 ? first_s : 60) * kSecond).status();
    std::lock_guard<std::mutex> lock(mutex);
    *said += status.text() + "\n";
    named = named && status.code() == Code::timeout && status.text().find("rank 2 did not come") != std::string::npos &&
            status.text().find(text("rank 1 gave up after waiting ", first_s, " s")) != std::string::npos;
  });
  return named;
}

void the_earliest_deadline_counts_for_all() {
  std::string said;
  check(the_earliest_deadline_counts(1, &said) || the_earliest_deadline_counts(10, &said), "rank 1's deadline counts: " + said);
}

void different_sizes_are_refused() {
  LogCatcher log;
  const std::string job = fresh_job();
  on_threads(2, [&](int rank) {
    const Status status = World::join(launch_of(job, rank, rank == 0 ? 2 : 3), kSecond).status();
    if (rank == 1) {
      fails(status, Code::invalid, {"rank 1 was started as one of 3 ranks", "rank 0 as one of 2"});
    } else {
      fails(status, Code::timeout, {"rank 1 did not come", "rank 1 came but was refused", "one of 3 ranks"});
    }
  });
  says(log.all(), {"refused rank 1", "one of 3 ranks"});
}

// Once a rank has come as it should, nobody is told any more how it was refused before.
void a_refusal_is_forgotten() {
  const std::string job = fresh_job();
  on_threads(2, [&](int rank) {
    if (rank == 1) {
      fails(World::join(launch_of(job, 1, 2), 60 * kSecond).status(), Code::invalid, {"rank 1 was started as one of 2 ranks"});
    }
    const Status status = World::join(launch_of(job, rank, 3), (rank == 1 ? 3 : 60) * kSecond).status();
    fails(status, Code::timeout, {"rank 2 did not come"});
    check(status.text().find("refused") == std::string::npos, "an old refusal is told: " + status.text());
  });
}

// A second rank 1 is told so when its time is over; and until then it waits for the next rendezvous of the job.
void a_rank_may_come_once() {
  std::string job = fresh_job();
  on_threads(3, [&](int thread) {
    if (thread == 2) std::this_thread::sleep_for(std::chrono::seconds(1));
    const int rank = std::min(thread, 1);  // rank 2 never comes
    const Status status = World::join(launch_of(job, rank, 3), thread == 2 ? kSecond : 4 * kSecond).status();
    if (thread == 2) {
      fails(status, Code::timeout, {"rank 1 could not meet rank 0", "refused this rank", "rank 1 is there already, as process"});
    } else {
      fails(status, Code::timeout, {"rank 2 did not come", "rank 1 came but was refused"});
    }
  });

  job = fresh_job();
  std::atomic<int> worlds{0};
  on_threads(4, [&](int thread) {  // ranks 0, 1, 0, 1
    auto world = World::join(launch_of(job, thread % 2, 2), 20 * kSecond);
    if (!check(world.ok(), world.status().text())) return;
    check((*world)->exchange({0, 1}, "test", "").ok(), "the world works");
    ++worlds;
  });
  check(worlds == 4, "two rendezvous followed each other");
}

void jobs_do_not_meet(const std::string& root_host, uint16_t root_port) {
  LogCatcher log;
  const std::string job = fresh_job();
  on_threads(2, [&](int rank) {
    Launch launch = launch_of(job, rank, 2, root_host, root_port);
    launch.secret.fill(0);
    if (rank == 1) launch.job += " another";
    fails(World::join(launch, 500'000'000).status(), Code::timeout, {rank == 0 ? "rank 1 did not come" : "could not meet rank 0"});
  });
  if (root_port != 0) says(log.all(), {"knows another secret, or belongs to another job"});
}

// ── strangers ──

Endpoint door_of(const Launch& launch) {
  return launch.root_port == 0 ? Endpoint{socket_name(launch, "hub"), "", 0} : Endpoint{"", launch.root_host, launch.root_port};
}

Fd knock(const Launch& launch) {
  Fd fd;
  wait_until(
      [&] {
        auto socket = connect_to(door_of(launch), Deadline::after_ns(kSecond));
        if (socket.ok()) fd = *std::move(socket);
        return fd.valid();
      },
      10 * kSecond);
  return fd;
}

struct Stranger {
  bool knows_secret = false;  // the words come after a handshake
  std::string words;
};

std::vector<Stranger> strangers() {
  const std::string hello = write_hello({kProtocolVersion, 1, 3, this_process()});
  const auto framed = [](const std::string& payload, uint16_t type, uint64_t length) {
    const FrameHeader header{kFrameMagic, type, 0, length};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
  };
  const auto whole = [&](const Hello& of) { return framed(write_hello(of), 1, write_hello(of).size()); };
  const std::string opening = std::string(kHandshakeMagic) + std::string(16, 'n');
  return {{false, "x"},
          {false, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"},
          {false, std::string(100'000, '\0')},
          {false, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)},
          {false, "SSH-2.0-OpenSSH_9.2\r\n"},
          {false, std::string(kHandshakeMagic)},
          {false, opening + std::string(kProofSize, '\0')},
          {false, opening + std::string(kProofSize, '\0') + framed(hello, 1, hello.size())},
          {true, "garbage that is long enough to be looked at"},
          {true, framed(hello, 1, hello.size() - 1)},
          {true, framed(hello, 1, 1ULL << 40)},
          {true, framed(hello.substr(0, 9), 1, 9)},
          {true, framed(hello, 17, hello.size())},
          {true, whole({kProtocolVersion + 1, 1, 3, {}})},
          {true, whole({kProtocolVersion, 3, 3, this_process()})},
          {true, whole({kProtocolVersion, -1, 3, this_process()})},
          {true, whole({kProtocolVersion, 0, 3, this_process()})}};
}

// How much the host answers until it closes the connection.
size_t answers_to(const Fd& fd) {
  size_t answered = 0;
  wait_until(
      [&] {
        char bytes[4096];
        const ssize_t n = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0) answered += static_cast<size_t>(n);
        return n == 0 || (n < 0 && errno != EAGAIN);
      },
      20 * kSecond);
  return answered;
}

// Everybody but the last rank has come; then strangers of all kinds; then the last rank. All join, and the strangers are told nothing
// they did not earn.
void strangers_do_no_harm(const std::string& root_host, uint16_t root_port) {
  LogCatcher log;
  const std::string job = fresh_job();
  std::atomic<bool> strangers_done{false};
  std::thread crowd([&] {
    const Launch launch = launch_of(job, 1, 3, root_host, root_port);
    std::vector<Fd> open;
    for (const Stranger& stranger : strangers()) {
      Fd fd = knock(launch);
      if (!check(fd.valid(), "the door is open")) continue;
      if (stranger.knows_secret) {
        check(greet_server(fd.get(), auth_key_of(launch), Deadline::after_ns(10 * kSecond), {}).ok(), "the handshake works");
      }
      (void)!::send(fd.get(), stranger.words.data(), stranger.words.size(), MSG_NOSIGNAL);
      const bool decided = stranger.words.size() > 10;  // fewer bytes may still become something
      const size_t answered = decided ? answers_to(fd) : 0;
      const bool opened = stranger.words.rfind(kHandshakeMagic, 0) == 0;
      if (!stranger.knows_secret) check(answered == 0 || (opened && answered == kAnswerSize), "a stranger gets no more than the handshake");
      open.push_back(std::move(fd));
    }
    for (int i = 0; i < 200; ++i) open.push_back(knock(launch));  // idle
    strangers_done = true;
    wait_until([&] { return !strangers_done; }, 30 * kSecond);  // stay until all have joined
  });
  on_threads(3, [&](int rank) {
    if (rank == 2) wait_until([&] { return strangers_done.load(); }, 60 * kSecond);
    const uint64_t begun = now_ns();
    auto world = World::join(launch_of(job, rank, 3, root_host, root_port), 60 * kSecond);
    if (!check(world.ok(), text("rank ", rank, ": ", world.status().text()))) return;
    if (rank == 2) check(now_ns() - begun < 20 * kSecond, "the last rank gets in at once");
    check((*world)->exchange({0, 1, 2}, "test", "x").ok(), "the world works");
  });
  strangers_done = false;
  crowd.join();
  if (root_port != 0) {
    says(log.all(), {"refused a connection from 127.0.0.1 (port "});
    check(log.all().find(text("from 127.0.0.1 (port ", root_port, ")")) == std::string::npos, "the stranger's end is told, not this one");
  }
  says(log.all(), {"refused a connection", "does not speak this library's protocol", "another secret", "its hello cannot be read",
                   "too many connections wait", "version 2 of the protocol"});
}

// Someone else listens where the hub should: nothing of it is believed, and the hub gets its place as soon as it is free.
void an_impostor_only_delays() {
  const std::string job = fresh_job();
  auto listeners = listen_at(door_of(launch_of(job, 0, 2)));
  if (!check(listeners.ok(), listeners.status().text())) return;
  std::thread impostor([&] {
    const std::vector<std::string> answers = {"", "HTTP/1.1 400 Bad Request\r\n\r\n", std::string(1000, '\0')};
    for (size_t served = 0; served < answers.size();) {
      auto socket = accept_from(listeners->front());
      if (socket.ok() && socket->valid()) {
        (void)!::send(socket->get(), answers[served].data(), answers[served].size(), MSG_NOSIGNAL);
        ++served;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    listeners->clear();
  });
  on_threads(2, [&](int rank) {
    auto world = World::join(launch_of(job, rank, 2), 20 * kSecond);
    if (!check(world.ok(), text("rank ", rank, ": ", world.status().text()))) return;
    check((*world)->exchange({0, 1}, "test", "").ok(), "the world works");
  });
  impostor.join();
}

// Over TCP anybody may listen at the address: a rank that connects opens the handshake and, when it is not answered rightly, goes. It used
// to send the secret itself.
void an_impostor_learns_nothing() {
  const FreePort port;
  const Launch launch = launch_of(fresh_job(), 1, 2, "127.0.0.1", port.number());
  auto listeners = listen_at(door_of(launch));
  if (!check(listeners.ok(), listeners.status().text())) return;
  std::thread rank([&] {
    fails(World::join(launch, 3 * kSecond).status(), Code::timeout, {"could not meet rank 0", "does not know this job's secret"});
  });
  Fd client;
  const bool came = wait_until(
      [&] {
        auto socket = accept_from(listeners->front());
        if (socket.ok()) client = *std::move(socket);
        return client.valid();
      },
      3 * kSecond);
  if (check(came, "the rank connects")) {
    const std::string lie(kAnswerSize, '\7');
    check(::send(client.get(), lie.data(), lie.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(lie.size()), "the impostor answers");
    check(answers_to(client) <= kOpeningSize, "the rank says no more than the opening");
  }
  rank.join();
}

// Passes on what comes on one connection to the other, until both are closed. After the guest's part of the handshake nothing of the
// guest's until the host is held up.
void relay(const Fd& client, const Fd& host, std::atomic<bool>* proved, const std::atomic<bool>& held_up) {
  size_t from_guest = 0;
  bool open[2] = {true, true};
  while (open[0] || open[1]) {
    for (const bool to_host : {true, false}) {
      char bytes[4096];
      const size_t most = to_host && !held_up ? kOpeningSize + kProofSize - from_guest : sizeof bytes;
      if (!open[to_host] || most == 0) continue;
      const ssize_t n = ::recv((to_host ? client : host).get(), bytes, most, MSG_DONTWAIT);
      if (n > 0) {
        (void)!::send((to_host ? host : client).get(), bytes, static_cast<size_t>(n), MSG_NOSIGNAL);
        if (to_host) from_guest += static_cast<size_t>(n);
        *proved = *proved || from_guest >= kOpeningSize + kProofSize;
      } else if (n == 0 || errno != EAGAIN) {
        ::shutdown((to_host ? host : client).get(), SHUT_WR);
        open[to_host] = false;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A host that gets no processor for some seconds reads the hello of a rank late. The rank used to leave meanwhile, to come anew; the host
// let the first one in, saw it gone, and said that it had died.
void a_slow_host_is_waited_for() {
  const FreePort port, detour;
  const std::string job = fresh_job();
  const Launch at_host = launch_of(job, 0, 2, "127.0.0.1", port.number()), round_about = launch_of(job, 1, 2, "127.0.0.1", detour.number());
  auto listeners = listen_at(door_of(round_about));
  if (!check(listeners.ok(), listeners.status().text())) return;
  std::atomic<bool> proved{false}, held_up{false}, over{false};
  std::thread road([&] {
    std::vector<std::thread> relays;
    while (!over) {
      auto client = accept_from(listeners->front());
      if (client.ok() && client->valid()) {
        relays.emplace_back([&, client = *std::move(client), host = knock(at_host)] { relay(client, host, &proved, held_up); });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (std::thread& one : relays) one.join();
  });
  on_threads(2, [&](int rank) {
    const Launch& launch = rank == 0 ? at_host : round_about;
    JoinRequest meeting;
    meeting.endpoint = door_of(launch);
    meeting.key = auth_key_of(at_host);
    meeting.nranks = 2;
    meeting.expected = {0, 1};
    meeting.rank = rank;
    meeting.self = this_process();
    meeting.timeout_ns = 60 * kSecond;
    meeting.deadline = Deadline::after_ns(meeting.timeout_ns);
    if (rank == 0) {
      meeting.interrupted = [&] {
        if (proved && !held_up.exchange(true)) std::this_thread::sleep_for(std::chrono::seconds(6));
        return Status();
      };
    }
    auto party = rank == 0 ? join_as_server(meeting) : join_as_client(meeting);
    check(party.ok(), text("rank ", rank, ": ", party.status().text()));
  });
  check(held_up, "the host was held up");
  over = true;
  road.join();
}

// Proofs are of one side of one connection.
void proofs_serve_once() {
  AuthKey guard, other;
  guard.fill(7);
  other = guard;
  other.back() ^= 1;
  const auto a = fresh_nonce();
  const auto b = fresh_nonce();
  if (!check(a.ok() && b.ok() && *a != *b, "nonces are fresh")) return;
  const std::string proof = proof_of_client(guard, *a, *b);
  check(proof.size() == kProofSize && same_proof(proof, proof_of_client(guard, *a, *b)), "the same again");
  check(!same_proof(proof, proof_of_server(guard, *a, *b)), "not of the other side");
  check(!same_proof(proof, proof_of_client(guard, *b, *a)), "not with the nonces exchanged");
  check(!same_proof(proof, proof_of_client(other, *a, *b)), "not under another secret");
  check(!same_proof(proof, proof.substr(1)), "not a part of it");
  AuthKey first = guard;
  first.front() ^= 1;
  const std::string another = proof_of_client(first, *a, *b);
  check(another.substr(0, 16) != proof.substr(0, 16) && another.substr(16) != proof.substr(16), "a byte of the secret changes all of it");
}

// Rank 1 gives up first; the host stays a little for the rank that was missing, which used to count as told and waited for nobody.
void a_latecomer_is_told() {
  bool told = false;
  for (int attempt = 0; attempt < 5 && !told; ++attempt) {  // on a machine so slow that it comes after that, it is not told
    const std::string job = fresh_job();
    std::atomic<bool> gave_up{false};
    on_threads(3, [&](int rank) {
      if (rank == 2) wait_until([&] { return gave_up.load(); }, 30 * kSecond);
      const Status status = World::join(launch_of(job, rank, 3), (rank == 0 ? 20 : rank == 1 ? 1 : 5) * kSecond).status();
      fails(status, Code::timeout, {});
      if (rank == 1) gave_up = true;
      if (rank == 2) told = status.text().find("rank 2 did not come") != std::string::npos;
    });
  }
  check(told, "the rank that came late was told nothing");
}

// It is told once: what it tries then is the next rendezvous, though the host of the last one still stays, for rank 3.
void a_latecomer_may_try_again() {
  bool told = false;
  for (int attempt = 0; attempt < 5 && !told; ++attempt) {  // as above: then it meets the others at its first try
    const std::string job = fresh_job();
    std::atomic<bool> gave_up{false}, left{false};
    on_threads(4, [&](int rank) {
      if (rank == 2) wait_until([&] { return gave_up.load(); }, 30 * kSecond);
      if (rank == 3) wait_until([&] { return left.load(); }, 30 * kSecond);
      auto world = World::join(launch_of(job, rank, 4), (rank == 1 ? 1 : 60) * kSecond);
      if (rank == 0) left = true;
      if (rank == 1) gave_up = true;
      if (!world.ok()) {
        fails(world.status(), Code::timeout, {});
        if (rank == 2) told = world.status().text().find("ranks 2 and 3 did not come") != std::string::npos;
        world = World::join(launch_of(job, rank, 4), 60 * kSecond);
      }
      if (!check(world.ok(), text("rank ", rank, " of a later rendezvous: ", world.status().text()))) return;
      check((*world)->exchange(ranks_below(4), "test", "").ok(), "the world works");
    });
  }
  check(told, "the rank that came late was told nothing");
}

// The secret alone lets nobody in under another process's number: that one would be watched in its place.
void another_process_is_nobody() {
  LogCatcher log;
  const std::string job = fresh_job();
  on_threads(2, [&](int rank) {
    const Launch launch = launch_of(job, rank, 2);
    if (rank == 0) {
      fails(World::join(launch, 2 * kSecond).status(), Code::timeout,
            {"rank 1 did not come", "rank 1 came but was refused", "it says it is process 1,"});
      return;
    }
    JoinRequest meeting{
        door_of(launch), auth_key_of(launch), 2, {0, 1}, 0, 1, this_process(), Deadline::after_ns(20 * kSecond), 20 * kSecond, {}};
    meeting.self.pid = 1;
    auto party = join_as_client(meeting);
    fails(party.status(), Code::invalid, {"rank 0 refused this rank", "it says it is process 1, but it is process", text(::getpid())});
  });
  says(log.all(), {"refused rank 1", "it says it is process 1"});
}

// A failure elsewhere ends the waiting, on both sides: long before the deadline, and in its own words.
void a_meeting_is_interrupted() {
  for (const int interrupted : {0, 1}) {
    const std::string job = fresh_job();
    std::atomic<bool> enough{false};
    std::thread patience([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // rank 1 has been let in; rank 2 never comes
      enough = true;
    });
    on_threads(2, [&](int rank) {
      const Launch launch = launch_of(job, rank, 3);
      JoinRequest meeting{
          door_of(launch), auth_key_of(launch), 3, {0, 1, 2}, 0, rank, this_process(), Deadline::after_ns(60 * kSecond), 60 * kSecond, {}};
      if (rank == interrupted) {
        meeting.interrupted = [&] { return enough ? Status(Code::numeric, "the lid is on fire") : Status(); };
      }
      const uint64_t begun = now_ns();
      const Status status = (rank == 0 ? join_as_server(meeting) : join_as_client(meeting)).status();
      check(now_ns() - begun < 20 * kSecond, "long before the deadline");
      fails(status, Code::numeric, {"the lid is on fire"});
    });
    patience.join();
  }
}

// Who connects and says nothing is shown the door after a while, however much room there is.
void silent_strangers_are_turned_away() {
  const std::string job = fresh_job();
  std::thread host([&] { (void)World::join(launch_of(job, 0, 2), 12 * kSecond); });
  const Fd stranger = knock(launch_of(job, 1, 2));
  const uint64_t begun = now_ns();
  check(stranger.valid() && answers_to(stranger) == 0, "a silent stranger is told nothing");
  check(now_ns() - begun < 10 * kSecond, "a silent stranger stays until the meeting is over");
  host.join();
}

}  // namespace

void rendezvous_cases() {
  std::thread silent(silent_strangers_are_turned_away);  // mostly sleeps
  a_latecomer_is_told();
  a_latecomer_may_try_again();
  const FreePort port;
  missing_ranks_are_named_everywhere("", 0);
  missing_ranks_are_named_everywhere("127.0.0.1", port.number());
  a_missing_hub_is_named();
  the_earliest_deadline_counts_for_all();
  different_sizes_are_refused();
  a_refusal_is_forgotten();
  a_rank_may_come_once();
  jobs_do_not_meet("", 0);
  jobs_do_not_meet("127.0.0.1", port.number());
  strangers_do_no_harm("", 0);
  strangers_do_no_harm("127.0.0.1", port.number());
  an_impostor_only_delays();
  a_slow_host_is_waited_for();
  an_impostor_learns_nothing();
  proofs_serve_once();
  another_process_is_nobody();
  a_meeting_is_interrupted();
  silent.join();
}

}  // namespace megadp::test
