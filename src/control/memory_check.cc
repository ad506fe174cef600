// SPDX-License-Identifier: Apache-2.0
#include "control/memory_check.h"

#include <algorithm>
#include <map>
#include <utility>

#include "control/agreement.h"
#include "control/net/frame.h"
#include "control/wording.h"

namespace megadp {
namespace {

// Of the ranks under one limit.
struct Sum {
  uint64_t bytes = 0, left = 0;
  std::vector<int> ranks;
};

Status refusal(const MemoryLimit& limit, const Sum& sum) {
  const bool machine = limit.device == 0 && limit.inode == 0;
  return {Code::memory,
          text(list_ranks(sum.ranks), sum.ranks.size() == 1 ? " needs " : " need together ", sum.bytes, " bytes of memory more, and ",
               sum.left, " are left ",
               machine ? text("on the machine (MemAvailable of ", limit.file, "; it has ", limit.bytes, ")")
                       : text("of the ", limit.bytes, " that ", limit.file, " allows"),
               "; ", machine ? "" : "raise that limit, ", "use more machines, 16-bit parameters or gradients, or MDP_SHARDING_ZERO_1; ",
               "MDP_BUFFER_IGNORE_MEMORY goes ahead all the same"),
          Blame{.rank = sum.ranks.front()}};
}

std::string pack(uint64_t bytes, bool anyway) {
  FrameWriter writer;
  writer.u64(bytes);
  writer.u32(anyway);
  for (const MemoryLimit& limit : memory_limits()) {
    writer.u64(limit.bytes);
    writer.u64(limit.left);
    writer.u64(limit.device);
    writer.u64(limit.inode);
    writer.bytes(limit.file);
  }
  return writer.take();
}

bool unpack(const std::string& packed, MemoryNeed* need) {
  FrameReader reader(packed);
  need->bytes = reader.u64();
  need->anyway = reader.u32() != 0;
  while (reader.left() > 0) {
    MemoryLimit limit;
    limit.bytes = reader.u64();
    limit.left = reader.u64();
    limit.device = reader.u64();
    limit.inode = reader.u64();
    limit.file = reader.bytes();
    need->limits.push_back(std::move(limit));
  }
  return reader.finished();
}

}  // namespace

Status judge_memory(const std::vector<MemoryNeed>& needs) {
  std::map<std::pair<uint64_t, uint64_t>, Sum> sums;
  for (const MemoryNeed& need : needs) {
    if (need.anyway) return {};
    for (const MemoryLimit& limit : need.limits) {
      Sum& sum = sums[{limit.device, limit.inode}];
      sum.bytes = need.bytes > UINT64_MAX - sum.bytes ? UINT64_MAX : sum.bytes + need.bytes;
      sum.left = std::max(sum.left, limit.left);
      sum.ranks.push_back(need.rank);
    }
  }
  for (const MemoryNeed& need : needs) {
    for (const MemoryLimit& limit : need.limits) {
      const Sum& sum = sums[{limit.device, limit.inode}];
      if (sum.bytes > sum.left) return refusal(limit, sum);
    }
  }
  return {};
}

Status check_memory(World& world, const std::vector<int>& members, const char* call, uint64_t bytes, bool anyway, uint64_t line) {
  std::vector<int> here;  // limits are a node's
  for (const int member : members) {
    if (world.node(member) == world.node(world.rank())) here.push_back(member);
  }
  const auto all = world.exchange(here, call, pack(bytes, anyway), line);
  if (!all.ok()) return all.status();
  std::vector<MemoryNeed> needs(all->size());
  Status mine;
  for (size_t i = 0; i < needs.size() && mine.ok(); ++i) {
    needs[i].rank = here[i];
    if (!unpack((*all)[i], &needs[i]))
      mine = internal_error(call, ": rank ", here[i], " sent ", (*all)[i].size(), " bytes that cannot be read");
  }
  if (mine.ok()) mine = judge_memory(needs);
  return here.size() == members.size() ? mine : agree(world, members, {call, 0, 0}, mine, line);
}

}  // namespace megadp
