// SPDX-License-Identifier: Apache-2.0
#include "core/tp_shape.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/shape.h"
#include "base/vocabulary.h"

namespace megadp {

TpMove move_of_sum(bool sequence, int64_t ranks) {
  if (ranks == 1) return TpMove::none;
  return sequence ? TpMove::sum_sequence : TpMove::sum;
}

TpMove move_of_gradient(bool sequence, bool grad_is_partial, int64_t ranks) {
  if (ranks == 1) return TpMove::none;
  return sequence ? TpMove::gather_sequence : grad_is_partial ? TpMove::sum : TpMove::none;
}

uint64_t sent_bytes(TpMove move, uint64_t whole, int64_t ranks) {
  const auto p = static_cast<uint64_t>(ranks);
  const uint64_t once = whole / p * (p - 1) + whole % p * (p - 1) / p;  // the parts of the others
  switch (move) {
    case TpMove::none:
    case TpMove::own_features:
      return 0;
    case TpMove::gather_features:
    case TpMove::sum_features:
    case TpMove::gather_sequence:
    case TpMove::sum_sequence:
      return once;
    case TpMove::sum:
      return 2 * once;
  }
  return 0;
}

namespace {

// What a chunk must have: enough to move that a collective of NCCL is past its latency, and enough rows that a product is as fast as one of
// all. At most so many, since each has a launch of its own. On the host two ranks on two processors lose by it at every size measured, or
// win nothing (docs/tensor-parallel.md).
constexpr uint64_t kLeastMoved = uint64_t{8} << 20;
constexpr int64_t kLeastRows = 512, kTileRows = 128, kMostChunks = 4;

}  // namespace

int64_t rows_of_chunk(TpMove move, int64_t rows, int64_t features, DType type, int64_t ranks, bool beside) {
  const bool is_cut_by_rows = move == TpMove::sum || move == TpMove::sum_sequence || move == TpMove::gather_sequence;
  if (!beside || ranks == 1 || !is_cut_by_rows) return rows;
  const int64_t moved = move == TpMove::sum ? rows : rows * ranks;
  const auto by_size = static_cast<int64_t>(static_cast<uint64_t>(moved * features) * size_of(type) / kLeastMoved);
  const int64_t chunks = std::min({by_size, rows / kLeastRows, kMostChunks});
  if (chunks < 2) return rows;
  return ((rows + chunks - 1) / chunks + kTileRows - 1) / kTileRows * kTileRows;
}

void TpLayerPlan::take(ScratchPiece piece, uint64_t bytes) {
  uint64_t& most = scratch[static_cast<size_t>(piece)];
  if (bytes > 0) most = std::max(most, Scratch::bytes_of(bytes));
}

uint64_t saved_bytes(const std::vector<int64_t>& input, DType type) {
  return elements_of(input) * size_of(type);
}

// ── linear layers ──

std::vector<int64_t> TpLinearShape::weight_shape() const {
  std::vector<int64_t> shape{local_out(), local_in()};
  if (transposed) std::swap(shape[0], shape[1]);
  return shape;
}

TpMove TpLinearShape::input() const {
  if (ranks == 1) return TpMove::none;
  if (split == TpSplit::column) return sequence ? TpMove::gather_sequence : TpMove::none;
  return takes_whole_input ? TpMove::own_features : TpMove::none;
}

TpMove TpLinearShape::output() const {
  if (split == TpSplit::row) return move_of_sum(sequence, ranks);
  return gathers_output && ranks > 1 ? TpMove::gather_features : TpMove::none;
}

TpMove TpLinearShape::grad_output() const {
  if (split == TpSplit::row) return move_of_gradient(sequence, grad_is_partial, ranks);
  if (!gathers_output || ranks == 1) return TpMove::none;
  return grad_is_partial ? TpMove::sum_features : TpMove::own_features;
}

TpMove TpLinearShape::grad_input() const {
  if (split == TpSplit::column) return move_of_sum(sequence, ranks);
  return takes_whole_input && ranks > 1 ? TpMove::gather_features : TpMove::none;
}

Status TpLinearShape::check() const {
  const bool column = split == TpSplit::column;
  const char* const cut = column ? "config.out_features" : "config.in_features";
  const int64_t whole = column ? out : in;
  int64_t sum = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t block = blocks[i];
    sum += block;
    if (block % ranks == 0) continue;
    const int64_t below = block / ranks * ranks;
    const std::string which = blocks.size() == 1 ? std::string(cut) : text("config.blocks[", i, "]");
    return invalid(which, " is ", block, ", which ", ranks, " ranks cannot share evenly; ",
                   below > 0 ? text(below, " or ", below + ranks) : text(ranks), " would do");
  }
  if (sum != whole) return invalid("the sum of config.blocks is ", sum, "; it must be ", cut, ", ", whole);
  if (gathers_output && !column) return invalid("config.flags has LINEAR_GATHER_OUTPUT (8), which is of MDP_TP_COLUMN");
  if (takes_whole_input && column) return invalid("config.flags has LINEAR_WHOLE_INPUT (16), which is of MDP_TP_ROW");
  if (takes_whole_input && sequence) {
    return invalid(
        "config.flags has LINEAR_WHOLE_INPUT (16) and LINEAR_SEQUENCE (4); with the latter the input of MDP_TP_ROW is cut "
        "along its features");
  }
  return {};
}

Status TpLinearShape::check_blocks_in_buffer() const {
  if (ranks == 1 || std::adjacent_find(blocks.begin(), blocks.end(), std::not_equal_to<>()) == blocks.end()) return {};
  return invalid(
      "config.blocks has sizes that differ, but a parameter's placement, by which checkpoints go, knows equal ones (shard_stride); "
      "make a layer of each size, or leave config.buffer NULL");
}

namespace {

// What moving an array takes, of which a rank has `tokens` rows of so many bytes: parts of features are packed, one block after another.
void take_packed(TpMove move, ScratchPiece piece, const TpLinearShape& shape, int64_t tokens, TpLayerPlan* plan) {
  if (tokens < 2) return;  // a single row's parts lie one after another as they are
  const int64_t block = *std::max_element(shape.blocks.begin(), shape.blocks.end());
  if (move == TpMove::gather_features || move == TpMove::sum_features) {
    plan->take(piece, static_cast<uint64_t>(block * tokens) * size_of(shape.type));
  }
}

}  // namespace

TpLayerPlan TpLinearShape::plan(int64_t tokens, bool trains_weight) const {
  const auto bytes = [this](int64_t rows, int64_t features) { return static_cast<uint64_t>(rows * features) * size_of(type); };
  const bool column = split == TpSplit::column;
  const int64_t own = has_sequence() ? tokens / ranks : tokens;
  const uint64_t whole_in = bytes(tokens, in), whole_out = bytes(tokens, out);
  TpLayerPlan plan;
  plan.weight = bytes(local_out(), local_in());
  if (has_bias) plan.bias = bytes(1, local_out());
  if (trains_weight) plan.saved = saved_bytes({column ? own : tokens, input_features()}, type);
  plan.sent_forward = sent_bytes(input(), whole_in, ranks) + sent_bytes(output(), whole_out, ranks);
  plan.sent_backward = sent_bytes(grad_output(), whole_out, ranks) + sent_bytes(grad_input(), whole_in, ranks);
  if (trains_weight) plan.sent_backward += sent_bytes(input(), whole_in, ranks);
  if (input() == TpMove::gather_sequence) plan.take(ScratchPiece::input, whole_in);
  if (input() == TpMove::own_features) plan.take(ScratchPiece::input, bytes(tokens, local_in()));
  if (output() == TpMove::gather_features) plan.take(ScratchPiece::output, bytes(tokens, local_out()));
  if (output() == TpMove::sum_sequence) plan.take(ScratchPiece::output, whole_out);
  if (grad_output() != TpMove::none) plan.take(ScratchPiece::grad, bytes(tokens, local_out()));  // a row layer's are all
  if (grad_input() == TpMove::sum_sequence) plan.take(ScratchPiece::output, whole_in);
  if (grad_input() == TpMove::gather_features) plan.take(ScratchPiece::output, bytes(tokens, local_in()));
  take_packed(output(), ScratchPiece::received, *this, tokens, &plan);
  take_packed(grad_input(), ScratchPiece::received, *this, tokens, &plan);
  take_packed(grad_output(), ScratchPiece::sent, *this, tokens, &plan);
  if (has_bias) plan.take(ones_of(type), bytes(column ? tokens : own, 1));
  return plan;
}

// ── vocabulary ──

Status EmbeddingShape::check(int64_t ranks) const {
  if (rows % ranks == 0) return {};
  return invalid("config.rows is ", rows, ", which ", ranks, " ranks cannot share evenly; ", (rows / ranks + 1) * ranks, " would do");
}

TpLayerPlan EmbeddingShape::plan(int64_t features, DType type, int64_t tokens, int64_t ranks) const {
  TpLayerPlan plan;
  plan.weight = static_cast<uint64_t>(rows / ranks * features) * size_of(type);
  const uint64_t whole = static_cast<uint64_t>(tokens * features) * size_of(type);
  plan.sent_forward = sent_bytes(output(ranks), whole, ranks);
  plan.sent_backward = sent_bytes(grad_output(ranks), whole, ranks);
  if (output(ranks) != TpMove::none) plan.take(ScratchPiece::output, whole);
  if (grad_output(ranks) != TpMove::none) plan.take(ScratchPiece::grad, whole);
  return plan;
}

TpLayerPlan plan_cross_entropy(int64_t tokens, int64_t ranks) {
  TpLayerPlan plan;
  const auto count = static_cast<uint64_t>(tokens), p = static_cast<uint64_t>(ranks);
  if (count == 0) return plan;
  plan.saved = count * sizeof(TokenSum);
  plan.take(ScratchPiece::output, score_bytes(count));
  if (ranks == 1) return plan;
  plan.sent_forward = (p - 1) * score_bytes(count);
  plan.take(ScratchPiece::received, p * score_bytes(count));
  return plan;
}

}  // namespace megadp
