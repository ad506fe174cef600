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

struct TpLinear::Gathered {
  StridedArray whole;
  std::shared_ptr<Event> end;
};

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

Result<TpLinear::Gathered> TpLinear::start_gather(const StridedArray& input, Call& call) const {
  std::vector<int64_t> shape = input.shape;
  shape[0] *= size();
  auto whole = in_scratch(shape, ScratchPiece::input);
  if (!whole) return whole.status();
  const StridedArray own = part_of(*whole, sequence_cut(shape[0]), static_cast<size_t>(comm_->rank()));
  const void* from = input.data;
  if (!is_dense(input)) {
    if (Status packed = call.collectives.copy(own, input); !packed) return packed;
    from = own.data;
  }
  if (Status begun = call.collectives.begin(); !begun) return begun;
  const Counts counts(static_cast<size_t>(size()), elements_of(input.shape));
  if (Status submitted = call.collectives.submit_gather(whole->data, from, counts, config_.type); !submitted) return submitted;
  auto end = call.collectives.mark();
  if (!end) return end.status();
  return Gathered{*whole, *end};
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
    auto started = start_gather(*input, call);
    if (!started) return started.status();
    gathered = *std::move(started);
  }
  // What is under way uses arrays of the caller's: whatever happens, it is waited for.
  std::optional<MatrixOut> dx;
  Status done = given.grad_input != nullptr ? start_input_gradient(given, *dy, &dx, call) : Status();
  if (done.ok() && gathered) done = call.collectives.wait_for(*gathered->end);
  if (done.ok()) {
    auto x =
        want.weight ? matrix_of(gathered ? gathered->whole : *input, *comm_, ScratchPiece::input, call.caller) : Result<Matrix>(Matrix{});
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
  Matrix partial = own->matrix;
  if (move == TpMove::sum_sequence) {
    std::vector<int64_t> shape = given.grad_input->shape;
    shape[0] *= size();
    auto whole = in_scratch(shape, ScratchPiece::output);
    if (!whole) return whole.status();
    partial = dense_matrix(whole->data, config_.type, partial.rows * size(), partial.columns);
  }
  if (Status multiplied = backend().gemm(partial, dy, *w, false, call.caller); !multiplied) return multiplied;
  *dx = *own;
  if (move == TpMove::none) return {};
  if (Status begun = call.collectives.begin(); !begun) return begun;
  const uint64_t count = elements_of(given.grad_input->shape);
  if (move == TpMove::sum) return call.collectives.submit_all_reduce(partial.data, partial.data, count, config_.type);
  return call.collectives.submit_reduce_scatter(own->matrix.data, partial.data, Counts(static_cast<size_t>(size()), count), config_.type);
}

Status TpLinear::backward_row(const Backward& given, const StridedArray* input, Call& call) {
  StridedArray grad_output = *given.grad_output;
  if (const TpMove move = config_.grad_output(); move != TpMove::none) {
    const bool gathers = move == TpMove::gather_sequence;
    if (gathers) grad_output.shape[0] *= size();
    auto whole = in_scratch(grad_output.shape, ScratchPiece::grad);
    if (!whole) return whole.status();
    const Status done = gathers ? call.collectives.gather(*whole, *given.grad_output, sequence_cut(whole->shape[0]))
                                : call.collectives.all_reduce(*whole, *given.grad_output);
    if (!done) return done;
    grad_output = *whole;
  }
  auto dy = matrix_of(grad_output, *comm_, ScratchPiece::grad, call.caller);
  if (!dy) return dy.status();
  const bool whole_input = config_.input() == TpMove::own_features;
  if (const StridedArray* grad_input = given.grad_input; grad_input != nullptr) {
    auto w = weight(given.weight, call.caller);
    if (!w) return w.status();
    StridedArray part = *grad_input;
    if (whole_input) {
      part.shape.back() = config_.local_in();
      auto memory = in_scratch(part.shape, ScratchPiece::output);
      if (!memory) return memory.status();
      part = *memory;
    }
    auto dx = matrix_out(part, Packing::any, *comm_, ScratchPiece::output);
    if (!dx) return dx.status();
    if (Status multiplied = backend().gemm(dx->matrix, *dy, *w, false, call.caller); !multiplied) return multiplied;
    const bool gathers = config_.grad_input() == TpMove::gather_features;
    if (Status placed = gathers ? gather_features(*grad_input, part, call) : dx->finish(*comm_, call.caller); !placed) return placed;
  }
  const Wanted want = wanted(given);
  StridedArray x;
  if (want.weight) {
    auto own = whole_input ? own_features(*input, call) : Result<StridedArray>(*input);
    if (!own) return own.status();
    x = *own;
  }
  auto x_matrix = want.weight ? matrix_of(x, *comm_, ScratchPiece::input, call.caller) : Result<Matrix>(Matrix{});
  if (!x_matrix) return x_matrix.status();
  // Along the sequence each rank has a part of the bias's gradient, which is summed at the end of backward.
  auto bias_dy =
      config_.has_sequence() && want.bias ? matrix_of(*given.grad_output, *comm_, ScratchPiece::output, call.caller) : Result<Matrix>(*dy);
  if (!bias_dy) return bias_dy.status();
  return weight_gradients(given, *dy, *x_matrix, *bias_dy, call);
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
