// SPDX-License-Identifier: Apache-2.0
// text(a, b, ...): the arguments written one after another. Whole numbers and strings, of which registrations describe themselves, are
// appended as they are; what else a stream can print goes through one.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <sstream>
#include <string>
#include <string_view>

namespace megadp {

template <class T>
concept WholeNumber = std::integral<T> && sizeof(T) >= 2 && !std::same_as<T, wchar_t> && !std::same_as<T, char16_t> &&
                      !std::same_as<T, char32_t>;

template <class T>
void append_text(std::string* out, const T& value) {
  if constexpr (WholeNumber<T>) {
    std::array<char, 24> digits;
    const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    out->append(digits.data(), static_cast<size_t>(end - digits.data()));
  } else if constexpr (std::convertible_to<const T&, std::string_view>) {
    out->append(std::string_view(value));
  } else {
    std::ostringstream stream;
    stream << value;
    out->append(std::move(stream).str());
  }
}

template <class... Args>
void append_all(std::string* out, const Args&... args) {
  (append_text(out, args), ...);
}

template <class... Args>
std::string text(const Args&... args) {
  std::string out;
  append_all(&out, args...);
  return out;
}

// The first line of a text, without its end; both are taken off.
inline std::string_view take_line(std::string_view* text) {
  const std::string_view line = text->substr(0, text->find('\n'));
  text->remove_prefix(std::min(line.size() + 1, text->size()));
  return line;
}

// So that different numbers are different texts: in six digits 3e-4 and 3e-4F look the same.
std::string exactly(double value);

// For sentences: what a file or a command line holds, cut short, and without what a terminal would obey.
std::string in_quotes(std::string_view given);

}  // namespace megadp
