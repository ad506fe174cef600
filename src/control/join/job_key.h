// SPDX-License-Identifier: Apache-2.0
// What is derived from a job's name and secret: the key that ranks prove each other to know, and the names and ports they meet at. The
// names are visible to every user of the machine (/proc/net/unix).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "control/join/blake2s.h"

namespace megadp {

struct Launch;

std::string to_hex(const uint8_t* bytes, size_t count);
// false unless `hex` is exactly 2 * count hexadecimal digits.
bool from_hex(std::string_view hex, uint8_t* out, size_t count);

using AuthKey = Digest;

// From the system, for secrets and nonces.
Status fill_random(uint8_t* out, size_t count);

bool has_secret(const Launch& launch);

// The launch's secret; if there is none, a digest of the job's name, which keeps jobs apart but no attacker out.
AuthKey auth_key_of(const Launch& launch);

// Another key, for what `purpose` says; whoever learns it does not learn the first.
AuthKey derived_key(const AuthKey& key, std::string_view purpose);

// Name (without the leading NUL) of an abstract UNIX socket for this user and job. `purpose` tells several sockets of one job apart.
std::string socket_name(const Launch& launch, std::string_view purpose);

// A port below the range that Linux hands out by itself (32768), the same on every rank of a job and never `avoid`.
uint16_t derived_port(std::string_view job, uint16_t avoid);

}  // namespace megadp
