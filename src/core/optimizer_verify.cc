// SPDX-License-Identifier: Apache-2.0
// The comparison of the state that several ranks hold alike. An f32 parameter has no master of its own: the buffer's comparison is its.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "core/copies.h"
#include "core/optimizer_impl.h"
#include "core/replicas.h"
#include "files/manifest_json.h"

namespace megadp {
namespace {

// One state array of what this rank owns of a parameter.
struct Part {
  size_t param;
  const char* state;
};

}  // namespace

// What it has of a parameter.
std::vector<const char*> Optimizer::own_states(size_t param) const {
  std::vector<const char*> names;
  if (impl_->has_master(*buffer_->arenas().arena_of(param).plan)) names.push_back(kMasterState);
  for (const StateArray& each : impl_->states) names.push_back(each.name);
  for (const ParamState& each : impl_->config.param_states) {
    if (each.bytes[param] > 0) names.push_back(each.name.c_str());
  }
  if (impl_->averages()) names.push_back(kAverageState);
  return names;
}

Result<uint64_t> Optimizer::digest_state(size_t param, const char* name) {
  auto slice = state(param, name);
  if (!slice) return slice.status();
  return digest_memory(buffer_->arenas(), static_cast<const std::byte*>(slice->data),
                       static_cast<size_t>(slice->shape->front()) * size_of(slice->type));
}

Status Optimizer::verify(const char* call) {
  if (Status equal = verify_over_replicas(call); !equal) return equal;
  for (const bool expert : {false, true}) {
    if (Status equal = verify_over_tp(call, expert); !equal) return equal;
  }
  return {};
}

// Tensor-parallel ranks have the same gradients of what is not sharded over them, so they keep the same of it.
Status Optimizer::verify_over_tp(const char* call, bool expert) {
  Arenas& arenas = buffer_->arenas();
  const Plan& plan = buffer_->plan();
  const Axes axes = Grid::tp_axes(expert);
  if (plan.grid.size(axes) == 1) return {};
  Copies mine;
  for (size_t param = 0; param < plan.params.size(); ++param) {
    const ParamSpec& spec = plan.params[param];
    if (spec.frozen || spec.expert != expert || spec.placement == Placement::sharded || !covers(param)) continue;
    const OwnedRange* const owned = arenas.owned(param);
    if (owned == nullptr) continue;
    for (const char* name : own_states(param)) {
      auto digest = digest_state(param, name);
      if (!digest) return digest.status();
      mine.add({.what = name,
                .name = spec.name,
                .tie = {},
                .digest = *digest,
                .begin = owned->param_begin,
                .end = owned->param_begin + (owned->end - owned->begin),
                .param = static_cast<int64_t>(param),
                .bucket = static_cast<int32_t>(arenas.place(param).bucket)});
    }
  }
  return compare_over_tp(*arenas.grid(), call, arenas.members(axes), mine);
}

Status Optimizer::verify_over_replicas(const char* call) {
  Arenas& arenas = buffer_->arenas();
  Replica held{.call = call, .digests = {}, .detail = {}};
  std::array<std::string, 2> bytes;  // of the digests, dense and expert
  std::array<std::vector<Part>, 2> parts;
  for (const ArenaPlan& arena : buffer_->plan().arenas) {
    const size_t of = arena.expert ? 1 : 0;
    held.shards[of] = arena.shards;
    if (arena.shards == arena.group_size) continue;  // each rank has its own
    for (const Slot& slot : arena.layout.slots) {
      if (!covers(slot.param) || arenas.owned(slot.param) == nullptr) continue;
      const auto add = [&](const char* name) -> Status {
        auto digest = digest_state(slot.param, name);
        if (!digest) return digest.status();
        bytes[of].append(reinterpret_cast<const char*>(&*digest), sizeof *digest);
        parts[of].push_back({slot.param, name});
        return {};
      };
      for (const char* name : own_states(slot.param)) {
        if (Status added = add(name); !added) return added;
      }
    }
  }
  for (size_t of = 0; of < bytes.size(); ++of) held.digests[of] = hash_bytes(bytes[of]);
  held.detail = [&](bool expert) { return bytes[expert ? 1 : 0]; };
  return compare_replicas(*arenas.grid(), held, [&](const ReplicaPair& pair) {
    const std::string &a = pair.first_detail, &b = pair.other_detail;
    const auto same = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin()) / sizeof(uint64_t);
    const std::vector<Part>& known = parts[pair.expert ? 1 : 0];
    if (same >= known.size()) return Explanation{text(call, ": the state of ranks ", pair.first, " and ", pair.other, " differs")};
    const size_t param = known[same].param;
    return Explanation{text(call, ": ", known[same].state, " of ", param_label(param, buffer_->plan().params[param].name),
                            " differs between ranks ", pair.first, " and ", pair.other),
                       static_cast<int32_t>(arenas.place(param).bucket), static_cast<int64_t>(param)};
  });
}

}  // namespace megadp
