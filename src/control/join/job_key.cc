// SPDX-License-Identifier: Apache-2.0
// SipHash and the names made with it.
#include "control/join/job_key.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"
#include "control/launch/launch.h"

namespace megadp {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  uint64_t squeeze() const { return v0 ^ v1 ^ v2 ^ v3; }
};

uint64_t load_le(const char* bytes, size_t count) {
  uint64_t word = 0;
  for (size_t i = 0; i < count; ++i) word |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return word;
}

void store_le(uint64_t word, uint8_t* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(word >> (8 * i));
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::array<uint8_t, 16> keyed_hash(const std::array<uint8_t, 16>& key, std::string_view bytes) {
  const uint64_t k0 = load_le(reinterpret_cast<const char*>(key.data()), 8);
  const uint64_t k1 = load_le(reinterpret_cast<const char*>(key.data()) + 8, 8);
  // The constants are "somepseudorandomlygeneratedbytes"; 0xee marks the 128-bit variant.
  SipState s{k0 ^ 0x736f6d6570736575U, k1 ^ 0x646f72616e646f6dU ^ 0xeeU, k0 ^ 0x6c7967656e657261U, k1 ^ 0x7465646279746573U};
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) s.absorb(load_le(bytes.data() + at, 8));
  s.absorb(load_le(bytes.data() + at, bytes.size() - at) | static_cast<uint64_t>(bytes.size() & 0xff) << 56);
  std::array<uint8_t, 16> out;
  s.v2 ^= 0xee;
  s.rounds(4);
  store_le(s.squeeze(), out.data());
  s.v1 ^= 0xdd;
  s.rounds(4);
  store_le(s.squeeze(), out.data() + 8);
  return out;
}

std::string to_hex(const uint8_t* bytes, size_t count) {
  static const char digits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * count);
  for (size_t i = 0; i < count; ++i) {
    hex.push_back(digits[bytes[i] >> 4]);
    hex.push_back(digits[bytes[i] & 15]);
  }
  return hex;
}

bool from_hex(std::string_view hex, uint8_t* out, size_t count) {
  if (hex.size() != 2 * count) return false;
  for (size_t i = 0; i < count; ++i) {
    const int high = hex_value(hex[2 * i]);
    const int low = hex_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

AuthKey auth_key_of(const Launch& launch) {
  const bool secret = std::any_of(launch.secret.begin(), launch.secret.end(), [](uint8_t b) { return b != 0; });
  if (secret) return launch.secret;
  AuthKey key;
  const auto left = keyed_hash({}, "key 1:" + launch.job);
  const auto right = keyed_hash({}, "key 2:" + launch.job);
  std::copy(left.begin(), left.end(), key.begin());
  std::copy(right.begin(), right.end(), key.begin() + 16);
  return key;
}

AuthKey derived_key(const AuthKey& key, std::string_view purpose) {
  AuthKey derived;
  for (const size_t half : {0, 16}) {
    std::array<uint8_t, 16> half_key;
    std::copy_n(key.begin() + static_cast<ptrdiff_t>(half), half_key.size(), half_key.begin());
    const auto hash = keyed_hash(half_key, purpose);
    std::copy(hash.begin(), hash.end(), derived.begin() + static_cast<ptrdiff_t>(half));
  }
  return derived;
}

std::string socket_name(const Launch& launch, std::string_view purpose) {
  std::array<uint8_t, 16> key;
  std::copy(launch.secret.begin(), launch.secret.begin() + 16, key.begin());
  std::string bytes(reinterpret_cast<const char*>(launch.secret.data()) + 16, 16);
  bytes += purpose;
  bytes += '\0';
  bytes += launch.job;
  const auto digest = keyed_hash(key, bytes);
  return text("megadp-", ::getuid(), "-", to_hex(digest.data(), digest.size()));
}

uint16_t derived_port(std::string_view job, uint16_t avoid) {
  const auto digest = keyed_hash({}, "port:" + std::string(job));
  const auto port = static_cast<uint16_t>(20000 + (digest[0] | digest[1] << 8) % 10000);
  return port == avoid ? static_cast<uint16_t>(port + 1) : port;
}

}  // namespace megadp
