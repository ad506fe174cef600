// SPDX-License-Identifier: Apache-2.0
// Transport over sockets of our own: in every group one TCP connection for every two ranks of different nodes. Each rank listens, at its
// host's address alone, until all those of higher rank have come, and no longer; both sides prove that they know the job's secret before a
// byte is believed (control/join/handshake.h). Once the connections stand, no port is open. As on the control plane, what follows is
// neither encrypted nor signed.
//
// On a connection messages follow each other, each behind a FrameHeader. The receiver knows which comes next and how long it is, and reads
// it to where it belongs.
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

constexpr int kSpins = 20;  // looks at all sockets before sleeping
constexpr auto kData = static_cast<uint16_t>(0x4450);
constexpr size_t kStrangers = 64;  // that may stand at the door besides the ranks
constexpr uint64_t kConnectNs = 30'000'000'000;
constexpr uint64_t kDoorSliceMs = 50;

// What a rank tells the others: where it listens, and a nonce, so that no two groups of a job have the same key.
std::string write_place(const SocketAddress& end, const Nonce& nonce) {
  FrameWriter writer;
  writer.bytes(end.host);
  writer.u32(end.port);
  writer.bytes(std::string_view(reinterpret_cast<const char*>(nonce.data()), nonce.size()));
  return writer.take();
}

Endpoint read_place(const std::string& place) {
  FrameReader reader(place);
  Endpoint endpoint;
  endpoint.host = reader.bytes();
  endpoint.port = static_cast<uint16_t>(reader.u32());
  return endpoint;
}

class SocketTransport final : public Transport {
 public:
  SocketTransport(std::shared_ptr<World> world, const std::vector<int>& members) : Transport(std::move(world)) {
    for (const int rank : on_other_nodes(*world_, members)) peers_[rank];
  }

  Result<std::string> listen(const NodeAddresses& nodes);
  Status connect(const std::vector<int>& members, const std::vector<std::string>& places);

  Status send(int to, const void* data, size_t bytes) override { return post(to, const_cast<void*>(data), bytes, true); }
  Status receive(int from, void* data, size_t bytes) override { return post(from, data, bytes, false); }
  Status wait(const Stop& stop, const Describe& during) override;

 private:
  struct Message {
    FrameHeader header;  // as it is sent, or as it has come
    std::byte* data;
    size_t bytes;
    size_t done = 0;  // of header and data
    bool finished() const noexcept { return done == sizeof header + bytes; }
  };
  struct Peer {
    Fd socket;
    std::deque<Message> out, in;
    std::string broken;  // why nothing more will come or go
  };

  Status connect_to_rank(int rank, const Endpoint& endpoint, const AuthKey& key, Deadline deadline);
  void let_in(Listener& door, Deadline deadline);
  bool all_in() const;
  Status post(int peer, void* data, size_t bytes, bool out);
  bool move(Peer& peer, Message& message, bool out);
  bool move_all();
  Status look_around(const Stop& stop, Deadline deadline, uint64_t moved_ns, const Describe& during);
  void sleep() const;

  Fd listener_;                // while the connections are made
  std::map<int, Peer> peers_;  // by rank in the world: the members on other nodes
  std::vector<int> busy_;      // ranks with something in flight
  std::atomic<bool> closing_{false};
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
  const std::string& scoped = world_->address().rfind(own, 0) == 0 ? world_->address() : own;
  auto listener = listen_at_free_port(scoped);
  if (!listener.ok()) return listener.status();
  auto nonce = fresh_nonce();
  if (!nonce.ok()) return nonce.status();
  listener_ = *std::move(listener);
  return write_place({own, own_end(listener_.get()).port}, *nonce);
}

// The lower rank of two listens. Its door is served by a thread meanwhile, so that nobody waits for ranks that are themselves waiting.
Status SocketTransport::connect(const std::vector<int>& members, const std::vector<std::string>& places) {
  std::string table;
  for (const std::string& place : places) table += place;
  const AuthKey key = world_->key_for("data " + table);
  const Deadline deadline = Deadline::after_ns(std::min(world_->timeout_ns(), kConnectNs));
  std::vector<Fd> listeners;
  listeners.push_back(std::move(listener_));
  Listener door(std::move(listeners), key, kStrangers + peers_.size(), "the port for data");

  auto started = start_thread("mdp-connect", [&] {
    try {
      let_in(door, deadline);
    } catch (const std::exception&) {  // whoever was not let in is missed below
    }
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
      if (members[i] < world_->rank() && peers_.contains(members[i]))
        status = connect_to_rank(members[i], read_place(places[i]), key, deadline);
    }
    serving.connected = status.ok();
  }
  for (const auto& [rank, peer] : peers_) {
    if (!status.ok() || peer.socket.valid()) continue;
    status =
        world_->failed()  // then nobody was waited for any longer
            ? world_->failure()
            : Status(Code::backend, text(world_->describe(rank), ", but did not connect to the port for data of rank ", world_->rank()),
                     Blame{.rank = rank});
  }
  return status;
}

Status SocketTransport::connect_to_rank(int rank, const Endpoint& endpoint, const AuthKey& key, Deadline deadline) {
  const auto interrupted = [this] { return world_->failed() ? world_->failure() : Status(); };
  for (;;) {
    auto socket = connect_to(endpoint, deadline);
    Status status = socket.status();
    if (socket.ok()) status = greet_server(socket->get(), key, deadline, interrupted);
    if (status.ok()) {
      Link link(*std::move(socket), kMaxHello);
      link.send(FrameType::hello, write_hello({kProtocolVersion, world_->rank(), world_->size(), this_process()}));
      link.flush();  // a fresh socket takes it whole
      peers_.at(rank).socket = link.take_socket();
      return {};
    }
    if (world_->failed()) return world_->failure();
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
  return std::all_of(peers_.upper_bound(world_->rank()), peers_.end(), [](const auto& peer) { return peer.second.socket.valid(); });
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
      if (expected) peers_.at(hello.rank).socket = arrival.link->take_socket();
    }
  }
}

// ── data ──

Status SocketTransport::post(int rank, void* data, size_t bytes, bool out) {
  if (broken_) return {Code::backend, "the transport between nodes has failed before"};
  Peer& peer = peers_.at(rank);
  if (peer.out.empty() && peer.in.empty()) busy_.push_back(rank);
  (out ? peer.out : peer.in).push_back({{kFrameMagic, kData, 0, bytes}, static_cast<std::byte*>(data), bytes});
  return {};
}

// Moves as much of one message as the socket takes or has. False if that is nothing.
bool SocketTransport::move(Peer& peer, Message& message, bool out) {
  const size_t in_header = std::min(message.done, sizeof message.header), in_data = message.done - in_header;
  std::array<iovec, 2> parts{{{reinterpret_cast<std::byte*>(&message.header) + in_header, sizeof message.header - in_header},
                              {message.data + in_data, message.bytes - in_data}}};
  msghdr whole{};
  whole.msg_iov = parts.data();
  whole.msg_iovlen = parts.size();
  const int socket = peer.socket.get();
  const ssize_t n = out ? ::sendmsg(socket, &whole, MSG_DONTWAIT | MSG_NOSIGNAL) : ::recvmsg(socket, &whole, MSG_DONTWAIT);
  if (n > 0) {
    message.done += static_cast<size_t>(n);
    const FrameHeader& header = message.header;
    const bool whole_header = message.done >= sizeof header;
    if (!out && whole_header && (header.magic != kFrameMagic || header.type != kData || header.length != message.bytes)) {
      peer.broken = text("a message of ", header.length, " bytes came where one of ", message.bytes, " was expected");
    }
    return true;
  }
  if (n == 0) {
    peer.broken = "it was closed";
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOBUFS && errno != ENOMEM) {
    peer.broken = std::strerror(errno);
  }
  return false;
}

bool SocketTransport::move_all() {
  bool moved = false;
  for (const int rank : busy_) {
    Peer& peer = peers_.at(rank);
    for (const bool out : {true, false}) {
      std::deque<Message>& messages = out ? peer.out : peer.in;
      while (!messages.empty() && peer.broken.empty() && move(peer, messages.front(), out)) {
        moved = true;
        if (messages.front().finished()) messages.pop_front();
      }
    }
  }
  std::erase_if(busy_, [this](int rank) {
    const Peer& peer = peers_.at(rank);
    return peer.out.empty() && peer.in.empty();
  });
  return moved;
}

Status SocketTransport::look_around(const Stop& stop, Deadline deadline, uint64_t moved_ns, const Describe& during) {
  if (Status status = interrupted(stop, during); !status.ok()) return status;
  for (const int rank : busy_) {
    const std::string& broken = peers_.at(rank).broken;
    if (!broken.empty() || left_for_good(rank, moved_ns)) return lost(rank, broken, during, stop);
  }
  return deadline.passed() && !busy_.empty() ? timed_out(busy_, during) : Status();
}

void SocketTransport::sleep() const {
  std::vector<pollfd> polled;
  for (const int rank : busy_) {
    const Peer& peer = peers_.at(rank);
    const int events = (peer.in.empty() ? 0 : POLLIN) | (peer.out.empty() ? 0 : POLLOUT);
    polled.push_back({peer.socket.get(), static_cast<short>(events), 0});
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(kWaitSliceNs / 1'000'000));
}

Status SocketTransport::wait(const Stop& stop, const Describe& during) {
  const Deadline deadline = deadline_of_wait();
  uint64_t moved_ns = now_ns();
  for (int idle = 0; !busy_.empty();) {
    const bool moved = move_all();
    Status status = busy_.empty() ? Status() : look_around(stop, deadline, moved_ns, during);
    if (!status.ok()) {
      // A rank may have done its part first and failed then: what it sent has come by now.
      move_all();
      if (busy_.empty()) return {};
      broken_ = true;
      busy_.clear();
      peers_.clear();  // nothing is in flight, and the others' waits end
      return status;
    }
    idle = moved ? 0 : idle + 1;
    if (moved) moved_ns = now_ns();
    if (idle > kSpins) sleep();
  }
  return {};
}

class SocketNetwork final : public Network {
 public:
  SocketNetwork(std::shared_ptr<World> world, NodeAddresses nodes) : world_(std::move(world)), nodes_(std::move(nodes)) {}

  Result<std::unique_ptr<Transport>> connect(const std::vector<int>& members) override {
    auto transport = std::make_unique<SocketTransport>(world_, members);
    auto places = exchange_findings(*world_, members, transport->listen(nodes_));
    if (!places.ok()) return places.status();
    Status agreed = agree(*world_, members, {kConnecting}, transport->connect(members, *places));
    if (!agreed.ok()) return agreed;
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
