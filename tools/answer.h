// SPDX-License-Identifier: Apache-2.0
// Calls of the public API as the program makes them: a text of unknown length, and a failure as a Status.
#pragma once

#include <string>

#include "base/status.h"
#include "megadp.h"

namespace megadp::tool {

inline Status api_status(mdp_status code) {
  return code == MDP_OK ? Status() : Status(static_cast<Code>(code), mdp_last_error());
}

// `ask` is called as mdp_info is: (char* json, size_t capacity, size_t* needed).
template <class Ask>
Result<std::string> answer(const Ask& ask) {
  size_t needed = 0;
  if (Status sized = api_status(ask(nullptr, 0, &needed)); !sized) return sized;
  std::string text(needed, '\0');
  if (Status given = api_status(ask(text.data(), text.size(), &needed)); !given) return given;
  text.resize(needed - 1);  // without the NUL
  return text;
}

}  // namespace megadp::tool
