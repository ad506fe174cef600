// SPDX-License-Identifier: Apache-2.0
// Partial gradients: of parameters that tensor-parallel ranks hold replicas of, while each computes a part of the gradient (norms under
// sequence parallelism). After the reductions the owned ranges of all of them are packed, as f32, and summed in one collective:
//
//   reduced: | a | · | b | ·   ── packed: | a | b | ── all-reduce over the tensor-parallel ranks ── back into place, rounded
//
// These ranks own the same ranges of such parameters, which registering has made sure of. A mean is a collective of its own.
#include "core/gradients.h"

namespace megadp {

Status Gradients::find_partial() {
  const Plan& plan = arenas_->plan();
  for (const bool expert : {false, true}) {
    if (arenas_->tp(expert) == nullptr) continue;
    for (const Placement placement : {Placement::partial_sum, Placement::partial_mean}) {
      PartialSum sum;
      sum.comm = arenas_->tp(expert);
      if (placement == Placement::partial_mean) sum.divisor = static_cast<float>(sum.comm->size());
      for (size_t param = 0; param < plan.params.size(); ++param) {
        const ParamSpec& spec = plan.params[param];
        if (spec.frozen || spec.expert != expert || spec.placement != placement) continue;
        const OwnedRange* const owned = arenas_->owned(param);
        if (owned == nullptr) continue;
        sum.params.push_back(param);
        sum.count += owned->end - owned->begin;
      }
      if (sum.count > 0) partial_sums_.push_back(std::move(sum));
    }
  }
  const uint64_t elements = plan.packed_elements();
  if (elements == 0) return {};
  auto packed = arenas_->backend().allocate(elements * sizeof(float));
  if (packed) packed_ = arenas_->kept().keep(*std::move(packed));
  return packed.status();
}

Status Gradients::sum_partial() {
  Backend& backend = arenas_->backend();
  Stream& stream = arenas_->grads().stream();
  if (packed_ == nullptr) return {};
  auto* const packed = static_cast<float*>(packed_->data());
  for (PartialSum& sum : partial_sums_) {
    const auto for_each = [&](const auto& copy) -> Status {
      float* at = packed;
      for (const size_t param : sum.params) {
        const Arena& arena = arenas_->arena_of(param);
        const OwnedRange& owned = *arenas_->owned(param);
        const uint64_t count = owned.end - owned.begin;
        if (Status copied = copy(at, arena.reduced_at(owned), arena.reduced_type(), count); !copied) return copied;
        at += count;
      }
      return {};
    };
    stats_.count(sum.transfer.get());
    auto transfer = stats_.submit(stream, sum.count * sizeof(float), [&]() -> Status {
      Status done = for_each(
          [&](float* at, void* reduced, DType type, uint64_t count) { return backend.cast(stream, at, DType::f32, reduced, type, count); });
      if (!done) return done;
      done =
          sum.comm->group().all_reduce(stream, packed, packed, sum.count, DType::f32, Op::sum, Tag{-1, "partial gradients"}, sum.divisor);
      if (!done) return done;
      return for_each(
          [&](float* at, void* reduced, DType type, uint64_t count) { return backend.cast(stream, reduced, type, at, DType::f32, count); });
    });
    if (!transfer) return transfer.status();
    sum.transfer = *std::move(transfer);
  }
  return {};
}

}  // namespace megadp
