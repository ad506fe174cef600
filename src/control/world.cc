// SPDX-License-Identifier: Apache-2.0
// World::join: the ranks meet, the monitor takes over, and on each host a second meeting connects the ranks that can pass descriptors.
#include "control/world.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>

#include "base/text.h"
#include "control/join/job_key.h"
#include "control/join/rendezvous.h"
#include "control/launch/launch.h"
#include "control/monitor/monitor.h"
#include "control/net/socket.h"

namespace megadp {
namespace {

// Hosts by rank, numbered in order of their lowest rank. Ranks that met at a UNIX socket share a host whatever else they say.
std::vector<int> number_hosts(const std::vector<Process>& table, bool one_host) {
  std::vector<int> hosts(table.size(), 0);
  if (one_host) return hosts;
  std::map<std::string, int> known;
  for (size_t r = 0; r < table.size(); ++r) {
    hosts[r] = known.try_emplace(table[r].host_key, static_cast<int>(known.size())).first->second;
  }
  return hosts;
}

class JoinedWorld final : public World {
 public:
  JoinedWorld(std::shared_ptr<Monitor> monitor, std::vector<int> hosts, const Guard& guard, std::string address)
      : monitor_(std::move(monitor)), hosts_(std::move(hosts)), guard_(guard), address_(std::move(address)), joined_in_(::getpid()) {}

  ~JoinedWorld() override {
    if (in_forked_child()) {
      // The sockets are the parent's, and the mutex may be held by a thread that does not exist here: the copy is left as it is.
      (void)new std::shared_ptr<Monitor>(std::move(monitor_));
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
  int host(int rank) const noexcept override { return hosts_[static_cast<size_t>(rank)]; }
  int process(int rank) const noexcept override { return monitor_->table()[static_cast<size_t>(rank)].pid; }
  const std::string& host_name(int rank) const noexcept override { return monitor_->table()[static_cast<size_t>(rank)].host_name; }
  const std::string& address() const noexcept override { return address_; }
  std::array<uint8_t, 32> key_for(std::string_view purpose) const override { return derived_guard(guard_, purpose); }
  bool in_forked_child() const noexcept override { return ::getpid() != joined_in_; }
  bool failed() const noexcept override { return monitor_->failed(); }
  Status failure() const override { return monitor_->failure(); }
  void fail(const Status& why) override { monitor_->fail(why); }
  bool has_left(int rank) const noexcept override { return monitor_->has_left(rank); }
  std::string describe(int rank) const override { return monitor_->describe(rank); }

  Result<std::vector<std::string>> exchange(const std::vector<int>& members, const char* what, const std::string& mine) override {
    Status status = check_members(*this, members);
    if (!status.ok()) return status;
    if (mine.size() > kMaxExchangeBytes) {
      return invalid("a message of ", mine.size(), " bytes is too long to be exchanged: at most ", kMaxExchangeBytes);
    }
    if (members.size() == 1) {
      if (failed()) return failure();
      return std::vector<std::string>{mine};
    }
    auto parts = monitor_->operate(OperationKind::exchange, members, {what, mine, nullptr});
    if (!parts.ok()) return ended(parts.status());
    std::vector<std::string> all;
    for (const auto& part : *parts) all.push_back(part->bytes);
    return all;
  }

  Result<std::vector<Fd>> share(const std::vector<int>& members, const char* what, const Fd& mine) override {
    Status status = check_members(*this, members);
    if (!status.ok()) return status;
    for (const int member : members) {
      if (host(member) == host(rank())) continue;
      return invalid("descriptors cannot be passed between rank ", rank(), " on ", host_name(rank()), " and rank ", member, " on ",
                     host_name(member), ": they are on different hosts");
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
    auto parts = monitor_->operate(OperationKind::share, members, std::move(own_part));
    if (!parts.ok()) return ended(parts.status());
    for (const auto& part : *parts) {
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
  // A rank that goes on after this would meet the others in the middle of another call.
  Status ended(const Status& why) {
    if (why.code() == Code::timeout || why.code() == Code::peer || why.code() == Code::desync) monitor_->fail(why);
    return why;
  }

  std::shared_ptr<Monitor> monitor_;
  std::vector<int> hosts_;
  Guard guard_;
  std::string address_;
  int joined_in_;
};

Status check_launch(const Launch& launch, uint64_t timeout_ns) {
  if (launch.nranks < 1) return invalid("nranks is ", launch.nranks, ": at least 1 is needed");
  if (launch.nranks > kMaxRanks) return invalid("nranks is ", launch.nranks, ": at most ", kMaxRanks, " are possible");
  if (launch.rank < 0 || launch.rank >= launch.nranks) {
    return invalid("rank is ", launch.rank, ": it must be at least 0 and below nranks, which is ", launch.nranks);
  }
  if (timeout_ns == 0) return invalid("the timeout is 0 ns: nobody could come in time");
  if (launch.nranks > 1 && launch.job.empty()) return invalid("the job has no name, so its ranks could not find each other");
  return {};
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  for (int r = 0; r < count; ++r) ranks[static_cast<size_t>(r)] = r;
  return ranks;
}

Result<Party> meet(const Meeting& meeting) {
  return meeting.rank == meeting.host_rank ? host_meeting(meeting) : attend_meeting(meeting);
}

// Hands the links of a meeting to the monitor.
void connect(Monitor& monitor, const Meeting& meeting, Party party, bool control, bool descriptors) {
  const bool serving = meeting.rank == meeting.host_rank;
  for (size_t i = 0; i < party.links.size(); ++i) {
    if (!party.links[i]) continue;
    Monitor::Connection connection;
    connection.rank = serving ? meeting.expected[i] : meeting.host_rank;
    connection.control = control;
    connection.descriptors = descriptors;
    connection.over_tcp = !meeting.endpoint.is_unix();
    connection.serving = serving;
    connection.link = std::move(party.links[i]);
    monitor.add_connection(std::move(connection), std::move(party.early));
  }
}

// See World::address. Of the hub's connections the first to another host counts.
std::string address_between_hosts(const Meeting& meeting, const std::vector<int>& hosts, const Party& party) {
  for (size_t i = 0; i < party.links.size() && !meeting.endpoint.is_unix(); ++i) {
    const bool own_host = meeting.rank == meeting.host_rank && hosts[i] == hosts[static_cast<size_t>(meeting.rank)];
    if (!party.links[i] || own_host) continue;
    const SocketAddress end = own_end(party.links[i]->fd());
    if (!end.loopback) return end.host;
  }
  return "";
}

// Between hosts, the ranks of each host meet once more, at a UNIX socket of their lowest rank.
Status meet_on_host(const Launch& launch, const Meeting& world, const std::vector<int>& hosts, Monitor& monitor) {
  Meeting meeting = world;
  meeting.expected.clear();
  for (int r = 0; r < launch.nranks; ++r) {
    if (hosts[static_cast<size_t>(r)] == hosts[static_cast<size_t>(launch.rank)]) meeting.expected.push_back(r);
  }
  meeting.host_rank = meeting.expected.front();
  monitor.set_leader(meeting.host_rank);
  if (meeting.expected.size() > 1) {
    meeting.endpoint = {socket_name(launch, text("host of rank ", meeting.host_rank)), "", 0};
    meeting.deadline = Deadline::after_ns(meeting.timeout_ns);
    meeting.interrupted = [&monitor] { return monitor.failed() ? monitor.failure() : Status(); };
    auto party = meet(meeting);
    if (!party.ok()) return party.status();
    connect(monitor, meeting, *std::move(party), false, true);
  }
  // Nobody goes on before all hosts are ready.
  return monitor.operate(OperationKind::exchange, first_ranks(launch.nranks), {"joining the world", {}, nullptr}).status();
}

}  // namespace

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
  status = complete_launch(&launch, deadline);
  if (!status.ok()) return status;
  Meeting meeting;
  meeting.nranks = launch.nranks;
  meeting.rank = launch.rank;
  meeting.self = this_process();
  if (launch.nranks == 1) {
    auto alone = std::make_shared<Monitor>(0, timeout_ns, std::vector<Process>{meeting.self});
    return std::shared_ptr<World>(std::make_shared<JoinedWorld>(std::move(alone), std::vector<int>{0}, guard_of(launch), ""));
  }
  const bool one_host = launch.root_port == 0;
  meeting.endpoint = one_host ? Endpoint{socket_name(launch, "hub"), "", 0} : Endpoint{"", launch.root_host, launch.root_port};
  meeting.guard = guard_of(launch);
  meeting.expected = first_ranks(launch.nranks);
  meeting.timeout_ns = timeout_ns;
  meeting.deadline = deadline;
  auto party = meet(meeting);
  if (!party.ok()) return party.status();

  std::vector<int> hosts = number_hosts(party->table, one_host);
  auto monitor = std::make_shared<Monitor>(launch.rank, timeout_ns, party->table);
  const std::string address = address_between_hosts(meeting, hosts, *party);
  connect(*monitor, meeting, *std::move(party), true, one_host);
  status = monitor->start();
  if (!status.ok()) return status;  // the sockets close, which the others take for this rank's death
  if (!one_host) {
    status = meet_on_host(launch, meeting, hosts, *monitor);
    if (!status.ok()) {
      monitor->fail(status);
      monitor->leave();
      return status;
    }
  }
  return std::shared_ptr<World>(std::make_shared<JoinedWorld>(std::move(monitor), std::move(hosts), meeting.guard, address));
}

}  // namespace megadp
