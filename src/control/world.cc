// SPDX-License-Identifier: Apache-2.0
// World::join: the ranks meet, the monitor takes over, and on each node a second rendezvous connects the ranks that can pass descriptors.
#include "control/world.h"

#include <algorithm>
#include <map>
#include <new>
#include <numeric>

#include "base/leak.h"
#include "base/text.h"
#include "control/interrupt.h"
#include "control/join/job_guard.h"
#include "control/join/job_key.h"
#include "control/join/rendezvous.h"
#include "control/launch/launch.h"
#include "control/monitor/monitor.h"
#include "control/net/socket.h"
#include "control/process_id.h"

namespace megadp {
namespace {

// Nodes by rank, numbered in order of their lowest rank. Ranks that met at a UNIX socket share a node whatever else they say.
std::vector<int> number_nodes(const std::vector<Process>& table, bool one_node) {
  std::vector<int> nodes(table.size(), 0);
  if (one_node) return nodes;
  std::map<std::string, int> known;
  for (size_t r = 0; r < table.size(); ++r) {
    nodes[r] = known.try_emplace(table[r].host_key, static_cast<int>(known.size())).first->second;
  }
  return nodes;
}

class JoinedWorld final : public World {
 public:
  JoinedWorld(std::shared_ptr<Monitor> monitor, std::vector<int> nodes, const AuthKey& key, std::string address, JobGuard guard)
      : monitor_(std::move(monitor)),
        nodes_(std::move(nodes)),
        key_(key),
        address_(std::move(address)),
        joined_in_(process_id()),
        guard_(std::move(guard)) {}

  ~JoinedWorld() override {
    if (in_forked_child()) {
      // The sockets are the parent's, and the mutex may be held by a thread that does not exist here: the copy is left as it is.
      leak(std::move(monitor_));
      return;
    }
    try {
      monitor_->leave();
    } catch (const std::bad_alloc&) {  // the others take it for a death
    }
  }

  int rank() const noexcept override { return monitor_->rank(); }
  int size() const noexcept override { return monitor_->size(); }
  uint64_t timeout_ns() const noexcept override { return monitor_->timeout_ns(); }
  int node(int rank) const noexcept override { return nodes_[static_cast<size_t>(rank)]; }
  int process(int rank) const noexcept override { return monitor_->table()[static_cast<size_t>(rank)].pid; }
  const std::string& host_name(int rank) const noexcept override { return monitor_->table()[static_cast<size_t>(rank)].host_name; }
  const std::string& address() const noexcept override { return address_; }
  std::array<uint8_t, 32> key_for(std::string_view purpose) const override { return derived_key(key_, purpose); }
  bool in_forked_child() const noexcept override { return process_id() != joined_in_; }
  bool failed() const noexcept override { return monitor_->failed(); }
  Status failure() const override { return monitor_->failure(); }
  void fail(const Status& why) override { monitor_->fail(why); }
  bool has_left(int rank) const noexcept override { return monitor_->has_left(rank); }
  std::string describe(int rank) const override { return monitor_->describe(rank); }

  Result<std::vector<std::string>> exchange(const std::vector<int>& members, const char* what, const std::string& mine,
                                            uint64_t line) override {
    auto answer = carry(OperationKind::exchange, members, what, mine, line);
    if (!answer.ok()) return answer.status();
    std::vector<std::string> all;
    for (const auto& part : (*answer)->parts) all.push_back(part->bytes);
    return all;
  }

  Result<std::optional<Mismatch>> compare(const std::vector<int>& members, const char* what, const std::string& mine,
                                          uint64_t line) override {
    auto answer = carry(OperationKind::compare, members, what, mine, line);
    if (!answer.ok()) return answer.status();
    const Relay::Answer& found = **answer;
    if (found.other == 0) return std::optional<Mismatch>();
    return std::optional(Mismatch{members.front(), members[found.other], found.parts[0]->bytes, found.parts[1]->bytes});
  }

  Result<std::string> broadcast(const std::vector<int>& members, const char* what, const std::string& mine, uint64_t line) override {
    auto answer =
        carry(OperationKind::broadcast, members, what, !members.empty() && members.front() == rank() ? mine : std::string(), line);
    if (!answer.ok()) return answer.status();
    return (*answer)->parts.front()->bytes;
  }

  Ended end_line(const std::vector<int>& members, uint64_t line) noexcept override { return monitor_->end_line(members, line); }

  Result<std::vector<Fd>> share(const std::vector<int>& members, const char* what, const Fd& mine) override {
    Status status = check_members(*this, members);
    if (!status.ok()) return status;
    for (const int member : members) {
      if (node(member) == node(rank())) continue;
      return invalid("descriptors cannot be passed between rank ", rank(), " on ", host_name(rank()), " and rank ", member, " on ",
                     host_name(member), ": they are on different nodes");
    }
    if (failed()) return failure();
    auto copy = duplicate(mine);  // the monitor may send it after a caller that timed out has closed its own
    std::vector<Fd> all;
    if (members.size() == 1) {
      if (!copy.ok()) return copy.status();
      all.push_back(*std::move(copy));
      return all;
    }
    // Without a descriptor the rank comes nevertheless: the others would wait for it.
    Contribution own_part{what, copy.ok() ? "" : copy.status().text().substr(0, kMaxReasonBytes), nullptr};
    if (copy.ok()) own_part.fd = std::make_shared<Fd>(*std::move(copy));
    auto answer = monitor_->operate(OperationKind::share, members, std::move(own_part));
    if (!answer.ok()) return ended(answer.status());
    for (const auto& part : (*answer)->parts) {
      if (part.use_count() == 1 && part->fd.use_count() == 1) {  // received for this call alone
        all.push_back(std::move(*part->fd));
        continue;
      }
      auto own = duplicate(*part->fd);
      if (!own.ok()) return own.status();
      all.push_back(*std::move(own));
    }
    return all;
  }

 private:
  using Answer = std::shared_ptr<const Relay::Answer>;
  Result<Answer> carry(OperationKind kind, const std::vector<int>& members, const char* what, const std::string& mine, uint64_t line = 0) {
    Status status = check_members(*this, members);
    if (!status.ok()) return status;
    if (mine.size() > kMaxExchangeBytes) {
      return invalid("a message of ", mine.size(), " bytes is too long to be exchanged: at most ", kMaxExchangeBytes);
    }
    if (members.size() == 1) {
      if (failed()) return failure();
      auto own = std::make_shared<const Contribution>(Contribution{what, mine, nullptr});
      return std::make_shared<const Relay::Answer>(Relay::Answer{{}, {std::move(own)}});
    }
    auto answer = monitor_->operate(kind, members, {what, mine, nullptr}, line);
    if (!answer.ok()) return is_callers(line) ? answer.status() : ended(answer.status());
    return answer;
  }

  // Whoever has a line of its own knows what its exchange was for, and fails the World with that.
  static bool is_callers(uint64_t line) noexcept { return line != 0 && line != kFilesLine; }

  // A rank that goes on after this would meet the others in the middle of another call.
  Status ended(const Status& why) {
    if (why.code() == Code::timeout || why.code() == Code::peer || why.code() == Code::desync) monitor_->fail(why);
    return why;
  }

  std::shared_ptr<Monitor> monitor_;
  std::vector<int> nodes_;
  AuthKey key_;
  std::string address_;
  int joined_in_;
  JobGuard guard_;
};

Status check_launch(const Launch& launch, uint64_t timeout_ns) {
  if (launch.nranks < 1) return invalid("size is ", launch.nranks, ": at least 1 is needed");
  if (launch.nranks > kMaxRanks) return invalid("size is ", launch.nranks, ": at most ", kMaxRanks, " are possible");
  if (launch.rank < 0 || launch.rank >= launch.nranks) {
    return invalid("rank is ", launch.rank, ": it must be at least 0 and below size, which is ", launch.nranks);
  }
  if (timeout_ns == 0) return invalid("the timeout is 0 ns: nobody could come in time");
  if (launch.nranks > 1 && launch.job.empty()) return invalid("the job has no name, so its ranks could not find each other");
  return {};
}

Result<JoinResult> meet(const JoinRequest& request) {
  return request.rank == request.server_rank ? join_as_server(request) : join_as_client(request);
}

Status caller_interrupted() {
  return interrupted() ? interruption() : Status();
}

// Hands the links of a rendezvous to the monitor.
void connect(Monitor& monitor, const JoinRequest& request, JoinResult joined, bool control, bool descriptors) {
  const bool serving = request.rank == request.server_rank;
  for (size_t i = 0; i < joined.links.size(); ++i) {
    if (!joined.links[i]) continue;
    Monitor::Connection connection;
    connection.rank = serving ? request.expected[i] : request.server_rank;
    connection.control = control;
    connection.descriptors = descriptors;
    connection.over_tcp = !request.endpoint.is_unix();
    connection.serving = serving;
    connection.link = std::move(joined.links[i]);
    monitor.add_connection(std::move(connection), std::move(joined.early));
  }
}

// See World::address. Of the hub's connections the first to another node counts.
std::string address_between_nodes(const JoinRequest& request, const std::vector<int>& nodes, const JoinResult& joined) {
  for (size_t i = 0; i < joined.links.size() && !request.endpoint.is_unix(); ++i) {
    const bool own_node = request.rank == request.server_rank && nodes[i] == nodes[static_cast<size_t>(request.rank)];
    if (!joined.links[i] || own_node) continue;
    const SocketAddress end = own_end(joined.links[i]->fd());
    if (!end.loopback) return end.host;
  }
  return "";
}

// Between nodes, the ranks of each node meet once more, at a UNIX socket of their lowest rank.
Status join_within_node(const Launch& launch, const JoinRequest& world, const std::vector<int>& nodes, Monitor& monitor) {
  JoinRequest request = world;
  request.expected.clear();
  for (int r = 0; r < launch.nranks; ++r) {
    if (nodes[static_cast<size_t>(r)] == nodes[static_cast<size_t>(launch.rank)]) request.expected.push_back(r);
  }
  request.server_rank = request.expected.front();
  monitor.set_leader(request.server_rank);
  if (request.expected.size() > 1) {
    request.endpoint = {socket_name(launch, text("node of rank ", request.server_rank)), "", 0};
    request.deadline = Deadline::after_ns(request.timeout_ns);
    request.interrupted = [&monitor] { return monitor.failed() ? monitor.failure() : caller_interrupted(); };
    auto joined = meet(request);
    if (!joined.ok()) return joined.status();
    connect(monitor, request, *std::move(joined), false, true);
  }
  // Nobody goes on before all nodes are ready.
  return monitor.operate(OperationKind::compare, all_ranks(launch.nranks), {"joining the world", {}, nullptr}).status();
}

}  // namespace

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Status check_members(const World& world, const std::vector<int>& members) {
  std::vector<bool> seen(static_cast<size_t>(world.size()));
  for (const int member : members) {
    if (member < 0 || member >= world.size()) {
      return invalid("members: ", member, " is not a rank of this world; ranks are 0 to ", world.size() - 1);
    }
    if (seen[static_cast<size_t>(member)]) return invalid("members: rank ", member, " is listed twice");
    seen[static_cast<size_t>(member)] = true;
  }
  if (!seen[static_cast<size_t>(world.rank())]) {
    return invalid("members: rank ", world.rank(), ", which makes the call, is not among them");
  }
  return {};
}

Result<std::shared_ptr<World>> World::join(const Launch& given, uint64_t timeout_ns) {
  Launch launch = given;
  Status status = check_launch(launch, timeout_ns);
  if (!status.ok()) return status;
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  auto listeners = complete_launch(&launch, deadline);
  if (!listeners.ok()) return listeners.status();
  JoinRequest request;
  request.nranks = launch.nranks;
  request.rank = launch.rank;
  request.self = this_process();
  if (launch.nranks == 1) {
    auto alone = std::make_shared<Monitor>(0, timeout_ns, std::vector<Process>{request.self});
    return std::shared_ptr<World>(
        std::make_shared<JoinedWorld>(std::move(alone), std::vector<int>{0}, auth_key_of(launch), "", JobGuard()));
  }
  const bool one_node = launch.root_port == 0;
  request.endpoint = one_node ? Endpoint{socket_name(launch, "hub"), "", 0} : Endpoint{"", launch.root_host, launch.root_port};
  request.key = auth_key_of(launch);
  request.expected = all_ranks(launch.nranks);
  request.timeout_ns = timeout_ns;
  request.deadline = deadline;
  request.interrupted = caller_interrupted;
  request.listeners = &*listeners;
  if (!has_secret(launch)) request.guard = socket_name(launch, "job");
  const bool guards = launch.rank == 0 && !request.guard.empty();
  auto guard = guards ? JobGuard::take(request.guard, deadline, caller_interrupted) : JobGuard();
  if (!guard.ok()) return guard.status();
  auto joined = meet(request);
  if (!joined.ok()) return joined.status();

  std::vector<int> nodes = number_nodes(joined->table, one_node);
  auto monitor = std::make_shared<Monitor>(launch.rank, timeout_ns, joined->table);
  const std::string address = address_between_nodes(request, nodes, *joined);
  connect(*monitor, request, *std::move(joined), true, one_node);
  // From here on whatever fails says goodbye.
  auto world = std::make_shared<JoinedWorld>(monitor, nodes, request.key, address, *std::move(guard));
  status = monitor->start();
  if (status.ok() && !one_node) status = join_within_node(launch, request, nodes, *monitor);
  if (status.ok()) return std::shared_ptr<World>(std::move(world));
  monitor->fail(status);
  return status;
}

}  // namespace megadp
