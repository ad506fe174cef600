// SPDX-License-Identifier: Apache-2.0
// The ring.
#include "base/shape.h"
#include "core/context_attention.h"

namespace megadp {
namespace {

// One of k and v, or of their gradients.
StridedArray half_of(const StridedArray& both, uint64_t which) {
  StridedArray half = slice_of(both, 0, which, 1);
  half.shape.erase(half.shape.begin());
  half.strides.erase(half.strides.begin());
  return half;
}

std::vector<int64_t> twice(std::vector<int64_t> shape) {
  shape.insert(shape.begin(), 2);
  return shape;
}

bool is_result(const StridedArray& array) {
  return array.type == DType::f32 && is_dense(array);
}

}  // namespace

std::vector<Chunk> ContextRing::chunks(int64_t rank) const {
  return chunks_of(call_.config.causal, ranks(), rank, call_.arrays.q.shape[1] * ranks());
}

Status ContextRing::prepare() {
  const AttentionArrays& a = call_.arrays;
  const int64_t length = chunks(0).front().length;
  const auto chunk_shape = [&](const StridedArray& of) {
    std::vector<int64_t> shape = of.shape;
    shape[1] = length;
    return shape;
  };
  for (StridedArray& kv : kv_) scratch_.want(&kv, a.k.type, twice(a.k.shape));
  if (backward()) {
    for (StridedArray& grads : grads_) scratch_.want(&grads, DType::f32, twice(a.k.shape));
    scratch_.want(&grad_q_, DType::f32, a.q.shape);
    scratch_.want(&part_.grad_q, DType::f32, chunk_shape(a.q));
    scratch_.want(&part_.grad_k, DType::f32, chunk_shape(a.k));
    scratch_.want(&part_.grad_v, DType::f32, chunk_shape(a.k));
  } else {
    scratch_.want(&part_.out, DType::f32, chunk_shape(a.q));
    scratch_.want(&part_.lse, DType::f32, chunk_shape(a.lse));
    out_ = a.out;
    lse_ = a.lse;
    if (!is_result(out_)) scratch_.want(&out_, DType::f32, a.out.shape);
    if (!is_result(lse_)) scratch_.want(&lse_, DType::f32, a.lse.shape);
  }
  q_done_.assign(chunks(0).size(), false);
  return scratch_.take(comm_, ScratchPiece::input);
}

// To the next rank, and from the one before into the other array.
Status ContextRing::send_on(std::array<StridedArray, 2>& held, std::shared_ptr<Event>* arrived) {
  if (Status begun = collectives_.begin(); !begun) return begun;
  const StridedArray &here = held[at_], &coming = held[1 - at_];
  const int next = (comm_.rank() + 1) % comm_.size(), last = (comm_.rank() + comm_.size() - 1) % comm_.size();
  const size_t count = elements_of(here.shape);
  const Status sent =
      comm_.group().send_recv(comm_.channel().stream(), {next, here.data, count, here.type}, {last, coming.data, count, coming.type});
  if (!sent) return sent;
  auto event = collectives_.mark();
  if (!event) return event.status();
  *arrived = *std::move(event);
  return {};
}

Status ContextRing::run(Status* failed) {
  const AttentionArrays& a = call_.arrays;
  if (Status packed = collectives_.copy(half_of(kv_[0], 0), a.k); !packed) return packed;
  if (Status packed = collectives_.copy(half_of(kv_[0], 1), a.v); !packed) return packed;
  for (int64_t step = 0; step < ranks(); ++step) {
    std::shared_ptr<Event> arrived;
    if (step + 1 < ranks()) {
      if (Status sent = send_on(kv_, &arrived); !sent) return sent;
    }
    if (Status computed = compute((comm_.rank() + ranks() - step) % ranks(), failed); !computed) return computed;
    if (grads_arrived_) {  // nothing was added to them in this step
      if (Status waited = collectives_.wait_for(*grads_arrived_); !waited) return waited;
      grads_arrived_.reset();
    }
    if (backward() && ranks() > 1) {
      if (Status sent = send_on(grads_, &grads_arrived_); !sent) return sent;
    }
    if (arrived) {
      if (Status waited = collectives_.wait_for(*arrived); !waited) return waited;
    }
    if (ranks() > 1) at_ = 1 - at_;
  }
  return grads_arrived_ ? collectives_.wait_for(*grads_arrived_) : Status();
}

Status ContextRing::compute(int64_t source, Status* failed) {
  const std::vector<Chunk> queries = chunks(comm_.rank()), keys = chunks(source);
  const bool own = source == comm_.rank();
  // The own keys of a chunk come first: theirs is the result that other parts are merged into.
  for (size_t q = 0; q < queries.size() && own; ++q) {
    const Visibility visible = visibility_of(call_.config, queries[q], keys[q]);
    if (Status done = compute_block(queries[q], q, keys[q], q, visible == Visibility::causal, failed); !done) return done;
  }
  for (size_t q = 0; q < queries.size(); ++q) {
    for (size_t k = 0; k < keys.size(); ++k) {
      if (own && q == k) continue;
      const Visibility visible = visibility_of(call_.config, queries[q], keys[k]);
      if (visible == Visibility::none) continue;
      if (Status done = compute_block(queries[q], q, keys[k], k, visible == Visibility::causal, failed); !done) return done;
    }
  }
  return {};
}

AttentionArrays ContextRing::block_arrays(size_t q_number, size_t k_number) const {
  const auto length = static_cast<uint64_t>(chunks(0).front().length);
  const auto of_q = [&](const StridedArray& array) { return slice_of(array, 1, q_number * length, length); };
  const auto of_k = [&](const StridedArray& array) { return slice_of(array, 1, k_number * length, length); };
  const AttentionArrays& a = call_.arrays;
  AttentionArrays block;
  block.backward = a.backward;
  block.q = of_q(a.q);
  block.k = of_k(half_of(kv_[at_], 0));
  block.v = of_k(half_of(kv_[at_], 1));
  block.out = of_q(backward() ? a.out : out_);
  block.lse = of_q(backward() ? a.lse : lse_);
  if (!backward()) return block;
  block.grad_out = of_q(a.grad_out);
  block.grad_q = of_q(grad_q_);
  block.grad_k = of_k(half_of(grads_[at_], 0));
  block.grad_v = of_k(half_of(grads_[at_], 1));
  return block;
}

Status ContextRing::compute_block(const Chunk& q, size_t q_number, const Chunk& k, size_t k_number, bool causal, Status* failed) {
  if (!failed->ok()) return {};
  const AttentionArrays into = block_arrays(q_number, k_number);
  const bool first = !q_done_[q_number];  // of its queries, and of its keys too, which begin with their owner
  q_done_[q_number] = true;
  AttentionBlock block{causal, q.begin, k.begin, 0, into, bounds_in(call_.config.bounds, q, k), call_.caller};
  if (!first && !backward()) {
    block.arrays.out = part_.out;
    block.arrays.lse = part_.lse;
  }
  if (!first && backward()) {
    block.arrays.grad_q = part_.grad_q;
    block.arrays.grad_k = part_.grad_k;
    block.arrays.grad_v = part_.grad_v;
  }
  *failed = call_.function(block);
  if (!failed->ok() || first) return {};
  return backward() ? add_parts(into) : merge(into);
}

Status ContextRing::merge(const AttentionArrays& into) {
  AttentionMerge work;
  work.out = static_cast<float*>(into.out.data);
  work.lse = static_cast<float*>(into.lse.data);
  work.part = static_cast<const float*>(part_.out.data);
  work.part_lse = static_cast<const float*>(part_.lse.data);
  work.batches = into.out.shape[0];
  work.rows = into.out.shape[1] * into.out.shape[2];
  work.features = into.out.shape[3];
  work.out_stride = call_.arrays.q.shape[1] * into.out.shape[2] * work.features;
  work.lse_stride = call_.arrays.q.shape[1] * into.out.shape[2];
  work.part_stride = work.rows * work.features;
  work.part_lse_stride = work.rows;
  return comm_.context().backend->merge_attention(work, call_.caller);
}

Status ContextRing::add_parts(const AttentionArrays& into) {
  if (grads_arrived_) {
    if (Status waited = collectives_.wait_for(*grads_arrived_); !waited) return waited;
    grads_arrived_.reset();
  }
  Backend& backend = *comm_.context().backend;
  if (Status added = backend.copy(into.grad_q, part_.grad_q, true, call_.caller); !added) return added;
  if (Status added = backend.copy(into.grad_k, part_.grad_k, true, call_.caller); !added) return added;
  return backend.copy(into.grad_v, part_.grad_v, true, call_.caller);
}

Status ContextRing::finish() {
  const AttentionArrays& a = call_.arrays;
  if (!backward()) {
    if (Status placed = is_result(a.out) ? Status() : collectives_.copy(a.out, out_); !placed) return placed;
    return is_result(a.lse) ? Status() : collectives_.copy(a.lse, lse_);
  }
  if (Status placed = collectives_.copy(a.grad_q, grad_q_); !placed) return placed;
  if (Status placed = collectives_.copy(a.grad_k, half_of(grads_[at_], 0)); !placed) return placed;
  return collectives_.copy(a.grad_v, half_of(grads_[at_], 1));
}

}  // namespace megadp
