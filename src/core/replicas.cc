// SPDX-License-Identifier: Apache-2.0
#include "core/replicas.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace megadp {

namespace {

struct Difference {
  bool expert;
  int first, other;  // ranks of the grid
};

using Digests = std::array<uint64_t, 2>;
constexpr size_t kLongestDetail = size_t{1} << 26;  // World::exchange takes no more

// The same answer on every rank: all of them have the digests of all.
std::optional<Difference> find_difference(const Grid& grid, const std::vector<Digests>& digests) {
  for (const bool expert : {false, true}) {
    for (const std::vector<int>& group : grid.groups(Grid::shard_axes(expert))) {
      for (const int rank : group) {
        const auto of = [&](int r) { return digests[static_cast<size_t>(r)][expert ? 1 : 0]; };
        if (of(rank) != of(group.front())) return Difference{expert, group.front(), rank};
      }
    }
  }
  return {};
}

struct Verdict {
  int64_t param;
  int32_t bucket;
  int32_t unused;
};

}  // namespace

Status compare_replicas(ProcessGrid& grid, const Replica& held, const std::function<Explanation(const ReplicaPair&)>& explain) {
  World& world = *grid.world()->context().world;
  const std::vector<int>& members = grid.world()->group().members();
  const auto size_is_wrong = [&](size_t rank, size_t bytes) {
    return internal_error("rank ", members[rank], " sent ", bytes, " bytes where replicas are compared");
  };

  auto all = world.exchange(members, held.call, std::string(reinterpret_cast<const char*>(held.digests.data()), sizeof held.digests));
  if (!all) return all.status();
  std::vector<Digests> digests(members.size());
  for (size_t r = 0; r < members.size(); ++r) {
    if ((*all)[r].size() != sizeof(Digests)) return size_is_wrong(r, (*all)[r].size());
    std::memcpy(digests[r].data(), (*all)[r].data(), sizeof(Digests));
  }
  const auto difference = find_difference(grid.grid(), digests);
  if (!difference) return {};

  // Only the two send what they hold, and only to each other; the world learns the sentence. What is too long to be exchanged is cut: the
  // difference will most likely be seen all the same.
  const auto first = static_cast<size_t>(difference->first), other = static_cast<size_t>(difference->other);
  std::string mine;
  if (grid.rank() == difference->first || grid.rank() == difference->other) {
    auto both = world.exchange({members[first], members[other]}, held.call, held.detail(difference->expert).substr(0, kLongestDetail));
    if (!both) return both.status();
    if (grid.rank() == difference->first) {
      const Explanation found = explain({members[first], members[other], (*both)[0], (*both)[1], difference->expert});
      const Verdict verdict{found.param, found.bucket, 0};
      mine.assign(reinterpret_cast<const char*>(&verdict), sizeof verdict);
      mine += found.sentence;
    }
  }
  auto verdicts = world.exchange(members, held.call, mine);
  if (!verdicts) return verdicts.status();
  const std::string& told = (*verdicts)[first];
  Verdict verdict{};
  if (told.size() < sizeof verdict) return size_is_wrong(first, told.size());
  std::memcpy(&verdict, told.data(), sizeof verdict);
  return Status(Code::desync, told.substr(sizeof verdict), Blame{.rank = members[other], .bucket = verdict.bucket, .param = verdict.param});
}

}  // namespace megadp
