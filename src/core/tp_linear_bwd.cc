// SPDX-License-Identifier: Apache-2.0
// The gradients of a linear layer. For column parallelism:
//
//   channel   [gather x, if it is cut along the sequence]          [sum of dx over the ranks]
//   caller                       dx = dy W ───────────────────────►  dW = dy^T x, db
#include <optional>
#include <utility>

#include "base/shape.h"
#include "core/tp_linear.h"

namespace megadp {

TpLinear::Wanted TpLinear::wanted(const Backward& given) const {
  return {is_registered(config_.weight) || given.grad_weight != nullptr,
          config_.has_bias && (is_registered(config_.bias) || given.grad_bias != nullptr)};
}

std::vector<int64_t> TpLinear::input_shape_for(const StridedArray& output) const {
  std::vector<int64_t> shape = output.shape;
  if (shape.empty()) return shape;
  shape.back() = config_.input_features();
  if (config_.has_sequence()) shape[0] = config_.split == TpSplit::column ? shape[0] / size() : shape[0] * size();
  return shape;
}

Status TpLinear::check_gradients(const Backward& given) const {
  const auto check = [&](const StridedArray* grad, const char* argument, const std::optional<size_t>& param,
                         const std::vector<int64_t>& shape) -> Status {
    if (grad == nullptr) return {};
    if (is_registered(param)) return invalid(argument, " is given, but the gradient goes to the layer's buffer; leave it NULL");
    if (grad->shape != shape)
      return invalid(argument, " has shape ", shape_text(grad->shape), "; this rank's part has ", shape_text(shape));
    if (grad->type == config_.type || grad->type == DType::f32) return {};
    return invalid(argument, ".dtype is ", name_of(grad->type), "; it must be ", name_of(config_.type), ", the layer's, or f32");
  };
  if (given.grad_bias != nullptr && !config_.has_bias) return invalid("grad_bias is given, but the layer has no bias; leave it NULL");
  if (Status good = check(given.grad_weight, "grad_weight", config_.weight, config_.weight_shape()); !good) return good;
  return check(given.grad_bias, "grad_bias", config_.bias, {config_.local_out()});
}

Status TpLinear::check_backward(const Backward& given, const StridedArray* input) const {
  if (given.saved != nullptr) {
    if (given.input != nullptr) return invalid("saved and input are both given; give the one that holds the input of the forward");
    if (given.saved->layer != this) return bad_state("saved was made by the forward of another layer");
    if (given.saved->used) return bad_state("saved was used by an earlier mdp_tp_linear_bwd; it is good for one backward");
  }
  if (input == nullptr && wanted(given).weight) {
    return invalid("saved and input are both NULL; the gradient of the weight needs the input of the forward");
  }
  StridedArray expected = input != nullptr ? *input : *given.grad_output;
  if (input != nullptr) {
    if (Status good = check_input(*input, "input"); !good) return good;
  } else {
    expected.shape = input_shape_for(*given.grad_output);
    if (Status good = check_input(expected, "grad_output"); !good) return good;
  }
  if (Status good = check_output(*given.grad_output, expected, "grad_output", "an input"); !good) return good;
  if (const StridedArray* grad = given.grad_input; grad != nullptr) {
    if (grad->type != config_.type) return invalid("grad_input.dtype is ", name_of(grad->type), "; the layer's is ", name_of(config_.type));
    if (grad->shape != expected.shape) {
      return invalid("grad_input has shape ", shape_text(grad->shape), "; the input has ", shape_text(expected.shape));
    }
  }
  if (given.grad_input != nullptr || given.weight != nullptr) {
    if (Status good = check_weight(given.weight, "weight", false, true); !good) return good;
  }
  return check_gradients(given);
}

Status TpLinear::backward(const Backward& given, void* caller) {
  const StridedArray* const input = given.saved != nullptr ? &given.saved->input : given.input;
  if (Status good = check_backward(given, input); !good) return good;
  Call call{TpCollectives(*comm_, caller, "a linear layer, backward"), caller};
  if (Status entered = call.collectives.enter(); !entered) return entered;
  if (config_.checks && config_.output_is_replicated() && !config_.grad_is_partial) {
    if (Status same = call.collectives.check_replicated(*given.grad_output, "grad_output"); !same) return same;
  }
  const bool column = config_.split == TpSplit::column;
  if (Status done = column ? backward_column(given, input, call) : backward_row(given, input, call); !done) return done;
  if (given.saved != nullptr) given.saved->used = true;
  return call.collectives.begin();
}

Status TpLinear::backward_column(const Backward& given, const StridedArray* input, Call& call) {
  StridedArray grad_output = *given.grad_output;
  if (const TpMove move = config_.grad_output(); move != TpMove::none) {
    grad_output.shape.back() = config_.local_out();
    auto part = in_scratch(grad_output.shape, ScratchPiece::grad);
    if (!part) return part.status();
    const Status taken = move == TpMove::sum_features ? reduce_scatter_features(*part, *given.grad_output, call)
                                                      : scatter_features(*part, *given.grad_output, call);
    if (!taken) return taken;
    grad_output = *part;
  }
  auto dy = matrix_of(grad_output, *comm_, ScratchPiece::grad, call.caller);
  if (!dy) return dy.status();
  const Wanted want = wanted(given);
  std::optional<Gathered> gathered;
  if (want.weight && config_.input() == TpMove::gather_sequence) {
    auto started = start_gather(*input, ScratchPiece::input, Chunks::one(rows_of(*input)), call);
    if (!started) return started.status();
    gathered = *std::move(started);
  }
  // What is under way uses arrays of the caller's: whatever happens, it is waited for.
  std::optional<MatrixOut> dx;
  Status done = given.grad_input != nullptr ? start_input_gradient(given, *dy, &dx, call) : Status();
  if (done.ok() && gathered) done = wait_for(*gathered, call);
  if (done.ok()) {
    auto x = gathered      ? Result<Matrix>(gathered->whole)
             : want.weight ? matrix_of(*input, *comm_, ScratchPiece::input, call.caller)
                           : Result<Matrix>(Matrix{});
    done = x ? weight_gradients(given, *dy, *x, *dy, call) : x.status();
  }
  const Status ended = size() > 1 ? call.collectives.end() : Status();
  if (done.ok()) done = ended;
  return done.ok() && dx ? dx->finish(*comm_, call.caller) : done;
}

// Of the part of the layer that this rank has; its sum over the ranks is under way when this returns.
Status TpLinear::start_input_gradient(const Backward& given, const Matrix& dy, std::optional<MatrixOut>* dx, Call& call) {
  auto w = weight(given.weight, call.caller);
  if (!w) return w.status();
  const TpMove move = config_.grad_input();
  auto own = matrix_out(*given.grad_input, move != TpMove::none ? Packing::dense : Packing::any, *comm_, ScratchPiece::received);
  if (!own) return own.status();
  auto partial = move == TpMove::sum_sequence ? whole_in_scratch(own->matrix, ScratchPiece::output) : Result<Matrix>(own->matrix);
  if (!partial) return partial.status();
  *dx = *own;
  // The product for the gradient of the weight hides all of the sum as it is.
  const int64_t rows = own->matrix.rows;
  const Chunks chunked = wanted(given).weight ? Chunks::one(rows) : chunks(move, rows, config_.in);
  return multiply_and_sum({move, own->matrix, *partial}, dy, *w, chunked.rows, call);
}

Status TpLinear::backward_row(const Backward& given, const StridedArray* input, Call& call) {
  const TpMove move = config_.grad_output();
  if (move == TpMove::gather_sequence) {
    Chunks chunked = chunks(move, rows_of(*given.grad_output), config_.out);
    // The product for the gradient of the weight takes the rows of all ranks in their order.
    if (wanted(given).weight) chunked.rows = rows_of(*given.grad_output);
    auto gathered = start_gather(*given.grad_output, ScratchPiece::grad, chunked, call);
    if (!gathered) return gathered.status();
    const Status done = row_gradients(given, input, gathered->whole, &*gathered, call);
    if (!done) (void)call.collectives.end();  // what is under way uses arrays of the caller's
    return done;
  }
  StridedArray grad_output = *given.grad_output;
  if (move != TpMove::none) {
    auto whole = in_scratch(grad_output.shape, ScratchPiece::grad);
    if (!whole) return whole.status();
    if (Status done = call.collectives.all_reduce(*whole, *given.grad_output); !done) return done;
    grad_output = *whole;
  }
  auto dy = matrix_of(grad_output, *comm_, ScratchPiece::grad, call.caller);
  if (!dy) return dy.status();
  return row_gradients(given, input, *dy, nullptr, call);
}

Status TpLinear::row_input_gradient(const Backward& given, const Matrix& dy, const Gathered* gathered, Call& call) {
  auto w = weight(given.weight, call.caller);
  if (!w) return w.status();
  const bool gathers = config_.grad_input() == TpMove::gather_features;
  StridedArray part = *given.grad_input;
  if (config_.input() == TpMove::own_features) {
    part.shape.back() = config_.local_in();
    auto memory = in_scratch(part.shape, ScratchPiece::output);
    if (!memory) return memory.status();
    part = *memory;
  }
  auto dx = matrix_out(part, Packing::any, *comm_, ScratchPiece::output);
  if (!dx) return dx.status();
  const Status multiplied =
      gathered != nullptr ? multiply_gathered(dx->matrix, *gathered, *w, call) : backend().gemm(dx->matrix, dy, *w, false, call.caller);
  if (!multiplied) return multiplied;
  return gathers ? gather_features(*given.grad_input, part, call) : dx->finish(*comm_, call.caller);
}

Status TpLinear::row_gradients(const Backward& given, const StridedArray* input, const Matrix& dy, const Gathered* gathered, Call& call) {
  if (given.grad_input != nullptr) {
    if (Status done = row_input_gradient(given, dy, gathered, call); !done) return done;
  } else if (gathered != nullptr) {
    if (Status arrived = wait_for(*gathered, call); !arrived) return arrived;
  }
  const Wanted want = wanted(given);
  StridedArray x;
  if (want.weight) {
    auto own = config_.input() == TpMove::own_features ? own_features(*input, call) : Result<StridedArray>(*input);
    if (!own) return own.status();
    x = *own;
  }
  auto x_matrix = want.weight ? matrix_of(x, *comm_, ScratchPiece::input, call.caller) : Result<Matrix>(Matrix{});
  if (!x_matrix) return x_matrix.status();
  // Along the sequence each rank has a part of the bias's gradient, which is summed at the end of backward.
  auto bias_dy =
      config_.has_sequence() && want.bias ? matrix_of(*given.grad_output, *comm_, ScratchPiece::output, call.caller) : Result<Matrix>(dy);
  if (!bias_dy) return bias_dy.status();
  return weight_gradients(given, dy, *x_matrix, *bias_dy, call);
}

Status TpLinear::weight_gradients(const Backward& given, const Matrix& dy, const Matrix& x, const Matrix& bias_dy, Call& call) {
  const Wanted want = wanted(given);
  if (want.weight) {
    const Status done =
        into_gradient({config_.weight, given.grad_weight, config_.weight_shape(), config_.transposed}, transposed(dy), x, given.adds, call);
    if (!done) return done;
  }
  if (!want.bias) return {};
  auto ones = comm_->scratch().ones(*comm_, config_.type, static_cast<size_t>(bias_dy.rows));
  if (!ones) return ones.status();
  const Matrix row = dense_matrix(const_cast<void*>(*ones), config_.type, 1, bias_dy.rows);
  return into_gradient({config_.bias, given.grad_bias, {1, config_.local_out()}, false}, row, bias_dy, given.adds, call);
}

// left * right, to where the gradient goes.
Status TpLinear::into_gradient(const Target& target, const Matrix& left, const Matrix& right, bool adds, Call& call) {
  const auto logical = [&](const Matrix& lies) { return target.transposed ? transposed(lies) : lies; };
  if (!is_registered(target.param)) {
    StridedArray to = *target.given;
    if (to.shape.size() == 1) {
      to.shape.insert(to.shape.begin(), 1);
      to.strides.insert(to.strides.begin(), to.shape[1]);
    }
    auto out = matrix_out(to, Packing::any, *comm_, ScratchPiece::weight);
    if (!out) return out.status();
    if (Status done = backend().gemm(logical(out->matrix), left, right, adds && !out->packed, call.caller); !done) return done;
    return out->finish(*comm_, call.caller, adds);
  }
  Gradients& gradients = config_.buffer->gradients();
  bool first = false;
  auto lent = gradients.acquire(*target.param, &first, call.caller);
  if (!lent) return lent.status();
  const Matrix place = dense_matrix(lent->data, lent->type, target.shape[0], target.shape[1]);
  if (Status done = backend().gemm(logical(place), left, right, !first, call.caller); !done) {
    (void)gradients.release(*target.param);  // nothing was written
    return done;
  }
  return gradients.ready(*target.param, call.caller);
}

}  // namespace megadp
