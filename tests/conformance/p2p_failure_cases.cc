// SPDX-License-Identifier: Apache-2.0
// Every way that the two ranks of a message can miss each other.
#include <linux/filter.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "p2p_bench.h"

namespace megadp::test {
namespace {

// Both learn it, and what each of them said; nothing is written.
void different_messages(Suite& suite) {
  struct Difference {
    size_t sent, expected;
    DType sent_type, expected_type;
    std::vector<std::string> words;
  };
  const std::vector<Difference> all = {{5, 6, DType::f32, DType::f32, {"send of 5 f32 to rank 1", "recv of 6 f32 from rank 0"}},
                                       {0, 1, DType::f32, DType::f32, {"send of 0 f32 to rank 1", "recv of 1 f32 from rank 0"}},
                                       {900'000, 2, DType::f32, DType::f32, {"send of 900000 f32 to rank 1", "recv of 2 f32 from rank 0"}},
                                       {8, 8, DType::bf16, DType::f16, {"send of 8 bf16 to rank 1", "recv of 8 f16 from rank 0"}}};
  for (const Difference& d : all) {
    for (const int late : {0, 1}) {
      suite.run(3, [&d, late](Rank& rank) {
        Bench bench(rank);
        if (rank.rank() == late) sleep_ms(50);
        DeviceArray data(rank, 4'000'000);
        if (rank.rank() == 2) return;
        Status status = rank.rank() == 0 ? bench.send(1, data, d.sent, d.sent_type) : bench.recv(0, data, d.expected, d.expected_type);
        if (status.ok()) status = finish(*bench.stream);  // on a device it may be known already
        rank.fails(status, Code::desync, d.words);
        rank.fails(status, Code::desync, {"ranks 0 and 1 do not agree on a message"});
        rank.check(status.blame().rank == 1 && status.blame().operation == 0, "the blame is not on rank 1 alone");
        rank.check(data.get() == Bytes(4'000'000), "memory was changed");
        rank.check(rank.world().failed(), "the world did not learn of it");
      });
    }
  }
}

// Of the two halves of an exchange one fails, and the other's rank does not come: the failure ends both, and is what is told. With two
// nodes rank 2 is on the same as rank 0.
void a_half_fails(Suite& suite) {
  for (const int different : {1, 2}) {
    suite.run(3, [different](Rank& rank) {
      Bench bench(rank);
      DeviceArray out(rank, 40), in(rank, 40);
      if (rank.rank() != 0 && rank.rank() != different) {
        for (int i = 0; i < 1000 && !rank.world().failed(); ++i) sleep_ms(20);
        rank.check(rank.world().failed(), "nobody told");
        return;
      }
      const uint64_t begin_ns = now_ns();
      Status status;
      if (rank.rank() == 0) {
        status = bench.group->send_recv(*bench.stream, {2, out.data(), 10, DType::f32}, {1, in.data(), 10, DType::f32});
      } else {
        status = different == 1 ? bench.send(0, out, 9, DType::f32) : bench.recv(0, in, 9, DType::f32);
      }
      if (status.ok()) status = finish(*bench.stream);
      const std::string low = text("ranks 0 and ", different, " do not agree on a message");
      const std::string high = text("ranks ", different, " and 0 do not agree on a message");
      rank.check(status.code() == Code::desync, text(code_name(status.code()), ": ", status.text()));
      rank.check(status.text().find(low) != std::string::npos || status.text().find(high) != std::string::npos, status.text());
      rank.check(in.get() == Bytes(40), "memory was changed");
      rank.check(now_ns() - begin_ns < 20 * kSecondNs, "the other half was waited for");
    });
  }
}

// Who waits is told what the other is busy with instead, where that is known: on one node. Both wait for half a second and give up at about
// the same time: who is second may find the other gone already.
void deadlocks(Suite& suite) {
  Setting setting = suite.setting();
  setting.timeout_ns = kSecondNs / 2;
  const auto one_node = [](Rank& rank) { return rank.world().node(0) == rank.world().node(1); };
  const auto fails = [](Rank& rank, const Status& status, std::vector<std::string> words) {
    // Whoever gives up first names its own, and the other may learn it from there.
    rank.check(status.code() == Code::timeout, text(code_name(status.code()), ": ", status.text()));
    for (const std::string& word : words)
      rank.check(status.text().find(word) != std::string::npos, status.text() + " does not say " + word);
  };
  const auto tells_of_the_other = [](Rank& rank, const Status& status) {
    const std::string said = status.text();
    rank.check(said.find("alive") != std::string::npos || said.find("has left") != std::string::npos,
               said + " does not say how the other is");
  };
  for (const size_t count : {size_t{1}, size_t{1'000'000}}) {
    suite.run(setting, 2, [&, count](Rank& rank) {  // both send
      Bench bench(rank);
      DeviceArray data(rank, count * 4);
      rank.must(bench.send(1 - rank.rank(), data, count, DType::f32));
      const Status status = finish(*bench.stream);
      fails(rank, status, {"send of", " f32 to rank ", "rank ", "timed out after"});
      tells_of_the_other(rank, status);
      if (one_node(rank)) fails(rank, status, {"and waits in send of"});
    });
  }
  suite.run(setting, 2, [&](Rank& rank) {  // both receive
    Bench bench(rank);
    DeviceArray data(rank, 12);
    rank.must(bench.recv(1 - rank.rank(), data, 3, DType::f32));
    const Status status = finish(*bench.stream);
    fails(rank, status, {"recv of 3 f32 from rank ", "timed out after"});
    tells_of_the_other(rank, status);
    if (one_node(rank)) fails(rank, status, {"and waits in recv of 3 f32 from rank "});
  });
  suite.run(setting, 2, [&](Rank& rank) {  // one comes to a collective instead
    Bench bench(rank);
    DeviceArray data(rank, 12);
    if (rank.rank() == 0) rank.must(bench.send(1, data, 3, DType::f32));
    if (rank.rank() == 1) {
      sleep_ms(400);  // the sender gives up first
      rank.must(bench.group->barrier(*bench.stream, {}));
    }
    const Status status = finish(*bench.stream);
    fails(rank, status, {"send of 3 f32 to rank 1"});
    if (one_node(rank)) fails(rank, status, {"and waits in operation 2 of the group"});
  });
}

void peer_does_not_come(Suite& suite) {
  Setting setting = suite.setting();
  setting.timeout_ns = kSecondNs / 2;
  for (const bool sends : {true, false}) {
    suite.run(setting, 3, [sends](Rank& rank) {
      Bench bench(rank);
      DeviceArray data(rank, 40);
      if (rank.rank() != 0) {
        for (int i = 0; i < 1000 && !rank.world().failed(); ++i) sleep_ms(20);
        rank.check(rank.world().failed(), "nobody told");
        return;
      }
      rank.must(sends ? bench.send(1, data, 10, DType::f32) : bench.recv(1, data, 10, DType::f32));
      const uint64_t begin_ns = now_ns();
      const Status status = finish(*bench.stream);
      rank.fails(status, Code::timeout, {sends ? "send of 10 f32 to rank 1" : "recv of 10 f32 from rank 1", "0.5 s", "rank 1", "alive"});
      rank.check(status.blame().rank == 1, "the blame is not on rank 1");
      rank.check(now_ns() - begin_ns < 20 * kSecondNs, "the timeout came late");
    });
  }
}

void peer_leaves(Suite& suite) {
  for (const bool sends : {true, false}) {
    suite.run(3, [sends](Rank& rank) {
      Bench bench(rank);
      DeviceArray data(rank, 40);
      if (rank.rank() == 1) return;
      if (rank.rank() == 2) {
        for (int i = 0; i < 1000 && !rank.world().failed(); ++i) sleep_ms(20);
        return;
      }
      rank.must(sends ? bench.send(1, data, 10, DType::f32) : bench.recv(1, data, 10, DType::f32));
      const Status status = finish(*bench.stream);
      // A device's first message needs the control plane, which may be the first to notice.
      rank.fails(status, Code::peer, {"rank 1", "left", on_device(rank) ? "" : sends ? "send of 10 f32" : "recv of 10 f32"});
      rank.check(status.blame().rank == 1, "the blame is not on rank 1");
    });
  }
}

// Who leaves having sent all, and having seen it taken, is not missed.
void peer_leaves_after_its_part(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    {
      Bench bench(rank);
      DeviceArray data(rank, 3'000'000);
      rank.must(rank.rank() == 0 ? bench.send(1, data, data.bytes(), DType::u8) : bench.recv(0, data, data.bytes(), DType::u8));
      rank.ok(finish(*bench.stream));
      if (rank.rank() == 1) return;
    }
    sleep_ms(100);
    rank.check(!rank.world().failed(), "the world failed: " + rank.world().failure().text());
  });
}

// Longer packets that come on the TCP connections of this process are lost, or not any more.
void lose_packets(bool lose) {
  constexpr uint32_t kLong = 2'000;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int protocol = 0;
    socklen_t size = sizeof protocol, length = sizeof(sockaddr_storage);
    sockaddr_storage peer{};
    if (::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != IPPROTO_TCP) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    sock_filter steps[] = {{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0},
                           {BPF_JMP | BPF_JGT | BPF_K, 0, 1, kLong},
                           {BPF_RET | BPF_K, 0, 0, 0},
                           {BPF_RET | BPF_K, 0, 0, UINT32_MAX}};
    const sock_fprog program{4, steps};
    (void)::setsockopt(fd, SOL_SOCKET, lose ? SO_ATTACH_FILTER : SO_DETACH_FILTER, &program, sizeof program);
  }
}

// What a rank has sent comes though it has left: its goodbye is there at once, but between nodes the data is lost on the way, and it takes
// the system 1.4 s to have sent it again; also if the other rank has waited for it for long before.
void what_was_sent_outlives_its_sender(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    const Bytes sent = make_input(DType::u8, 8'000, 1, 0);
    Bench bench(rank);
    DeviceArray data(rank, sent.size());
    const bool apart = rank.world().node(0) != rank.world().node(1) && !on_device(rank), loses = apart && rank.rank() == 0;
    constexpr int kLongMs = 4'000;
    if (loses) lose_packets(true);
    rank.must(rank.world().exchange(rank.everyone(), "packets are lost", ""));
    if (rank.rank() == 1) {
      data.set(sent);
      if (apart) sleep_ms(kLongMs);
      rank.must(bench.send(0, data, sent.size(), DType::u8));
      rank.ok(finish(*bench.stream));
      return;
    }
    rank.must(bench.recv(1, data, sent.size(), DType::u8));
    if (loses) sleep_ms(kLongMs + 900);
    if (loses) lose_packets(false);
    rank.ok(finish(*bench.stream));
    rank.check(data.get() == sent, "other bytes came");
  });
}

// Likewise in an exchange with two ranks, of which the other lets this one wait for so long that it looks around for who has left.
void peer_leaves_after_its_half(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray mine(rank, 4'000), theirs(rank, 4'000);
    const Message out{2, mine.data(), 1000, DType::f32}, in{0, theirs.data(), 1000, DType::f32};
    if (rank.rank() == 2) {
      rank.must(bench.recv(1, theirs, 1000, DType::f32));
      rank.ok(finish(*bench.stream));
      return;
    }
    if (rank.rank() == 0) sleep_ms(2500);
    rank.must(rank.rank() == 0 ? bench.send(1, mine, 1000, DType::f32) : bench.group->send_recv(*bench.stream, out, in));
    rank.ok(finish(*bench.stream));
    rank.check(!rank.world().failed(), "the world failed: " + rank.world().failure().text());
    rank.must(rank.world().exchange({0, 1}, "the end", ""));
  });
}

void world_fails_during_a_wait(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray data(rank, 40);
    if (rank.rank() == 2) {
      sleep_ms(50);
      rank.world().fail(Status(Code::aborted, "the lid is on fire", Blame{.rank = 2}));
      sleep_ms(200);
      return;
    }
    rank.must(bench.recv(1 - rank.rank(), data, 10, DType::f32));
    const uint64_t begin_ns = now_ns();
    const Status status = finish(*bench.stream);
    rank.fails(status, Code::aborted, {"the lid is on fire"});
    rank.check(now_ns() - begin_ns < 20 * kSecondNs, "it took long to notice");
  });
}

// Rank 1's process dies in the middle of a stream of messages.
void killed(Suite& suite) {
  Setting setting = suite.setting();
  setting.killed = 1;
  for (const int after_ms : {0, 3, 20}) {
    suite.run(setting, 2, [after_ms](Rank& rank) {
      Bench bench(rank);
      std::thread killer;
      if (rank.rank() == 1) {
        killer = std::thread([after_ms] {
          sleep_ms(after_ms);
          kill(getpid(), SIGKILL);
        });
      }
      DeviceArray out(rank, 2'000'000), in(rank, 2'000'000);
      Status status;
      uint64_t begin_ns = now_ns();
      for (int i = 0; status.ok(); ++i) {
        begin_ns = now_ns();
        const size_t bytes = i % 2 == 0 ? 100 : out.bytes();
        const int other = 1 - rank.rank();
        status = bench.group->send_recv(*bench.stream, {other, out.data(), bytes, DType::u8}, {other, in.data(), bytes, DType::u8});
        if (status.ok()) status = finish(*bench.stream);
      }
      if (killer.joinable()) killer.join();
      rank.fails(status, Code::peer, {"rank 1", on_device(rank) ? "" : "send of"});  // an event of a device knows the failure alone
      rank.check(status.blame().rank == 1, "the blame is not on rank 1");
      rank.check(now_ns() - begin_ns < 5 * kSecondNs, "it took more than 5 s to notice");
    });
  }
}

// Dropped with messages under way that nobody answers, and with ones that are answered.
void destroyed_with_work(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    DeviceArray out(rank, 3'000'000), in(rank, 3'000'000);
    for (int round = 0; round < 10; ++round) {
      Bench bench(rank);
      const int other = 1 - rank.rank();
      if (round % 2 == 0) {
        rank.must(
            bench.group->send_recv(*bench.stream, {other, out.data(), out.bytes(), DType::u8}, {other, in.data(), in.bytes(), DType::u8}));
      } else {
        rank.must(bench.recv(other, in, 8, DType::u8));
      }
    }
  });
}

}  // namespace

std::vector<Case> p2p_failure_cases() {
  return {{"p2p.different_messages", different_messages},
          {"p2p.a_half_fails", a_half_fails},
          {"p2p.deadlocks", deadlocks},
          {"p2p.peer_does_not_come", peer_does_not_come},
          {"p2p.peer_leaves", peer_leaves},
          {"p2p.peer_leaves_after_its_part", peer_leaves_after_its_part},
          {"p2p.what_was_sent_outlives_its_sender", what_was_sent_outlives_its_sender},
          {"p2p.peer_leaves_after_its_half", peer_leaves_after_its_half},
          {"p2p.world_fails_during_a_wait", world_fails_during_a_wait},
          {"p2p.killed", killed, true},
          {"p2p.destroyed_with_work", destroyed_with_work}};
}

}  // namespace megadp::test
