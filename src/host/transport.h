// SPDX-License-Identifier: Apache-2.0
// Transport: bytes between the ranks of a group that are on different nodes; ranks of one node never use it, their windows are faster.
// Every group has its own, so that groups run side by side, in orders that differ from rank to rank. Network: what the transports of a
// World have in common. Two kinds carry bytes: UCX (ucx_transport.cc), and sockets on which both sides have proved that they know the
// job's secret (socket_transport.cc).
//
// Messages between two ranks are matched by their order on their lane in the group: the k-th send to a rank meets the k-th receive from
// this one. All ranks run the operations of a group in one order, so this needs no tags of the caller's. What ranks send each other beside
// those goes on two lanes of its own: one rank may be there while the other is in a collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/world.h"
#include "host/operation.h"
#include "host/stream.h"
#include "host/thread_pool.h"

namespace megadp::host {

enum class TransportKind {
  automatic,  // what the environment variable MEGADP_TRANSPORT says; otherwise ucx
  ucx,
  sockets
};

enum class Lane : uint16_t {
  collective,
  message,  // from the sender of a message to its receiver: its notice, then its data
  reply     // the other way round
};
constexpr size_t kLanes = 3;
// Of the other two lanes nothing longer is sent before the receiver has said that it is there.
constexpr size_t kEarlyBytes = 4 << 10;

class Transport {
 public:
  virtual ~Transport() = default;  // local; forgets what is in flight

  // Post a message to a member on another node, by its rank in the world. The memory is the transport's until the next wait() has
  // returned that was not for a part of it. One thread at a time. *done becomes true, within a wait(), once it has finished.
  virtual Status send(int to, const void* data, size_t bytes, Lane lane = Lane::collective, bool* done = nullptr) = 0;
  virtual Status receive(int from, void* data, size_t bytes, Lane lane = Lane::collective, bool* done = nullptr) = 0;
  // Until everything posted has finished, or until `enough` says so of a part of it. A peer that died or left, a failed World, `stop` or
  // the World's timeout (counted from when something last moved) end it early; then nothing is in flight any more and the transport is
  // unusable. `during` describes the operation for the sentence of a failure.
  using Enough = std::function<bool()>;
  virtual Status wait(const Stop& stop, const Describe& during, const Enough& enough = {}) = 0;
  // Forgets what is in flight, as a wait() that fails does: the memory is the caller's again, and the transport is unusable.
  virtual void give_up() = 0;

 protected:
  explicit Transport(std::shared_ptr<World> world) noexcept : world_(std::move(world)) {}

  // ── failures in wait(), told in the same words by all transports ──
  Deadline deadline_of_wait() const;
  // The World has failed, or `stop` has passed.
  Status interrupted(const Stop& stop, const Describe& during) const;
  // The connection to `peer` is gone, or it has left. The World learns of it, unless this rank is going too.
  Status lost(int peer, const std::string& why, const Describe& during, const Stop& stop);
  // The deadline has passed, and these ranks have not done their part.
  Status timed_out(const std::vector<int>& missing, const Describe& during);
  // The World knows more of a death than a broken connection tells (which process, that it left on purpose): it is asked first.
  void wait_for_news_of(int peer, const Stop& stop) const;

  const std::shared_ptr<World> world_;
};

class Network {
 public:
  // Collective over the world. All ranks must have chosen the same kind.
  static Result<std::shared_ptr<Network>> open(const std::shared_ptr<World>& world, TransportKind kind);
  virtual ~Network() = default;

  // Collective over `members`, blocking. Connects this rank with every member on another node at once, so that a network that lets the
  // rendezvous pass but not the data is found out here and not in the middle of training.
  // pool: of this rank, which says whether a thread that waits may spin.
  virtual Result<std::unique_ptr<Transport>> connect(const std::vector<int>& members, std::shared_ptr<const ThreadPool> pool) = 0;
};

// In place of Network::open where all ranks share one node, so that a word that MEGADP_TRANSPORT cannot be is not found out first when the
// job comes to several. Collective over the world.
Status check_transport(World& world);

// For Network::open. `nodes`: by number the network address of each, empty if it is not known.
using NodeAddresses = std::vector<std::string>;
Result<std::shared_ptr<Network>> open_ucx(const std::shared_ptr<World>& world, const NodeAddresses& nodes);
Result<std::shared_ptr<Network>> open_sockets(const std::shared_ptr<World>& world, const NodeAddresses& nodes);

// For those who connect.
constexpr const char* kConnecting = "connecting the nodes";
std::vector<int> on_other_nodes(const World& world, const std::vector<int>& members);
// Gives every member what each has found out, in their order, or the failure of the first that has not, which it names. Collective,
// blocking.
Result<std::vector<std::string>> exchange_findings(World& world, const std::vector<int>& members, const Result<std::string>& mine);

// Whether ranks on different nodes can be joined here: "UCX 1.13.1", or why not. Loads that library to find out, unless the environment has
// chosen sockets.
struct TransportInfo {
  std::string name;
  bool available;
  std::string detail;
};
TransportInfo transport_info();
TransportInfo ucx_info();

}  // namespace megadp::host
