// SPDX-License-Identifier: Apache-2.0
// text(a, b, ...): the arguments written one after another. For error sentences; not for hot paths.
#pragma once

#include <sstream>
#include <string>

namespace megadp {

template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

}  // namespace megadp
