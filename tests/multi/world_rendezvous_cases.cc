// SPDX-License-Identifier: Apache-2.0
// World: ranks that do not come, do not belong together, come twice, and strangers at the door.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <atomic>

#include <cerrno>
#include <cstring>

#include "backend/bootstrap/job_key.h"
#include "backend/bootstrap/reception.h"
#include "backend/bootstrap/socket.h"
#include "base/log.h"
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

void missing_ranks_are_named_everywhere(const std::string& root_host, uint16_t root_port) {
  const std::string job = fresh_job();
  on_threads(6, [&](int rank) {
    if (rank == 2 || rank == 5) return;
    const uint64_t begun = now_ns();
    const Status status = World::join(launch_of(job, rank, 6, root_host, root_port), 700'000'000).status();
    fails(status, Code::timeout, {"ranks 2 and 5 did not come to the rendezvous of ranks 0 to 5", "gave up after waiting 0.7 s"});
    check(status.blame().rank == 2, "rank 2 is to blame");
    check(now_ns() - begun < 10 * kSecond, "in good time");
  });
}

void a_missing_hub_is_named() {
  const std::string job = fresh_job();
  on_threads(3, [&](int rank) {
    if (rank == 0) return;
    fails(World::join(launch_of(job, rank, 3), 300'000'000).status(), Code::timeout,
          {text("rank ", rank, " could not meet rank 0"), "UNIX socket @megadp-", "0.3 s", "Connection refused", "MEGADP_ROOT"});
    fails(World::join(launch_of(job, rank, 3, "127.0.0.1", 1), 300'000'000).status(), Code::timeout,
          {"could not meet rank 0 at 127.0.0.1:1", "Connection refused"});
    fails(World::join(launch_of(job, rank, 3, "no-such-host.invalid", 1), 300'000'000).status(), Code::timeout,
          {"could not meet rank 0 at no-such-host.invalid:1", "looking up no-such-host.invalid"});
  });
}

void the_earliest_deadline_counts_for_all() {
  const std::string job = fresh_job();
  on_threads(3, [&](int rank) {
    if (rank == 2) return;
    const uint64_t begun = now_ns();
    const Status status = World::join(launch_of(job, rank, 3), rank == 1 ? 500'000'000 : 60 * kSecond).status();
    fails(status, Code::timeout, {"rank 2 did not come", "rank 1 gave up after waiting 0.5 s"});
    check(now_ns() - begun < 20 * kSecond, "rank 0 does not wait for nobody");
  });
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
  if (root_port != 0) says(log.all(), {"showed another secret, or belongs to another job"});
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

std::string preamble_with(const Guard& guard) {
  return std::string(kPreambleMagic, 8) + std::string(reinterpret_cast<const char*>(guard.data()), guard.size());
}

std::vector<std::string> words_of_strangers(const Launch& launch) {
  Guard wrong = guard_of(launch);
  wrong.back() ^= 1;
  const std::string right = preamble_with(guard_of(launch));
  const std::string hello = write_hello({kProtocolVersion, 1, 3, this_process()});
  const auto framed = [](const std::string& payload, uint16_t type, uint64_t length) {
    const FrameHeader header{kFrameMagic, type, 0, length};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
  };
  return {"x",
          "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
          std::string(100'000, '\0'),
          std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
          "SSH-2.0-OpenSSH_9.2\r\n",
          std::string(kPreambleMagic, 8),
          preamble_with(wrong),
          preamble_with(wrong) + framed(hello, 1, hello.size()),
          right + "garbage that is long enough to be looked at",
          right + framed(hello, 1, hello.size() - 1),
          right + framed(hello, 1, 1ULL << 40),
          right + framed(hello.substr(0, 9), 1, 9),
          right + framed(hello, 17, hello.size()),
          right + framed(write_hello({kProtocolVersion + 1, 1, 3, {}}), 1, write_hello({kProtocolVersion + 1, 1, 3, {}}).size()),
          right + framed(write_hello({kProtocolVersion, 3, 3, this_process()}), 1, hello.size()),
          right + framed(write_hello({kProtocolVersion, -1, 3, this_process()}), 1, hello.size()),
          right + framed(write_hello({kProtocolVersion, 0, 3, this_process()}), 1, hello.size())};
}

// Everybody but the last rank has come; then strangers of all kinds; then the last rank. All join, and the strangers are told nothing
// they did not earn.
void strangers_do_no_harm(const std::string& root_host, uint16_t root_port) {
  LogCatcher log;
  const std::string job = fresh_job();
  std::atomic<bool> strangers_done{false};
  std::thread strangers([&] {
    const Launch launch = launch_of(job, 1, 3, root_host, root_port);
    std::vector<Fd> open;
    for (const std::string& words : words_of_strangers(launch)) {
      Fd fd = knock(launch);
      if (!check(fd.valid(), "the door is open")) continue;
      (void)!::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
      const bool knows_secret = words.rfind(preamble_with(guard_of(launch)), 0) == 0;
      const bool complete = words.size() > 60;
      char answer[256];
      ssize_t n = -1;
      if (complete || words.size() > 10) {
        wait_until([&] { return (n = ::recv(fd.get(), answer, sizeof answer, MSG_DONTWAIT)) >= 0 || errno != EAGAIN; }, 10 * kSecond);
      }
      if (!knows_secret) check(n <= 0, "a stranger gets no answer");
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
  strangers.join();
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

}  // namespace

void rendezvous_cases() {
  a_latecomer_is_told();
  missing_ranks_are_named_everywhere("", 0);
  missing_ranks_are_named_everywhere("127.0.0.1", 21801);
  a_missing_hub_is_named();
  the_earliest_deadline_counts_for_all();
  different_sizes_are_refused();
  a_rank_may_come_once();
  jobs_do_not_meet("", 0);
  jobs_do_not_meet("127.0.0.1", 21802);
  strangers_do_no_harm("", 0);
  strangers_do_no_harm("127.0.0.1", 21803);
  an_impostor_only_delays();
}

}  // namespace megadp::test
