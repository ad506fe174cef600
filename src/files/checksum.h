// SPDX-License-Identifier: Apache-2.0
// The checksum of stored bytes: XXH3 of 64 bits, as many digits in text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace megadp {

constexpr size_t kChecksumDigits = 16;

uint64_t checksum(const void* data, size_t bytes) noexcept;
void append_digits(std::string* out, uint64_t value);  // hexadecimal
// false if it is not as many digits.
bool read_digits(std::string_view digits, uint64_t* value) noexcept;

}  // namespace megadp
