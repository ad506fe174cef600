// SPDX-License-Identifier: Apache-2.0
// What can be said of reduced gradients besides their L2 norm: the largest magnitude, and how many elements are zero, of any sets of
// parameters. Every element counts once in the world; gaps and padding never.
#include <cmath>
#include <cstddef>

#include "core/gradients.h"

namespace megadp {

Status Gradients::submit_largest(StepScalars* scalars) {
  Stream& stream = arenas_->grads().stream();
  Backend& backend = arenas_->backend();
  static_assert(offsetof(StepScalars, largest) == offsetof(StepScalars, zeros) + sizeof(uint64_t));
  if (Status zeroed = backend.zero(stream, &scalars->zeros, sizeof(uint64_t) + sizeof(float)); !zeroed) return zeroed;
  for (const Arena& arena : arenas_->all()) {
    // Gaps hold zeros, which are no larger than anything.
    const Status submitted = submit_merged(
        arena.owned, [&](const OwnedRange& range) { return states_[range.param].counts; },
        [](const OwnedRange&, const OwnedRange&) { return true; },
        [&](const OwnedRange& range) {
          return backend.extremes(stream, arena.reduced_at(range), arena.reduced_type(), range.end - range.begin, &scalars->zeros,
                                  &scalars->largest);
        });
    if (!submitted) return submitted;
  }
  float* const largest = &scalars->largest;
  return arenas_->world()->group().all_reduce(stream, largest, largest, 1, DType::f32, Op::max, Tag{-1, "largest gradient"});
}

namespace {

// Of `count` sets, one array after another.
struct SummaryPlace {
  SummaryPlace(void* memory, size_t count)
      : sums(static_cast<double*>(memory)),
        zeros(reinterpret_cast<uint64_t*>(sums + 2 * count)),
        largest(reinterpret_cast<float*>(zeros + count)) {}
  static size_t bytes(size_t count) { return count * (2 * sizeof(double) + sizeof(uint64_t) + sizeof(float)); }
  double* sums;  // of squares, and of elements that are not finite, by turns
  uint64_t* zeros;
  float* largest;
};

}  // namespace

Status Gradients::submit_summary(void* memory, std::span<const size_t> set_of, size_t sets) {
  Stream& stream = arenas_->grads().stream();
  Backend& backend = arenas_->backend();
  const SummaryPlace place(memory, sets);
  if (Status zeroed = backend.zero(stream, memory, SummaryPlace::bytes(sets)); !zeroed) return zeroed;
  for (const Arena& arena : arenas_->all()) {
    for (const OwnedRange& range : arena.owned) {
      const size_t set = set_of.empty() ? 0 : set_of[range.param];
      if (set >= sets || !states_[range.param].counts) continue;
      const void* const data = arena.reduced_at(range);
      const DType type = arena.reduced_type();
      const uint64_t count = range.end - range.begin;
      if (Status summed = backend.square_sum(stream, data, type, count, place.sums + 2 * set); !summed) return summed;
      if (Status found = backend.extremes(stream, data, type, count, place.zeros + set, place.largest + set); !found) return found;
    }
  }
  Group& group = arenas_->world()->group();
  const Tag tag{-1, "mdp_grad_summarize"};
  if (Status added = group.all_reduce(stream, place.sums, place.sums, 2 * sets, DType::f64, Op::sum, tag); !added) return added;
  if (Status added = group.all_reduce(stream, place.zeros, place.zeros, sets, DType::i64, Op::sum, tag); !added) return added;
  return group.all_reduce(stream, place.largest, place.largest, sets, DType::f32, Op::max, tag);
}

Result<std::vector<Gradients::Summary>> Gradients::summarize(std::span<const size_t> set_of, size_t sets) {
  if (Status synced = await_sync(); !synced) return synced;
  Backend& backend = arenas_->backend();
  std::shared_ptr<Memory> memory;
  std::shared_ptr<Event> summed;
  {
    const std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    if (Status reduced = check_reduced("mdp_grad_summarize"); !reduced) return reduced;
    auto allocated = backend.allocate(SummaryPlace::bytes(sets));
    if (!allocated) return allocated.status();
    memory = *std::move(allocated);
    arenas_->grads().retain(memory);
    if (Status submitted = submit_summary(memory->data(), set_of, sets); !submitted) return submitted;
    auto recorded = arenas_->grads().stream().record();
    if (!recorded) return recorded.status();
    summed = *std::move(recorded);
  }
  if (Status reached = summed->await(); !reached) return reached;
  std::vector<std::byte> bytes(SummaryPlace::bytes(sets));
  if (Status read = backend.read(bytes.data(), memory->data(), bytes.size()); !read) return read;
  const SummaryPlace found(bytes.data(), sets);
  std::vector<Summary> all(sets);
  for (size_t set = 0; set < sets; ++set) {
    all[set] = {.norm = std::sqrt(found.sums[2 * set]) / step_divisor(),
                .inf_norm = found.largest[set] / step_divisor(),
                .zeros = found.zeros[set],
                .nonfinite = static_cast<uint64_t>(found.sums[2 * set + 1])};
  }
  return all;
}

}  // namespace megadp
