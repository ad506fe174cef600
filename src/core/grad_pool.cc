// SPDX-License-Identifier: Apache-2.0
// ZeRO-2: gradients pass through a pool of slots. Bucket b of an arena uses slot b modulo their number, on all ranks, microbatch after
// microbatch. A gradient that comes while the slot is another bucket's goes to private memory, so that no put waits for another rank, and
// is copied in when it is the bucket's turn:
//
//   put → slot, or spill ── launch: copy spills in, clear the rest ── reduce-scatter ── this rank's piece into, or added to, its sums ──
//   slot is free
#include <algorithm>
#include <new>

#include "base/log.h"
#include "core/gradients.h"

namespace megadp {

// The bucket that had the slot before must have been launched, and its reduction have left it. Buckets of an arena are launched in the
// order of their numbers in it.
bool Gradients::slot_is_free(uint32_t number) const {
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  const uint64_t slots = arena.plan->pool_slots, count = arena.numbers.size();
  const bool first_turn = ref.bucket < slots;  // then the last one of the microbatch before had it
  const uint64_t before = first_turn ? ref.bucket + (count - 1 - ref.bucket) / slots * slots : ref.bucket - slots;
  const Bucket& last = buckets_[arena.numbers[before]];
  if (!first_turn && !last.launched) return false;
  return !last.slot_left || last.slot_left->done();
}

// A half-width gradient that comes in several parts is added up in f32, and rounded once, into its slot.
Result<StridedArray> Gradients::place_for(size_t param, bool more) {
  if (!is_pooled()) return arenas_->grad_array(param);
  ParamState& state = states_[param];
  const ParamSpec& spec = arenas_->plan().params[param];
  const DType type = arenas_->arena_of(param).plan->grad_type;
  const bool in_parts = type != DType::f32 && (more || spec.uses_per_step > 1);
  if (state.spill == nullptr && (state.has_gradient || spec.numel == 0 || (!in_parts && slot_is_free(arenas_->place(param).bucket)))) {
    StridedArray slot = arenas_->grad_array(param);
    if (in_parts) slot.type = DType::f32;  // without elements
    return slot;
  }
  if (state.spill == nullptr) {
    state.spill_type = in_parts ? DType::f32 : type;
    auto memory = take_spill(param, spec.numel * size_of(state.spill_type));
    if (!memory) return memory.status();
    state.spill = *std::move(memory);
  }
  return where_it_lies(param);
}

StridedArray Gradients::where_it_lies(size_t param) const {
  StridedArray place = arenas_->grad_array(param);
  if (const ParamState& state = states_[param]; state.spill != nullptr) {
    place.data = state.spill->data();
    place.type = state.spill_type;
  }
  return place;
}

Result<std::shared_ptr<Memory>> Gradients::take_spill(size_t param, size_t bytes) {
  auto memory = spill_.take(bytes);
  if (!memory || spill_told_) return memory;
  const uint32_t number = arenas_->place(param).bucket;
  if (slot_is_free(number)) return memory;  // it only comes in parts
  spill_told_ = true;
  const std::vector<uint32_t>& numbers = arenas_->arena_of(param).numbers;
  const bool in_order = std::all_of(numbers.begin(), numbers.begin() + arenas_->local_bucket(param),
                                    [this](uint32_t before) { return buckets_[before].launched; });
  const std::string came = text(param_label(param, arenas_->plan().params[param].name), " came ");
  if (in_order) {
    log(LogLevel::info, came +
                            "before the slot of its bucket was free: gradients come faster than they are reduced, and those that do not "
                            "fit into the pool wait outside it (mdp_stats_report.spill_peak_bytes). More pool_buckets may help");
  } else {
    log(LogLevel::warning, came + text("before its turn: bucket ", number, " of ", buckets_.size(),
                                       " waits for those before it, and its gradients outside the pool "
                                       "(mdp_stats_report.spill_peak_bytes). Register parameters in the order of the forward pass, or with "
                                       "the mdp_param.use_order that mdp_buffer_use_order tells"));
  }
  return memory;
}

// What the bucket's parameters add in this microbatch, in its slot; zeros where there is nothing, and in the gaps.
Status Gradients::fill_slot(uint32_t number) {
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  const Status filled = copy_into_slot(arena, ref.bucket);
  leave_spills(arena, ref.bucket);
  return filled;
}

Status Gradients::copy_into_slot(const Arena& arena, uint32_t bucket) {
  Backend& backend = arenas_->backend();
  Stream& stream = arenas_->grads().stream();
  const BucketRange& range = arena.range(bucket);
  uint64_t clear_from = range.begin;  // nothing from here on counts, so far
  const auto clear_to = [&](uint64_t end) {
    const uint64_t count = end - std::min(end, clear_from);
    return count == 0 ? Status() : backend.zero(stream, arena.grad_at(bucket, clear_from), count * size_of(arena.plan->grad_type));
  };
  for (uint32_t slot = range.first_slot; slot < range.end_slot; ++slot) {
    const Slot& place = arena.plan->layout.slots[slot];
    const ParamState& state = states_[place.param];
    if (!state.has_gradient) continue;
    if (Status cleared = clear_to(place.begin); !cleared) return cleared;
    clear_from = place.end;
    if (state.spill == nullptr) continue;
    const uint64_t count = place.end - place.begin;
    if (Status copied =
            backend.cast(stream, arena.grad_at(bucket, place.begin), arena.plan->grad_type, state.spill->data(), state.spill_type, count);
        !copied) {
      return copied;
    }
  }
  return clear_to(range.end);
}

// Once the stream has come to this point they have been copied, and what callers' streams write to them before is written.
void Gradients::leave_spills(const Arena& arena, uint32_t bucket) noexcept {
  const BucketRange& range = arena.range(bucket);
  std::shared_ptr<Event> passed;
  const auto leave = [&](std::shared_ptr<Memory>& spill) {
    try {
      if (passed == nullptr) {
        auto here = arenas_->grads().stream().record();
        if (here) passed = *std::move(here);
      }
    } catch (const std::bad_alloc&) {  // then the stream retains it
    }
    return passed != nullptr && spill_.leave(spill, passed);
  };
  for (uint32_t slot = range.first_slot; slot < range.end_slot; ++slot) {
    std::shared_ptr<Memory>& spill = states_[arena.plan->layout.slots[slot].param].spill;
    if (spill != nullptr && !leave(spill)) arenas_->grads().retain(std::exchange(spill, nullptr));
  }
}

// Whether the next reduction of the bucket writes its sum where the step's sums are, so that nothing is left to add.
bool Gradients::goes_to_sums(uint32_t number) const {
  const Arena& arena = arenas_->arena_of(arenas_->plan().launch_order[number]);
  return arena.is_pooled() && (arena.plan->grad_type == DType::f32 || arena.has_instances()) && !buckets_[number].summed;
}

// This rank's pieces of buckets whose reduction has been submitted; then their slots are free.
Status Gradients::add_up(std::span<const uint32_t> buckets) {
  Backend& backend = arenas_->backend();
  Stream& stream = arenas_->grads().stream();
  for (const uint32_t number : buckets) {
    const BucketRef ref = arenas_->plan().launch_order[number];
    const Arena& arena = arenas_->arena_of(ref);
    const uint64_t count = arena.piece_count(ref.bucket);
    const bool wide = arena.wide != nullptr;
    const void* const piece = wide ? static_cast<const void*>(arena.wide_at(0)) : arena.piece_at(ref.bucket);
    Bucket& bucket = buckets_[number];
    const auto put = bucket.summed ? &Backend::add : &Backend::cast;
    if (count > 0 && !goes_to_sums(number)) {
      if (Status added =
              (backend.*put)(stream, arena.sums_of(ref.bucket), DType::f32, piece, wide ? DType::f32 : arena.plan->grad_type, count);
          !added)
        return added;
    }
    bucket.summed = true;
  }
  auto left = stream.record();
  if (!left) return left.status();
  for (const uint32_t number : buckets) buckets_[number].slot_left = *left;
  return {};
}

// Launches what the microbatch has left, zero where nothing came, and begins the next one.
Status Gradients::next_microbatch() {
  for (Bucket& bucket : buckets_) {
    if (bucket.waiting > 0) bucket.ready_ns = 0;  // an earlier one's
    bucket.waiting = 0;
  }
  stats_.launched_in_backward += buckets_.size();
  if (Status launched = launch_in_order(); !launched) return launched;
  if (Status fetched = checks_.fetch_norms(arenas_->grads().stream()); !fetched) return fetched;
  for (ParamState& state : states_) {
    state.had_gradient = state.had_gradient || state.has_gradient;
    state.came = state.came || state.ready;
    state.has_gradient = state.ready = state.skipped = false;
    state.turn = 0;
  }
  for (Bucket& bucket : buckets_) {
    bucket.waiting = bucket.params;
    bucket.launched = false;
  }
  next_launch_ = 0;
  return {};
}

}  // namespace megadp
