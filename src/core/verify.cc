// SPDX-License-Identifier: Apache-2.0
// The comparison of what ranks say they hold alike. Params compares the replicas, over which all is equally laid out. Here come ranks that
// may hold different things, but some alike: tensor-parallel ranks what is not sharded, stages what is tied. They tell one another what
// they hold of that, by name; and what is found the world.
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
#include "core/replicas.h"

namespace megadp {
namespace {

constexpr const char* kVerify = "mdp_buffer_verify";

// Of one parameter, or of what this rank owns of its reduced gradient: this, then the name, then that of its tie.
struct CopyRecord {
  uint64_t digest;
  uint64_t begin, end;  // of a gradient; where others own another part there is nothing to compare
  int64_t param;
  int32_t bucket;
  uint32_t gradient;
  uint32_t name_bytes, tie_bytes, reserved;
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

enum class Alike {  // copies of two ranks mean the same if they have the same
  name,
  tie
};

std::string differing(const CopyEntry& entry, Alike by) {
  if (by == Alike::tie && entry.held.gradient == 0) return text("the parameters tied as '", entry.tie, "' differ");
  return text(entry.held.gradient != 0 ? "the reduced gradient of " : "",
              param_label(static_cast<size_t>(entry.held.param), std::string(entry.name)), " differs");
}

// told: by each of `ranks`, of the world. The first difference between the first that holds something and one that should hold the same.
std::optional<Difference> compare_copies(const std::vector<std::string>& told, const std::vector<int>& ranks, Alike by) {
  struct Known {
    CopyEntry entry;
    int rank;
  };
  std::map<std::pair<std::string_view, uint32_t>, Known> known;
  std::optional<Difference> found;
  for (size_t r = 0; r < told.size(); ++r) {
    for (const CopyEntry& entry : read_copies(told[r])) {
      const auto [at, is_new] = known.try_emplace({by == Alike::tie ? entry.tie : entry.name, entry.held.gradient}, Known{entry, ranks[r]});
      const Known& first = at->second;
      const CopyRecord &here = entry.held, &there = first.entry.held;
      if (is_new || here.digest == there.digest || here.begin != there.begin || here.end != there.end) continue;
      if (found && found->what.param <= there.param) continue;
      const std::string between = text(" between ranks ", first.rank, " and ", ranks[r], ", which should hold the same");
      found = Difference{ranks[r], {text(kVerify, ": ", differing(first.entry, by), between), there.bucket, there.param}};
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

// What this rank holds of the parameters that `counts` takes.
Result<std::string> Buffer::describe_copies(const std::function<bool(size_t)>& counts) {
  std::string mine;
  for (size_t param = 0; param < plan().params.size(); ++param) {
    const ParamSpec& spec = plan().params[param];
    if (spec.frozen || !counts(param)) continue;
    const auto add = [&](uint64_t digest, bool gradient) {
      const OwnedRange* const owned = gradient ? arenas().owned(param) : nullptr;
      const CopyRecord held{digest,
                            owned != nullptr ? owned->param_begin : 0,
                            owned != nullptr ? owned->param_begin + (owned->end - owned->begin) : 0,
                            static_cast<int64_t>(param),
                            static_cast<int32_t>(arenas().place(param).bucket),
                            gradient,
                            static_cast<uint32_t>(spec.name.size()),
                            static_cast<uint32_t>(spec.tie.size()),
                            0};
      mine.append(reinterpret_cast<const char*>(&held), sizeof held).append(spec.name).append(spec.tie);
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

// Over ranks that hold much alike: mostly all, which a digest says. These may hold other things besides: only then they tell what they
// have.
Status Buffer::verify_over_tp(bool expert) {
  const Grid& grid = plan().grid;
  const Axes axes = Grid::tp_axes(expert);
  if (grid.size(axes) == 1) return {};
  const std::vector<int> ranks = arenas().members(axes);
  auto mine = describe_copies(
      [&](size_t param) { return plan().params[param].expert == expert && plan().params[param].placement != Placement::sharded; });
  if (!mine) return mine.status();
  const uint64_t digest = hash_bytes(mine->data(), mine->size());
  World& world = *context().world;
  auto differ = world.compare(ranks, kVerify, std::string(reinterpret_cast<const char*>(&digest), sizeof digest));
  if (!differ) return differ.status();
  std::optional<Difference> found;
  if (*differ) {
    auto told = world.exchange(ranks, kVerify, mine->substr(0, kLongestDetail));
    if (!told) return told.status();
    if (world.rank() == ranks.front()) found = compare_copies(*told, ranks, Alike::name);
  }
  return tell_difference(*arenas().grid(), kVerify, found);
}

Status Buffer::verify_over_stages() {
  if (arenas().ties().empty()) return {};
  const std::vector<int> ranks = arenas().members(kPp);
  auto mine = describe_copies([&](size_t param) { return plan().is_tied(param); });
  if (!mine) return mine.status();
  auto told = context().world->exchange(ranks, kVerify, mine->substr(0, kLongestDetail));
  if (!told) return told.status();
  std::optional<Difference> found;
  if (context().world->rank() == ranks.front()) found = compare_copies(*told, ranks, Alike::tie);
  return tell_difference(*arenas().grid(), kVerify, found);
}

Status Buffer::verify() {
  if (Status equal = params().verify(); !equal) return equal;
  for (const bool expert : {false, true}) {
    if (Status equal = verify_over_tp(expert); !equal) return equal;
  }
  return verify_over_stages();
}

}  // namespace megadp
