// SPDX-License-Identifier: Apache-2.0
// Replicas: ranks that hold the same parameters compare what they hold; and whatever is found, every rank of the world
// learns the same, also those of groups in which all is well. Otherwise these would go on to a collective that the others never join.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/process_grid.h"

namespace megadp {

constexpr size_t kLongestDetail = size_t{1} << 26;  // World::exchange takes no more: what is longer is cut

// What one rank holds that others must hold alike: by default those that hold replicas of its parameters. Of the dense part and of the
// expert part a digest, equal on all of them if what they hold is equal; and, asked for only if digests differ, the text
// behind it.
struct Replica {
  const char* call;                   // the call of the user's that this is part of
  std::array<uint64_t, 2> digests{};  // dense, expert
  std::function<std::string(bool expert)> detail;
  Axes (*axes)(bool expert) = &Grid::replica_axes;
  std::array<int, 2> shards{1, 1};  // dense, expert: of these ranks every so manieth holds the same
};

// The sentence about two ranks that differ, and what is to blame besides the second of them.
struct Explanation {
  std::string sentence;
  int32_t bucket = -1;
  int64_t param = -1;
};
struct ReplicaPair {  // world ranks, and what each of them holds
  int first, other;
  const std::string &first_detail, &other_detail;
  bool expert;
};

// What a rank has found: that `other`, a world rank, does not hold what it should.
struct Difference {
  int other;
  Explanation what;
};
// Collective over the grid's world: ok if no rank has found anything, or on every rank the same Code::desync about one that has been found.
Status tell_difference(ProcessGrid& grid, const char* call, const std::optional<Difference>& mine);

// Collective over the grid's world. ok, or on every rank the same Code::desync about the first shard group that differs, dense ones first:
// its first member and the first member that differs from it. `explain` is called on one of the two.
Status compare_replicas(ProcessGrid& grid, const Replica& held, const std::function<Explanation(const ReplicaPair&)>& explain);

}  // namespace megadp
