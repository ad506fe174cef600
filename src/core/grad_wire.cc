// SPDX-License-Identifier: Apache-2.0
// f32 gradients that are sent as bf16 (mdp_buffer_config.wire_dtype). Each rank rounds what it contributes once, into a window of its own,
// also if nothing leaves the node; sums are f32 and in the one order. So the result depends neither on where ranks are nor on buckets:
//
//   f32 gradients | piece 0 | piece 1 | ── rounded ──► the window, bf16 ── reduce-scatter, sums in f32 ──► this rank's piece, f32
//
// A bucket that is longer than the window goes in turns: in each the same part of all pieces, as far as they reach. With ZeRO-0 the sums
// are gathered, as f32. With error feedback what rounding took from an element is added to it the next time that its parameter has a
// gradient. It is forgotten where a step is given up that an optimizer was to take, and at a load; not where a step is skipped.
#include <algorithm>
#include <numeric>

#include "core/gradients.h"

namespace megadp {

Status Gradients::zero_residuals() {
  for (const Arena& arena : arenas_->all()) {
    if (arena.residual == nullptr) continue;
    Status zeroed = arenas_->backend().zero(arenas_->grads().stream(), arena.residual->data(), arena.residual->bytes());
    if (!zeroed) return zeroed;
  }
  return {};
}

// Elements [begin, begin + count) of a bucket, rounded, into the window from element `at` on.
Status Gradients::fill_wire(uint32_t number, uint64_t begin, uint64_t count, uint64_t at) {
  Backend& backend = arenas_->backend();
  Stream& stream = arenas_->grads().stream();
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  const BucketRange& range = arena.range(ref.bucket);
  std::byte* const to = arena.wire->data() + at * size_of(DType::bf16);
  const auto* const from = reinterpret_cast<const float*>(arena.grad_at(ref.bucket, range.begin + begin));
  if (arena.residual == nullptr) return backend.cast(stream, to, DType::bf16, from, DType::f32, count);

  // What has no gradient keeps what it has lost: if all ranks skip it, nobody would use the sum.
  float* const residual = static_cast<float*>(arena.residual->data()) + range.begin + begin;
  const auto round = [&](uint64_t first, uint64_t end) {
    return backend.round_with_feedback(stream, to + first * size_of(DType::bf16), from + first, residual + first, end - first);
  };
  const std::vector<Slot>& slots = arena.plan->layout.slots;
  const auto has_gradient = [&](const Slot& slot) { return states_[slot.param].has_gradient; };
  if (std::all_of(slots.begin() + range.first_slot, slots.begin() + range.end_slot, has_gradient)) return round(0, count);
  if (Status cleared = backend.zero(stream, to, count * size_of(DType::bf16)); !cleared) return cleared;
  const uint64_t here = range.begin + begin;  // as slots count
  for (uint32_t i = range.first_slot; i < range.end_slot; ++i) {
    const uint64_t first = std::max(slots[i].begin, here), end = std::min(slots[i].end, here + count);
    if (first >= end || !has_gradient(slots[i])) continue;
    if (Status rounded = round(first - here, end - here); !rounded) return rounded;
  }
  return {};
}

// Of every piece up to `most` elements from `begin` on, in one turn.
Status Gradients::scatter_rounded(uint32_t number, const WindowOp& reduction, const Counts& pieces, uint64_t begin, uint64_t most) {
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  Comm& comm = *arena.comms.grads;
  const auto own = pieces.begin() + comm.rank();
  auto* const first = reinterpret_cast<float*>(arena.grad_at(ref.bucket, arena.range(ref.bucket).begin));
  float* const mine = first + std::accumulate(pieces.begin(), own, uint64_t{0});
  const bool at_once = std::all_of(pieces.begin(), pieces.end(), [most](uint64_t count) { return count <= most; });  // as neighbours
  Counts now;
  uint64_t at = 0, piece = 0;
  for (const uint64_t count : pieces) {
    now.push_back(std::min(most, count - std::min(begin, count)));
    if (!at_once && now.back() > 0) {
      if (Status filled = fill_wire(number, piece + begin, now.back(), at); !filled) return filled;
    }
    at += now.back();
    piece += count;
  }
  if (Status filled = at_once ? fill_wire(number, 0, at, 0) : Status(); !filled) return filled;
  WindowOp part{.kind = Collective::reduce_scatter,
                .window = arena.wire,
                .type = DType::bf16,
                .begin = 0,
                .count = at,
                .tag = reduction.tag,
                .divisor = reduction.divisor,
                .to = (reduction.to != nullptr ? static_cast<float*>(reduction.to) : mine) + std::min(begin, *own),
                .to_f32 = true,
                .exact = true};
  if (reduction.counts) part.counts = std::make_shared<const Counts>(std::move(now));
  return comm.group().together(comm.channel().stream(), {&part, 1});
}

// reduction: what it would be in f32.
Result<std::shared_ptr<Transfer>> Gradients::send_rounded(uint32_t number, const WindowOp& reduction) {
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  Comm& comm = *arena.comms.grads;
  Stream& stream = comm.channel().stream();
  const auto ranks = static_cast<uint64_t>(comm.size());
  const Counts pieces = reduction.counts ? *reduction.counts : Counts(ranks, reduction.count / ranks);
  const uint64_t longest = *std::max_element(pieces.begin(), pieces.end());
  const uint64_t even = std::accumulate(pieces.begin(), pieces.end(), uint64_t{0});
  std::byte* const first = arena.grad_at(ref.bucket, arena.range(ref.bucket).begin);
  const bool everywhere = reduction.kind == Collective::all_reduce;

  // Of fewer elements than ranks there is no piece for each: they are rounded where they lie.
  const auto sum_rest = [&](uint64_t rest) -> Status {
    if (Status filled = fill_wire(number, even, rest, 0); !filled) return filled;
    Status rounded =
        arenas_->backend().cast(stream, reinterpret_cast<float*>(first) + even, DType::f32, arena.wire->data(), DType::bf16, rest);
    if (!rounded) return rounded;
    WindowOp sum = reduction;
    sum.begin += even;
    sum.count = rest;
    sum.exact = true;
    return comm.group().together(stream, {&sum, 1});
  };
  // All-reducing f32 would send as much twice.
  const uint64_t sent = everywhere ? reduction.count * (size_of(DType::bf16) + sizeof(float)) / 2 : reduction.count * size_of(DType::bf16);
  return stats_.submit(stream, sent, [&]() -> Status {
    const uint64_t most = arena.plan->wire_elements / ranks;
    for (uint64_t begin = 0; begin < longest; begin += most) {
      if (Status scattered = scatter_rounded(number, reduction, pieces, begin, most); !scattered) return scattered;
    }
    if (!everywhere) return {};
    if (longest > 0) {
      Status gathered = comm.group().all_gather(stream, *arena.grads, DType::f32, reduction.begin, even, reduction.tag);
      if (!gathered) return gathered;
    }
    return even == reduction.count ? Status() : sum_rest(reduction.count - even);
  });
}

}  // namespace megadp
