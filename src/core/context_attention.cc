// SPDX-License-Identifier: Apache-2.0
#include "core/context_attention.h"

#include "base/hash.h"
#include "base/shape.h"
#include "control/agreement.h"

namespace megadp {
namespace {

constexpr const char* kCall = "an attention";

Status check_like(const NamedArray& of, const NamedArray& like, bool same_type = true) {
  if (of.array.shape != like.array.shape) {
    return invalid(of.name, " has shape ", shape_text(of.array.shape), "; it must be that of ", like.name, ", ",
                   shape_text(like.array.shape));
  }
  if (!same_type || of.array.type == like.array.type) return {};
  return invalid(of.name, ".dtype is ", name_of(of.array.type), " and ", like.name, ".dtype is ", name_of(like.array.type),
                 "; they must be equal");
}

Status check_q(const StridedArray& q) {
  if (!is_trainable(q.type)) return invalid("q.dtype is ", name_of(q.type), "; it must be f32, bf16 or f16");
  if (q.shape.size() == 4 && elements_of(q.shape) > 0) return {};
  return invalid("q has shape ", shape_text(q.shape), "; it must be [batch, sequence, heads, head_dim], all of them at least 1");
}

Status check_k(const StridedArray& q, const StridedArray& k) {
  std::vector<int64_t> shape = k.shape;
  if (shape.size() == 4) shape[2] = q.shape[2];
  if (shape != q.shape) {
    return invalid("k has shape ", shape_text(k.shape), " and q ", shape_text(q.shape),
                   "; only the number of heads, dimension 2, may differ");
  }
  if (k.type != q.type) return invalid("k.dtype is ", name_of(k.type), " and q.dtype is ", name_of(q.type), "; they must be equal");
  if (k.shape[2] >= 1 && q.shape[2] % k.shape[2] == 0) return {};
  return invalid("k has ", k.shape[2], " heads and q ", q.shape[2], "; each head of k serves equally many of q, so its number must divide ",
                 q.shape[2]);
}

Status check_lse(const StridedArray& lse, const StridedArray& q) {
  if (lse.type != DType::f32) return invalid("lse.dtype is ", name_of(lse.type), "; it must be f32");
  const std::vector<int64_t> shape(q.shape.begin(), q.shape.end() - 1);
  if (lse.shape == shape) return {};
  return invalid("lse has shape ", shape_text(lse.shape), "; it goes with q, so it must be ", shape_text(shape));
}

Status check_arrays(const AttentionArrays& a) {
  const NamedArray q{a.q, "q"}, k{a.k, "k"};
  if (Status good = check_q(a.q); !good) return good;
  if (Status good = check_k(a.q, a.k); !good) return good;
  if (Status good = check_like({a.v, "v"}, k); !good) return good;
  if (Status good = check_like({a.out, "out"}, q); !good) return good;
  if (Status good = check_lse(a.lse, a.q); !good || !a.backward) return good;
  if (Status good = check_like({a.grad_out, "grad_out"}, q); !good) return good;
  if (Status good = check_like({a.grad_q, "grad_q"}, q); !good) return good;
  if (Status good = check_like({a.grad_k, "grad_k"}, k); !good) return good;
  return check_like({a.grad_v, "grad_v"}, k);
}

Status check_bounds(const std::vector<int64_t>& bounds, int64_t whole) {
  if (bounds.empty()) return {};
  if (bounds.size() < 2) return invalid("config.bound_count is ", bounds.size(), "; it is the number of sequences and 1, so at least 2");
  if (bounds.front() != 0) return invalid("config.bounds[0] is ", bounds.front(), "; it must be 0");
  for (size_t i = 1; i < bounds.size(); ++i) {
    if (bounds[i] >= bounds[i - 1]) continue;
    return invalid("config.bounds[", i, "] is ", bounds[i], ", after ", bounds[i - 1], "; they must not go down");
  }
  if (bounds.back() == whole) return {};
  return invalid("config.bounds[", bounds.size() - 1, "] is ", bounds.back(), "; the last one must be the length of the whole sequence, ",
                 whole);
}

Status check_heads(int64_t heads, int64_t ranks, const char* name) {
  if (heads % ranks == 0) return {};
  const int64_t less = heads / ranks * ranks;
  const std::string would = less > 0 ? text(less, " or ", less + ranks) : text(ranks);
  return invalid(name, " has ", heads, " heads, which ", ranks, " ranks cannot share evenly in MDP_CP_ALL_TO_ALL (2); ", would,
                 " would do, or MDP_CP_RING (1)");
}

Status check_call(const ContextCall& call, int64_t ranks, ContextForm form) {
  const StridedArray& q = call.arrays.q;
  if (call.config.causal && ranks > 1 && q.shape[1] % 2 != 0) {
    return check_whole(true, ranks, q.shape[1] * ranks, text("the sequence of all ranks (q has ", q.shape[1], " each)").c_str());
  }
  if (Status good = check_bounds(call.config.bounds, q.shape[1] * ranks); !good || form == ContextForm::ring) return good;
  if (Status good = check_heads(q.shape[2], ranks, "q"); !good) return good;
  return check_heads(call.arrays.k.shape[2], ranks, "k");
}

// What would leave ranks waiting for each other if it differed.
Status check_same(Comm& comm, const ContextCall& call, ContextForm form) {
  const AttentionArrays& a = call.arrays;
  std::string mine = text(a.backward ? "backward" : "forward", " of q ", shape_text(a.q.shape), ", k ", shape_text(a.k.shape), ", ",
                          name_of(a.q.type), form == ContextForm::ring ? ", ring" : ", all-to-all", call.config.causal ? ", causal" : "");
  if (const std::vector<int64_t>& bounds = call.config.bounds; !bounds.empty()) {
    mine += text(", ", bounds.size() - 1, " packed sequences with the hash ", hash_bytes(bounds.data(), bounds.size() * sizeof bounds[0]));
  }
  auto compared = comm.context().world->compare(comm.group().members(), kCall, mine);
  if (!compared) return compared.status();
  if (!*compared) return {};
  const Mismatch& found = **compared;
  return Status(Code::desync,
                text("ranks ", found.first, " and ", found.other, " call different attentions: '", found.first_bytes, "' and '",
                     found.other_bytes, "'"),
                Blame{.rank = found.other});
}

Status agree_on(Comm& comm, const Status& mine) {
  return agree(*comm.context().world, comm.group().members(), {kCall}, mine);
}

template <class Form>
Status run_form(Comm& comm, const ContextCall& call, ContextForm chosen, Status mine) {
  Form form(comm, call);
  if (mine.ok()) mine = form.prepare();
  if (Status agreed = agree_on(comm, mine); !agreed) return agreed;
  if (Status same = check_same(comm, call, chosen); !same) return same;
  TpCollectives collectives(comm, call.caller, kCall);
  if (Status entered = collectives.enter(); !entered) return entered;
  Status failed;
  if (Status done = comm.context().commit([&] { return form.run(&failed); }); !done) return done;
  if (Status agreed = agree_on(comm, failed); !agreed) return agreed;
  if (Status done = comm.context().commit([&] { return form.finish(); }); !done) return done;
  return collectives.begin();
}

}  // namespace

void ScratchArrays::want(StridedArray* array, DType type, std::vector<int64_t> shape) {
  *array = dense_array(nullptr, type, shape);
  wanted_.emplace_back(array, bytes_);
  bytes_ += (elements_of(shape) * size_of(type) + 63) / 64 * 64;
}

Status ScratchArrays::take(Comm& comm, ScratchPiece piece) {
  auto memory = comm.scratch().take(comm, piece, bytes_);
  if (!memory) return memory.status();
  for (const auto& [array, at] : wanted_) array->data = static_cast<std::byte*>(*memory) + at;
  return {};
}

Status run_attention(Comm& comm, const ContextCall& call, const Status& taken) {
  if (Status usable = comm.context().usable(); !usable) return usable;
  Status mine = taken.ok() ? check_arrays(call.arrays) : taken;
  ContextForm form = ContextForm::ring;
  if (mine.ok()) {
    form = choose_form(call.config.form, comm.size(), call.arrays.q.shape[2], call.arrays.k.shape[2]);
    if (comm.size() == 1) form = ContextForm::ring;
    mine = check_call(call, comm.size(), form);
  }
  return form == ContextForm::ring ? run_form<ContextRing>(comm, call, form, mine) : run_form<ContextHeads>(comm, call, form, mine);
}

}  // namespace megadp
