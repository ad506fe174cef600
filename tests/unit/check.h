// SPDX-License-Identifier: Apache-2.0
// Checks of the unit tests: each failure is printed with its place and counted; main() returns finish().
#pragma once

#include <cstdlib>
#include <iostream>
#include <source_location>
#include <string>
#include <vector>

#include "base/status.h"

namespace megadp::test {

using Place = std::source_location;

inline int failures = 0;
inline int checks = 0;

inline bool check(bool good, const std::string& what, Place at = Place::current()) {
  ++checks;
  if (!good) {
    ++failures;
    std::cerr << at.file_name() << ":" << at.line() << ": " << what << "\n";
  }
  return good;
}

template <class T>
std::string shown(const T& value) {
  return text(value);
}
template <class T>
std::string shown(const std::vector<T>& values) {
  std::string out = "[";
  for (const T& value : values) out += text(out.size() > 1 ? "," : "", shown(value));
  return out + "]";
}

template <class T>
bool check_equal(const T& got, const std::type_identity_t<T>& expected, const std::string& what = "value", Place at = Place::current()) {
  return check(got == expected, text(what, " is ", shown(got), ", not ", shown(expected)), at);
}

// A failure of this kind whose sentence has every one of the words.
inline bool fails(const Status& status, Code code, const std::vector<std::string>& words, Place at = Place::current()) {
  bool good =
      check(status.code() == code, text("status is ", code_name(status.code()), " '", status.text(), "', not ", code_name(code)), at);
  for (const std::string& word : words)
    good &= check(status.text().find(word) != std::string::npos, text("'", status.text(), "' does not say '", word, "'"), at);
  return good;
}

// Properties are tried this often unless RC_PARAMS says otherwise; to be called before the first. A quarter as often under sanitizers,
// which find their kind of mistake in any input that gets there; the plain build looks for the input that is wrong.
inline void set_property_runs(int runs) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  runs = (runs + 3) / 4;
#endif
  setenv("RC_PARAMS", text("max_success=", runs).c_str(), 0);
}

inline int finish() {
  std::cerr << checks << " checks, " << failures << " failed\n";
  return failures == 0 && checks > 0 ? 0 : 1;
}

}  // namespace megadp::test
