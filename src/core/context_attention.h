// SPDX-License-Identifier: Apache-2.0
// Attention over a sequence that is cut over ranks; the attention of a block is a function of the caller's.
//
//   ring         k, v ──► next rank ──► ..     while each block of them is computed with the own queries; partial results are merged
//   all-to-all   q, k, v: sequence cut ──exchange──► heads cut ──one block──► out, lse ──exchange──► sequence cut
//
// Ring, forward. A rank has one chunk of the sequence, or two (core/context_cutting.h). In step t it has the k and v of rank r - t, sends
// them on and receives the next ones on the communicator's stream, and meanwhile the function is called for each chunk of queries with each
// chunk of keys that it may see. The first block of a chunk of queries is its own keys', which go straight into the result; each later one
// is a part that is merged into it (base/attention.h). So the order of blocks, and with it every bit, is fixed by ranks and sizes.
//
// Ring, backward. From out and lse of the whole the function makes a block's part of the gradients by itself. Those of q are added up where
// they are. Those of k and v, in f32, follow their block around the ring: each rank adds its parts and sends them on, and after the last
// step they are with their owner. Two messages a step, of fixed order on one stream; k and v are one message, and so are their gradients:
//
//   stream      kv 0→1          │ grads 0, kv 1→2          │ grads 1 ..
//   caller      blocks of step 0│ blocks of step 1, add     │ ..
//
// A function that fails does so on one rank. That rank goes on with its messages without calling it again, so that nobody waits for
// nothing, and at the end all agree and get its status. What was refused before is agreed on before anything was sent.
#pragma once

#include <array>
#include <functional>

#include "core/context_cutting.h"
#include "core/tp_collectives.h"

namespace megadp {

// Arrays [batch, sequence, heads, head_dim]; lse without the last. In forward there are no gradients.
struct AttentionArrays {
  bool backward = false;
  StridedArray q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v;
};

struct AttentionBlock {
  bool causal = false;
  int64_t q_begin = 0, k_begin = 0, head_begin = 0;
  AttentionArrays arrays;  // what is written is f32
  ChunkBounds bounds;
  void* stream = nullptr;
};
using AttentionFunction = std::function<Status(const AttentionBlock&)>;

// One call. Blocking on the host; otherwise the caller's stream is ordered after the work.
struct ContextCall {
  const ContextConfig& config;
  const AttentionArrays& arrays;
  const AttentionFunction& function;
  void* caller;
};
// Collective; taken: what this rank found of its arguments so far, which all agree on.
Status run_attention(Comm& comm, const ContextCall& call, const Status& taken);

// ── the two forms; scratch memory has been taken ──

// Arrays that lie one after another in one piece of scratch memory.
class ScratchArrays {
 public:
  void want(StridedArray* array, DType type, std::vector<int64_t> shape);
  Status take(Comm& comm, ScratchPiece piece);

 private:
  std::vector<std::pair<StridedArray*, size_t>> wanted_;
  size_t bytes_ = 0;
};

class ContextRing {
 public:
  ContextRing(Comm& comm, const ContextCall& call) : comm_(comm), call_(call), collectives_(comm, call.caller, "an attention") {}
  Status prepare();
  // *failed: of the function. Otherwise what broke the communicator.
  Status run(Status* failed);
  Status finish();

 private:
  bool backward() const noexcept { return call_.arrays.backward; }
  int64_t ranks() const noexcept { return comm_.size(); }
  std::vector<Chunk> chunks(int64_t rank) const;
  Status send_on(std::array<StridedArray, 2>& held, std::shared_ptr<Event>* arrived);
  Status compute(int64_t source, Status* failed);
  Status compute_block(const Chunk& q, size_t q_number, const Chunk& k, size_t k_number, bool causal, Status* failed);
  Status merge(const AttentionArrays& into);
  Status add_parts(const AttentionArrays& into);
  AttentionArrays block_arrays(size_t q_number, size_t k_number) const;

  Comm& comm_;
  const ContextCall& call_;
  TpCollectives collectives_;
  ScratchArrays scratch_;
  size_t at_ = 0;                           // which of these two is here
  std::array<StridedArray, 2> kv_, grads_;  // [2, ..]: k and v, and their gradients
  StridedArray out_, lse_, grad_q_;         // results, f32
  AttentionArrays part_;                    // of one block, f32
  std::vector<bool> q_done_;                // chunks of queries that have a result
  std::shared_ptr<Event> grads_arrived_;    // null: they are here
};

class ContextHeads {
 public:
  ContextHeads(Comm& comm, const ContextCall& call) : comm_(comm), call_(call), collectives_(comm, call.caller, "an attention") {}
  Status prepare();
  Status run(Status* failed);
  Status finish();

 private:
  int64_t ranks() const noexcept { return comm_.size(); }
  std::vector<int64_t> whole_shape(const StridedArray& part) const;
  StridedArray heads_of(const StridedArray& part, int64_t rank) const;       // as [batch, chunks, positions, heads, ..]
  StridedArray positions_of(const StridedArray& whole, int64_t rank) const;  // likewise
  Status to_heads(const StridedArray& whole, const StridedArray& part);
  Status to_positions(const StridedArray& part, const StridedArray& whole);
  template <class From, class To>
  Status exchange(DType type, const From& from, const To& to);

  Comm& comm_;
  const ContextCall& call_;
  TpCollectives collectives_;
  ScratchArrays scratch_;
  StridedArray sent_, received_;  // one dimension
  AttentionArrays whole_;
};

}  // namespace megadp
