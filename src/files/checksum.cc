// SPDX-License-Identifier: Apache-2.0
#include "files/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <charconv>

namespace megadp {

uint64_t checksum(const void* data, size_t bytes) noexcept {
  return XXH3_64bits(data, bytes);
}

void append_digits(std::string* out, uint64_t value) {
  std::array<char, kChecksumDigits> digits;
  for (size_t i = kChecksumDigits; i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  out->append(digits.data(), digits.size());
}

bool read_digits(std::string_view digits, uint64_t* value) noexcept {
  const char* const end = digits.data() + digits.size();
  return digits.size() == kChecksumDigits && std::from_chars(digits.data(), end, *value, 16).ptr == end;
}

}  // namespace megadp
