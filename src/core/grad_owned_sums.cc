// SPDX-License-Identifier: Apache-2.0
// Sums beyond the replicas. After the reductions the owned ranges of tied and of partial gradients are packed, as f32, and summed in one
// collective:
//
//   reduced: | a | · | b | ·   ── packed: | a | b | ── all-reduce ── back into place, rounded
//
// Tied ones over the pipeline stages that hold a copy; then partial ones, of which tensor-parallel ranks have replicas while each computes
// a part of the gradient (norms under sequence parallelism), over these ranks; a mean is a collective of its own. The ranks of such a
// collective own the same ranges, which registering has made sure of.
#include "core/gradients.h"

namespace megadp {

Status Gradients::find_owned_sums() {
  const Plan& plan = arenas_->plan();
  const auto add = [this](OwnedSum* sum, size_t param) {
    const OwnedRange* const owned = arenas_->owned(param);
    if (owned == nullptr) return;
    sum->params.push_back(param);
    sum->count += owned->end - owned->begin;
  };
  const auto keep = [this](OwnedSum sum) {
    if (sum.count > 0) owned_sums_.push_back(std::move(sum));
  };
  for (const Arenas::TieGroup& tied : arenas_->tie_groups()) {
    OwnedSum sum{.comm = tied.comm, .what = "tied gradients", .params = {}, .transfer = {}};
    for (const size_t param : tied.params) add(&sum, param);
    keep(std::move(sum));
  }
  for (const bool expert : {false, true}) {
    if (arenas_->tp(expert) == nullptr) continue;
    for (const Placement placement : {Placement::partial_sum, Placement::partial_mean}) {
      OwnedSum sum{.comm = arenas_->tp(expert), .what = "partial gradients", .params = {}, .transfer = {}};
      if (placement == Placement::partial_mean) sum.divisor = static_cast<float>(sum.comm->size());
      for (size_t param = 0; param < plan.params.size(); ++param) {
        const ParamSpec& spec = plan.params[param];
        if (!spec.frozen && spec.expert == expert && spec.placement == placement) add(&sum, param);
      }
      keep(std::move(sum));
    }
  }
  const uint64_t elements = plan.packed_elements();
  if (elements == 0) return {};
  auto packed = arenas_->backend().allocate(elements * sizeof(float));
  if (packed) packed_ = arenas_->kept().keep(*std::move(packed));
  return packed.status();
}

Status Gradients::sum_owned() {
  Backend& backend = arenas_->backend();
  Stream& stream = arenas_->grads().stream();
  if (packed_ == nullptr) return {};
  auto* const packed = static_cast<float*>(packed_->data());
  for (OwnedSum& sum : owned_sums_) {
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
      done = sum.comm->group().all_reduce(stream, packed, packed, sum.count, DType::f32, Op::sum, Tag{-1, sum.what}, sum.divisor);
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
