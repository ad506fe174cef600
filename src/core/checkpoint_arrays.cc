// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint_arrays.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "control/agreement.h"

namespace megadp {
namespace {

// Elements that one of several ranks which hold the same stores of it, the t-th of `size`.
struct Share {
  uint64_t begin, end;
};
Share share_of(uint64_t elements, int t, int size) {
  const auto at = [&](int number) {
    const auto n = static_cast<uint64_t>(number), of = static_cast<uint64_t>(size);
    return elements / of * n + elements % of * n / of;
  };
  return {at(t), at(t + 1)};
}

// Ranks that hold the same range store equal shares of it.
void add_pieces(const std::vector<int>& replicas, uint64_t begin, uint64_t end, StoredArray* array) {
  if (begin >= end) return;
  const auto count = static_cast<int>(replicas.size());
  for (int k = 0; k < count; ++k) {
    const Share share = share_of(end - begin, k, count);
    if (share.begin < share.end) {
      array->pieces.push_back({static_cast<uint32_t>(replicas[static_cast<size_t>(k)]), 0, begin + share.begin, begin + share.end});
    }
  }
}

// The tensor-parallel ranks that this rank is one of, for dense or for expert parameters.
struct TpRank {
  int index, size;
};
TpRank tp_rank(const ProcessGrid& grid, bool expert) {
  const Axes axes = Grid::tp_axes(expert);
  return {grid.grid().index(axes, grid.rank()), grid.grid().size(axes)};
}

void place(Placement placement, int dim, int stride, StoredArray* array) {
  if (placement == Placement::sharded) array->cut = {dim, stride, {array->shape[static_cast<size_t>(dim)]}};
}

// What the owners of a parameter, `replicas`, keep for the update of it.
void describe_states(const CheckpointPart& part, size_t param, const std::vector<int>& replicas, std::vector<StoredArray>* states) {
  if (!part.optimizer || !part.optimizer->covers(param)) return;
  const Plan& plan = part.buffer->plan();
  const ParamSpec& spec = plan.params[param];
  for (const ParamState& state : part.optimizer->param_states()) {
    const uint64_t bytes = state.bytes[param];
    if (bytes == 0) continue;
    StoredArray array;
    array.name = param_state_name(state.name, spec.name);
    array.type = DType::u8;
    array.shape = {static_cast<int64_t>(bytes)};
    array.is_param = false;
    array.state_of = spec.name;
    array.tie = plan.is_tied(param) ? param_state_name(state.name, spec.tie) : "";
    place(spec.placement, 0, 1, &array);
    const Plan::Holder& holder = plan.holders[param];
    const Share mine = array.cut.is_cut() ? Share{0, bytes} : share_of(bytes, holder.index, holder.count);
    add_pieces(replicas, mine.begin, mine.end, &array);
    states->push_back(std::move(array));
  }
}

// All parameters of a part and of one class, as this rank and those that hold replicas of them have them.
Result<std::vector<StoredArray>> describe_params(const CheckpointConfig& config, const CheckpointPart& part, bool expert, int optimizer) {
  const Arenas& arenas = part.buffer->arenas();
  const Plan& plan = arenas.plan();
  const std::vector<int> group = plan.grid.group(Grid::replica_axes(expert), arenas.grid()->rank());
  std::vector<StoredArray> arrays, states;
  std::vector<size_t> numbers(plan.params.size());
  const auto has = [&](size_t param) { return &config.part_of(*part.buffer, param) == &part; };
  auto steps = part.optimizer ? part.optimizer->steps_of_all() : std::vector<uint64_t>();
  if (!steps) return steps.status();
  const auto describe = [&](size_t param) -> Status {
    const ParamSpec& spec = plan.params[param];
    StoredArray array;
    array.name = spec.name;
    array.type = spec.dtype;
    array.shape = spec.shape;
    array.is_frozen = spec.frozen;
    array.tie = plan.is_tied(param) ? spec.tie : "";
    place(spec.placement, spec.shard_dim, spec.shard_stride, &array);
    if (part.optimizer && part.optimizer->covers(param)) {
      array.optimizer = optimizer;
      array.steps = (*steps)[param];
    }
    numbers[param] = arrays.size();
    arrays.push_back(std::move(array));
    return {};
  };
  for (const ArenaPlan& arena : plan.arenas) {
    if (arena.expert != expert) continue;
    // In the order in which they lie, which is that of the files.
    for (const Slot& slot : arena.layout.slots) {
      if (!has(slot.param)) continue;
      if (Status described = describe(slot.param); !described) return described;
    }
    for (int shard = 0; shard < arena.shards; ++shard) {
      std::vector<int> replicas;
      for (size_t at = static_cast<size_t>(shard); at < group.size(); at += static_cast<size_t>(arena.shards))
        replicas.push_back(group[at]);
      for (const OwnedRange& owned : owned_ranges(arena.layout, shard)) {
        if (!has(owned.param)) continue;
        const ParamSpec& spec = plan.params[owned.param];
        const bool same_on_all = spec.placement != Placement::sharded;
        const Plan::Holder& holder = plan.holders[owned.param];
        const Share mine = same_on_all ? share_of(spec.numel, holder.index, holder.count) : Share{0, spec.numel};
        const uint64_t end = owned.param_begin + (owned.end - owned.begin);
        add_pieces(replicas, std::max(owned.param_begin, mine.begin), std::min(end, mine.end), &arrays[numbers[owned.param]]);
        if (arena.is_whole() || arena.sharding == Sharding::zero_0) describe_states(part, owned.param, replicas, &states);
      }
    }
  }
  for (size_t param = 0; param < plan.params.size(); ++param) {
    if (!plan.params[param].frozen || plan.params[param].expert != expert || !has(param)) continue;
    if (Status described = describe(param); !described) return described;
  }
  std::move(states.begin(), states.end(), std::back_inserter(arrays));
  return arrays;
}

std::vector<StoredArray> describe_tensors(const CheckpointConfig& config) {
  const ProcessGrid& grid = *config.grid();
  const TpRank tp = tp_rank(grid, false);
  const std::vector<int> group = grid.grid().group(Grid::replica_axes(false), grid.rank());
  std::vector<StoredArray> arrays;
  for (const CheckpointTensor& tensor : config.tensors) {
    StoredArray array;
    array.name = tensor.name;
    array.type = tensor.array.type;
    array.shape = tensor.array.shape;
    array.is_param = false;
    place(tensor.placement, tensor.shard_dim, tensor.shard_stride, &array);
    const uint64_t elements = elements_of(array.shape);
    const Share mine = array.cut.is_cut() ? Share{0, elements} : share_of(elements, tp.index, tp.size);
    add_pieces(group, mine.begin, mine.end, &array);
    arrays.push_back(std::move(array));
  }
  return arrays;
}

// Puts together what ranks have told. `owner`: those that hold parts of the same array have the same.
class Merge {
 public:
  Merge(const std::vector<int>& members, CheckpointArrays* out) : members_(members), out_(*out) {}

  struct Teller {
    int rank;  // of the parts' world
    TpRank tp;
    int owner;  // pipeline stage, and which experts
  };
  Status add(StoredArray array, const Teller& teller) {
    if (array.is_frozen) {
      out_.frozen.insert(array.name);
      return {};
    }
    if (!array.tie.empty() && !is_first_copy(array, teller)) return {};
    const auto [at, is_new] = known_.try_emplace(array.name, Known{out_.arrays.size(), teller, array.shape, {teller.rank}});
    for (StoredPiece& piece : array.pieces) piece.part = array.cut.is_cut() ? static_cast<uint32_t>(teller.tp.index) : 0;
    if (is_new) {
      if (array.cut.is_cut()) {
        const int64_t size = array.cut.sizes.front();
        array.cut.sizes.assign(static_cast<size_t>(teller.tp.size), -1);
        array.cut.sizes[static_cast<size_t>(teller.tp.index)] = size;
      }
      out_.arrays.push_back(std::move(array));
      return {};
    }
    return add_part(std::move(array), at->second, teller);
  }

  Status finish() {
    for (StoredArray& array : out_.arrays) {
      if (array.cut.is_cut()) {
        int64_t sum = 0;
        for (size_t part = 0; part < array.cut.sizes.size(); ++part) {
          if (array.cut.sizes[part] < 0) {
            return invalid("'", array.name, "' is sharded over ", array.cut.sizes.size(), " tensor-parallel ranks, and number ", part,
                           " does not have it");
          }
          sum += array.cut.sizes[part];
        }
        array.shape[static_cast<size_t>(array.cut.dim)] = sum;
      }
      std::sort(array.pieces.begin(), array.pieces.end(),
                [](const StoredPiece& a, const StoredPiece& b) { return a.part != b.part ? a.part < b.part : a.begin < b.begin; });
    }
    return {};
  }

 private:
  struct Known {
    size_t number;
    Teller first;
    std::vector<int64_t> shape;  // of the first one's part
    std::vector<int> tellers;
  };

  // The copies of a tie on later stages are other names of the first.
  bool is_first_copy(const StoredArray& array, const Teller& teller) {
    const auto [at, is_new] = ties_.try_emplace(array.tie, std::pair(array.name, teller.owner));
    const auto& [name, owner] = at->second;
    if (owner == teller.owner) return true;
    if (name == array.name) return false;
    StoredArray& first = out_.arrays[known_.at(name).number];
    if (std::find(first.aliases.begin(), first.aliases.end(), array.name) == first.aliases.end()) first.aliases.push_back(array.name);
    return false;
  }

  Status add_part(StoredArray array, Known& known, const Teller& teller) {
    StoredArray& first = out_.arrays[known.number];
    const auto world = [this](int rank) { return members_[static_cast<size_t>(rank)]; };
    const auto differ = [&](const auto&... words) {
      return Status(Code::invalid,
                    text("ranks ", world(known.first.rank), " and ", world(teller.rank), " both have '", array.name, "'", words...),
                    Blame{.rank = world(teller.rank)});
    };
    if (std::find(known.tellers.begin(), known.tellers.end(), teller.rank) != known.tellers.end()) {
      return Status(Code::invalid, text("two arrays are called '", array.name, "'; in a checkpoint every array has a name of its own"),
                    Blame{.rank = world(teller.rank)});
    }
    known.tellers.push_back(teller.rank);
    if (known.first.owner != teller.owner || first.is_param != array.is_param || first.state_of != array.state_of) {
      const auto is_tensor = [](const StoredArray& one) { return !one.is_param && !one.is_state(); };
      if (is_tensor(first) && is_tensor(array)) return {};  // of a tensor the first one's counts
      return differ(", which are different arrays: in a checkpoint every array has a name of its own");
    }
    std::vector<int64_t> mine = array.shape, its = known.shape;
    const bool is_cut = array.cut.is_cut();
    const bool alike =
        is_cut == first.cut.is_cut() && (!is_cut || (array.cut.dim == first.cut.dim && array.cut.stride == first.cut.stride));
    if (alike && is_cut && mine.size() == its.size())
      mine[static_cast<size_t>(array.cut.dim)] = its[static_cast<size_t>(array.cut.dim)] = 0;
    if (!alike || mine != its || array.type != first.type) {
      return differ(", the one as ", name_of(first.type), shape_text(known.shape), ", the other as ", name_of(array.type),
                    shape_text(array.shape), alike ? "" : ", and place it differently over tensor-parallel ranks");
    }
    if (array.steps != first.steps)
      return differ(", which has taken part in ", first.steps, " steps on the one and ", array.steps, " on the other");
    if (is_cut) first.cut.sizes[static_cast<size_t>(teller.tp.index)] = array.cut.sizes.front();
    first.pieces.insert(first.pieces.end(), array.pieces.begin(), array.pieces.end());
    return {};
  }

  const std::vector<int>& members_;
  CheckpointArrays& out_;
  std::map<std::string, Known> known_;
  std::map<std::string, std::pair<std::string, int>> ties_;  // the first copy's name and owner
};

// One line of JSON for each part and class, and one for tensors: of those that no rank before tells the same.
Result<std::string> describe(const CheckpointConfig& config, int files) {
  std::string out;
  int optimizer = 0;
  const auto write = [&](std::vector<StoredArray> arrays) {
    if (arrays.empty()) {
      out += '\n';
      return;
    }
    Manifest manifest;
    manifest.files.resize(static_cast<size_t>(files), {.name = "-", .written = {}, .user_bytes = 0});
    manifest.optimizers.resize(config.parts.size(), {.rule = "-", .steps = 0, .state = {}, .info = R"({"rule":"-","steps":0,"state":[]})"});
    manifest.arrays = std::move(arrays);
    out += manifest.json();
  };
  for (const CheckpointPart& part : config.parts) {
    for (const bool expert : {false, true}) {
      std::vector<StoredArray> arrays;
      const ProcessGrid& grid = *part.buffer->arenas().grid();
      if (grid.grid().index(Grid::replica_axes(expert), grid.rank()) == 0) {
        auto described = describe_params(config, part, expert, optimizer);
        if (!described) return described.status();
        arrays = *std::move(described);
      }
      write(std::move(arrays));
    }
    if (part.optimizer) ++optimizer;
  }
  const bool first = config.grid()->grid().index(Grid::replica_axes(false), config.grid()->rank()) == 0;
  write(first ? describe_tensors(config) : std::vector<StoredArray>());
  return out;
}

Status merge(const CheckpointConfig& config, const std::vector<std::string>& told, CheckpointArrays* out) {
  Merge merge(config.members(), out);
  std::vector<std::string_view> rest(told.begin(), told.end());
  const auto add = [&](const Grid& grid, bool expert) -> Status {
    for (size_t r = 0; r < rest.size(); ++r) {
      const std::string_view line = take_line(&rest[r]);
      if (line.empty()) continue;
      auto manifest = parse_manifest(line);
      if (!manifest) return manifest.status().with_context(text("what rank ", config.members()[r], " says of its arrays"));
      const int rank = static_cast<int>(r);
      const Axes tp = Grid::tp_axes(expert);
      const Merge::Teller teller{
          rank, {grid.index(tp, rank), grid.size(tp)}, grid.index(expert ? kPp | kEp | kExpertGrid : Axes{kPp}, rank)};
      for (StoredArray& array : manifest->arrays) {
        if (Status added = merge.add(std::move(array), teller); !added) return added;
      }
    }
    return {};
  };
  for (const CheckpointPart& part : config.parts) {
    for (const bool expert : {false, true}) {
      if (Status added = add(part.buffer->plan().grid, expert); !added) return added;
    }
  }
  if (Status added = add(config.grid()->grid(), false); !added) return added;
  return merge.finish();
}

}  // namespace

Result<CheckpointArrays> gather_arrays(const CheckpointConfig& config, const char* call) {
  std::string mine;
  const Status described = attempt([&]() -> Status {
    for (const CheckpointPart& part : config.parts) {
      if (Status loaded = part.buffer->arenas().check_loaded(); !loaded) return loaded;
      if (Status own = part.buffer->params().check_swapped_back(call); !own) return own;
      if (Status between = part.buffer->gradients().check_between_steps(call); !between) return between;
      if (Status settled = part.buffer->params().settle(); !settled) return settled;
    }
    auto arrays = describe(config, config.grid()->world()->size());
    if (arrays) mine = *std::move(arrays);
    return arrays.status();
  });
  World& world = *config.context().world;
  if (Status all = agree(world, config.members(), {call}, described); !all) return all;
  auto told = world.exchange(config.members(), call, mine);
  if (!told) return told.status();
  CheckpointArrays all;
  const Status merged = attempt([&]() -> Status {
    if (Status same = merge(config, *told, &all); !same) return same;
    for (const CheckpointPart& part : config.parts) {
      if (!part.optimizer) continue;
      auto stored = part.optimizer->stored();
      if (!stored) return stored.status();
      all.optimizers.push_back(*std::move(stored));
    }
    return {};
  });
  if (!merged) return merged;
  return all;
}

std::optional<LocalArray> find_local(const CheckpointConfig& config, const std::string& name, const Cut& cut) {
  const auto part_of = [&](const ProcessGrid& grid, bool expert) -> size_t {
    return cut.is_cut() ? static_cast<size_t>(tp_rank(grid, expert).index) : 0;
  };
  for (const CheckpointPart& part : config.parts) {
    const auto param = part.buffer->plan().find(name);
    if (param && !part.buffer->plan().params[*param].frozen) {
      return LocalArray{&config.part_of(*part.buffer, *param), *param,
                        part_of(*part.buffer->arenas().grid(), part.buffer->plan().params[*param].expert)};
    }
  }
  for (const CheckpointPart& part : config.parts) {
    const size_t count = part.optimizer ? part.optimizer->param_states().size() : 0;
    for (size_t k = 0; k < count; ++k) {
      const std::string prefix = param_state_name(part.optimizer->param_states()[k].name, "");
      if (name.compare(0, prefix.size(), prefix) != 0) continue;
      const auto param = part.buffer->plan().find(std::string_view(name).substr(prefix.size()));
      if (!param || !part.optimizer->covers(*param)) continue;
      return LocalArray{&part, *param, part_of(*part.buffer->arenas().grid(), part.buffer->plan().params[*param].expert), k};
    }
  }
  for (size_t i = 0; i < config.tensors.size(); ++i) {
    if (config.tensors[i].name == name) return LocalArray{nullptr, i, part_of(*config.grid(), false)};
  }
  return {};
}

}  // namespace megadp
