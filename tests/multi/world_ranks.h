// SPDX-License-Identifier: Apache-2.0
// For the tests of World: ranks as threads of the test, ranks as processes of their own (the test's own program, started again with
// "--rank"), and the checks both report to.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "control/launch/launch.h"
#include "control/world.h"

extern char** environ;

namespace megadp::test {

using Place = std::source_location;

inline std::atomic<int> failures{0};
inline std::atomic<int> checks{0};
inline std::mutex print_mutex;

inline bool check(bool good, const std::string& what, Place at = Place::current()) {
  ++checks;
  if (good) return true;
  ++failures;
  std::lock_guard<std::mutex> lock(print_mutex);
  std::cerr << at.file_name() << ":" << at.line() << ": " << what << "\n";
  return false;
}

inline bool says(const std::string& sentence, const std::vector<std::string>& words, Place at = Place::current()) {
  bool good = true;
  for (const std::string& word : words) {
    good &= check(sentence.find(word) != std::string::npos, text("'", sentence, "' does not say '", word, "'"), at);
  }
  return good;
}

inline bool fails(const Status& status, Code code, const std::vector<std::string>& words, Place at = Place::current()) {
  check(status.code() == code, text("status is ", code_name(status.code()), " '", status.text(), "', not ", code_name(code)), at);
  return says(status.text(), words, at);
}

constexpr uint64_t kSecond = 1'000'000'000;

inline std::string fresh_job() {
  static std::atomic<int> count{0};
  return text("world_test ", ::getpid(), " ", ++count);
}

inline Launch launch_of(const std::string& job, int rank, int nranks, const std::string& root_host = "", uint16_t root_port = 0) {
  Launch launch;
  launch.launcher = "test";
  launch.rank = rank;
  launch.nranks = nranks;
  launch.job = job;
  launch.secret.fill(7);
  launch.root_host = root_host;
  launch.root_port = root_port;
  return launch;
}

// A TCP port of loopback that nobody else uses while this lives. The bound socket keeps the system from giving the port to others, and,
// as it does not listen, does not keep the ranks from listening there.
class FreePort {
 public:
  FreePort() : holder_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(holder_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (::bind(holder_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
        ::getsockname(holder_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0) {
      number_ = ntohs(address.sin_port);
    }
    check(number_ != 0, "a free port");
  }
  uint16_t number() const { return number_; }

 private:
  Fd holder_;
  uint16_t number_ = 0;
};

// Runs body(rank) on one thread per rank.
inline void on_threads(int nranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < nranks; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

using WorldPtr = std::shared_ptr<World>;

// Joins on every thread, then runs body.
inline void in_world(int nranks, const std::function<void(int, WorldPtr)>& body, uint64_t timeout_ns = 20 * kSecond,
                     const std::string& root_host = "", uint16_t root_port = 0, Place at = Place::current()) {
  const std::string job = fresh_job();
  on_threads(nranks, [&](int rank) {
    auto world = World::join(launch_of(job, rank, nranks, root_host, root_port), timeout_ns);
    if (check(world.ok(), text("rank ", rank, " did not join: ", world.status().text()), at)) body(rank, *std::move(world));
  });
}

inline std::vector<int> ranks_below(int count) {
  std::vector<int> ranks;
  for (int r = 0; r < count; ++r) ranks.push_back(r);
  return ranks;
}

template <class Condition>
bool wait_until(Condition condition, uint64_t limit_ns) {
  const Deadline deadline = Deadline::after_ns(limit_ns);
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline int count_entries(const char* folder) {
  int count = 0;
  DIR* const dir = ::opendir(folder);
  if (dir == nullptr) return -1;
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

inline int count_threads() {
  return count_entries("/proc/self/task");
}
// What has been joined may be listed for a moment more.
inline int least_threads() {
  int least = count_threads();
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    least = std::min(least, count_threads());
  }
  return least;
}
inline int quiet_threads = 0;  // how many there are when no rank runs

// A rank as a process. Its standard output comes here line by line; it is killed at the latest when this is destroyed.
class RankProcess {
 public:
  RankProcess(const std::string& job, int rank, int nranks, int timeout_ms, const std::string& behaviour,
              std::vector<std::string> prefix = {}, const std::string& root = "") {
    int out[2];
    if (::pipe2(out, O_CLOEXEC) != 0) return;
    out_ = Fd(out[0]);
    const Fd write_end(out[1]);
    std::vector<std::string> words = std::move(prefix);
    for (const std::string& word : {std::string(own_path()), std::string("--rank"), job, std::to_string(rank), std::to_string(nranks),
                                    std::to_string(timeout_ms), behaviour, root}) {
      words.push_back(word);
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
    if (::posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) pid_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
  }
  RankProcess(const RankProcess&) = delete;
  ~RankProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // The exit status, as waitpid tells it.
  int wait_for_end() {
    int status = -1;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  // Empty at the end of the output or when the limit has passed.
  std::string read_line(uint64_t limit_ns) {
    const Deadline deadline = Deadline::after_ns(limit_ns);
    for (;;) {
      const size_t end = read_.find('\n');
      if (end != std::string::npos) {
        const std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return line;
      }
      pollfd polled{out_.get(), POLLIN, 0};
      const int n = ::poll(&polled, 1, static_cast<int>(deadline.left_ns() / 1'000'000));
      if (n == 0 || deadline.passed()) return {};
      char bytes[4096];
      const ssize_t got = ::read(out_.get(), bytes, sizeof bytes);
      if (got <= 0) return {};
      read_.append(bytes, static_cast<size_t>(got));
    }
  }

  static std::string own_path() {
    char path[4096] = {};
    return ::readlink("/proc/self/exe", path, sizeof path - 1) > 0 ? path : "";
  }

 private:
  pid_t pid_ = -1;
  Fd out_;
  std::string read_;
};

// What a started process does; returns its exit status.
int be_a_rank(int argc, char** argv);
// The same as a rank of whatever launcher started this process ("--environment").
int be_a_rank_of_the_environment();
int be_a_rank_of_a_bootstrap(const std::string& path, int rank, int nranks);
int join_and_tell(const Launch& launch);  // prints one line: whom it heard, on which nodes

// The groups of cases.
void rendezvous_cases();
void guard_cases();
void collective_cases();
void failure_cases();
void network_cases();

}  // namespace megadp::test
