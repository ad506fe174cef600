// SPDX-License-Identifier: Apache-2.0
// Accepting, comparing, refusing.
#include "control/join/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/deadline.h"
#include "base/log.h"
#include "base/text.h"
#include "control/join/handshake.h"

namespace megadp {
namespace {

constexpr uint64_t kPatienceNs = 5'000'000'000;
constexpr uint64_t kPauseNs = 20'000'000;

bool read_hello(const Frame& frame, Hello* hello) {
  if (frame.type != FrameType::hello || !frame.fds.empty()) return false;
  FrameReader reader(frame.payload);
  hello->version = reader.u32();
  // The rest may look different in another version; that is told to the rank by whoever looks at the version.
  if (reader.ok() && hello->version != kProtocolVersion) return true;
  hello->rank = reader.i32();
  hello->nranks = reader.i32();
  hello->process = read_process(&reader);
  return reader.finished();
}

}  // namespace

std::string write_hello(const Hello& hello) {
  FrameWriter writer;
  writer.u32(hello.version);
  writer.i32(hello.rank);
  writer.i32(hello.nranks);
  write_process(&writer, hello.process);
  return writer.take();
}

Listener::Listener(std::vector<Fd> listeners, const AuthKey& key, size_t max_pending, std::string where)
    : listeners_(std::move(listeners)), key_(key), max_pending_(max_pending), where_(std::move(where)) {}

void Listener::add_to(std::vector<pollfd>* polled) const {
  if (now_ns() >= pause_until_ns_) {
    for (const Fd& listener : listeners_) polled->push_back({listener.get(), POLLIN, 0});
  }
  for (const Pending& p : pending_) polled->push_back({p.link ? p.link->fd() : p.socket.get(), POLLIN, 0});
}

void Listener::turn_away(const Pending& pending, const std::string& why) const {
  const int fd = pending.link ? pending.link->fd() : pending.socket.get();
  const SocketAddress end = other_end(fd);
  std::string who = end.host.empty() ? "a stranger" : text(end.host, " (port ", end.port, ")");
  if (const auto credentials = peer_credentials(fd)) who = describe(*credentials);
  log(LogLevel::warning, text("refused a connection from ", who, " at ", where_, ": ", why));
}

void Listener::accept_all() {
  if (now_ns() < pause_until_ns_) return;
  for (const Fd& listener : listeners_) {
    for (size_t accepted = 0; accepted < 64; ++accepted) {  // the others at the door are served in between
      auto socket = accept_from(listener);
      if (!socket.ok()) {
        log(LogLevel::warning, text(where_, ": ", socket.status().text()));
        pause_until_ns_ = now_ns() + kPauseNs;
        return;
      }
      if (!socket->valid()) break;
      // A rank sends what is asked of it at once; whoever has stood here longest is the likeliest stranger.
      if (pending_.size() >= max_pending_) {
        turn_away(pending_.front(), "too many connections wait without having proved that they know the job's secret");
        pending_.erase(pending_.begin());
      }
      Pending pending;
      pending.socket = *std::move(socket);
      pending.since_ns = now_ns();
      pending_.push_back(std::move(pending));
    }
  }
}

Listener::Outcome Listener::advance_handshake(Pending* pending, std::string* why) {
  const auto credentials = peer_credentials(pending->socket.get());
  if (credentials && credentials->uid != ::getuid()) {
    *why = "it belongs to another user";
    return Outcome::refuse;
  }
  const size_t wanted = pending->expected.empty() ? kOpeningSize : kOpeningSize + kProofSize;
  char bytes[kOpeningSize + kProofSize];
  // recv drops descriptors that a stranger attaches.
  const ssize_t n = ::recv(pending->socket.get(), bytes, wanted - pending->said.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Outcome::wait;
  if (n <= 0) {
    *why = pending->expected.empty() ? text("it closed after ", pending->said.size(), " bytes")
                                     : "it closed when it had seen this job's proof: it knows another secret, or belongs to another job";
    return Outcome::refuse;
  }
  pending->said.append(bytes, static_cast<size_t>(n));
  if (pending->expected.empty()) return read_opening(pending, why);
  if (pending->said.size() < wanted) return Outcome::wait;
  if (!same_proof(std::string_view(pending->said).substr(kOpeningSize), pending->expected)) {
    *why = "it knows another secret, or belongs to another job";
    return Outcome::refuse;
  }
  pending->link = std::make_unique<Link>(std::move(pending->socket), kMaxHello);
  return Outcome::wait;
}

Listener::Outcome Listener::read_opening(Pending* pending, std::string* why) {
  const size_t magic_size = std::min(pending->said.size(), kHandshakeMagic.size());
  if (pending->said.compare(0, magic_size, kHandshakeMagic, 0, magic_size) != 0) {
    *why = "it does not speak this library's protocol";
    return Outcome::refuse;
  }
  if (pending->said.size() < kOpeningSize) return Outcome::wait;
  const auto own = fresh_nonce();
  if (!own.ok()) {
    *why = own.status().text();
    return Outcome::refuse;
  }
  Nonce client;
  std::memcpy(client.data(), pending->said.data() + kHandshakeMagic.size(), client.size());
  const std::string answer = std::string(own->begin(), own->end()) + proof_of_server(key_, client, *own);
  // The buffer of a fresh socket is empty, so this is sent whole.
  if (::send(pending->socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(answer.size())) {
    *why = "it closed before it was answered";
    return Outcome::refuse;
  }
  pending->expected = proof_of_client(key_, client, *own);
  return Outcome::wait;
}

Listener::Outcome Listener::advance(Pending* pending, Accepted* arrival, std::string* why) {
  if (!pending->link && advance_handshake(pending, why) == Outcome::refuse) return Outcome::refuse;
  if (pending->link) {
    std::vector<Frame> frames;
    pending->link->receive(&frames);
    if (!frames.empty()) {
      if (read_hello(frames.front(), &arrival->hello)) {
        arrival->link = std::move(pending->link);
        frames.erase(frames.begin());
        arrival->early = std::move(frames);
        return Outcome::arrived;
      }
      *why = "it knows the secret, but its hello cannot be read";
      return Outcome::refuse;
    }
    if (pending->link->state() != Link::State::open) {
      *why = text("it closed before it said hello. ", pending->link->error());
      return Outcome::refuse;
    }
  }
  if (now_ns() - pending->since_ns < kPatienceNs) return Outcome::wait;
  *why = text("it said nothing that could be understood for ", kPatienceNs / 1'000'000'000, " s");
  return Outcome::refuse;
}

void Listener::serve(std::vector<Accepted>* out) {
  accept_all();
  for (size_t i = 0; i < pending_.size();) {
    Accepted arrival;
    std::string why;
    const Outcome outcome = advance(&pending_[i], &arrival, &why);
    if (outcome == Outcome::wait) {
      ++i;
      continue;
    }
    if (outcome == Outcome::arrived) {
      out->push_back(std::move(arrival));
    } else {
      turn_away(pending_[i], why);
    }
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
  }
}

}  // namespace megadp
