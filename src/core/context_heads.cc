// SPDX-License-Identifier: Apache-2.0
// The all-to-all form.
#include "base/shape.h"
#include "core/context_attention.h"

namespace megadp {

std::vector<int64_t> ContextHeads::whole_shape(const StridedArray& part) const {
  std::vector<int64_t> shape = part.shape;
  shape[1] *= ranks();
  shape[2] /= ranks();
  return shape;
}

// The heads that rank `rank` computes, of the own positions.
StridedArray ContextHeads::heads_of(const StridedArray& part, int64_t rank) const {
  const auto heads = static_cast<uint64_t>(part.shape[2] / ranks());
  StridedArray array = slice_of(part, 2, static_cast<uint64_t>(rank) * heads, heads);
  const int64_t chunks = chunks_each(call_.config.causal, ranks()), length = array.shape[1] / chunks;
  array.shape[1] = length;
  array.shape.insert(array.shape.begin() + 1, chunks);
  array.strides.insert(array.strides.begin() + 1, array.strides[1] * length);
  return array;
}

// The positions that rank `rank` has, of the own heads: its two chunks are a stride apart.
StridedArray ContextHeads::positions_of(const StridedArray& whole, int64_t rank) const {
  const std::vector<Chunk> chunks = chunks_of(call_.config.causal, ranks(), rank, whole.shape[1]);
  StridedArray array = slice_of(whole, 1, static_cast<uint64_t>(chunks[0].begin), static_cast<uint64_t>(chunks[0].length));
  array.shape.insert(array.shape.begin() + 1, static_cast<int64_t>(chunks.size()));
  array.strides.insert(array.strides.begin() + 1, array.strides[1] * (chunks.back().begin - chunks[0].begin));
  return array;
}

// What from(r) has goes to rank r, and what comes from it to to(r); all are equally large.
template <class From, class To>
Status ContextHeads::exchange(DType type, const From& from, const To& to) {
  const size_t count = elements_of(from(0).shape);
  const auto piece = [&](const StridedArray& pieces, int64_t rank, const StridedArray& like) {
    return dense_array(static_cast<std::byte*>(pieces.data) + static_cast<size_t>(rank) * count * size_of(type), type, like.shape);
  };
  for (int64_t r = 0; r < ranks(); ++r) {
    if (Status packed = collectives_.copy(piece(sent_, r, from(r)), from(r)); !packed) return packed;
  }
  if (Status begun = collectives_.begin(); !begun) return begun;
  const Tag tag{-1, "an attention"};
  if (Status sent = comm_.group().all_to_all(comm_.channel().stream(), sent_.data, received_.data, count, type, tag); !sent) return sent;
  if (Status ended = collectives_.end(); !ended) return ended;
  for (int64_t r = 0; r < ranks(); ++r) {
    if (Status placed = collectives_.copy(to(r), piece(received_, r, to(r))); !placed) return placed;
  }
  return {};
}

Status ContextHeads::to_heads(const StridedArray& whole, const StridedArray& part) {
  return exchange(
      part.type, [&](int64_t r) { return heads_of(part, r); }, [&](int64_t r) { return positions_of(whole, r); });
}

// Rounded to the type of `part` before it is sent.
Status ContextHeads::to_positions(const StridedArray& part, const StridedArray& whole) {
  return exchange(
      part.type, [&](int64_t r) { return positions_of(whole, r); }, [&](int64_t r) { return heads_of(part, r); });
}

Status ContextHeads::prepare() {
  const AttentionArrays& a = call_.arrays;
  whole_.backward = a.backward;
  scratch_.want(&whole_.q, a.q.type, whole_shape(a.q));
  scratch_.want(&whole_.k, a.k.type, whole_shape(a.k));
  scratch_.want(&whole_.v, a.v.type, whole_shape(a.v));
  scratch_.want(&whole_.out, a.backward ? a.out.type : DType::f32, whole_shape(a.out));
  scratch_.want(&whole_.lse, DType::f32, whole_shape(a.lse));
  if (a.backward) {
    scratch_.want(&whole_.grad_out, a.grad_out.type, whole_shape(a.grad_out));
    scratch_.want(&whole_.grad_q, DType::f32, whole_shape(a.grad_q));
    scratch_.want(&whole_.grad_k, DType::f32, whole_shape(a.grad_k));
    scratch_.want(&whole_.grad_v, DType::f32, whole_shape(a.grad_v));
  }
  const auto most = static_cast<int64_t>(std::max(elements_of(a.q.shape) * size_of(a.q.type), elements_of(a.lse.shape) * sizeof(float)));
  scratch_.want(&sent_, DType::u8, {most});
  scratch_.want(&received_, DType::u8, {most});
  return scratch_.take(comm_, ScratchPiece::input);
}

Status ContextHeads::run(Status* failed) {
  const AttentionArrays& a = call_.arrays;
  if (Status moved = to_heads(whole_.q, a.q); !moved) return moved;
  if (Status moved = to_heads(whole_.k, a.k); !moved) return moved;
  if (Status moved = to_heads(whole_.v, a.v); !moved) return moved;
  if (a.backward) {
    if (Status moved = to_heads(whole_.out, a.out); !moved) return moved;
    if (Status moved = to_heads(whole_.lse, a.lse); !moved) return moved;
    if (Status moved = to_heads(whole_.grad_out, a.grad_out); !moved) return moved;
  }
  AttentionBlock block;
  block.causal = call_.config.causal;
  block.head_begin = whole_.q.shape[2] * comm_.rank();
  block.arrays = whole_;
  block.bounds = {call_.config.bounds, call_.config.bounds};
  block.stream = call_.caller;
  *failed = call_.function(block);
  return {};
}

Status ContextHeads::finish() {
  const AttentionArrays& a = call_.arrays;
  if (a.backward) {
    if (Status moved = to_positions(a.grad_q, whole_.grad_q); !moved) return moved;
    if (Status moved = to_positions(a.grad_k, whole_.grad_k); !moved) return moved;
    return to_positions(a.grad_v, whole_.grad_v);
  }
  if (Status moved = to_positions(a.out, whole_.out); !moved) return moved;
  return to_positions(a.lse, whole_.lse);
}

}  // namespace megadp
