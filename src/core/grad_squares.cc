// SPDX-License-Identifier: Apache-2.0
// The sum of squares of reduced gradients. Who adds up a bucket has each element of the sum in a register or the nearest cache, so the
// squares are added up on the way, and the norm of a step reads no gradient. That holds until somebody may have written reduced gradients;
// then, and for what is not reduced in one go, they are read once more, with the same bits: Backend::square_sum() says in which order.
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "core/gradients.h"

namespace megadp {

Status Gradients::find_squared() {
  std::vector<bool> summed_again(states_.size());
  for (const OwnedSum& sum : owned_sums_) {
    for (const size_t param : sum.params) summed_again[param] = true;
  }
  for (const Arena& arena : arenas_->all()) {
    const bool in_one_go = arena.is_sharded() && !arena.is_pooled() && !arena.has_instances() && arena.wire == nullptr;
    if (!in_one_go || !arena.comms.grads->group().adds_squares()) continue;
    for (auto first = arena.owned.begin(); first != arena.owned.end();) {
      const uint32_t bucket = first->bucket;
      const auto next = std::find_if(first, arena.owned.end(), [bucket](const OwnedRange& range) { return range.bucket != bucket; });
      const uint64_t begin = arena.pieces[bucket].begin;
      const bool whole = first->begin == begin && std::all_of(first, next, [&](const OwnedRange& range) {
                           return states_[range.param].counts && !summed_again[range.param];
                         });
      if (whole) buckets_[arena.numbers[bucket]].squared = std::prev(next)->end - begin;
      first = next;
    }
  }
  auto squares = arenas_->backend().allocate(std::max<uint64_t>(square_bytes(arenas_->plan()), 1));
  if (squares) squares_ = arenas_->kept().keep(*std::move(squares));
  return squares.status();
}

Status Gradients::add_squares(StepScalars* scalars, const Chosen& chosen, bool ParamState::*which) {
  Stream& stream = arenas_->grads().stream();
  Backend& backend = arenas_->backend();
  for (const Arena& arena : arenas_->all()) {
    const Status submitted = submit_merged(
        arena.owned, [&](const OwnedRange& range) { return states_[range.param].*which && chosen.has(range.param); },
        [](const OwnedRange&, const OwnedRange&) { return true; },
        [&](const OwnedRange& range) {
          const uint32_t number = arena.numbers[range.bucket];
          if (chosen.all && squares_hold(number)) {
            return backend.add(stream, &scalars->square_sum, DType::f64, squares_of(number), DType::f64, 2);
          }
          return backend.square_sum(stream, arena.reduced_at(range), arena.reduced_type(), range.end - range.begin, &scalars->square_sum);
        });
    if (!submitted) return submitted;
  }
  return {};
}

// The norm over the whole model: every element is counted once in the world. Replicas over tensor-parallel ranks are gradients of their own
// programs, which should be equal and need not be: one that is not finite would spoil its own parameters, so all are looked at.
Status Gradients::submit_square_sum(StepScalars* scalars, const Chosen& chosen, const char* what) {
  Stream& stream = arenas_->grads().stream();
  Backend& backend = arenas_->backend();
  static_assert(offsetof(StepScalars, nonfinite) == offsetof(StepScalars, square_sum) + sizeof(double));  // reduced together
  if (Status zeroed = backend.zero(stream, &scalars->square_sum, 2 * sizeof(double)); !zeroed) return zeroed;
  if (Status checked = add_squares(scalars, chosen, &ParamState::checked); !checked) return checked;
  // Of the replicas only the number of elements that are not finite stays.
  if (Status zeroed = backend.zero(stream, &scalars->square_sum, sizeof(double)); !zeroed) return zeroed;
  if (Status added = add_squares(scalars, chosen, &ParamState::counts); !added) return added;
  return arenas_->world()->group().all_reduce(stream, &scalars->square_sum, &scalars->square_sum, 2, DType::f64, Op::sum, Tag{-1, what});
}

}  // namespace megadp
