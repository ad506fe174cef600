// SPDX-License-Identifier: Apache-2.0
// UTF-8 against a slow decoder, for every character and for random bytes.
#include "base/utf8.h"

#include <rapidcheck.h>

#include <string>

#include "check.h"

using namespace megadp;
using namespace megadp::test;

namespace {

// By the table of the standard, from the character to the bytes.
std::string encode(uint32_t c) {
  const auto tail = [](uint32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(c)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(c >> 6), tail(c)};
  return {static_cast<char>(0xF0 | c >> 18), tail(c >> 12), tail(c >> 6), tail(c)};
}

void every_character() {
  for (uint32_t c = 0; c <= 0x110100; ++c) {
    const std::string bytes = encode(c);
    const bool is_character = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    if (utf8_sequence(bytes) == (is_character ? bytes.size() : 0)) continue;
    check(false, text("character ", c, " is taken for ", utf8_sequence(bytes), " bytes"));
  }
  check(utf8_sequence("") == 0, "nothing begins with no character");
}

void incomplete_and_overlong() {
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x9F\x80", "\xE2\x82", "\xF0\x8F\x80\x80", "\xF4\x90\x80\x80", "\xFF"}) {
    check(!is_utf8(bad), "what is no UTF-8 is taken for it");
    check(!is_utf8(text("a", bad, "z")), "what holds no UTF-8 is taken for it");
  }
}

void prefixes() {
  set_property_runs(1000);
  const bool cut_between = rc::check("a front of valid text is valid, and the longest that fits", [] {
    std::string whole;
    const auto characters = *rc::gen::container<std::vector<uint32_t>>(rc::gen::oneOf(
        rc::gen::inRange<uint32_t>(1, 0x80), rc::gen::inRange<uint32_t>(0x80, 0xD800), rc::gen::inRange<uint32_t>(0xE000, 0x110000)));
    for (const uint32_t c : characters) whole += encode(c);
    const auto limit = *rc::gen::inRange<size_t>(0, 40);
    const std::string_view front = utf8_prefix(whole, limit);
    RC_ASSERT(is_utf8(whole));
    RC_ASSERT(is_utf8(front));
    RC_ASSERT(front.size() <= limit && whole.compare(0, front.size(), front) == 0);
    if (front.size() < whole.size()) RC_ASSERT(front.size() + utf8_sequence(std::string_view(whole).substr(front.size())) > limit);
  });
  check(cut_between, "property of prefixes");
  const bool any_bytes = rc::check("any bytes: within bounds, and what is taken for valid text ends where its characters do", [] {
    const auto bytes = *rc::gen::arbitrary<std::string>();
    const auto limit = *rc::gen::inRange<size_t>(0, 40);
    RC_ASSERT(utf8_prefix(bytes, limit).size() <= limit);
    RC_ASSERT(utf8_sequence(bytes) <= bytes.size());
  });
  check(any_bytes, "property of any bytes");
}

}  // namespace

int main() {
  every_character();
  incomplete_and_overlong();
  prefixes();
  return finish();
}
