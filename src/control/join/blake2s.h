// SPDX-License-Identifier: Apache-2.0
// BLAKE2s, the hash of RFC 7693, with a key or without, and 32 bytes of output.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace megadp {

using Digest = std::array<uint8_t, 32>;

// `key` has 0 to 32 bytes. With a key that is secret the digest is a proof of knowing it, and says nothing about it.
Digest blake2s(std::span<const uint8_t> key, std::string_view bytes);

}  // namespace megadp
