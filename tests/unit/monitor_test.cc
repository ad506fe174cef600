// SPDX-License-Identifier: Apache-2.0
// One Monitor, or two, among ranks that the test plays itself, over socket pairs: so the order in which news arrives is the test's.
#include "control/monitor/monitor.h"

#include <linux/filter.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "check.h"
#include "control/net/socket.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

template <class Condition>
bool wait_until(Condition condition, uint64_t limit_ns = 20 * kSecondNs) {
  const Deadline deadline = Deadline::after_ns(limit_ns);
  while (!condition()) {
    if (deadline.passed()) return false;
    sleep_ms(2);
  }
  return true;
}

// A rank that the test plays: its end of a socket whose other end a Monitor has.
class Played {
 public:
  Monitor::Connection connection(int rank, bool control, bool serving = false) {
    int ends[2] = {-1, -1};
    check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "a pair of sockets");
    Monitor::Connection made = connection(rank, Fd(ends[0]), Fd(ends[1]));
    made.control = control;
    made.descriptors = !control;
    made.serving = serving;
    return made;
  }
  Monitor::Connection connection_over_tcp(int rank) {
    const auto listener = listen_at_free_port("127.0.0.1");
    check(listener.ok(), "a port");
    auto theirs = connect_to({"", "127.0.0.1", own_end(listener->get()).port}, Deadline::after_ns(kSecondNs));
    auto mine = accept_from(*listener);
    check(theirs.ok() && mine.ok(), "a connection");
    Monitor::Connection made = connection(rank, *std::move(mine), *std::move(theirs));
    made.control = made.over_tcp = true;
    return made;
  }
  void send(FrameType type, std::string payload) {
    link_->send(type, std::move(payload));
    link_->flush();
    check(link_->idle(), "what was sent is on its way");
  }
  void send_with_a_descriptor(FrameType type, std::string payload) {
    link_->send(type, std::make_shared<const std::string>(std::move(payload)), {descriptor_});
    link_->flush();
  }
  void heartbeat() {
    FrameWriter none_silent;
    none_silent.u32(0);
    send(FrameType::heartbeat, none_silent.take());
  }
  void goodbye(int rank) {
    FrameWriter writer;
    writer.i32(rank);
    send(FrameType::goodbye, writer.take());
  }
  void failure(int reporter, const Status& why) {
    FrameWriter writer;
    writer.i32(reporter);
    writer.status(why);
    send(FrameType::failure, writer.take());
  }
  // Whether a frame of this type has come; others are passed over.
  bool has_received(FrameType type, Frame* out = nullptr) {
    (void)link_->receive(&frames_);
    while (!frames_.empty()) {
      Frame frame = std::move(frames_.front());
      frames_.erase(frames_.begin());
      if (frame.type != type) continue;
      if (out != nullptr) *out = std::move(frame);
      return true;
    }
    return false;
  }
  bool receives(FrameType type, Frame* out = nullptr) {
    return wait_until([&] { return has_received(type, out); });
  }
  int fd() const { return link_->fd(); }
  void close() { link_.reset(); }

 private:
  Monitor::Connection connection(int rank, Fd mine, Fd theirs) {
    link_ = std::make_unique<Link>(std::move(mine), 1 << 20);
    Monitor::Connection made;
    made.rank = rank;
    made.link = std::make_unique<Link>(std::move(theirs), 1 << 20);
    return made;
  }

  std::unique_ptr<Link> link_;
  std::vector<Frame> frames_;
  std::shared_ptr<const Fd> descriptor_ = std::make_shared<const Fd>(::dup(1));
};

// Ranks of this process, or of others that no Monitor can watch.
std::vector<Process> table_of(int size) {
  std::vector<Process> table(static_cast<size_t>(size), this_process());
  return table;
}

std::shared_ptr<Monitor> make(int rank, uint64_t timeout_ns, std::vector<Process> table) {
  return std::make_shared<Monitor>(rank, timeout_ns, std::move(table));
}

// A short silence is forgiven, whatever "short" is next to the timeout: a second is nothing if 20 are allowed.
void silence_is_measured_by_the_timeout() {
  Played hub;
  auto monitor = make(1, 20 * kSecondNs, table_of(2));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  sleep_ms(2500);
  check(!monitor->failed(), "a rank that was silent for 2.5 of 20 s is given up: " + monitor->failure().text());
  hub.heartbeat();
  check(wait_until([&] { return monitor->describe(0).find("is alive") != std::string::npos; }), monitor->describe(0));
  monitor->leave();

  Played silent;
  auto strict = make(1, 1'200'000'000, table_of(2));
  strict->add_connection(silent.connection(0, true));
  check(strict->start().ok(), "the monitor starts");
  check(wait_until([&] { return strict->failed(); }), "a rank that stays silent is given up");
  fails(strict->failure(), Code::timeout, {"rank 0 (pid ", "has not been heard of for"});
  check_equal(strict->failure().blame().rank, 0, "the rank to blame");
  strict->leave();
}

// Of ranks that it has no connection to a rank knows what the hub says, last.
void silence_is_told_by_the_hub() {
  Played hub;
  auto monitor = make(1, 60 * kSecondNs, table_of(4));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  FrameWriter one_silent;
  one_silent.u32(1);
  one_silent.i32(2);
  one_silent.u64(7'500'000'000);
  hub.send(FrameType::heartbeat, one_silent.take());
  check(wait_until([&] { return monitor->describe(2).find("has not been heard of for 7.5 s") != std::string::npos; }),
        monitor->describe(2));
  check(monitor->describe(3).find("is alive") != std::string::npos, monitor->describe(3));
  hub.heartbeat();
  check(wait_until([&] { return monitor->describe(2).find("is alive") != std::string::npos; }), monitor->describe(2));
  monitor->leave();
}

// The hub goes in peace while somebody still waits for what it was to carry: that is answered at once, not after the timeout.
void calls_are_answered_when_the_relay_goes() {
  Played hub;
  auto monitor = make(1, 60 * kSecondNs, table_of(3));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  Status told;
  std::thread caller([&] { told = monitor->operate(OperationKind::exchange, {1, 2}, {"test", "mine", nullptr}).status(); });
  check(hub.receives(FrameType::give), "the call reaches the hub");
  hub.goodbye(0);
  hub.close();
  const uint64_t begun = now_ns();
  caller.join();
  check(now_ns() - begun < 20 * kSecondNs, "the call is answered long before its timeout");
  fails(told, Code::peer, {"rank 0 (pid ", "which relays control messages, has left"});
  check_equal(told.blame().rank, 0, "the rank to blame");
  fails(monitor->operate(OperationKind::exchange, {1, 2}, {"test", "mine", nullptr}).status(), Code::peer, {"rank 0", "has left"});
  check(!monitor->failed(), "leaving is no failure");
  monitor->leave();
}

// Nobody waits for the end of a line: it is a flag, which the hub's word sets, or that there will be none.
void the_end_of_a_line_is_told() {
  Played hub;
  auto monitor = make(1, 60 * kSecondNs, table_of(3));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  check(monitor->end_line({1}, 7) == nullptr, "of one member there is nobody to tell");
  const World::Ended first = monitor->end_line({1, 2}, 7), second = monitor->end_line({1, 2}, 8);
  Frame give;
  check(hub.receives(FrameType::give, &give), "the hub is told of the first");
  check(first != nullptr && second != nullptr && !*first && !*second, "neither has ended yet");
  OperationKey key;
  FrameReader given(give.payload);
  MemberLists lists;
  check(read_key(&given, 3, &lists, &key), "it names the line");
  FrameWriter all_have;
  write_key(&all_have, key, false);
  all_have.u32(0);
  hub.send(FrameType::result, all_have.take());
  check(wait_until([&] { return first->load(); }), "the first has ended");
  check(!*second, "the second has not");
  hub.goodbye(0);
  hub.close();
  check(wait_until([&] { return second->load(); }), "nobody can tell of the second any more");
  check(monitor->end_line({1, 2}, 9) == nullptr, "nor of a third");
  check(!monitor->failed(), "none of that is a failure: " + monitor->failure().text());
  monitor->leave();
}

// Its answer was there before the hub went: that counts.
void an_answer_that_has_come_stays() {
  Played hub;
  auto monitor = make(1, 60 * kSecondNs, table_of(3));
  monitor->add_connection(hub.connection(0, true));
  Result<std::shared_ptr<const Relay::Answer>> told = Status();
  std::thread caller([&] { told = monitor->operate(OperationKind::broadcast, {1, 2}, {"test", "mine", nullptr}); });
  Frame give;
  check(hub.receives(FrameType::give, &give), "the call reaches the hub");
  OperationKey key;
  FrameReader given(give.payload);
  MemberLists lists;
  check(read_key(&given, 3, &lists, &key), "it names the call");
  FrameWriter answer, bye;
  write_key(&answer, key, false);
  answer.bytes("from rank 1");
  bye.i32(0);
  hub.send(FrameType::result, answer.take());
  hub.send(FrameType::goodbye, bye.take());
  hub.close();
  check(monitor->start().ok(), "the monitor starts");  // not before: it reads all of that at one look, before the caller can wake
  caller.join();
  if (check(told.ok(), told.status().text())) check_equal((*told)->parts.front()->bytes, "from rank 1", "the answer");
  check(!monitor->failed(), "leaving is no failure");
  monitor->leave();
}

// Who gives up a call tells the hub, which knows who else waits.
void a_call_that_is_given_up_is_withdrawn() {
  Played hub;
  auto monitor = make(1, 300'000'000, table_of(3));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  Status told;
  std::thread caller([&] { told = monitor->operate(OperationKind::exchange, {1, 2}, {"test", "mine", nullptr}).status(); });
  Frame give, withdrawn;
  check(hub.receives(FrameType::give, &give) && hub.receives(FrameType::withdraw, &withdrawn), "the call is withdrawn at its timeout");
  OperationKey given, taken_back;
  FrameReader first(give.payload), second(withdrawn.payload);
  MemberLists lists;
  check(read_key(&first, 3, &lists, &given) && read_key(&second, 3, &lists, &taken_back), "both name the call");
  check(given.members == taken_back.members && given.sequence == taken_back.sequence, "it is the same call");
  FrameWriter answer;
  write_key(&answer, taken_back, false);
  answer.status(Status(Code::timeout, "rank 2 did not come", Blame{2}));
  hub.send(FrameType::undone, answer.take());
  caller.join();
  fails(told, Code::timeout, {"rank 2 did not come"});
  monitor->leave();
}

// A process that can be ended, as the table has it.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
  }
  Process process() const {
    Process of = this_process();
    of.pid = pid_;
    const auto stat = read_process_stat(text("/proc/", pid_, "/stat"));
    of.start_time = stat ? stat->start_time : 0;
    check(stat.has_value(), "the child runs");
    return of;
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  ~Child() { end(); }

 private:
  pid_t pid_;
};

// The news of a process's end outruns the goodbye that it sent by way of the hub.
void a_goodbye_on_its_way_is_waited_for() {
  for (const bool said_goodbye : {true, false}) {
    Child child;
    std::vector<Process> table = table_of(3);
    table[2] = child.process();
    Played hub;
    auto monitor = make(1, 20 * kSecondNs, table);
    monitor->add_connection(hub.connection(0, true));
    check(monitor->start().ok(), "the monitor starts");
    sleep_ms(100);
    child.end();
    sleep_ms(200);  // the end of the process is known by now
    check(!monitor->failed(), "a goodbye had no time to arrive: " + monitor->failure().text());
    if (said_goodbye) {
      hub.goodbye(2);
      check(wait_until([&] { return monitor->has_left(2); }), "the goodbye is heard");
      sleep_ms(1500);
      check(!monitor->failed(), "a rank that said goodbye has died: " + monitor->failure().text());
    } else {
      check(wait_until([&] { return monitor->failed(); }), "without a goodbye it has died");
      fails(monitor->failure(), Code::peer, {"rank 2 (pid ", "died"});
      check_equal(monitor->failure().blame().rank, 2, "the rank to blame");
      Frame told;
      check(hub.receives(FrameType::failure, &told), "the hub is told");
    }
    monitor->leave();
  }
}

// Of two containers that share a network, each has a process of the same number, started in the same tick: the end of one says nothing of
// the other.
void containers_have_numbers_of_their_own() {
  Child child;
  std::vector<Process> table = table_of(4);
  table[2] = table[3] = child.process();
  ++table[3].pid_namespace;
  Played hub;
  auto monitor = make(1, 20 * kSecondNs, table);
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  hub.goodbye(2);
  check(wait_until([&] { return monitor->has_left(2); }), "the goodbye is heard");
  child.end();
  sleep_ms(1500);
  check(!monitor->failed(), "a rank of another container has died: " + monitor->failure().text());
  monitor->leave();
}

// A rank that may have no more descriptors cannot go on, but it lives: the others are told why it ends the job, and not that it died.
void who_lacks_descriptors_says_so() {
  Played hub;
  auto monitor = make(1, 20 * kSecondNs, table_of(2));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{3, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  hub.send_with_a_descriptor(FrameType::result, "with a descriptor that finds no place");
  check(wait_until([&] { return monitor->failed(); }), "the loss is noticed");
  ::setrlimit(RLIMIT_NOFILE, &before);
  fails(monitor->failure(), Code::system, {"rank 1 (pid ", "ulimit -n"});
  Frame told;
  if (!check(hub.receives(FrameType::failure, &told), "the hub is not told why the connection ends")) return;
  FrameReader reader(told.payload);
  check_equal(reader.i32(), 1, "who tells");
  fails(reader.status(), Code::system, {"rank 1 (pid ", "ulimit -n"});
  monitor->leave();
}

// A goodbye whose packet is lost would stay lost if the process ended with something unread in its socket: it is waited for.
void a_goodbye_arrives_before_its_sender_is_gone() {
  Played hub;
  Monitor::Connection over_tcp = hub.connection_over_tcp(0);
  const int fd = hub.fd();
  auto monitor = make(1, 20 * kSecondNs, table_of(2));
  monitor->add_connection(std::move(over_tcp));
  check(monitor->start().ok(), "the monitor starts");
  sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog all{1, &drop};
  check(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all) == 0, "packets are lost");
  int detached = -1;
  std::thread mended([fd, &detached] {
    sleep_ms(50);
    const int none = 0;
    detached = ::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
  });
  monitor->leave();
  const bool came = hub.has_received(FrameType::goodbye);
  mended.join();
  check(detached == 0, "and are lost no more");
  check(came, "who has left has not said goodbye");
}

// Rank 2 learned of a failure from the hub, which is then lost: rank 1, on the same node, hears of it from rank 2 as that leaves. It must
// not take rank 2 for one that has done its work.
void leaving_after_a_failure_is_not_peaceful() {
  int ends[2] = {-1, -1};
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "a pair of sockets");
  const auto beside = [&](int end, int rank, bool serving) {
    Monitor::Connection made;
    made.rank = rank;
    made.descriptors = true;
    made.serving = serving;
    made.link = std::make_unique<Link>(Fd(ends[end]), 1 << 20);
    return made;
  };
  Played hub_of_leader, hub_of_other;
  auto leader = make(1, 20 * kSecondNs, table_of(3)), other = make(2, 20 * kSecondNs, table_of(3));
  for (const auto& monitor : {leader, other}) monitor->set_leader(1);
  leader->add_connection(hub_of_leader.connection(0, true));
  leader->add_connection(beside(0, 2, true));
  other->add_connection(hub_of_other.connection(0, true));
  other->add_connection(beside(1, 1, false));
  check(leader->start().ok() && other->start().ok(), "the monitors start");
  hub_of_other.failure(-1, Status(Code::numeric, "the lid is on fire", Blame{0}));
  check(wait_until([&] { return other->failed(); }), "rank 2 is told");
  check(!leader->failed(), "rank 1 is not: the hub's word to it is lost");
  other->leave();
  check(wait_until([&] { return leader->has_left(2); }), "rank 2 leaves");
  check(leader->failed(), "rank 2 left as if in peace");
  fails(leader->failure(), Code::numeric, {"the lid is on fire"});
  leader->leave();
}

// The first failure stays, wherever the next one comes from.
void the_first_failure_stays() {
  Played hub;
  auto monitor = make(1, 20 * kSecondNs, table_of(3));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  hub.failure(2, Status(Code::numeric, "the first", Blame{2}));
  check(wait_until([&] { return monitor->failed(); }), "it is told");
  fails(monitor->failure(), Code::numeric, {"rank 2 reported", "the first"});
  monitor->fail(Status(Code::aborted, "the second"));
  hub.failure(-1, Status(Code::aborted, "the third"));
  hub.heartbeat();
  check(wait_until([&] { return monitor->describe(0).find("is alive") != std::string::npos; }), monitor->describe(0));
  hub.close();
  sleep_ms(100);  // and that the hub is gone is no news either
  fails(monitor->failure(), Code::numeric, {"rank 2 reported", "the first"});
  monitor->leave();
}

// What makes no sense fails its sender, also if that is the hub.
void nonsense_of_the_hub_is_a_failure() {
  FrameWriter empty_heartbeat, long_heartbeat, goodbye_of_mine, answer_to_others;
  empty_heartbeat.u32(0);
  long_heartbeat.u32(4);
  for (int rank = 0; rank < 4; ++rank) {
    long_heartbeat.i32(rank);
    long_heartbeat.u64(0);
  }
  goodbye_of_mine.i32(1);
  write_key(&answer_to_others, {OperationKind::exchange, {0, 2}, 1}, true);
  for (int part = 0; part < 2; ++part) answer_to_others.bytes("");
  const std::string heartbeat = empty_heartbeat.take();
  const std::vector<std::function<void(Played&)>> kinds = {
      [&](Played& hub) { hub.send_with_a_descriptor(FrameType::heartbeat, heartbeat); },
      [&](Played& hub) { hub.send(FrameType::heartbeat, heartbeat + "more"); },
      [&, words = long_heartbeat.take()](Played& hub) { hub.send(FrameType::heartbeat, words); },
      [&, words = goodbye_of_mine.take()](Played& hub) { hub.send(FrameType::goodbye, words); },
      [&, words = answer_to_others.take()](Played& hub) { hub.send(FrameType::result, words); },
      [&](Played& hub) { hub.send(FrameType::failure, "short"); },
      [&](Played& hub) { hub.send(FrameType::hello, "again"); },
  };
  for (size_t i = 0; i < kinds.size(); ++i) {
    Played hub;
    auto monitor = make(1, 20 * kSecondNs, table_of(3));
    monitor->add_connection(hub.connection(0, true));
    check(monitor->start().ok(), "the monitor starts");
    kinds[i](hub);
    check(wait_until([&] { return monitor->failed(); }), text("nonsense ", i, " is noticed"));
    fails(monitor->failure(), Code::corrupt, {"rank 0 (pid ", "sent a message that makes no sense"});
    monitor->leave();
  }
}

// Of the threads of this process with that name: those that may be given a signal of the program.
int threads_open_to_signals(const std::string& name) {
  int open = 0, found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm"), status(task.path() / "status");
    std::string line;
    if (!std::getline(comm, line) || line != name) continue;
    ++found;
    while (std::getline(status, line)) {
      if (line.rfind("SigBlk:", 0) != 0) continue;
      const uint64_t blocked = std::strtoull(line.c_str() + 7, nullptr, 16);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1}) open += (blocked >> (signal - 1) & 1) == 0 ? 1 : 0;
    }
  }
  return found == 0 ? -1 : open;
}

void the_thread_takes_no_signals() {
  Played hub;
  auto monitor = make(1, 20 * kSecondNs, table_of(2));
  monitor->add_connection(hub.connection(0, true));
  check(monitor->start().ok(), "the monitor starts");
  // Not before the thread has its name; an earlier monitor's may be on its way out.
  check(wait_until([] { return threads_open_to_signals("megadp-monitor") == 0; }), "no monitor's thread may be given a signal");
  monitor->leave();
}

}  // namespace

int main() {
  silence_is_measured_by_the_timeout();
  silence_is_told_by_the_hub();
  calls_are_answered_when_the_relay_goes();
  the_end_of_a_line_is_told();
  an_answer_that_has_come_stays();
  a_call_that_is_given_up_is_withdrawn();
  a_goodbye_on_its_way_is_waited_for();
  containers_have_numbers_of_their_own();
  who_lacks_descriptors_says_so();
  a_goodbye_arrives_before_its_sender_is_gone();
  leaving_after_a_failure_is_not_peaceful();
  the_first_failure_stays();
  nonsense_of_the_hub_is_a_failure();
  the_thread_takes_no_signals();
  return finish();
}
