// SPDX-License-Identifier: Apache-2.0
// Who knocks at a rendezvous, and who opens. An input is what a client says: the opening of the handshake, what its proof differs by from
// the right one, and the frames after it. The same bytes are then a server's answer to a client.
#include <sys/socket.h>
#include <unistd.h>

#include "base/text.h"
#include "control/join/handshake.h"
#include "control/join/listener.h"
#include "fuzz.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
const AuthKey kKey = {1, 2, 3};

Endpoint door() {
  Endpoint endpoint;
  endpoint.unix_name = text("megadp-fuzz-", ::getpid());
  return endpoint;
}

Listener& listener() {
  static Listener one(*listen_at(door()), kKey, 8, "the door");
  return one;
}

void say(const Fd& socket, std::string_view bytes) {
  (void)!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// The client's proof, to the server's nonce in its answer; nothing if there was no answer.
std::string proof_for(const Fd& socket, std::string_view opening) {
  char answer[kAnswerSize];
  if (::recv(socket.get(), answer, sizeof answer, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof answer)) return {};
  Nonce client, server;
  std::memcpy(client.data(), opening.data() + kHandshakeMagic.size(), client.size());
  std::memcpy(server.data(), answer, server.size());
  must(std::string_view(answer, sizeof answer).substr(server.size()) == proof_of_server(kKey, client, server),
       "the server's proof is wrong");
  return proof_of_client(kKey, client, server);
}

std::string knock(const std::string& input) {
  Bytes bytes(input);
  const std::string_view opening = bytes.some(kOpeningSize), difference = bytes.some(kProofSize), frames = bytes.rest();
  std::vector<Accepted> arrivals;
  auto socket = connect_to(door(), Deadline::after_ns(kSecondNs));
  must(socket.ok(), "the door cannot be reached");
  say(*socket, opening);
  listener().serve(&arrivals);
  must(arrivals.empty(), "somebody was let in before any proof");
  std::string proof = proof_for(*socket, opening);
  for (size_t i = 0; i < std::min(proof.size(), difference.size()); ++i) proof[i] = static_cast<char>(proof[i] ^ difference[i]);
  const bool right = !proof.empty() && difference.find_first_not_of('\0') == std::string_view::npos;
  say(*socket, proof);
  if (input.size() % 2 == 0) listener().serve(&arrivals);  // or all of it comes at once
  say(*socket, frames);
  listener().serve(&arrivals);
  *socket = Fd();
  listener().serve(&arrivals);
  must(arrivals.empty() || (right && arrivals.size() == 1), "somebody was let in without the right proof");
  if (arrivals.empty()) return right ? "a hello that cannot be read" : proof.empty() ? "no answer" : "a wrong proof";
  const Hello& hello = arrivals[0].hello;
  const bool named = !hello.process.host_key.empty(), version = hello.version == kProtocolVersion;
  return text("let in ", version ? "" : "another version ", hello.rank < 0 ? "below zero " : "", hello.nranks < 1 ? "of none " : "",
              named ? "" : "without a key ", arrivals[0].early.empty() ? "" : "with more", static_cast<int>(arrivals[0].link->state()));
}

// Nobody can foresee a client's nonce, so no answer is right.
std::string open_to(std::string_view answer) {
  int ends[2] = {-1, -1};
  must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no pair of sockets");
  const Fd ours(ends[0]), theirs(ends[1]);
  say(theirs, answer);
  ::shutdown(theirs.get(), SHUT_WR);
  const Status status = greet_server(ours.get(), kKey, Deadline::after_ns(kSecondNs), {});
  must(status.code() == Code::system && !status.text().empty(), "a client took a stranger for its server");
  return status.text();
}

std::string run(const std::string& input) {
  return text(knock(input), "; ", open_to(input));
}

std::string frame(FrameType type, const std::string& payload) {
  return bytes_of(FrameHeader{kFrameMagic, static_cast<uint16_t>(type), 0, payload.size()}) + payload;
}

std::vector<std::string> valid() {
  const std::string opening = std::string(kHandshakeMagic) + std::string(16, 'n'), right(kProofSize, '\0');
  const Hello hello{kProtocolVersion, 1, 4, this_process()};
  const std::string said = opening + right + frame(FrameType::hello, write_hello(hello));
  return {said, said + frame(FrameType::give_up, bytes_of(kSecondNs)), opening, std::string(kAnswerSize, 'x')};
}

}  // namespace

int main(int argc, char** argv) {
  listener();
  return fuzz(argc, argv, {valid(), {}, run});
}
