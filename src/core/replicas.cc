// SPDX-License-Identifier: Apache-2.0
#include "core/replicas.h"

#include <cstring>
#include <string>
#include <vector>

namespace megadp {
namespace {

constexpr size_t kLongestDetail = size_t{1} << 26;  // World::exchange takes no more

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

// The verdict, on the first of the two ranks that differ; elsewhere nothing. Only the two send what they hold, and only to each other. What
// is too long to be exchanged is cut: the difference will most likely be seen all the same.
Result<std::string> compare_group(ProcessGrid& grid, const Replica& held, bool expert,
                                  const std::function<Explanation(const ReplicaPair&)>& explain) {
  World& world = *grid.world()->context().world;
  const uint64_t digest = held.digests[expert ? 1 : 0];
  auto compared = world.compare(in_world(grid, grid.grid().group(held.axes(expert), grid.rank())), held.call,
                                std::string(reinterpret_cast<const char*>(&digest), sizeof digest));
  if (!compared) return compared.status();
  if (!*compared || (world.rank() != (*compared)->first && world.rank() != (*compared)->other)) return std::string();
  const int first = (*compared)->first, other = (*compared)->other;
  auto both = world.exchange({first, other}, held.call, held.detail(expert).substr(0, kLongestDetail));
  if (!both) return both.status();
  if (world.rank() == other) return std::string();
  const Explanation found = explain({first, other, (*both)[0], (*both)[1], expert});
  const Verdict verdict{found.param, found.bucket, other};
  return std::string(reinterpret_cast<const char*>(&verdict), sizeof verdict) + found.sentence;
}

}  // namespace

Status compare_replicas(ProcessGrid& grid, const Replica& held, const std::function<Explanation(const ReplicaPair&)>& explain) {
  for (const bool expert : {false, true}) {
    auto mine = compare_group(grid, held, expert, explain);
    if (!mine) return mine.status();
    // All is well where every rank says nothing.
    auto told = grid.world()->context().world->compare(grid.world()->group().members(), held.call, *mine);
    if (!told) return told.status();
    if (!*told) continue;
    const std::string& bytes = (*told)->first_bytes.empty() ? (*told)->other_bytes : (*told)->first_bytes;
    Verdict verdict{};
    if (bytes.size() < sizeof verdict) return internal_error(bytes.size(), " bytes came where replicas are compared");
    std::memcpy(&verdict, bytes.data(), sizeof verdict);
    return Status(Code::desync, bytes.substr(sizeof verdict),
                  Blame{.rank = verdict.other, .bucket = verdict.bucket, .param = verdict.param});
  }
  return {};
}

}  // namespace megadp
