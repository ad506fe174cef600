// SPDX-License-Identifier: Apache-2.0
// The comparison of what ranks say they hold alike. Params compares the replicas, over which all is equally laid out. Here come ranks that
// may hold different things, but some alike: tensor-parallel ranks what is not sharded, stages what is tied. Each tells the world what it
// holds of that, by name; so all come to the same answer, whatever each of them has.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "core/buffer.h"

namespace megadp {
namespace {

// Of one parameter, or of what this rank owns of its reduced gradient: this, then the name, then that of its tie.
struct CopyRecord {
  uint64_t digest;
  uint64_t begin, end;  // of a gradient; where others own another part there is nothing to compare
  int64_t param;
  int32_t bucket;
  uint32_t gradient, expert, sharded;
  uint32_t name_bytes, tie_bytes;
};
struct CopyEntry {
  CopyRecord held;
  std::string_view name, tie;
};

std::vector<CopyEntry> read_copies(std::string_view bytes) {
  std::vector<CopyEntry> entries;
  while (bytes.size() >= sizeof(CopyRecord)) {
    CopyEntry entry;
    std::memcpy(&entry.held, bytes.data(), sizeof entry.held);
    bytes.remove_prefix(sizeof entry.held);
    const auto take = [&bytes](size_t count) {
      const std::string_view taken = bytes.substr(0, count);
      bytes.remove_prefix(taken.size());
      return taken;
    };
    entry.name = take(entry.held.name_bytes);
    entry.tie = take(entry.held.tie_bytes);
    entries.push_back(entry);
  }
  return entries;
}

using WorldCopies = std::vector<std::vector<CopyEntry>>;  // of each rank of the grid

// What tells which entries of two ranks mean the same.
using CopyKey = std::pair<std::string_view, uint32_t>;
std::optional<CopyKey> key_over_tp(const CopyEntry& entry, bool expert) {
  if (entry.held.sharded != 0 || (entry.held.expert != 0) != expert) return {};
  return CopyKey(entry.name, entry.held.gradient);
}
std::optional<CopyKey> key_over_stages(const CopyEntry& entry, bool /*expert*/) {
  if (entry.tie.empty()) return {};
  return CopyKey(entry.tie, entry.held.gradient);
}

struct CopyDifference {
  const CopyEntry* entry;
  int first, other;  // ranks of the grid
};

// The first difference between the first member of the group that holds something and one that should hold the same.
template <class KeyOf>
std::optional<CopyDifference> compare_copies(const WorldCopies& all, const std::vector<int>& group, const KeyOf& key_of, bool expert) {
  std::map<CopyKey, std::pair<const CopyEntry*, int>> known;
  std::optional<CopyDifference> found;
  for (const int rank : group) {
    for (const CopyEntry& entry : all[static_cast<size_t>(rank)]) {
      const std::optional<CopyKey> key = key_of(entry, expert);
      if (!key) continue;
      const auto [at, is_new] = known.emplace(*key, std::pair(&entry, rank));
      const CopyRecord &here = entry.held, &there = at->second.first->held;
      if (is_new || here.digest == there.digest || here.begin != there.begin || here.end != there.end) continue;
      if (found && found->entry->held.param <= there.param) continue;
      found = CopyDifference{at->second.first, at->second.second, rank};
    }
  }
  return found;
}

}  // namespace

// Nothing if the parameter has no reduced gradient now.
Result<std::optional<uint64_t>> Gradients::digest_reduced(size_t param) {
  const std::lock_guard lock(mutex_);
  const OwnedRange* const owned = arenas_->owned(param);
  if (phase_ != Phase::reduced || owned == nullptr) return std::optional<uint64_t>();
  const Arena& arena = arenas_->arena_of(param);
  std::vector<std::byte> values((owned->end - owned->begin) * size_of(arena.reduced_type()));
  if (Status read = arenas_->backend().read(values.data(), arena.reduced_at(*owned), values.size()); !read) return read;
  return std::optional(hash_bytes(values.data(), values.size()));
}

Result<std::string> Buffer::describe_copies() {
  std::string mine;
  for (size_t param = 0; param < plan().params.size(); ++param) {
    const ParamSpec& spec = plan().params[param];
    if (spec.frozen || (spec.placement == Placement::sharded && !plan().is_tied(param))) continue;
    const auto add = [&](uint64_t digest, bool gradient) {
      const OwnedRange* const owned = gradient ? arenas().owned(param) : nullptr;
      const std::string_view tie = plan().is_tied(param) ? std::string_view(spec.tie) : std::string_view();
      const CopyRecord held{digest,
                            owned != nullptr ? owned->param_begin : 0,
                            owned != nullptr ? owned->param_begin + (owned->end - owned->begin) : 0,
                            static_cast<int64_t>(param),
                            static_cast<int32_t>(arenas().place(param).bucket),
                            gradient,
                            spec.expert,
                            spec.placement == Placement::sharded,
                            static_cast<uint32_t>(spec.name.size()),
                            static_cast<uint32_t>(tie.size())};
      mine.append(reinterpret_cast<const char*>(&held), sizeof held).append(spec.name).append(tie);
    };
    auto values = params().digest_value(param);
    if (!values) return values.status();
    add(*values, false);
    auto reduced = gradients().digest_reduced(param);
    if (!reduced) return reduced.status();
    if (*reduced) add(**reduced, true);
  }
  return mine;
}

Status Buffer::verify() {
  if (Status equal = params().verify(); !equal) return equal;
  const Grid& grid = plan().grid;
  const bool has_tp = grid.size(Grid::tp_axes(false)) > 1 || grid.size(Grid::tp_axes(true)) > 1;
  if (!has_tp && arenas().ties().empty()) return {};
  auto mine = describe_copies();
  if (!mine) return mine.status();
  const std::vector<int>& members = arenas().grid()->world()->group().members();
  auto told = context().world->exchange(members, "mdp_buffer_verify", *mine);
  if (!told) return told.status();
  WorldCopies all;
  for (const std::string& bytes : *told) all.push_back(read_copies(bytes));
  std::optional<CopyDifference> found;
  const auto look = [&](Axes axes, const auto& key_of, bool expert) {
    for (const std::vector<int>& group : grid.groups(axes)) {
      if (!found) found = compare_copies(all, group, key_of, expert);
    }
  };
  for (const bool expert : {false, true}) look(Grid::tp_axes(expert), key_over_tp, expert);
  look(kPp, key_over_stages, false);
  if (!found) return {};
  const auto world_rank = [&](int rank) { return members[static_cast<size_t>(rank)]; };
  const CopyRecord& held = found->entry->held;
  return {Code::desync,
          text("mdp_buffer_verify: ", held.gradient != 0 ? "the reduced gradient of " : "",
               param_label(static_cast<size_t>(held.param), std::string(found->entry->name)), " differs between ranks ",
               world_rank(found->first), " and ", world_rank(found->other), ", which should hold the same"),
          Blame{.rank = world_rank(found->other), .bucket = held.bucket, .param = held.param}};
}

}  // namespace megadp
