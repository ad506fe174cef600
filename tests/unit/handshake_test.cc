// SPDX-License-Identifier: Apache-2.0
// Proofs of the secret, what a guest makes of a host's answer, and calls that may never return.
#include "control/join/handshake.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "control/net/bounded_call.h"
#include "control/world.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

Nonce nonce_of(uint8_t byte) {
  Nonce nonce;
  nonce.fill(byte);
  return nonce;
}

AuthKey guard_of_bytes(uint8_t byte) {
  AuthKey guard;
  guard.fill(byte);
  return guard;
}

// A proof is whole, and of this guard, this side and these nonces.
void a_proof_is_for_one_thing() {
  const AuthKey guard = guard_of_bytes(1);
  const Nonce client = nonce_of(2), host = nonce_of(3);
  const std::string proof = proof_of_client(guard, client, host);
  check(proof.size() == kProofSize && same_proof(proof, proof_of_client(guard, client, host)), "it can be made again");
  for (size_t i = 0; i < proof.size(); ++i) {
    std::string other = proof;
    other[i] = static_cast<char>(other[i] ^ 1);
    check(!same_proof(proof, other), text("a proof that differs in byte ", i));
  }
  check(!same_proof(proof, proof.substr(1)) && !same_proof(proof, ""), "a part of a proof");
  check(!same_proof(proof, proof_of_server(guard, client, host)), "the other side's");
  check(!same_proof(proof, proof_of_client(guard, host, client)), "with the nonces exchanged");
  for (size_t i = 0; i < guard.size(); ++i) {
    AuthKey other = guard;
    other[i] ^= 1;
    check(!same_proof(proof, proof_of_client(other, client, host)), text("of a guard that differs in byte ", i));
  }
}

// Computed with Python's hashlib.blake2s(b"megadp client" + nonces, key=guard).
void a_proof_is_keyed_blake2s() {
  const std::string proof = proof_of_client(guard_of_bytes(1), nonce_of(2), nonce_of(3));
  check_equal(to_hex(reinterpret_cast<const uint8_t*>(proof.data()), proof.size()),
              std::string("e50ad39cfc22b5497572099e15cf4736c57b253f4ee5c7f777feccad839e59cd"), "the proof");
}

struct Pair {
  Fd client, host;
  Pair() {
    int ends[2] = {-1, -1};
    check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a pair of sockets");
    client = Fd(ends[0]);
    host = Fd(ends[1]);
  }
};

// Plays the host: reads the opening and answers it with the proof of `guard`, changed by `spoil`.
Status greeted_by(const AuthKey& guard, const std::function<void(std::string&)>& spoil) {
  Pair pair;
  std::thread host([&] {
    std::string opening(kOpeningSize, '\0');
    if (::recv(pair.host.get(), opening.data(), opening.size(), MSG_WAITALL) != static_cast<ssize_t>(opening.size())) return;
    Nonce client;
    std::copy_n(opening.end() - static_cast<ptrdiff_t>(client.size()), client.size(), client.begin());
    const Nonce own = nonce_of(9);
    std::string answer = std::string(own.begin(), own.end()) + proof_of_server(guard, client, own);
    spoil(answer);
    (void)!::send(pair.host.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    ::shutdown(pair.host.get(), SHUT_WR);
  });
  const Status status = greet_server(pair.client.get(), guard_of_bytes(1), Deadline::after_ns(20 * kSecondNs), {});
  host.join();
  return status;
}

void a_guest_believes_nobody_without_proof() {
  check(greeted_by(guard_of_bytes(1), [](std::string&) {}).ok(), "a host that knows the secret");
  fails(greeted_by(guard_of_bytes(4), [](std::string&) {}), Code::system, {"does not know this job's secret"});
  fails(greeted_by(guard_of_bytes(1), [](std::string& answer) { answer.back() = static_cast<char>(answer.back() ^ 1); }), Code::system,
        {"does not know this job's secret"});
  fails(greeted_by(guard_of_bytes(1), [](std::string& answer) { answer.pop_back(); }), Code::system, {"closed the connection"});
  fails(greeted_by(guard_of_bytes(1), [](std::string& answer) { answer.clear(); }), Code::system, {"closed the connection"});
}

void a_guest_waits_no_longer_than_it_may() {
  Pair silent;
  fails(greet_server(silent.client.get(), guard_of_bytes(1), Deadline::after_ns(50'000'000), {}), Code::timeout, {"does not answer"});
  Pair other;
  int asked = 0;
  const auto interrupted = [&] { return ++asked > 2 ? Status(Code::numeric, "the lid is on fire") : Status(); };
  fails(greet_server(other.client.get(), guard_of_bytes(1), Deadline::after_ns(60 * kSecondNs), interrupted), Code::numeric,
        {"the lid is on fire"});
}

// ── calls that may never return ──

Status outcome(std::function<Status()> call) {
  auto started = BoundedCall::start(std::move(call));
  return started.ok() ? (*started)->wait(Deadline::after_ns(20 * kSecondNs)) : started.status();
}

void a_call_ends_as_it_ends() {
  check(outcome([] { return Status(); }).ok(), "a call that succeeds");
  fails(outcome([] { return Status(Code::system, "no such thing"); }), Code::system, {"no such thing"});
  fails(outcome([]() -> Status { throw std::runtime_error("no memory"); }), Code::memory, {});
  std::atomic<int> open_signals{0};
  check(outcome([&] {
          sigset_t blocked;
          pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
          for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1}) open_signals += sigismember(&blocked, signal) == 0;
          return Status();
        }).ok(),
        "a call that looks at its signals");
  check_equal(open_signals.load(), 0, "signals that its thread may be given");
}

// Whoever waited has gone, and what the call holds lives until it returns.
void a_call_may_outlive_who_waits() {
  auto held = std::make_shared<std::atomic<bool>>(false);
  const std::weak_ptr<std::atomic<bool>> watched = held;
  {
    auto started = BoundedCall::start([held] {
      while (!*held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Status();
    });
    if (!check(started.ok(), started.status().text())) return;
    fails((*started)->wait(Deadline::after_ns(10'000'000)), Code::pending, {"has not returned"});
  }
  check(watched.use_count() > 1, "the call holds what it needs");
  *held = true;
  held.reset();
  for (int i = 0; i < 20'000 && !watched.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  check(watched.expired(), "and lets it go");
}

}  // namespace

int main() {
  a_proof_is_for_one_thing();
  a_proof_is_keyed_blake2s();
  a_guest_believes_nobody_without_proof();
  a_guest_waits_no_longer_than_it_may();
  a_call_ends_as_it_ends();
  a_call_may_outlive_who_waits();
  return finish();
}
