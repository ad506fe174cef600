// SPDX-License-Identifier: Apache-2.0
// The comparison of the state that several ranks hold alike. An f32 parameter has no master of its own: the buffer's comparison is its.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
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

Status Optimizer::verify(const char* call) {
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
        auto slice = state(slot.param, name);
        if (!slice) return slice.status();
        auto digest = digest_memory(arenas, static_cast<const std::byte*>(slice->data),
                                    static_cast<size_t>(slice->shape->front()) * size_of(slice->type));
        if (!digest) return digest.status();
        bytes[of].append(reinterpret_cast<const char*>(&*digest), sizeof *digest);
        parts[of].push_back({slot.param, name});
        return {};
      };
      if (impl_->has_master(arena)) {
        if (Status added = add(kMasterState); !added) return added;
      }
      for (const StateArray& each : impl_->states) {
        if (Status added = add(each.name); !added) return added;
      }
      for (const ParamState& each : impl_->config.param_states) {
        if (each.bytes[slot.param] == 0) continue;
        if (Status added = add(each.name.c_str()); !added) return added;
      }
      if (impl_->averages()) {
        if (Status added = add(kAverageState); !added) return added;
      }
    }
  }
  for (size_t of = 0; of < bytes.size(); ++of) held.digests[of] = hash_bytes(bytes[of].data(), bytes[of].size());
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
