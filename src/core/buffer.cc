// SPDX-License-Identifier: Apache-2.0
// Registration: agreement on what is registered, and its memory.
#include "core/buffer.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "control/agreement.h"
#include "control/memory_check.h"
#include "core/replicas.h"

namespace megadp {
namespace {

// What this rank has registered, for those of the axes to compare with.
Replica registered(std::array<uint64_t, 2> digests, std::function<std::string(bool expert)> describe, Axes (*axes)(bool expert)) {
  return {.call = "mdp_buffer_register", .digests = digests, .detail = std::move(describe), .axes = axes};
}

// told: by rank of a tensor-parallel group the names of what it holds, each with its end. Of each name which of the holders rank `here` is.
std::unordered_map<std::string_view, Plan::Holder> holders_of(const std::vector<std::string>& told, size_t here) {
  std::unordered_map<std::string_view, Plan::Holder> found;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    for (std::string_view rest = told[rank]; !rest.empty();) {
      const std::string_view name = rest.substr(0, rest.find('\0'));
      rest.remove_prefix(std::min(name.size() + 1, rest.size()));
      Plan::Holder& holder = found.try_emplace(name, Plan::Holder{0, 0}).first->second;
      holder.index += rank < here ? 1 : 0;
      holder.count += 1;
    }
  }
  return found;
}

// Names are told only where they differ.
Status find_holders(const ProcessGrid& grid, Plan* plan) {
  World& world = *grid.world()->context().world;
  plan->holders.resize(plan->params.size());
  for (const bool expert : {false, true}) {
    const Axes axes = Grid::tp_axes(expert);
    std::vector<int> group = grid.grid().group(axes, grid.rank());
    if (group.size() == 1) continue;
    for (int& rank : group) rank = grid.world()->group().members()[static_cast<size_t>(rank)];
    const int here = grid.grid().index(axes, grid.rank()), size = static_cast<int>(group.size());
    std::string mine;
    for (const ParamSpec& param : plan->params) {
      if (param.expert == expert) mine += param.name + '\0';
    }
    const uint64_t digest = hash_bytes(mine);
    auto compared = world.compare(group, "mdp_buffer_register", std::string(reinterpret_cast<const char*>(&digest), sizeof digest));
    if (!compared) return compared.status();
    std::vector<std::string> told;
    if (*compared) {
      auto exchanged = world.exchange(group, "mdp_buffer_register", mine);
      if (!exchanged) return exchanged.status();
      told = *std::move(exchanged);
      plan->tp_ranks_differ = true;
    }
    const auto found = holders_of(told, static_cast<size_t>(here));
    for (size_t param = 0; param < plan->params.size(); ++param) {
      if (plan->params[param].expert != expert) continue;
      const auto known = found.find(plan->params[param].name);
      plan->holders[param] = known != found.end() ? known->second : Plan::Holder{here, size};
    }
  }
  return {};
}

uint64_t digest_partial(const Plan& plan, bool expert) {
  const std::string text = describe_partial(plan, expert);
  return hash_bytes(text);
}

}  // namespace

Buffer::Buffer(std::shared_ptr<ProcessGrid> grid, Plan plan) : components_(std::make_unique<Components>()) {
  components_->arenas = std::make_shared<Arenas>(std::move(grid), std::move(plan));
  components_->params = std::make_shared<Params>(components_->arenas);
  components_->gradients = std::make_shared<Gradients>(components_->arenas, components_->params);
}

Buffer::~Buffer() {
  if (context().world->in_forked_child()) (void)components_.release();  // their windows and locks belong to the parent
}

Result<std::shared_ptr<Buffer>> Buffer::create(std::shared_ptr<ProcessGrid> grid, const BufferConfig& config,
                                               std::vector<ParamSpec> params) {
  if (Status usable = grid->world()->context().usable(); !usable) return usable;
  auto plan = make_plan(grid->grid(), config, std::move(params));
  if (!plan) return plan.status();
  if (Status found = find_holders(*grid, &*plan); !found) return found;
  std::shared_ptr<Buffer> buffer(new Buffer(grid, *std::move(plan)));
  if (Status status = buffer->agree_on_registration(); !status) return status;
  auto ties = buffer->agree_on_ties();
  if (!ties) return ties.status();
  auto divides_at_once = buffer->agree_on_tokens();
  if (!divides_at_once) return divides_at_once.status();
  if (Status status = buffer->check_room(); !status) return status;
  // Failures are agreed on in each group, which may be a part of the world; and at the end in all of it.
  Status mine = buffer->arenas().allocate(*std::move(ties));
  if (mine.ok()) mine = buffer->gradients().allocate(*divides_at_once);
  Status all_have = agree(*buffer->context().world, grid->world()->group().members(), {"mdp_buffer_register"}, mine);
  if (!all_have) return all_have;
  return buffer;
}

Status Buffer::gather_params() {
  for (const std::vector<uint32_t>& launch : gradients().launches()) {
    auto written = arenas().grads().stream().record();
    if (!written) return written.status();
    if (Status submitted = params().gather(launch, *written); !submitted) return submitted;
  }
  auto end = params().record();
  return end ? (*end)->await() : end.status();
}

// What is tied is broadcast on the channel of gradients, and must not wait there for a reduction that another rank has not come to.
Result<std::shared_ptr<Request>> Buffer::broadcast(int root, bool want_request) {
  constexpr const char* kCall = "mdp_buffer_broadcast";
  if (Status between = gradients().check_between_steps(kCall); !between) return between;
  if (!arenas().ties().empty()) {
    const std::vector<int>& members = arenas().grid()->world()->group().members();
    const auto launched = exchange_as<Gradients::Launched>(*context().world, members, kCall, gradients().launched_of_step());
    if (!launched) return launched.status();
    const Status alike = gradients().check_launched_alike(kCall, *launched);
    if (Status agreed = agree(*context().world, members, {kCall}, alike); !agreed) return agreed;
  }
  return params().broadcast(root, want_request);
}

// The dense and the expert part are compared even if they are empty: another rank's may not be.
Status Buffer::agree_on_registration() {
  const Replica held = registered(
      digest_registration(plan()), [this](bool expert) { return describe_registration(plan(), expert); }, &Grid::replica_axes);
  const Status same = compare_replicas(*arenas().grid(), held, [](const ReplicaPair& pair) {
    const std::string difference = first_difference(pair.first_detail, pair.other_detail, pair.other);
    return Explanation{text("ranks ", pair.first, " and ", pair.other, " registered different parameters",
                            difference.empty() ? "" : text(": on rank ", pair.first, " ", difference))};
  });
  return same.ok() ? agree_on_partial() : same;
}

// Tensor-parallel ranks may register what they like, but for parameters whose gradients they add up.
Status Buffer::agree_on_partial() {
  const Grid& grid = plan().grid;
  if (grid.size(Grid::tp_axes(false)) == 1 && grid.size(Grid::tp_axes(true)) == 1) return {};
  const Replica held = registered(
      {digest_partial(plan(), false), digest_partial(plan(), true)}, [this](bool expert) { return describe_partial(plan(), expert); },
      &Grid::tp_axes);
  return compare_replicas(*arenas().grid(), held, [](const ReplicaPair& pair) {
    return Explanation{text("tensor-parallel ranks ", pair.first, " and ", pair.other,
                            " cut the parameters differently whose gradients they add up: on rank ", pair.first, " ",
                            first_difference(pair.first_detail, pair.other_detail, pair.other),
                            "; register the same, or give partial parameters MDP_PARAM_OWN_BUCKET")};
  });
}

// All ranks learn what all hold: which stages share what, groups of ranks depend on.
Result<std::vector<Tie>> Buffer::agree_on_ties() {
  if (plan().grid.size(kPp) == 1) return std::vector<Tie>();
  const std::vector<int>& members = arenas().grid()->world()->group().members();
  auto described = context().world->exchange(members, "mdp_buffer_register", describe_ties(plan()));
  if (!described) return described.status();
  return match_ties(plan(), *described, members);
}

// Stages, experts and tensor-parallel ranks may have gradients of different types, and mdp_grad_tokens is either collective or it is not.
Result<bool> Buffer::agree_on_tokens() {
  const bool mine = plan().divides_by_tokens_at_once();
  auto compared = context().world->compare(arenas().grid()->world()->group().members(), "mdp_buffer_register", mine ? "half" : "");
  if (!compared) return compared.status();
  return mine || *compared;
}

Status Buffer::check_room() {
  const MemoryPlan memory = plan().memory(arenas().grid()->rank());
  const uint64_t arrays =
      arenas().backend().place().type == DeviceType::cpu ? memory.param + memory.grad + memory.grad_shard + memory.feedback : 0;
  return check_memory(*context().world, arenas().grid()->world()->group().members(), "mdp_buffer_register", arrays + memory.scratch,
                      plan().config.ignore_memory)
      .with_context("mdp_buffer_register");
}

}  // namespace megadp
