// SPDX-License-Identifier: Apache-2.0
#include "core/replicas.h"

#include <cstring>
#include <string>
#include <vector>

namespace megadp {
namespace {

// What the world is told of a difference: this, then the sentence.
struct Verdict {
  int64_t param;
  int32_t bucket;
  int32_t other;  // world rank
};

std::vector<int> in_world(const ProcessGrid& grid, std::vector<int> ranks) {
  for (int& rank : ranks) rank = grid.world()->group().members()[static_cast<size_t>(rank)];
  return ranks;
}

// The ranks of this grid that hold the same as this one.
std::vector<int> holders(const ProcessGrid& grid, const Replica& held, bool expert) {
  const std::vector<int> group = grid.grid().group(held.axes(expert), grid.rank());
  const auto shards = static_cast<size_t>(held.shards[expert ? 1 : 0]);
  std::vector<int> ranks;
  for (size_t at = static_cast<size_t>(grid.grid().index(held.axes(expert), grid.rank())) % shards; at < group.size(); at += shards)
    ranks.push_back(group[at]);
  return ranks;
}

// What is found, on the first of the two ranks that differ; elsewhere nothing. Only the two send what they hold, and only to each other.
// What is too long to be exchanged is cut: the difference will most likely be seen all the same.
Result<std::optional<Difference>> compare_group(ProcessGrid& grid, const Replica& held, bool expert,
                                                const std::function<Explanation(const ReplicaPair&)>& explain) {
  World& world = *grid.world()->context().world;
  const uint64_t digest = held.digests[expert ? 1 : 0];
  auto compared = world.compare(in_world(grid, holders(grid, held, expert)), held.call,
                                std::string(reinterpret_cast<const char*>(&digest), sizeof digest));
  if (!compared) return compared.status();
  if (!*compared || (world.rank() != (*compared)->first && world.rank() != (*compared)->other)) return std::optional<Difference>();
  const int first = (*compared)->first, other = (*compared)->other;
  auto both = world.exchange({first, other}, held.call, held.detail(expert).substr(0, kLongestDetail));
  if (!both) return both.status();
  if (world.rank() == other) return std::optional<Difference>();
  return std::optional(Difference{other, explain({first, other, (*both)[0], (*both)[1], expert})});
}

}  // namespace

Status tell_difference(ProcessGrid& grid, const char* call, const std::optional<Difference>& mine) {
  std::string saying;  // nothing, if all is well
  if (mine) {
    const Verdict verdict{mine->what.param, mine->what.bucket, mine->other};
    saying = std::string(reinterpret_cast<const char*>(&verdict), sizeof verdict) + mine->what.sentence;
  }
  auto told = grid.world()->context().world->compare(grid.world()->group().members(), call, saying);
  if (!told) return told.status();
  if (!*told) return {};
  const std::string& bytes = (*told)->first_bytes.empty() ? (*told)->other_bytes : (*told)->first_bytes;
  Verdict verdict{};
  if (bytes.size() < sizeof verdict) return internal_error(bytes.size(), " bytes came where replicas are compared");
  std::memcpy(&verdict, bytes.data(), sizeof verdict);
  return Status(Code::desync, bytes.substr(sizeof verdict), Blame{.rank = verdict.other, .bucket = verdict.bucket, .param = verdict.param});
}

Status compare_replicas(ProcessGrid& grid, const Replica& held, const std::function<Explanation(const ReplicaPair&)>& explain) {
  for (const bool expert : {false, true}) {
    auto mine = compare_group(grid, held, expert, explain);
    if (!mine) return mine.status();
    if (Status told = tell_difference(grid, held.call, *mine); !told) return told;
  }
  return {};
}

}  // namespace megadp
