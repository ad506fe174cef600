// SPDX-License-Identifier: Apache-2.0
// The handshake at the door of a rendezvous: both sides prove that they know the key, which itself never travels.
//
//   client ── magic, the client's nonce (24 bytes) ─────────────> server
//   client <── the server's nonce, the server's proof (48 bytes) ─── server
//   client ── the client's proof (32 bytes), then frames ───────> server
//
// A proof is the keyed BLAKE2s of the side it is of and both nonces, so that it is good for this side of this connection alone. All parts
// have fixed sizes: nothing of a stranger is parsed. What follows the handshake is neither encrypted nor signed: it keeps out whoever
// connects or listens, not one who can change packets on their way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/status.h"
#include "control/join/job_key.h"

namespace megadp {

constexpr std::string_view kHandshakeMagic = "MDPJOIN3";
using Nonce = std::array<uint8_t, 16>;
constexpr size_t kOpeningSize = 8 + 16;
constexpr size_t kProofSize = sizeof(Digest);
constexpr size_t kAnswerSize = 16 + kProofSize;

Result<Nonce> fresh_nonce();

// Both take the nonces in the order client, server. The bytes as they are sent.
std::string proof_of_server(const AuthKey& key, const Nonce& client, const Nonce& server);
std::string proof_of_client(const AuthKey& key, const Nonce& client, const Nonce& server);

// Takes the same time wherever the first difference is.
bool same_proof(std::string_view a, std::string_view b);

// The client's side, on a fresh connection. Fails with Code::system and the reason, after which another connection may be tried; with what
// `interrupted` says (it may be empty); and with Code::timeout at the deadline.
Status greet_server(int fd, const AuthKey& key, Deadline deadline, const std::function<Status()>& interrupted);

}  // namespace megadp
