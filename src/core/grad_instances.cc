// SPDX-License-Identifier: Apache-2.0
// Optimizer instances: gradients are summed inside an instance first, then, by ranks that own the same piece, across the instances. Sums
// inside are f32 and not divided, so that an instance of a power of two of ranks changes no bit (base/sum_order.h):
//
//   channel of gradients    | reduce-scatter of bucket 0 |           of bucket 1          |
//   channel across          |                            | all-reduce of bucket 0's piece | of bucket 1's |    divided, rounded once
//
// The own piece of a bucket is added up where it lies: in its window, or with a pool in the sums, once a step. Half-width pieces pass
// through wide sums, in f32 (ArenaPlan::wide_slots).
#include "core/gradients.h"

namespace megadp {

Status Gradients::place_wide(uint32_t number, WindowOp* reduction) {
  const uint32_t a = arenas_->plan().launch_order[number].arena;
  const Arena& arena = arenas_->all()[a];
  Wide& wide = wide_[a];
  const uint64_t slot = wide.next++ % arena.plan->wide_slots;
  reduction->to = arena.wide_at(slot);
  reduction->to_f32 = true;
  buckets_[number].wide_slot = slot;
  return wide.left[slot] ? arenas_->grads().stream().wait_for(wide.left[slot]) : Status();
}

Status Gradients::sum_across(uint32_t number) {
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  Stream& stream = arenas_->across()->stream();
  Bucket& bucket = buckets_[number];
  const uint64_t count = arena.piece_count(ref.bucket);
  const bool rounded = arena.wide != nullptr && !is_pooled();
  std::byte* const piece = is_pooled() ? nullptr : arena.piece_at(ref.bucket);
  void* const sums = is_pooled() ? arena.sums_of(ref.bucket) : rounded ? arena.wide_at(bucket.wide_slot) : static_cast<void*>(piece);
  if (Status inside = stream.wait_for(is_pooled() ? bucket.slot_left : bucket.reduction->end); !inside) return inside;
  auto across = stats_.submit(stream, count * sizeof(float), [&]() -> Status {
    Status summed =
        arena.comms.across->group().all_reduce(stream, sums, sums, count, DType::f32, Op::sum,
                                               Tag{static_cast<int32_t>(number), "gradients across instances"}, reduction_divisor());
    if (!summed || !rounded || count == 0) return summed;
    return arenas_->backend().cast(stream, piece, arena.plan->grad_type, sums, DType::f32, count);
  });
  if (!across) return across.status();
  bucket.across = *std::move(across);
  if (rounded) wide_[ref.arena].left[bucket.wide_slot] = bucket.across->end;
  return {};
}

Status Gradients::sum_across_of(size_t launches) {
  if (arenas_->across() == nullptr) return {};
  for (; next_across_ < launches; ++next_across_) {
    for (const uint32_t bucket : launches_[next_across_]) {
      if (Status summed = sum_across(bucket); !summed) return summed;
    }
  }
  return {};
}

// What comes next on the channel of gradients comes after all sums. With a pool nothing was summed yet if this microbatch was not to be the
// last; other ranks, which may think otherwise, wait for it.
Status Gradients::join_across() {
  if (arenas_->across() == nullptr) return {};
  if (Status summed = sum_across_of(launches_.size()); !summed) return summed;
  auto end = arenas_->across()->stream().record();
  return end ? arenas_->grads().stream().wait_for(*end) : end.status();
}

}  // namespace megadp
