// SPDX-License-Identifier: Apache-2.0
// Buckets that a sync has not launched, for a step in one pass: it adds a block of them up, updates by it, and gathers what that made of
// the parameters (host/update_and_gather.cc). The sync has agreed on what is missing or skipped, so every slot holds what it should add.
#include <algorithm>

#include "core/gradients.h"

namespace megadp {

// The same on all ranks of a group: where dense and expert parameters have the same replicas, their ranks hold the same arenas. Otherwise
// ranks that share dense parameters may have different experts.
bool Gradients::can_keep() const {
  const Plan& plan = arenas_->plan();
  if (!plan.config.no_overlap || plan.config.check_large || packed_ != nullptr) return false;
  if (plan.grid.groups(Grid::replica_axes(false)) != plan.grid.groups(Grid::replica_axes(true))) return false;
  return std::all_of(arenas_->all().begin(), arenas_->all().end(), [](const Arena& arena) {
    return arena.is_sharded() && !arena.is_pooled() && !arena.has_instances() && arena.wire == nullptr && arena.counts.empty() &&
           arena.comms.params->group().updates_pieces();
  });
}

void Gradients::locate_kept(uint32_t number, PieceUpdates* to) const {
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  to->grads = arena.grads;
  to->grad_type = arena.plan->grad_type;
  to->grad_begin = arena.plan->grad_begin(ref.bucket);
  to->divisor = reduction_divisor();
}

void Gradients::mark_stepped(std::span<const uint32_t> buckets, const std::shared_ptr<Transfer>& pass) {
  for (const uint32_t number : buckets) {
    Bucket& bucket = buckets_[number];
    const BucketRef ref = arenas_->plan().launch_order[number];
    const Arena& arena = arenas_->arena_of(ref);
    stats_.count(bucket.reduction.get());
    stats_.bytes += (arena.range(ref.bucket).end - arena.range(ref.bucket).begin) * size_of(arena.plan->grad_type);
    bucket.reduction = pass;
    bucket.across.reset();
    bucket.updated = pass->end;
  }
  stats_.buckets += buckets.size();
}

Result<std::shared_ptr<Event>> Gradients::launch_kept() {
  if (!kept_) return std::shared_ptr<Event>();
  kept_ = false;
  if (Status launched = launch_in_order(); !launched) return launched;
  auto reduced = arenas_->grads().stream().record();
  if (reduced) reduced_ = *reduced;
  return reduced;
}

}  // namespace megadp
