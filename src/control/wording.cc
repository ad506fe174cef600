// SPDX-License-Identifier: Apache-2.0
#include "control/wording.h"

#include <cstdio>

#include "base/text.h"

namespace megadp {

std::string list_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;  // a run of neighbours is written "3 to 9"
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 4) end = i + 1;
    if (i > 0) list += end == ranks.size() ? " and " : ", ";
    list += end - i == 1 ? std::to_string(ranks[i]) : text(ranks[i], " to ", ranks[end - 1]);
    i = end;
  }
  return list;
}

std::string seconds(uint64_t ns) {
  char words[32];
  std::snprintf(words, sizeof words, "%.3g s", static_cast<double>(ns) / 1e9);
  return words;
}

}  // namespace megadp
