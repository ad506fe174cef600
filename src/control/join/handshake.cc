// SPDX-License-Identifier: Apache-2.0
// Nonces, proofs, and the client's side.
#include "control/join/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "control/interrupt.h"

namespace megadp {
namespace {

constexpr uint64_t kSliceMs = 100;  // how soon an interruption is noticed

std::string proof(const AuthKey& key, const char* side, const Nonce& client, const Nonce& server) {
  std::string bytes = side;
  bytes.append(client.begin(), client.end());
  bytes.append(server.begin(), server.end());
  const Digest tag = blake2s(key, bytes);
  return {tag.begin(), tag.end()};
}

// The buffer of a fresh socket is empty, so a few bytes are sent whole.
Status send_whole(int fd, const std::string& bytes) {
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) return {};
  return {Code::system, "closed the connection"};
}

// Never more than `size`: what follows is a Link's.
Status receive_whole(int fd, size_t size, Deadline deadline, const std::function<Status()>& interrupted, std::string* out) {
  while (out->size() < size) {
    if (interrupted) {
      Status status = interrupted();
      if (!status.ok()) return status;
    }
    if (deadline.passed()) return {Code::timeout, "accepts connections but does not answer"};
    pollfd polled{fd, POLLIN, 0};
    ::poll(&polled, 1, static_cast<int>(std::min(kSliceMs, ask_by(deadline).left_ns() / 1'000'000 + 1)));
    char bytes[kAnswerSize];
    const ssize_t n = ::recv(fd, bytes, std::min(size - out->size(), sizeof bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
    if (n <= 0) {
      return {Code::system, "closed the connection without an answer: another job's rank or another service may listen there"};
    }
    out->append(bytes, static_cast<size_t>(n));
  }
  return {};
}

}  // namespace

Result<Nonce> fresh_nonce() {
  Nonce nonce;
  Status drawn = fill_random(nonce.data(), nonce.size());
  if (!drawn.ok()) return drawn;
  return nonce;
}

std::string proof_of_server(const AuthKey& key, const Nonce& client, const Nonce& server) {
  return proof(key, "megadp server", client, server);
}

std::string proof_of_client(const AuthKey& key, const Nonce& client, const Nonce& server) {
  return proof(key, "megadp client", client, server);
}

bool same_proof(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

Status greet_server(int fd, const AuthKey& key, Deadline deadline, const std::function<Status()>& interrupted) {
  const auto own = fresh_nonce();
  if (!own.ok()) return own.status();
  Status status = send_whole(fd, std::string(kHandshakeMagic) + std::string(own->begin(), own->end()));
  if (!status.ok()) return status;
  std::string answer;
  status = receive_whole(fd, kAnswerSize, deadline, interrupted, &answer);
  if (!status.ok()) return status;
  Nonce server;
  std::memcpy(server.data(), answer.data(), server.size());
  if (!same_proof(std::string_view(answer).substr(server.size()), proof_of_server(key, *own, server))) {
    return {Code::system, "does not know this job's secret: another job's rank or another service listens there"};
  }
  return send_whole(fd, proof_of_client(key, *own, server));
}

}  // namespace megadp
