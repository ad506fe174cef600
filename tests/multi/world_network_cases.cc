// SPDX-License-Identifier: Apache-2.0
// World over TCP: loopback of both families, and two network namespaces, which are two nodes to the ranks in them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/wait.h>

#include <cstdlib>

#include "world_ranks.h"

namespace megadp::test {
namespace {

void meets_over_tcp(const std::string& host) {
  const FreePort port;
  in_world(
      4,
      [](int rank, const WorldPtr& world) {
        check(world->node(0) == 0 && world->node(3) == 0, "one node, as they find out");
        for (int round = 0; round < 20; ++round) {
          const auto got = world->exchange(ranks_below(4), "test", text(rank));
          if (!check(got.ok(), got.status().text())) return;
          check((*got)[3] == "3", "messages over TCP");
        }
        const auto fds = world->share({3, 2, 1, 0}, "test", Fd(::dup(1)));
        check(fds.ok() && fds->size() == 4, "descriptors beside TCP: " + fds.status().text());
      },
      20 * kSecond, host, port.number());
}

// False if there is no IPv6, as in many containers.
bool has_ipv6_loopback() {
  const Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd.valid() && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

void follows_itself_over_tcp() {
  const FreePort port;
  const std::string job = fresh_job();
  on_threads(2, [&](int rank) {
    for (int i = 0; i < 30; ++i) {
      auto world = World::join(launch_of(job, rank, 2, "127.0.0.1", port.number()), 20 * kSecond);
      if (!check(world.ok(), text("cycle ", i, ": ", world.status().text()))) return;
      check(!(*world)->failed(), "nobody fails");
    }
  });
  check(wait_until([] { return count_threads() == quiet_threads; }, 10 * kSecond), "no thread is left");
}

void deaths_over_tcp() {
  const FreePort port;
  for (const int victim : {0, 1}) {
    const std::string job = fresh_job();
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (int r = 0; r < 3; ++r) {
      ranks.push_back(
          std::make_unique<RankProcess>(job, r, 3, 20000, "watch", std::vector<std::string>{}, text("127.0.0.1:", port.number())));
    }
    for (auto& rank : ranks) check(rank->read_line(20 * kSecond) == "joined", "joined");
    ranks[static_cast<size_t>(victim)]->signal(SIGKILL);
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      says(ranks[static_cast<size_t>(r)]->read_line(5 * kSecond), {text("MDP_E_PEER rank ", victim), "died"});
    }
  }
}

void leaving_over_tcp() {
  const FreePort port;
  for (int round = 0; round < 5; ++round) {
    const std::string job = fresh_job();
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (int r = 0; r < 3; ++r) {
      ranks.push_back(std::make_unique<RankProcess>(job, r, 3, 20000, r == 1 ? "watch" : "leave", std::vector<std::string>{},
                                                    text("127.0.0.1:", port.number())));
    }
    for (auto& rank : ranks) check(rank->read_line(20 * kSecond) == "joined", "joined");
    check(ranks[0]->wait_for_end() == 0 && ranks[2]->wait_for_end() == 0, "two leave");
    const std::string line = ranks[1]->read_line(1500'000'000);
    check(line.empty(), "the others left, and yet: " + line);
  }
}

bool shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Two namespaces joined by a cable. Everything is named for this process and removed at the end.
class TwoHosts {
 public:
  TwoHosts() : a_(text("mdpA", ::getpid())), b_(text("mdpB", ::getpid())) {
    made_ = shell("ip netns add " + a_) && shell("ip netns add " + b_) &&
            shell(text("ip link add va", ::getpid(), " netns ", a_, " type veth peer name vb", ::getpid(), " netns ", b_)) &&
            shell(text("ip -n ", a_, " addr add 10.77.0.1/24 dev va", ::getpid())) &&
            shell(text("ip -n ", b_, " addr add 10.77.0.2/24 dev vb", ::getpid())) &&
            shell(text("ip -n ", a_, " link set va", ::getpid(), " up")) && shell(text("ip -n ", b_, " link set vb", ::getpid(), " up")) &&
            shell(text("ip -n ", a_, " link set lo up")) && shell(text("ip -n ", b_, " link set lo up"));
  }
  ~TwoHosts() {
    shell("ip netns del " + a_);
    shell("ip netns del " + b_);
  }
  bool made() const { return made_; }
  std::vector<std::string> inside(int host) const { return {"ip", "netns", "exec", host == 0 ? a_ : b_}; }
  void cut_the_cable() const { shell(text("ip -n ", a_, " link set va", ::getpid(), " down")); }

 private:
  std::string a_, b_;
  bool made_ = false;
};

using Ranks = std::vector<std::unique_ptr<RankProcess>>;

// Ranks 0 and 2 on one node, 1 and 3 on the other.
Ranks start_on(const TwoHosts& hosts, const std::string& root, int timeout_ms) {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back(std::make_unique<RankProcess>(job, r, 4, timeout_ms, "hosts", hosts.inside(r % 2), root));
  for (auto& rank : ranks) {
    const std::string line = rank->read_line(20 * kSecond);
    check(line == "joined", line);
    check(rank->read_line(20 * kSecond) == "hosts 0 1 0 1", "hosts are told apart");
    check(rank->read_line(20 * kSecond) == "shared 2", "descriptors within a node");
    says(rank->read_line(20 * kSecond), {"across MDP_E_INVALID", "different nodes"});
    says(rank->read_line(20 * kSecond), {"exchanged MDP_OK"});
  }
  return ranks;
}

void two_hosts_are_one_world() {
  const TwoHosts hosts;
  if (!hosts.made()) {
    std::cerr << "SKIPPED (1 case): two network namespaces cannot be made here (root and `ip netns` are needed)\n";
    return;
  }
  for (const int victim : {0, 1, 3}) {
    Ranks ranks = start_on(hosts, "10.77.0.1:21813", 20000);
    ranks[static_cast<size_t>(victim)]->signal(SIGKILL);
    for (int r = 0; r < 4; ++r) {
      if (r == victim) continue;
      says(ranks[static_cast<size_t>(r)]->read_line(5 * kSecond), {text("failed MDP_E_PEER rank ", victim), "died"});
    }
  }
  // Silence is all there is to notice when the network is gone.
  Ranks ranks = start_on(hosts, "10.77.0.1:21814", 2000);
  hosts.cut_the_cable();
  for (auto& rank : ranks) says(rank->read_line(10 * kSecond), {"failed MDP_E_TIMEOUT", "has not been heard of for"});
}

// A name server that swallows questions, for one rank alone. The rank used to wait for the resolver, a minute and more, whatever its own
// timeout was.
void a_silent_name_server_is_not_waited_for() {
  const Fd server(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (static_cast<uint32_t>(::getpid()) & 0xffff) * 16);  // two tests at once do not meet
  address.sin_port = htons(53);
  char number[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address.sin_addr, number, sizeof number);
  char path[] = "/tmp/megadp-resolv-XXXXXX";
  const Fd file(::mkostemp(path, O_CLOEXEC));
  const std::string contents = text("nameserver ", number, "\noptions timeout:30 attempts:2\n");
  const std::string mount = text("mount --bind ", path, " /etc/resolv.conf");
  const bool made = ::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                    ::write(file.get(), contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()) &&
                    shell("unshare --mount " + mount);
  if (made) {
    RankProcess rank(fresh_job(), 1, 2, 500, "leave", {"unshare", "--mount", "sh", "-c", mount + " && exec \"$0\" \"$@\""},
                     "a-host.invalid:4000");
    says(rank.read_line(20 * kSecond),
         {"did not join MDP_E_TIMEOUT", "could not meet rank 0 at a-host.invalid:4000 within 0.5 s", "looking up a-host.invalid"});
  } else {
    std::cerr << "SKIPPED (1 case): a name server cannot be set up here (root and `unshare` are needed)\n";
  }
  ::unlink(path);
}

}  // namespace

void network_cases() {
  meets_over_tcp("127.0.0.1");
  meets_over_tcp("localhost");
  if (has_ipv6_loopback()) {
    meets_over_tcp("::1");
  } else {
    std::cerr << "SKIPPED (1 case): this machine has no address ::1\n";
  }
  follows_itself_over_tcp();
  deaths_over_tcp();
  leaving_over_tcp();
  two_hosts_are_one_world();
  a_silent_name_server_is_not_waited_for();
}

}  // namespace megadp::test
