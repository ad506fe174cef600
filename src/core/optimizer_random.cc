// SPDX-License-Identifier: Apache-2.0
// Where the random bits of this rank's elements come from (base/random.h): of each parameter its name, and its place in the whole.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "control/agreement.h"
#include "core/optimizer_impl.h"

namespace megadp {
namespace {

constexpr const char* kCreate = "mdp_optimizer_create";

// What tensor-parallel ranks tell each other of a parameter that is cut over them: how long each of its runs is along the dimension.
struct CutLength {
  uint64_t name, length;
};

uint64_t length_of(const ParamSpec& spec) {
  return static_cast<uint64_t>(spec.shape[static_cast<size_t>(spec.shard_dim)]) / static_cast<uint64_t>(spec.shard_stride);
}

// Copies on several stages, which have names of their own, are one.
uint64_t name_of_whole(const ParamSpec& spec) {
  const std::string& name = spec.tie.empty() ? spec.name : spec.tie;
  return hash_bytes(name);
}

// All of one class that are cut, as each of these ranks has them; none if it is one rank. Collective over them.
Result<std::vector<std::string>> exchange_cuts(const Buffer& buffer, bool expert) {
  const Arenas& arenas = buffer.arenas();
  const std::vector<int> ranks = arenas.members(Grid::tp_axes(expert));
  if (ranks.size() == 1) return std::vector<std::string>();
  std::string mine;
  for (const ParamSpec& spec : buffer.plan().params) {
    if (spec.frozen || spec.expert != expert || spec.placement != Placement::sharded) continue;
    const CutLength cut{hash_bytes(spec.name), length_of(spec)};
    mine.append(reinterpret_cast<const char*>(&cut), sizeof cut);
  }
  return arenas.context().world->exchange(ranks, kCreate, mine);
}

std::optional<uint64_t> find_length(std::string_view told, const ParamSpec& spec) {
  const uint64_t name = hash_bytes(spec.name);
  for (; told.size() >= sizeof(CutLength); told.remove_prefix(sizeof(CutLength))) {
    CutLength cut;
    std::memcpy(&cut, told.data(), sizeof cut);
    if (cut.name == name) return cut.length;
  }
  return {};
}

// Of a parameter that is cut: runs of this rank's length, one in each turn of all ranks.
Status place_in_whole(const ParamSpec& spec, size_t param, const std::vector<std::string>& told, size_t rank, RandomSource* source) {
  uint64_t inner = 1, before = 0, turn = 0;
  for (size_t d = static_cast<size_t>(spec.shard_dim) + 1; d < spec.shape.size(); ++d) inner *= static_cast<uint64_t>(spec.shape[d]);
  for (size_t r = 0; r < told.size(); ++r) {
    const auto length = find_length(told[r], spec);
    if (!length) {
      return Status(Code::invalid,
                    text(param_label(param, spec.name), " is sharded over ", told.size(), " tensor-parallel ranks, and number ", r,
                         " does not have it"),
                    Blame{.param = static_cast<int64_t>(param)});
    }
    if (r < rank) before += *length;
    turn += *length;
  }
  source->run = std::max<uint64_t>(length_of(spec) * inner, 1);  // of no elements none is asked for
  source->period = turn * inner;
  source->offset = before * inner;
  return {};
}

}  // namespace

// mine: what this rank has found wrong before. The same outcome on all ranks.
Status Optimizer::find_sources(const Status& mine) {
  if (!impl_->config.draws()) return {};
  const std::vector<ParamSpec>& params = buffer_->plan().params;
  const ProcessGrid& grid = *buffer_->arenas().grid();
  Status found = mine;
  impl_->sources.resize(params.size());
  for (const bool expert : {false, true}) {
    const auto told = exchange_cuts(*buffer_, expert);
    if (!told) return told.status();
    const auto rank = static_cast<size_t>(grid.grid().index(Grid::tp_axes(expert), grid.rank()));
    for (size_t param = 0; param < params.size(); ++param) {
      if (params[param].expert != expert || !covers(param)) continue;
      impl_->sources[param].key = name_of_whole(params[param]);
      const bool is_cut = params[param].placement == Placement::sharded && !told->empty();
      if (is_cut && found.ok()) found = place_in_whole(params[param], param, *told, rank, &impl_->sources[param]);
    }
  }
  return agree(*buffer_->context().world, grid.world()->group().members(), {kCreate}, found);
}

RandomSource Optimizer::Impl::source(const Owned& owned) const {
  RandomSource source = sources[owned.param];
  source.key = hash_bytes(&source.key, sizeof source.key, config.seed);
  source.begin = owned.param_begin;
  return source;
}

}  // namespace megadp
