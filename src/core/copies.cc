// SPDX-License-Identifier: Apache-2.0
#include "core/copies.h"

#include <cstring>
#include <map>
#include <utility>

#include "base/hash.h"
#include "core/param.h"

namespace megadp {
namespace {

// What travels of a copy: this, then its name, its tie, and what it is.
struct CopyRecord {
  uint64_t digest;
  uint64_t begin, end;
  int64_t param;
  int32_t bucket;
  uint32_t name_bytes, tie_bytes, what_bytes;
};

std::vector<HeldCopy> read_copies(std::string_view bytes) {
  std::vector<HeldCopy> copies;
  while (bytes.size() >= sizeof(CopyRecord)) {
    CopyRecord held;
    std::memcpy(&held, bytes.data(), sizeof held);
    bytes.remove_prefix(sizeof held);
    const auto take = [&bytes](size_t count) {
      const std::string_view taken = bytes.substr(0, count);
      bytes.remove_prefix(taken.size());
      return taken;
    };
    HeldCopy copy{.digest = held.digest, .begin = held.begin, .end = held.end, .param = held.param, .bucket = held.bucket};
    copy.name = take(held.name_bytes);
    copy.tie = take(held.tie_bytes);
    copy.what = take(held.what_bytes);
    copies.push_back(copy);
  }
  return copies;
}

std::string differing(const HeldCopy& copy, Alike by) {
  if (by == Alike::tie && copy.what.empty()) return text("the parameters tied as '", copy.tie, "' differ");
  return text(copy.what, copy.what.empty() ? "" : " of ", param_label(static_cast<size_t>(copy.param), std::string(copy.name)), " differs");
}

}  // namespace

void Copies::add(const HeldCopy& copy) {
  const CopyRecord held{copy.digest,
                        copy.begin,
                        copy.end,
                        copy.param,
                        copy.bucket,
                        static_cast<uint32_t>(copy.name.size()),
                        static_cast<uint32_t>(copy.tie.size()),
                        static_cast<uint32_t>(copy.what.size())};
  told_.append(reinterpret_cast<const char*>(&held), sizeof held).append(copy.name).append(copy.tie).append(copy.what);
}

std::optional<Difference> compare_copies(const char* call, const std::vector<std::string>& told, const std::vector<int>& ranks, Alike by) {
  struct Known {
    HeldCopy copy;
    int rank;
  };
  std::map<std::pair<std::string_view, std::string_view>, Known> known;
  std::optional<Difference> found;
  for (size_t r = 0; r < told.size(); ++r) {
    for (const HeldCopy& here : read_copies(told[r])) {
      const auto [at, is_new] = known.try_emplace({by == Alike::tie ? here.tie : here.name, here.what}, Known{here, ranks[r]});
      const Known& first = at->second;
      const HeldCopy& there = first.copy;
      if (is_new || here.digest == there.digest || here.begin != there.begin || here.end != there.end) continue;
      if (found && found->what.param <= there.param) continue;
      const std::string between = text(" between ranks ", first.rank, " and ", ranks[r], ", which should hold the same");
      found = Difference{ranks[r], {text(call, ": ", differing(there, by), between), there.bucket, there.param}};
    }
  }
  return found;
}

// These ranks hold much alike: mostly all, which a digest says. They may hold other things besides: only then they tell what they have.
Status compare_over_tp(ProcessGrid& grid, const char* call, const std::vector<int>& ranks, const Copies& mine) {
  const uint64_t digest = hash_bytes(mine.told().data(), mine.told().size());
  World& world = *grid.world()->context().world;
  auto differ = world.compare(ranks, call, std::string(reinterpret_cast<const char*>(&digest), sizeof digest));
  if (!differ) return differ.status();
  std::optional<Difference> found;
  if (*differ) {
    auto told = world.exchange(ranks, call, mine.told().substr(0, kLongestDetail));
    if (!told) return told.status();
    if (world.rank() == ranks.front()) found = compare_copies(call, *told, ranks, Alike::name);
  }
  return tell_difference(grid, call, found);
}

}  // namespace megadp
