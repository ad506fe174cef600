// SPDX-License-Identifier: Apache-2.0
// The comparison of what ranks say they hold alike. Params compares the replicas, over which all is equally laid out; here come the copies
// of tensor-parallel ranks and of stages.
#include <functional>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "core/buffer.h"
#include "core/copies.h"

namespace megadp {
namespace {

constexpr const char* kVerify = "mdp_buffer_verify";

}  // namespace

// Between the sync and the step all ranks have submitted all reductions, so this waits for no rank that is here already. What the caller
// has ordered before it since (mdp_grad_changed) counts.
Status Gradients::await_reduced() {
  std::shared_ptr<Event> end;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::reduced) return {};
    auto recorded = arenas_->grads().stream().record();
    if (!recorded) return recorded.status();
    end = *std::move(recorded);
  }
  return end->await();
}

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
Result<Copies> Buffer::describe_copies(const std::function<bool(size_t)>& counts) {
  Copies mine;
  for (size_t param = 0; param < plan().params.size(); ++param) {
    const ParamSpec& spec = plan().params[param];
    if (spec.frozen || !counts(param)) continue;
    auto values = params().digest_value(param);
    if (!values) return values.status();
    HeldCopy copy{.name = spec.name,
                  .tie = spec.tie,
                  .digest = *values,
                  .param = static_cast<int64_t>(param),
                  .bucket = static_cast<int32_t>(arenas().place(param).bucket)};
    mine.add(copy);
    auto reduced = gradients().digest_reduced(param);
    if (!reduced) return reduced.status();
    if (!*reduced) continue;
    const OwnedRange& owned = *arenas().owned(param);
    copy.what = "the reduced gradient";
    copy.digest = **reduced;
    copy.begin = owned.param_begin;
    copy.end = owned.param_begin + (owned.end - owned.begin);
    mine.add(copy);
  }
  return mine;
}

Status Buffer::verify_over_tp(bool expert) {
  const Axes axes = Grid::tp_axes(expert);
  if (plan().grid.size(axes) == 1) return {};
  auto mine = describe_copies(
      [&](size_t param) { return plan().params[param].expert == expert && plan().params[param].placement != Placement::sharded; });
  if (!mine) return mine.status();
  return compare_over_tp(*arenas().grid(), kVerify, arenas().members(axes), *mine);
}

Status Buffer::verify_over_stages() {
  if (arenas().ties().empty()) return {};
  const std::vector<int> ranks = arenas().members(kPp);
  auto mine = describe_copies([&](size_t param) { return plan().is_tied(param); });
  if (!mine) return mine.status();
  auto told = context().world->exchange(ranks, kVerify, mine->told().substr(0, kLongestDetail));
  if (!told) return told.status();
  std::optional<Difference> found;
  if (context().world->rank() == ranks.front()) found = compare_copies(kVerify, *told, ranks, Alike::tie);
  return tell_difference(*arenas().grid(), kVerify, found);
}

Status Buffer::verify() {
  if (Status between = gradients().check_between_steps(kVerify); !between) return between;
  if (Status equal = params().verify(); !equal) return equal;
  if (Status reduced = gradients().await_reduced(); !reduced) return reduced;
  for (const bool expert : {false, true}) {
    if (Status equal = verify_over_tp(expert); !equal) return equal;
  }
  return verify_over_stages();
}

}  // namespace megadp
