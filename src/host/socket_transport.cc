// SPDX-License-Identifier: Apache-2.0
// Transport over sockets of our own: in every group one TCP connection for every two ranks of different nodes. Each rank listens, at its
// host's address alone, until all those of higher rank have come, and no longer; both sides prove that they know the job's secret before a
// byte is believed (control/join/handshake.h). Once the connections stand, no port is open. As on the control plane, what follows is
// neither encrypted nor signed.
//
// On a connection messages follow each other, each behind a FrameHeader that names its lane. The receiver knows which comes next on a lane
// and how long it is, and reads it to where it belongs; what comes before it is asked for is short, and kept.
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/thread.h"
#include "control/agreement.h"
#include "control/join/handshake.h"
#include "control/join/listener.h"
#include "control/net/socket.h"
#include "host/transport.h"

namespace megadp::host {
namespace {

constexpr int kSpins = 20;                             // looks at all sockets before sleeping
constexpr auto kData = static_cast<uint16_t>(0x4450);  // plus the lane
constexpr size_t kStrangers = 64;                      // that may stand at the door besides the ranks
constexpr uint64_t kConnectNs = 30'000'000'000;        // at most, and half of the timeout: others wait to hear how it went
constexpr uint64_t kDoorSliceMs = 50;

// What a rank tells the others: where it listens, and a nonce, so that no two groups of a job have the same key.
// Without the host, which each rank knows as it is called from its own node.
std::string write_place(uint16_t port, const Nonce& nonce) {
  FrameWriter writer;
  writer.u32(port);
  writer.bytes(std::string_view(reinterpret_cast<const char*>(nonce.data()), nonce.size()));
  return writer.take();
}

Endpoint read_place(const std::string& place, const std::string& host) {
  FrameReader reader(place);
  Endpoint endpoint;
  endpoint.host = host;
  endpoint.port = static_cast<uint16_t>(reader.u32());
  return endpoint;
}

class SocketTransport final : public Transport {
 public:
  SocketTransport(std::shared_ptr<World> world, const std::vector<int>& members) : Transport(std::move(world)) {
    for (const int rank : on_other_nodes(*world_, members)) peers_[rank];
  }

  Result<std::string> listen(const NodeAddresses& nodes);
  Status connect(const std::vector<int>& members, const std::vector<std::string>& places, const NodeAddresses& nodes);
  Status check_all_came() const;  // those who are to connect to this rank

  Status send(int to, const void* data, size_t bytes, Lane lane, bool* done) override;
  Status receive(int from, void* data, size_t bytes, Lane lane, bool* done) override;
  Status wait(const Stop& stop, const Describe& during, const Enough& enough) override;
  void give_up() override;

 private:
  struct Message {
    FrameHeader header;  // of what is sent
    std::byte* data;
    size_t bytes;
    bool* done;
  };
  struct Peer {
    std::unique_ptr<Link> link;  // whose socket it is, so that a forked child has none
    std::deque<Message> out;
    size_t sent = 0;  // of the first of `out`, header included
    std::deque<Message> in[kLanes];
    std::deque<std::string> early[kLanes];  // what came before it was asked for
    FrameHeader coming{};                   // what is being received
    size_t received = 0;                    // of it, header included
    std::string* kept = nullptr;            // where it goes, if nobody has asked for it yet
    std::string broken;                     // why nothing more will come or go
    size_t receives() const noexcept { return in[0].size() + in[1].size() + in[2].size(); }
    bool busy() const noexcept { return !out.empty() || receives() > 0; }
    size_t lane() const noexcept { return static_cast<size_t>(coming.type - kData); }
  };

  Status connect_to_rank(int rank, const Endpoint& endpoint, const AuthKey& key, Deadline deadline);
  void let_in(Listener& door, Deadline deadline);
  bool all_in() const;
  Status make_busy(int rank);
  static bool moved(Peer& peer, ssize_t n);
  static bool send_more(Peer& peer);
  static bool receive_more(Peer& peer);
  static void choose_place(Peer& peer);
  static void deliver(Peer& peer, size_t lane);
  static void not_expected(Peer& peer, size_t lane, size_t bytes);
  bool move_all(bool* asked);
  Status look_around(const Stop& stop, Deadline deadline, const Describe& during);
  void sleep() const;

  Fd listener_;                // while the connections are made
  std::map<int, Peer> peers_;  // by rank in the world: the members on other nodes
  std::vector<int> busy_;      // ranks with something in flight
  std::atomic<bool> closing_{false}, door_closed_{false};
  bool broken_ = false;
};

// ── how the connections come to be ──

Result<std::string> SocketTransport::listen(const NodeAddresses& nodes) {
  const std::string& own = nodes[static_cast<size_t>(world_->node(world_->rank()))];
  if (own.empty()) {
    return Status(Code::system,
                  "the network address of this node is not known, as the ranks met over a loopback address (a tunnel?); give a root "
                  "address (MEGADP_ROOT) in the network that shall carry the data");
  }
  if (Status room = check_descriptors(peers_.size() + 2); !room) return room;
  auto listener = listen_at_free_port(own);
  if (!listener.ok()) return listener.status();
  auto nonce = fresh_nonce();
  if (!nonce.ok()) return nonce.status();
  listener_ = *std::move(listener);
  return write_place(own_end(listener_.get()).port, *nonce);
}

// The lower rank of two listens. Its door is served by a thread meanwhile, so that nobody waits for ranks that are themselves waiting.
Status SocketTransport::connect(const std::vector<int>& members, const std::vector<std::string>& places, const NodeAddresses& nodes) {
  std::string table;
  for (const std::string& place : places) table += place;
  const AuthKey key = world_->key_for("data " + table);
  const Deadline deadline = Deadline::after_ns(std::min(world_->timeout_ns() / 2, kConnectNs));
  std::vector<Fd> listeners;
  listeners.push_back(std::move(listener_));
  Listener door(std::move(listeners), key, kStrangers + peers_.size(), "the port for data");

  auto started = start_thread("mdp-connect", [&] {
    try {
      let_in(door, deadline);
    } catch (const std::exception&) {  // whoever was not let in is missed below
    }
    door_closed_ = true;
  });
  if (!started) return started.status();
  Status status;
  {
    struct Serving {  // ends before what it uses, also if memory runs out below
      pthread_t thread;
      std::atomic<bool>& closing;
      bool connected = false;
      ~Serving() {
        if (!connected) closing = true;
        pthread_join(thread, nullptr);
      }
    } serving{*started, closing_};
    for (size_t i = 0; i < members.size() && status.ok(); ++i) {
      if (members[i] >= world_->rank() || !peers_.contains(members[i])) continue;
      const std::string& host = nodes[static_cast<size_t>(world_->node(members[i]))];
      status = connect_to_rank(members[i], read_place(places[i], host), key, deadline);
    }
    serving.connected = status.ok();
    while (status.ok() && ask_by(deadline).at_ns() < deadline.at_ns() && !door_closed_) {
      (void)megadp::interrupted();  // the World fails then, and nobody is let in any more
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return status;
}

Status SocketTransport::check_all_came() const {
  for (const auto& [rank, peer] : peers_) {
    if (peer.link) continue;
    if (world_->failed()) return world_->failure();  // then nobody was waited for any longer
    return {Code::backend, text(world_->describe(rank), ", but did not connect to the port for data of rank ", world_->rank()),
            Blame{.rank = rank}};
  }
  return {};
}

Status SocketTransport::connect_to_rank(int rank, const Endpoint& endpoint, const AuthKey& key, Deadline deadline) {
  const auto lost = [this] {
    (void)megadp::interrupted();
    return world_->failed() ? world_->failure() : Status();
  };
  for (;;) {
    auto socket = connect_to(endpoint, deadline);
    Status status = socket.status();
    if (socket.ok()) status = greet_server(socket->get(), key, deadline, lost);
    if (status.ok()) {
      auto link = std::make_unique<Link>(*std::move(socket), kMaxHello);
      link->send(FrameType::hello, write_hello({kProtocolVersion, world_->rank(), world_->size(), this_process()}));
      link->flush();  // a fresh socket takes it whole
      peers_.at(rank).link = std::move(link);
      return {};
    }
    if (Status failed = lost(); !failed) return failed;
    if (deadline.passed()) {
      return {
          Code::backend,
          text("no connection for data to rank ", rank, " on ", world_->host_name(rank), " at ", endpoint.describe(), ": ", status.text()),
          Blame{.rank = rank}};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

bool SocketTransport::all_in() const {
  // Those of lower rank are connected to meanwhile, by another thread.
  return std::all_of(peers_.upper_bound(world_->rank()), peers_.end(), [](const auto& peer) { return peer.second.link != nullptr; });
}

void SocketTransport::let_in(Listener& door, Deadline deadline) {
  while (!all_in() && !closing_ && !world_->failed() && !deadline.passed()) {
    std::vector<pollfd> polled;
    door.add_to(&polled);
    ::poll(polled.data(), polled.size(), static_cast<int>(kDoorSliceMs));
    std::vector<Accepted> arrivals;
    door.serve(&arrivals);
    for (Accepted& arrival : arrivals) {
      const Hello& hello = arrival.hello;
      const bool expected =
          hello.version == kProtocolVersion && hello.nranks == world_->size() && hello.rank > world_->rank() && peers_.contains(hello.rank);
      if (expected) peers_.at(hello.rank).link = std::move(arrival.link);
    }
  }
}

// ── data ──

Status SocketTransport::make_busy(int rank) {
  if (broken_) return {Code::backend, "the transport between nodes has failed before"};
  if (std::find(busy_.begin(), busy_.end(), rank) == busy_.end()) busy_.push_back(rank);
  return {};
}

Status SocketTransport::send(int to, const void* data, size_t bytes, Lane lane, bool* done) {
  if (Status usable = make_busy(to); !usable) return usable;
  const FrameHeader header{kFrameMagic, static_cast<uint16_t>(kData + static_cast<uint16_t>(lane)), 0, bytes};
  peers_.at(to).out.push_back({header, static_cast<std::byte*>(const_cast<void*>(data)), bytes, done});
  return {};
}

Status SocketTransport::receive(int from, void* data, size_t bytes, Lane lane, bool* done) {
  if (Status usable = make_busy(from); !usable) return usable;
  Peer& peer = peers_.at(from);
  peer.in[static_cast<size_t>(lane)].push_back({{}, static_cast<std::byte*>(data), bytes, done});
  deliver(peer, static_cast<size_t>(lane));
  return {};
}

// What came before it was asked for.
void SocketTransport::deliver(Peer& peer, size_t lane) {
  auto& early = peer.early[lane];
  auto& asked = peer.in[lane];
  while (!early.empty() && !asked.empty() && peer.kept != &early.front()) {
    const Message& message = asked.front();
    if (early.front().size() != message.bytes) return not_expected(peer, lane, early.front().size());
    std::memcpy(message.data, early.front().data(), message.bytes);
    if (message.done != nullptr) *message.done = true;
    early.pop_front();
    asked.pop_front();
  }
}

void SocketTransport::not_expected(Peer& peer, size_t lane, size_t bytes) {
  const auto& asked = peer.in[lane];
  peer.broken = text("a message of ", bytes, " bytes came, and ",
                     asked.empty() ? "none was expected" : text("one of ", asked.front().bytes, " was expected"));
}

// What the system said of moving n bytes. False where nothing has moved.
bool SocketTransport::moved(Peer& peer, ssize_t n) {
  if (n > 0) return true;
  if (n == 0) {
    peer.broken = "it was closed";
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOBUFS && errno != ENOMEM) {
    peer.broken = std::strerror(errno);
  }
  return false;
}

// As much of one message as the socket takes.
bool SocketTransport::send_more(Peer& peer) {
  Message& message = peer.out.front();
  const size_t in_header = std::min(peer.sent, sizeof message.header), in_data = peer.sent - in_header;
  std::array<iovec, 2> parts{{{reinterpret_cast<std::byte*>(&message.header) + in_header, sizeof message.header - in_header},
                              {message.data + in_data, message.bytes - in_data}}};
  msghdr whole{};
  whole.msg_iov = parts.data();
  whole.msg_iovlen = parts.size();
  const ssize_t n = ::sendmsg(peer.link->fd(), &whole, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (!moved(peer, n)) return false;
  peer.sent += static_cast<size_t>(n);
  if (peer.sent < sizeof message.header + message.bytes) return true;
  if (message.done != nullptr) *message.done = true;
  peer.sent = 0;
  peer.out.pop_front();
  return true;
}

// Its header has come: where does it go?
void SocketTransport::choose_place(Peer& peer) {
  const FrameHeader& header = peer.coming;
  if (header.magic != kFrameMagic || header.type < kData || peer.lane() >= kLanes) {
    peer.broken = "what came is no message";
    return;
  }
  const auto& asked = peer.in[peer.lane()];
  if (asked.empty() && header.length <= kEarlyBytes) {
    peer.kept = &peer.early[peer.lane()].emplace_back(header.length, 0);
  } else if (asked.empty() || asked.front().bytes != header.length) {
    not_expected(peer, peer.lane(), header.length);
  }
}

// As much of one message as the socket has.
bool SocketTransport::receive_more(Peer& peer) {
  constexpr size_t kHeader = sizeof peer.coming;
  if (peer.received < kHeader) {
    const ssize_t n =
        ::recv(peer.link->fd(), reinterpret_cast<std::byte*>(&peer.coming) + peer.received, kHeader - peer.received, MSG_DONTWAIT);
    if (!moved(peer, n)) return false;
    peer.received += static_cast<size_t>(n);
    if (peer.received < kHeader) return true;
    choose_place(peer);
    if (!peer.broken.empty()) return true;
  }
  auto& asked = peer.in[peer.lane()];
  std::byte* const data = peer.kept != nullptr ? reinterpret_cast<std::byte*>(peer.kept->data()) : asked.front().data;
  const size_t at = peer.received - kHeader;
  if (at < peer.coming.length) {
    const ssize_t n = ::recv(peer.link->fd(), data + at, peer.coming.length - at, MSG_DONTWAIT);
    if (!moved(peer, n)) return false;
    peer.received += static_cast<size_t>(n);
    if (peer.received - kHeader < peer.coming.length) return true;
  }
  peer.received = 0;
  if (peer.kept == nullptr) {
    if (asked.front().done != nullptr) *asked.front().done = true;
    asked.pop_front();
  }
  peer.kept = nullptr;
  deliver(peer, peer.lane());
  return true;
}

// Whether anything has moved; `asked` becomes true where that was something posted.
bool SocketTransport::move_all(bool* asked) {
  bool any = false;
  for (const int rank : busy_) {
    Peer& peer = peers_.at(rank);
    while (!peer.out.empty() && peer.broken.empty() && send_more(peer)) any = *asked = true;
    const size_t before = peer.receives();
    while (peer.receives() > 0 && peer.broken.empty() && receive_more(peer)) {
      any = true;
      *asked = *asked || peer.receives() < before || (peer.kept == nullptr && peer.received > sizeof peer.coming);
    }
  }
  std::erase_if(busy_, [this](int rank) { return !peers_.at(rank).busy(); });
  return any;
}

// A rank that has left is not given up before its connection ends: its goodbye, which goes another way, overtakes data that the system
// still sends, or sends again, for a process that is gone.
Status SocketTransport::look_around(const Stop& stop, Deadline deadline, const Describe& during) {
  if (Status status = interrupted(stop, during); !status.ok()) return status;
  for (const int rank : busy_) {
    const std::string& broken = peers_.at(rank).broken;
    if (!broken.empty()) return lost(rank, broken, during, stop);
  }
  return deadline.passed() && !busy_.empty() ? timed_out(busy_, during) : Status();
}

void SocketTransport::sleep() const {
  std::vector<pollfd> polled;
  for (const int rank : busy_) {
    const Peer& peer = peers_.at(rank);
    const int events = (peer.receives() > 0 ? POLLIN : 0) | (peer.out.empty() ? 0 : POLLOUT);
    polled.push_back({peer.link->fd(), static_cast<short>(events), 0});
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(kWaitSliceNs / 1'000'000));
}

Status SocketTransport::wait(const Stop& stop, const Describe& during, const Enough& enough) {
  Deadline deadline = deadline_of_wait();
  const auto ended = [&] { return busy_.empty() || (enough && enough()); };
  for (int idle = 0; !ended();) {
    bool asked = false;
    const bool moved = move_all(&asked);
    Status status = ended() ? Status() : look_around(stop, deadline, during);
    if (!status.ok()) {
      // A rank may have done its part first and failed then: what it sent has come by now.
      move_all(&asked);
      if (ended()) return {};
      give_up();
      return status;
    }
    idle = moved ? 0 : idle + 1;
    if (asked) deadline = deadline_of_wait();
    if (idle > kSpins) sleep();
  }
  return {};
}

void SocketTransport::give_up() {
  broken_ = true;
  busy_.clear();
  peers_.clear();  // nothing is in flight, and the others' waits end
}

class SocketNetwork final : public Network {
 public:
  SocketNetwork(std::shared_ptr<World> world, NodeAddresses nodes) : world_(std::move(world)), nodes_(std::move(nodes)) {}

  Result<std::unique_ptr<Transport>> connect(const std::vector<int>& members, std::shared_ptr<const ThreadPool>) override {
    auto transport = std::make_unique<SocketTransport>(world_, members);
    auto places = exchange_findings(*world_, members, transport->listen(nodes_));
    if (!places.ok()) return places.status();
    // Who could not connect knows why, and is asked before who has waited for it.
    for (const bool connecting : {true, false}) {
      const Status mine = connecting ? transport->connect(members, *places, nodes_) : transport->check_all_came();
      if (Status agreed = agree(*world_, members, {kConnecting}, mine); !agreed) return agreed;
    }
    return std::unique_ptr<Transport>(std::move(transport));
  }

 private:
  const std::shared_ptr<World> world_;
  const NodeAddresses nodes_;
};

}  // namespace

Result<std::shared_ptr<Network>> open_sockets(const std::shared_ptr<World>& world, const NodeAddresses& nodes) {
  return std::shared_ptr<Network>(new SocketNetwork(world, nodes));
}

}  // namespace megadp::host
