// SPDX-License-Identifier: Apache-2.0
// What follows of a tensor-parallel layer from its configuration and the number of ranks alone: its parts, what moves between the ranks in
// each pass, and what that sends, saves and packs. Pure: a layer does what this says, and `megadp plan` prints it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "core/scratch.h"

namespace megadp {

// What happens to an array on its way into a layer's products, or out of them.
enum class TpMove {
  none,
  own_features,     // of a whole array, without the other ranks
  gather_features,  // parts of all blocks to whole ones
  sum_features,     // over the ranks, of which each gets its own features
  gather_sequence,  // the same along the first dimension
  sum_sequence,
  sum  // over the ranks, for all of them
};
// Where all ranks compute a part of a sum of tokens, and where the gradient of that sum comes back.
TpMove move_of_sum(bool sequence, int64_t ranks);
TpMove move_of_gradient(bool sequence, bool grad_is_partial, int64_t ranks);
// How many rows of each rank's part (of all, where the sum is for all) one chunk has, whose move is on its way while the product of another
// is computed; `rows`, all of them, where cutting would not pay. `beside`: collectives run beside products, as on a device. The same on all
// ranks, since all that it depends on is.
int64_t rows_of_chunk(TpMove move, int64_t rows, int64_t features, DType type, int64_t ranks, bool beside);
// What a rank sends of an array that has so many bytes where it is whole: to each other rank what that needs of it; a sum for all of them
// is a sum of parts that are then gathered.
uint64_t sent_bytes(TpMove move, uint64_t whole, int64_t ranks);

// Of one layer on one rank, for one pass of so many tokens through it, forward and backward. Arrays of the caller's are dense; others may
// have to be packed.
struct TpLayerPlan {
  uint64_t weight = 0, bias = 0;  // bytes of this rank's part
  uint64_t saved = 0;             // what backward needs of this pass
  uint64_t sent_forward = 0, sent_backward = 0;
  // Memory of the communicator, which its layers share.
  std::array<uint64_t, kScratchPieces> scratch = {};
  void take(ScratchPiece piece, uint64_t bytes);
};

enum class TpSplit : uint32_t {  // the values of mdp_tp_split
  column = 1,
  row = 2
};

struct TpLinearShape {
  TpSplit split = TpSplit::column;
  int64_t in = 0, out = 0;      // features of the whole layer
  std::vector<int64_t> blocks;  // of the cut dimension; one, if nothing is fused
  DType type = DType::f32;
  bool has_bias = false, transposed = false, sequence = false, gathers_output = false, takes_whole_input = false, checks = false;
  bool grad_is_partial = false;  // of an output that is replicated
  int64_t ranks = 1;

  bool output_is_replicated() const { return split == TpSplit::row ? !sequence : gathers_output; }
  bool has_sequence() const { return sequence && ranks > 1; }
  // In elements of a rank's part.
  int64_t local_in() const { return split == TpSplit::row ? in / ranks : in; }
  int64_t local_out() const { return split == TpSplit::column ? out / ranks : out; }
  int64_t input_features() const { return takes_whole_input ? in : local_in(); }
  int64_t output_features() const { return gathers_output ? out : local_out(); }
  std::vector<int64_t> weight_shape() const;

  TpMove input() const;  // again in backward, for the gradient of the weight
  TpMove output() const;
  TpMove grad_output() const;
  TpMove grad_input() const;

  Status check() const;
  Status check_blocks_in_buffer() const;  // where the weight is a parameter of a buffer

  // `tokens`: all rows, of the whole sequence; with `sequence` the ranks can share them evenly.
  TpLayerPlan plan(int64_t tokens, bool trains_weight) const;
};

// Of an input of that shape.
uint64_t saved_bytes(const std::vector<int64_t>& input, DType type);

struct EmbeddingShape {
  int64_t rows = 0;  // of the whole table
  bool sequence = false, grad_is_partial = false, checks = false;
  TpMove output(int64_t ranks) const { return move_of_sum(sequence, ranks); }
  TpMove grad_output(int64_t ranks) const { return move_of_gradient(sequence, grad_is_partial, ranks); }
  Status check(int64_t ranks) const;
  TpLayerPlan plan(int64_t features, DType type, int64_t tokens, int64_t ranks) const;
};

// Of the classes that a rank has, nothing of this depends on them.
TpLayerPlan plan_cross_entropy(int64_t tokens, int64_t ranks);

}  // namespace megadp
