// SPDX-License-Identifier: Apache-2.0
// UTF-8: is it, and where may it be cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace megadp {

// Length of the valid sequence at the front of `s`, 0 if there is none: overlong forms, surrogates and values above U+10FFFF are not
// valid.
constexpr size_t utf8_sequence(std::string_view s) noexcept {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : uint8_t{0}; };
  const uint8_t first = byte(0);
  if (s.empty()) return 0;
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  // The second byte's range is narrower after some first bytes; every other byte is 80..BF.
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

constexpr bool is_utf8(std::string_view s) noexcept {
  while (!s.empty()) {
    const size_t length = utf8_sequence(s);
    if (length == 0) return false;
    s.remove_prefix(length);
  }
  return true;
}

// The longest front of `s` of at most `limit` bytes that does not end inside a character.
constexpr std::string_view utf8_prefix(std::string_view s, size_t limit) noexcept {
  if (s.size() <= limit) return s;
  size_t end = limit;
  while (end > 0 && limit - end < 4 && (static_cast<uint8_t>(s[end]) & 0xC0) == 0x80) --end;
  return s.substr(0, end);
}

}  // namespace megadp
