// SPDX-License-Identifier: Apache-2.0
// Choosing a transport, and what all of them say when ranks are lost.
#include "host/transport.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/deadline.h"
#include "control/agreement.h"
#include "control/net/frame.h"
#include "control/wording.h"

namespace megadp::host {
namespace {

constexpr const char* kVariable = "MEGADP_TRANSPORT";

const char* name_of(TransportKind kind) {
  return kind == TransportKind::sockets ? "sockets" : "ucx";
}

Result<TransportKind> choose(TransportKind given) {
  const char* const value = std::getenv(kVariable);
  if (value == nullptr || *value == 0) return given == TransportKind::automatic ? TransportKind::ucx : given;
  for (const TransportKind kind : {TransportKind::ucx, TransportKind::sockets}) {
    if (std::strcmp(value, name_of(kind)) != 0) continue;
    if (given == TransportKind::automatic || given == kind) return kind;
    return invalid(kVariable, " is ", value, ", but the program asks for ", name_of(given), " (MDP_COMM_SOCKETS); unset the variable");
  }
  return invalid(kVariable, " is '", value, "'; it must be ucx or sockets");
}

// A link-local address holds on one's own device only: the others have devices of other names.
std::string for_others(const std::string& address) {
  return address.substr(0, address.find('%'));
}
std::string from_here(const std::string& address, const std::string& own) {
  const size_t device = own.find('%');
  return address.rfind("fe80:", 0) == 0 && device != std::string::npos ? address + own.substr(device) : address;
}

Status compare_choices(World& world, const Result<TransportKind>& mine) {
  const std::vector<int> everyone = all_ranks(world.size());
  if (Status chosen = agree(world, everyone, {kConnecting}, mine.status()); !chosen) return chosen;
  auto compared = world.compare(everyone, kConnecting, name_of(*mine));
  if (!compared.ok()) return compared.status();
  if (!*compared) return {};
  const Mismatch& found = **compared;
  return {Code::desync,
          text("rank ", found.first, " sends between nodes by ", found.first_bytes, " and rank ", found.other, " by ", found.other_bytes,
               ": ", kVariable, " and MDP_COMM_SOCKETS must be the same on all ranks"),
          Blame{.rank = found.other}};
}

// The first ranks of the nodes tell each other, and then the ranks of their nodes: what is sent grows with the nodes, not with the ranks.
Result<NodeAddresses> addresses_of_nodes(World& world) {
  std::vector<int> firsts, here;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (static_cast<size_t>(world.node(rank)) == firsts.size()) firsts.push_back(rank);
    if (world.node(rank) == world.node(world.rank())) here.push_back(rank);
  }
  FrameWriter writer;
  if (here.front() == world.rank()) {
    auto all = world.exchange(firsts, kConnecting, for_others(world.address()));
    if (!all.ok()) return all.status();
    for (const std::string& address : *all) writer.bytes(address);
  }
  auto told = world.broadcast(here, kConnecting, writer.take());
  if (!told.ok()) return told.status();
  FrameReader reader(*told);
  NodeAddresses nodes(firsts.size());
  for (std::string& address : nodes) address = from_here(std::string(reader.bytes()), world.address());
  return reader.finished() ? Result<NodeAddresses>(std::move(nodes)) : internal_error(kConnecting, ": ", told->size(), " bytes came");
}

}  // namespace

std::vector<int> on_other_nodes(const World& world, const std::vector<int>& members) {
  std::vector<int> others;
  for (const int rank : members) {
    if (world.node(rank) != world.node(world.rank())) others.push_back(rank);
  }
  return others;
}

Result<std::vector<std::string>> exchange_findings(World& world, const std::vector<int>& members, const Result<std::string>& mine) {
  FrameWriter writer;
  writer.u32(mine.ok() ? 1 : 0);
  if (mine.ok()) {
    writer.bytes(*mine);
  } else {
    writer.status(mine.status());
  }
  auto all = world.exchange(members, kConnecting, writer.take());
  if (!all.ok()) return mine.ok() ? all.status() : mine.status();
  for (size_t i = 0; i < members.size(); ++i) {
    const int rank = members[i];
    std::string& theirs = (*all)[i];
    FrameReader reader(theirs);
    if (reader.u32() == 0) {
      const Status why = reader.status();
      return Status(why.code(), text("rank ", rank, " on ", world.host_name(rank), ": ", why.text()), Blame{.rank = rank});
    }
    std::string found(reader.bytes());
    if (!reader.finished()) return internal_error(kConnecting, ": rank ", rank, " sent ", theirs.size(), " bytes that cannot be read");
    theirs = std::move(found);
  }
  return all;
}

Result<std::shared_ptr<Network>> Network::open(const std::shared_ptr<World>& world, TransportKind given) {
  const auto kind = choose(given);
  if (Status same = compare_choices(*world, kind); !same) return same;
  auto nodes = addresses_of_nodes(*world);
  if (!nodes.ok()) return nodes.status();
  return *kind == TransportKind::sockets ? open_sockets(world, *nodes) : open_ucx(world, *nodes);
}

Status check_transport(World& world) {
  return agree(world, all_ranks(world.size()), {kVariable}, choose(TransportKind::automatic).status());
}

TransportInfo transport_info() {
  const auto kind = choose(TransportKind::automatic);
  if (!kind.ok()) return {"none", false, kind.status().text()};
  if (*kind == TransportKind::ucx) return ucx_info();
  return {"sockets", true, text("TCP between ranks that have proved that they know the job's secret; chosen by ", kVariable)};
}

Deadline Transport::deadline_of_wait() const {
  return Deadline::after_ns(world_->timeout_ns() + std::min(kVerdictNs, UINT64_MAX - world_->timeout_ns()));
}

Status Transport::interrupted(const Stop& stop, const Describe& during) const {
  (void)megadp::interrupted();  // where a group is made, by its caller's thread: the World fails then
  if (world_->failed()) return world_->failure();
  if (stop.passed()) return {Code::aborted, text(during(), ": the communicator is being destroyed")};
  return {};
}

void Transport::wait_for_news_of(int peer, const Stop& stop) const {
  const Deadline patience = Deadline::after_ns(1'000'000'000);
  while (!world_->failed() && !world_->has_left(peer) && !stop.passed() && !patience.passed()) poll(nullptr, 0, 10);
}

Status Transport::lost(int peer, const std::string& why, const Describe& during, const Stop& stop) {
  wait_for_news_of(peer, stop);
  if (Status status = interrupted(stop, during); !status) return status;
  const Status status(Code::peer,
                      text(during(), ": ",
                           world_->has_left(peer) ? text("rank ", peer, " has left: it destroyed its communicator")
                                                  : text("the connection is lost (", why, "), or rank ", peer, " has left the group; ",
                                                         world_->describe(peer))),
                      Blame{.rank = peer});
  world_->fail(status);
  return status;
}

Status Transport::timed_out(const std::vector<int>& missing, const Describe& during) {
  std::string who;
  for (const int rank : missing) who += text(who.empty() ? "" : "; ", world_->describe(rank));
  const Status status(Code::timeout, text(during(), ": timed out after ", seconds(world_->timeout_ns()), ": ", who),
                      Blame{.rank = missing.front()});
  world_->fail(status);
  return status;
}

}  // namespace megadp::host
