// SPDX-License-Identifier: Apache-2.0
#include "core/tp_linear.h"

#include <algorithm>
#include <utility>

#include "base/shape.h"
#include "control/agreement.h"

namespace megadp {
namespace {

constexpr const char* kCreate = "mdp_tp_linear_create";

}  // namespace

TpLinear::TpLinear(std::shared_ptr<Comm> comm, TpLinearConfig config) : comm_(std::move(comm)), config_(std::move(config)) {}

Result<std::shared_ptr<TpLinear>> TpLinear::create(std::shared_ptr<Comm> comm, TpLinearConfig config) {
  if (Status usable = comm->context().usable(); !usable) return usable;
  config.ranks = comm->size();
  if (config.blocks.empty()) config.blocks = {config.split == TpSplit::column ? config.out : config.in};
  std::shared_ptr<TpLinear> layer(new TpLinear(std::move(comm), std::move(config)));
  // What depends on the configuration alone is compared first, so that all ranks find the same; then they agree on the rest.
  if (Status same = layer->check_same(); !same) return same;
  if (Status good = layer->config_.check(); !good) return good;
  Status mine = layer->check_parameters();
  if (mine.ok()) {
    auto library = layer->backend().gemm_library();
    if (!library) mine = library.status();
  }
  Context& context = layer->comm_->context();
  if (Status agreed = agree(*context.world, layer->comm_->group().members(), {kCreate}, mine); !agreed) return agreed;
  return layer;
}

Status TpLinear::check_same() const {
  const TpLinearConfig& c = config_;
  std::string mine = text(c.split == TpSplit::column ? "column" : "row", " of ", c.in, " to ", c.out, " features, blocks");
  for (const int64_t block : c.blocks) mine += text(" ", block);
  mine += text(", ", name_of(c.type), c.has_bias ? ", bias" : "", c.transposed ? ", transposed" : "", c.sequence ? ", sequence" : "",
               c.gathers_output ? ", gather output" : "", c.takes_whole_input ? ", whole input" : "", c.checks ? ", checks" : "",
               c.grad_is_partial ? ", partial gradient" : "", c.buffer ? ", of a buffer" : "");
  auto compared = comm_->context().world->compare(comm_->group().members(), kCreate, mine);
  if (!compared) return compared.status();
  if (!*compared) return {};
  const Mismatch& found = **compared;
  return Status(Code::desync,
                text("ranks ", found.first, " and ", found.other, " create different layers: '", found.first_bytes, "' and '",
                     found.other_bytes, "'"),
                Blame{.rank = found.other});
}

Status TpLinear::check_parameter(const char* field, size_t param, std::vector<int64_t> shape, Placement placement, int shard_dim) const {
  const Plan& plan = config_.buffer->plan();
  if (param >= plan.params.size()) {
    return invalid("config.", field, " is ", param, "; the buffer has parameters 0 to ", static_cast<int64_t>(plan.params.size()) - 1);
  }
  const ParamSpec& spec = plan.params[param];
  const std::string label = text("config.", field, ": ", param_label(param, spec.name));
  if (spec.shape != shape) return invalid(label, " has shape ", shape_text(spec.shape), "; this rank's part has ", shape_text(shape));
  if (spec.dtype != config_.type) return invalid(label, " is ", name_of(spec.dtype), "; config.dtype is ", name_of(config_.type));
  if (size() == 1) return {};
  if (spec.placement != placement) {
    return invalid(label, " has placement ", name_of(spec.placement), "; in this layer it must be ", name_of(placement));
  }
  if (placement == Placement::sharded && spec.shard_dim != shard_dim) {
    return invalid(label, " is cut along dimension ", spec.shard_dim, " (shard_dim); in this layer it is ", shard_dim);
  }
  // By its placement a checkpoint puts the parts together at another tensor-parallel size.
  if (placement == Placement::sharded && static_cast<size_t>(spec.shard_stride) != config_.blocks.size()) {
    return invalid(label, " has ", spec.shard_stride, " pieces a rank (shard_stride); in this layer it has ", config_.blocks.size(),
                   ", one of each of config.blocks");
  }
  const ProcessGrid& grid = *config_.buffer->arenas().grid();
  if (config_.buffer->arenas().members(Grid::tp_axes(spec.expert)) == comm_->group().members()) return {};
  return invalid("comm has ", size(), " ranks that are not the tensor-parallel ranks of ", label, ", of which there are ",
                 grid.grid().size(Grid::tp_axes(spec.expert)), "; give the communicator of mdp_grid_comm with MDP_AXIS_TP");
}

Status TpLinear::check_parameters() const {
  if (!config_.buffer) return {};
  if (config_.buffer->arenas().shared_context() != comm_->shared_context()) {
    return invalid("config.buffer and comm were not made from the same communicator");
  }
  if (Status good = config_.check_blocks_in_buffer(); !good) return good;
  const bool column = config_.split == TpSplit::column;
  const int dim = column == config_.transposed ? 1 : 0;
  if (Status good = check_parameter("weight", *config_.weight, config_.weight_shape(), Placement::sharded, dim); !good) return good;
  if (!config_.has_bias) return {};
  const Placement placement = column ? Placement::sharded : config_.sequence ? Placement::partial_sum : Placement::replicated;
  return check_parameter("bias", *config_.bias, {config_.local_out()}, placement, 0);
}

// ── operands ──

bool TpLinear::is_registered(const std::optional<size_t>& param) const {
  return config_.buffer && param && !config_.buffer->plan().params[*param].frozen;
}

Status TpLinear::check_input(const StridedArray& input, const char* argument) const {
  const size_t least = config_.sequence ? 2 : 1;
  if (input.shape.size() < least) {
    return invalid(argument, " has ", input.shape.size(), " dimensions; it must have ", least, " or more, of which the last is features");
  }
  if (input.type != config_.type) return invalid(argument, ".dtype is ", name_of(input.type), "; the layer's is ", name_of(config_.type));
  if (input.shape.back() != config_.input_features()) {
    return invalid(argument, " has shape ", shape_text(input.shape), "; its last dimension must be ", config_.input_features(), ", ",
                   config_.split == TpSplit::row && !config_.takes_whole_input ? "this rank's part of in_features" : "in_features");
  }
  if (config_.has_sequence() && config_.split == TpSplit::row && input.shape[0] % size() != 0) {
    return invalid(argument, " has shape ", shape_text(input.shape), "; its first dimension is cut over ", size(),
                   " ranks, which cannot share it evenly");
  }
  return {};
}

Status TpLinear::check_output(const StridedArray& output, const StridedArray& input, const char* argument,
                              const char* input_argument) const {
  std::vector<int64_t> shape = input.shape;
  shape.back() = config_.output_features();
  if (config_.has_sequence()) shape[0] = config_.split == TpSplit::column ? shape[0] * size() : shape[0] / size();
  if (output.type != config_.type) return invalid(argument, ".dtype is ", name_of(output.type), "; the layer's is ", name_of(config_.type));
  if (output.shape == shape) return {};
  return invalid(argument, " has shape ", shape_text(output.shape), "; with ", input_argument, " of shape ", shape_text(input.shape),
                 " it must have ", shape_text(shape));
}

Status TpLinear::check_weight(const StridedArray* given, const char* argument, bool is_bias, bool wanted) const {
  const bool registered = is_registered(is_bias ? config_.bias : config_.weight);
  if (given == nullptr) {
    return registered || !wanted ? Status() : invalid(argument, " is NULL; the layer has no buffer, or it is frozen there: give an array");
  }
  if (!wanted) return invalid(argument, " is given, but the layer has no bias; leave it NULL");
  if (registered) return invalid(argument, " is given, but it is a parameter of the layer's buffer; leave it NULL");
  const std::vector<int64_t> shape = is_bias ? std::vector<int64_t>{config_.local_out()} : config_.weight_shape();
  if (given->shape != shape)
    return invalid(argument, " has shape ", shape_text(given->shape), "; this rank's part has ", shape_text(shape));
  if (given->type == config_.type) return {};
  return invalid(argument, ".dtype is ", name_of(given->type), "; the layer's is ", name_of(config_.type));
}

Result<Matrix> TpLinear::weight(const StridedArray* given, void* caller) const {
  StridedArray array;
  if (given != nullptr) {
    array = *given;
  } else {
    if (Status whole = config_.buffer->params().wait(*config_.weight, caller); !whole) return whole;
    array = config_.buffer->arenas().param_array(*config_.weight);
  }
  auto matrix = matrix_of(array, *comm_, ScratchPiece::weight, caller);
  if (!matrix) return matrix.status();
  return config_.transposed ? transposed(*matrix) : *matrix;
}

Result<StridedArray> TpLinear::bias(const StridedArray* given, void* caller) const {
  if (given != nullptr) return *given;
  if (Status whole = config_.buffer->params().wait(*config_.bias, caller); !whole) return whole;
  return config_.buffer->arenas().param_array(*config_.bias);
}

// The product of a column of ones and the bias: exact, and each element is rounded once more.
Status TpLinear::add_bias(const Matrix& output, const StridedArray& bias, void* caller) const {
  if (output.is_empty()) return {};
  auto ones = comm_->scratch().ones(*comm_, config_.type, static_cast<size_t>(output.rows));
  if (!ones) return ones.status();
  const Matrix column = dense_matrix(const_cast<void*>(*ones), config_.type, output.rows, 1);
  StridedArray row = bias;
  row.shape.insert(row.shape.begin(), 1);
  row.strides.insert(row.strides.begin(), bias.shape[0]);
  auto right = matrix_of(row, *comm_, ScratchPiece::weight, caller);
  if (!right) return right.status();
  return backend().gemm(output, column, *right, true, caller);
}

Result<StridedArray> TpLinear::in_scratch(const std::vector<int64_t>& shape, ScratchPiece piece) const {
  auto memory = comm_->scratch().take(*comm_, piece, elements_of(shape) * size_of(config_.type));
  if (!memory) return memory.status();
  return dense_array(*memory, config_.type, shape);
}

Result<Matrix> TpLinear::whole_in_scratch(const Matrix& own, ScratchPiece piece) const {
  auto array = in_scratch({own.rows * size(), own.columns}, piece);
  if (!array) return array.status();
  return dense_matrix(array->data, config_.type, own.rows * size(), own.columns);
}

std::vector<TpLinear::Piece> TpLinear::pieces() const {
  std::vector<Piece> all;
  uint64_t at = 0;
  const auto ranks = static_cast<uint64_t>(size());
  for (const int64_t block : config_.blocks) {
    const auto elements = static_cast<uint64_t>(block);
    all.push_back({at, at / ranks, elements / ranks});
    at += elements;
  }
  return all;
}

Status TpLinear::gather_features(const StridedArray& to, const StridedArray& from, Call& call) const {
  const size_t last = to.shape.size() - 1;
  for (const Piece& piece : pieces()) {
    const DimCut cut{last, Counts(static_cast<size_t>(size()), piece.part)};
    const StridedArray whole = slice_of(to, last, piece.whole_at, piece.part * static_cast<uint64_t>(size()));
    if (Status done = call.collectives.gather(whole, slice_of(from, last, piece.local_at, piece.part), cut); !done) return done;
  }
  return {};
}

Status TpLinear::scatter_features(const StridedArray& to, const StridedArray& from, Call& call) const {
  const size_t last = to.shape.size() - 1;
  for (const Piece& piece : pieces()) {
    const uint64_t own = piece.whole_at + static_cast<uint64_t>(comm_->rank()) * piece.part;
    const StridedArray part = slice_of(from, last, own, piece.part);
    if (Status done = call.collectives.copy(slice_of(to, last, piece.local_at, piece.part), part); !done) return done;
  }
  return {};
}

// Of a whole input of MDP_TP_ROW.
Result<StridedArray> TpLinear::own_features(const StridedArray& input, Call& call) const {
  std::vector<int64_t> shape = input.shape;
  shape.back() = config_.local_in();
  auto part = in_scratch(shape, ScratchPiece::input);
  if (!part) return part.status();
  if (Status taken = scatter_features(*part, input, call); !taken) return taken;
  return *part;
}

Status TpLinear::reduce_scatter_features(const StridedArray& to, const StridedArray& from, Call& call) const {
  const size_t last = to.shape.size() - 1;
  for (const Piece& piece : pieces()) {
    const DimCut cut{last, Counts(static_cast<size_t>(size()), piece.part)};
    const StridedArray whole = slice_of(from, last, piece.whole_at, piece.part * static_cast<uint64_t>(size()));
    if (Status done = call.collectives.reduce_scatter(slice_of(to, last, piece.local_at, piece.part), whole, cut); !done) return done;
  }
  return {};
}

// ── forward ──

Status TpLinear::forward(const Forward& given, void* caller) {
  if (Status good = check_input(*given.input, "input"); !good) return good;
  if (Status good = check_output(*given.output, *given.input, "output", "input"); !good) return good;
  if (Status good = check_weight(given.weight, "weight", false, true); !good) return good;
  if (Status good = check_weight(given.bias, "bias", true, config_.has_bias); !good) return good;
  Call call{TpCollectives(*comm_, caller, "a linear layer, forward"), caller};
  if (Status entered = call.collectives.enter(); !entered) return entered;
  const bool replicated = config_.split == TpSplit::column ? !config_.sequence : config_.takes_whole_input;
  if (config_.checks && replicated) {
    if (Status same = call.collectives.check_replicated(*given.input, "input"); !same) return same;
  }
  const Status done = config_.split == TpSplit::column ? forward_column(given, call) : forward_row(given, call);
  return done.ok() ? call.collectives.begin() : done;
}

Status TpLinear::forward_column(const Forward& given, Call& call) {
  const TpMove move = config_.input();
  if (move == TpMove::none) return multiply_column(given, nullptr, call);
  auto gathered = start_gather(*given.input, ScratchPiece::input, chunks(move, rows_of(*given.input), config_.in), call);
  if (!gathered) return gathered.status();
  const Status done = multiply_column(given, &*gathered, call);
  if (!done) (void)call.collectives.end();  // what is under way uses arrays of the caller's
  return done;
}

Status TpLinear::multiply_column(const Forward& given, const Gathered* gathered, Call& call) {
  auto x = gathered != nullptr ? Result<Matrix>(gathered->whole) : matrix_of(*given.input, *comm_, ScratchPiece::input, call.caller);
  if (!x) return x.status();
  auto w = weight(given.weight, call.caller);
  if (!w) return w.status();
  StridedArray target = *given.output;
  const bool gathers = config_.output() == TpMove::gather_features;
  if (gathers) {
    target.shape.back() = config_.local_out();
    auto part = in_scratch(target.shape, ScratchPiece::output);
    if (!part) return part.status();
    target = *part;
  }
  auto y = matrix_out(target, Packing::any, *comm_, ScratchPiece::output);
  if (!y) return y.status();
  const Status multiplied = gathered != nullptr ? multiply_gathered(y->matrix, *gathered, transposed(*w), call)
                                                : backend().gemm(y->matrix, *x, transposed(*w), false, call.caller);
  if (!multiplied) return multiplied;
  if (config_.has_bias) {
    auto b = bias(given.bias, call.caller);
    if (!b) return b.status();
    if (Status added = add_bias(y->matrix, *b, call.caller); !added) return added;
  }
  return gathers ? gather_features(*given.output, target, call) : y->finish(*comm_, call.caller);
}

Status TpLinear::forward_row(const Forward& given, Call& call) {
  StridedArray input = *given.input;
  if (config_.input() == TpMove::own_features) {
    auto part = own_features(input, call);
    if (!part) return part.status();
    input = *part;
  }
  auto x = matrix_of(input, *comm_, ScratchPiece::input, call.caller);
  if (!x) return x.status();
  auto w = weight(given.weight, call.caller);
  if (!w) return w.status();
  const TpMove move = config_.output();
  const bool cut = move == TpMove::sum_sequence;
  auto y = matrix_out(*given.output, move != TpMove::none ? Packing::dense : Packing::any, *comm_,
                      cut ? ScratchPiece::grad : ScratchPiece::output);
  if (!y) return y.status();
  auto partial = cut ? whole_in_scratch(y->matrix, ScratchPiece::output) : Result<Matrix>(y->matrix);
  if (!partial) return partial.status();
  const Status multiplied =
      multiply_and_sum({move, y->matrix, *partial}, *x, transposed(*w), chunks(move, y->matrix.rows, config_.out).rows, call);
  const Status ended = move != TpMove::none ? call.collectives.end() : Status();
  if (!multiplied) return multiplied;
  if (!ended) return ended;
  if (config_.has_bias) {
    auto b = bias(given.bias, call.caller);
    if (!b) return b.status();
    if (Status added = add_bias(y->matrix, *b, call.caller); !added) return added;
  }
  return y->finish(*comm_, call.caller);
}

Result<std::unique_ptr<TpSaved>> TpLinear::save(const StridedArray& input, void* caller) {
  auto memory = backend().allocate(std::max<size_t>(saved_bytes(input.shape, input.type), 64));
  if (!memory) return memory.status();
  auto saved = std::make_unique<TpSaved>();
  saved->memory = *std::move(memory);
  saved->input = dense_array(saved->memory->data(), input.type, input.shape);
  saved->layer = this;
  if (Status copied = backend().copy(saved->input, input, false, caller); !copied) return copied;
  return saved;
}

}  // namespace megadp
