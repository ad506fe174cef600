// SPDX-License-Identifier: Apache-2.0
// The handshake at the door of a rendezvous: both sides prove that they know the guard, which itself never travels.
//
//   guest ── magic, the guest's nonce (24 bytes) ─────────────> host
//   guest <── the host's nonce, the host's proof (48 bytes) ─── host
//   guest ── the guest's proof (32 bytes), then frames ───────> host
//
// A proof is a keyed hash of the side it is of and both nonces, so that it is good for this side of this connection alone. All parts have
// fixed sizes: nothing of a stranger is parsed. What follows the handshake is neither encrypted nor signed: it keeps out whoever connects
// or listens, not one who can change packets on their way.
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

constexpr std::string_view kHandshakeMagic = "MDPJOIN2";
using Nonce = std::array<uint8_t, 16>;
constexpr size_t kOpeningSize = 8 + 16;
constexpr size_t kAnswerSize = 16 + 32;
constexpr size_t kProofSize = 32;

Result<Nonce> fresh_nonce();

// Both take the nonces in the order guest, host. The bytes as they are sent.
std::string proof_of_host(const Guard& guard, const Nonce& guest, const Nonce& host);
std::string proof_of_guest(const Guard& guard, const Nonce& guest, const Nonce& host);

// Takes the same time wherever the first difference is.
bool same_proof(std::string_view a, std::string_view b);

// The guest's side, on a fresh connection. Fails with Code::system and the reason, after which another connection may be tried; with what
// `interrupted` says (it may be empty); and with Code::timeout at the deadline.
Status greet_host(int fd, const Guard& guard, Deadline deadline, const std::function<Status()>& interrupted);

}  // namespace megadp
