// SPDX-License-Identifier: Apache-2.0
// Copies: what ranks hold alike though they hold other things besides. Tensor-parallel ranks have that of what is not sharded, stages of
// what is tied. They tell one another what they hold of it, by name; and what is found the world. (Replicas hold everything alike:
// replicas.h.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/replicas.h"

namespace megadp {

// Of one parameter: its values, or what this rank owns of something that belongs to it.
struct HeldCopy {
  std::string_view what{};  // empty: its values; else such as "the reduced gradient", or a state array's name
  std::string_view name{}, tie{};
  uint64_t digest = 0;
  uint64_t begin = 0, end = 0;  // of what is owned; where others own another part there is nothing to compare
  int64_t param = -1;
  int32_t bucket = -1;
};

class Copies {
 public:
  void add(const HeldCopy& copy);
  const std::string& told() const { return told_; }

 private:
  std::string told_;
};

enum class Alike {  // copies of two ranks mean the same if they have the same
  name,
  tie
};

// told: by each of `ranks`, of the world. The first difference between the first that holds something and one that should hold the same.
std::optional<Difference> compare_copies(const char* call, const std::vector<std::string>& told, const std::vector<int>& ranks, Alike by);

// Over tensor-parallel ranks, of the world; by name. Collective over the grid's world; the same outcome on all ranks.
Status compare_over_tp(ProcessGrid& grid, const char* call, const std::vector<int>& ranks, const Copies& mine);

}  // namespace megadp
