// SPDX-License-Identifier: Apache-2.0
#include "core/ties.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace megadp {
namespace {

// Of one rank: by the name of the tie how its parameter lies.
using TiesOfRank = std::map<std::string, std::string, std::less<>>;

// As describe_ties() has written it.
TiesOfRank read_ties(std::string_view text) {
  TiesOfRank held;
  const auto take = [&text] {
    const size_t end = std::min(text.find('\0'), text.size());
    std::string taken(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return taken;
  };
  while (!text.empty()) {
    std::string name = take();
    held[std::move(name)] = take();
  }
  return held;
}

}  // namespace

std::string describe_ties(const Plan& plan) {
  std::string out;
  for (const ArenaPlan& arena : plan.arenas) {
    for (const Slot& slot : arena.layout.slots) {
      if (!plan.is_tied(slot.param)) continue;
      const ParamSpec& param = plan.params[slot.param];
      const BucketRange& bucket = arena.layout.buckets[slot.bucket];
      std::string how = text(name_of(param.dtype), shape_text(param.shape), " with gradients in ", name_of(arena.grad_type), ", ",
                             param.expert ? "expert" : "dense", ", ", name_of(param.placement), ", group ", param.group);
      if (arena.shards == 1) {
        how += ", not sharded";
      } else {
        how += text(", ", bucket.end - bucket.begin, " elements in ", arena.shards, " shards");
        if (arena.is_whole()) how += text(", owned whole by shard ", slot.owner);
      }
      out += param.tie + '\0' + how + '\0';
    }
  }
  return out;
}

Result<std::vector<Tie>> match_ties(const Plan& plan, const std::vector<std::string>& described, const std::vector<int>& world_ranks) {
  const Grid& grid = plan.grid;
  std::vector<TiesOfRank> held;
  std::map<std::string, std::set<int>> stages;
  for (const std::string& text : described) held.push_back(read_ties(text));
  for (size_t r = 0; r < held.size(); ++r) {
    for (const auto& [name, how] : held[r]) stages[name].insert(grid.index(kPp, static_cast<int>(r)));
  }
  std::vector<Tie> ties;
  for (const auto& [name, holders] : stages) {
    const auto refuse = [&, &tie = name](size_t rank, const std::string& why) {
      return invalid("parameters tied as '", tie, "': ", why).with_blame({.rank = world_ranks[rank]});
    };
    for (size_t r = 0; r < held.size(); ++r) {
      const int stage = grid.index(kPp, static_cast<int>(r));
      if (holders.count(stage) == 0) continue;
      const auto here = held[r].find(name);
      if (here == held[r].end()) {
        return refuse(r, text("rank ", world_ranks[r], " has none, but other ranks of pipeline stage ", stage,
                              " do; all ranks of a stage must register the same ties"));
      }
      const auto first = static_cast<size_t>(grid.group(kPp, static_cast<int>(r))[static_cast<size_t>(*holders.begin())]);
      const auto there = held[first].find(name);
      if (there == held[first].end() || there->second == here->second) continue;
      return refuse(r, text("rank ", world_ranks[first], " holds ", there->second, ", rank ", world_ranks[r], " ", here->second,
                            "; give both the same shape, types, placement, group and sharding"));
    }
    ties.push_back({name, {holders.begin(), holders.end()}, {}});
  }
  for (Tie& tie : ties) {
    for (size_t param = 0; param < plan.params.size(); ++param) {
      if (plan.is_tied(param) && plan.params[param].tie == tie.name) tie.param = param;
    }
  }
  return ties;
}

}  // namespace megadp
