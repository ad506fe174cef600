// SPDX-License-Identifier: Apache-2.0
// Keys, names and ports made with BLAKE2s.
#include "control/join/job_key.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "control/launch/launch.h"

namespace megadp {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

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

bool has_secret(const Launch& launch) {
  return std::any_of(launch.secret.begin(), launch.secret.end(), [](uint8_t b) { return b != 0; });
}

AuthKey auth_key_of(const Launch& launch) {
  if (has_secret(launch)) return launch.secret;
  return blake2s({}, "key:" + launch.job);
}

AuthKey derived_key(const AuthKey& key, std::string_view purpose) {
  return blake2s(key, purpose);
}

std::string socket_name(const Launch& launch, std::string_view purpose) {
  std::string bytes(purpose);
  bytes += '\0';
  bytes += launch.job;
  constexpr size_t kNameBytes = 16;  // chance alone makes no two names equal
  return text("megadp-", ::getuid(), "-", to_hex(blake2s(launch.secret, bytes).data(), kNameBytes));
}

uint16_t derived_port(std::string_view job, uint16_t avoid) {
  const auto digest = blake2s({}, "port:" + std::string(job));
  const auto port = static_cast<uint16_t>(20000 + (digest[0] | digest[1] << 8) % 10000);
  return port == avoid ? static_cast<uint16_t>(port + 1) : port;
}

Status fill_random(uint8_t* out, size_t count) {
  while (count > 0) {
    const ssize_t n = ::getrandom(out, count, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error("reading random numbers", errno);
    out += n;
    count -= static_cast<size_t>(n);
  }
  return {};
}

}  // namespace megadp
