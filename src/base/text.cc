// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include "base/utf8.h"

namespace megadp {

std::string exactly(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

std::string in_quotes(std::string_view given) {
  constexpr size_t kShown = 80;
  const std::string_view shown = utf8_prefix(given, kShown);
  std::string out = "'";
  for (const char c : shown) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (given.size() > shown.size() ? "...'" : "'");
}

}  // namespace megadp
