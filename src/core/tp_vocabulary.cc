// SPDX-License-Identifier: Apache-2.0
#include "core/tp_vocabulary.h"

#include <utility>

#include "base/hash.h"
#include "base/shape.h"
#include "core/tp_operands.h"

namespace megadp {
namespace {

Status check_shape(const NamedArray& of, std::vector<int64_t> shape, const char* why) {
  if (of.array.shape == shape) return {};
  return invalid(of.name, " has shape ", shape_text(of.array.shape), "; ", why, ", so it must be ", shape_text(shape));
}

Status check_integers(const NamedArray& of) {
  return of.array.type == DType::i64 ? Status() : invalid(of.name, ".dtype is ", name_of(of.array.type), "; it must be i64");
}

Status check_trainable(const NamedArray& of) {
  return is_trainable(of.array.type) ? Status() : invalid(of.name, ".dtype is ", name_of(of.array.type), "; it must be f32, bf16 or f16");
}

std::vector<int64_t> with_last(std::vector<int64_t> shape, int64_t last) {
  shape.push_back(last);
  return shape;
}

// ── embedding ──

struct Embedding {
  Comm& comm;
  const EmbeddingShape& config;
  const EmbeddingArrays& arrays;
  void* caller;
  TpCollectives collectives;

  int64_t size() const { return comm.size(); }
  DimCut sequence_cut() const { return {0, Counts(static_cast<size_t>(size()), static_cast<uint64_t>(arrays.ids.shape[0] / size()))}; }
  std::vector<int64_t> whole_shape() const { return with_last(arrays.ids.shape, arrays.table.shape[1]); }
  Status check() const;
  Status enter(bool checks, const NamedArray& replicated);
  Result<StridedArray> whole_in_scratch(ScratchPiece piece) const;
  Status look_up(const Matrix& table, const Matrix& output, bool gradient, bool adds) const;
};

Status Embedding::check() const {
  const NamedArray ids{arrays.ids, "ids"}, table{arrays.table, arrays.table_name}, output{arrays.output, arrays.output_name};
  if (Status good = config.check(size()); !good) return good;
  if (Status good = check_integers(ids); !good) return good;
  if (Status good = check_trainable(table); !good) return good;
  if (table.array.shape.size() != 2 || table.array.shape[0] != config.rows / size()) {
    return invalid(table.name, " has shape ", shape_text(table.array.shape), "; this rank's part of ", config.rows, " rows is [",
                   config.rows / size(), ", features]");
  }
  std::vector<int64_t> shape = whole_shape();
  if (config.sequence && size() > 1) {
    if (ids.array.shape.empty() || ids.array.shape[0] % size() != 0) {
      return invalid("ids has shape ", shape_text(ids.array.shape), "; its first dimension is cut over ", size(),
                     " ranks, which cannot share it evenly");
    }
    shape[0] /= size();
  }
  if (Status good = check_shape(output, std::move(shape), "it goes with ids and the features of the table"); !good) return good;
  return check_trainable(output);
}

Status Embedding::enter(bool checks, const NamedArray& replicated) {
  if (Status good = check(); !good) return good;
  if (Status entered = collectives.enter(); !entered || !checks) return entered;
  return collectives.check_replicated(replicated.array, replicated.name);
}

Result<StridedArray> Embedding::whole_in_scratch(ScratchPiece piece) const {
  const std::vector<int64_t> shape = whole_shape();
  auto memory = comm.scratch().take(comm, piece, elements_of(shape) * size_of(arrays.output.type));
  if (!memory) return memory.status();
  return dense_array(*memory, arrays.output.type, shape);
}

Status Embedding::look_up(const Matrix& table, const Matrix& output, bool gradient, bool adds) const {
  auto ids = dense_of(arrays.ids, comm, ScratchPiece::weight, caller);
  if (!ids) return ids.status();
  Lookup work;
  work.ids = static_cast<const int64_t*>(*ids);
  work.tokens = static_cast<uint64_t>(output.rows);
  work.features = static_cast<uint64_t>(output.columns);
  work.rows = table.rows;
  work.first = table.rows * comm.rank();
  work.all_rows = config.rows;
  work.table = table.data;
  work.table_stride = table.row_stride;
  work.table_type = table.type;
  work.output = output.data;
  work.output_stride = output.row_stride;
  work.output_type = output.type;
  work.add = adds;
  return comm.context().backend->look_up(work, gradient, caller);
}

}  // namespace

Status embedding_forward(Comm& comm, const EmbeddingShape& config, const EmbeddingArrays& arrays, void* caller) {
  if (Status usable = comm.context().usable(); !usable) return usable;
  Embedding embedding{comm, config, arrays, caller, TpCollectives(comm, caller, "an embedding, forward")};
  if (Status entered = embedding.enter(config.checks, {arrays.ids, "ids"}); !entered) return entered;
  auto table = matrix_of(arrays.table, comm, ScratchPiece::input, caller, Packing::rows);
  if (!table) return table.status();
  const TpMove move = config.output(comm.size());
  StridedArray rows = arrays.output;  // of this rank's part; zeros for the others'
  if (move != TpMove::none) {
    auto whole = embedding.whole_in_scratch(ScratchPiece::output);
    if (!whole) return whole.status();
    rows = *whole;
  }
  auto out = matrix_out(rows, Packing::rows, comm, ScratchPiece::output);
  if (!out) return out.status();
  if (Status found = embedding.look_up(*table, out->matrix, false, false); !found) return found;
  Status done = move == TpMove::none           ? out->finish(comm, caller)
                : move == TpMove::sum_sequence ? embedding.collectives.reduce_scatter(arrays.output, rows, embedding.sequence_cut())
                                               : embedding.collectives.all_reduce(arrays.output, rows);
  return done.ok() ? embedding.collectives.begin() : done;
}

Status embedding_backward(Comm& comm, const EmbeddingShape& config, const EmbeddingArrays& arrays, bool adds, void* caller) {
  if (Status usable = comm.context().usable(); !usable) return usable;
  Embedding embedding{comm, config, arrays, caller, TpCollectives(comm, caller, "an embedding, backward")};
  const bool replicated = !config.sequence && !config.grad_is_partial;
  if (Status entered = embedding.enter(config.checks && replicated, {arrays.output, arrays.output_name}); !entered) return entered;
  StridedArray grad = arrays.output;
  if (const TpMove move = config.grad_output(comm.size()); move != TpMove::none) {
    auto whole = embedding.whole_in_scratch(ScratchPiece::grad);
    if (!whole) return whole.status();
    const Status done = move == TpMove::gather_sequence ? embedding.collectives.gather(*whole, grad, embedding.sequence_cut())
                                                        : embedding.collectives.all_reduce(*whole, grad);
    if (!done) return done;
    grad = *whole;
  }
  auto rows = matrix_of(grad, comm, ScratchPiece::grad, caller, Packing::rows);
  if (!rows) return rows.status();
  auto table = matrix_out(arrays.table, Packing::rows, comm, ScratchPiece::input);
  if (!table) return table.status();
  if (Status added = embedding.look_up(table->matrix, *rows, true, adds && !table->packed); !added) return added;
  const Status done = table->finish(comm, caller, adds);
  return done.ok() ? embedding.collectives.begin() : done;
}

namespace {

// ── cross-entropy ──

struct Loss {
  Comm& comm;
  const CrossEntropyConfig& config;
  void* caller;
  TpCollectives collectives;
  CrossEntropy work = {};

  Status check(const NamedArray& logits, const NamedArray& targets, const NamedArray& losses, const StridedArray* saved) const;
  Status take(const StridedArray& logits, const StridedArray& targets);
  Status run(CrossEntropyPass pass) const { return comm.context().backend->cross_entropy(work, pass, caller); }
  Status gather_scores();
};

Status Loss::check(const NamedArray& logits, const NamedArray& targets, const NamedArray& losses, const StridedArray* saved) const {
  if (Status good = check_trainable(logits); !good) return good;
  if (Status good = check_integers(targets); !good) return good;
  if (logits.array.shape.empty() || logits.array.shape.back() < 1) {
    return invalid(logits.name, " has shape ", shape_text(logits.array.shape), "; its last dimension is this rank's classes, 1 or more");
  }
  const int64_t columns = logits.array.shape.back(), all = columns * comm.size();
  if (Status good = check_shape(logits, with_last(targets.array.shape, columns), "it goes with targets"); !good) return good;
  if (config.classes > all) {
    return invalid("config.classes is ", config.classes, "; the ranks have ", all, " columns, ", columns, " each");
  }
  if (config.smoothing != 0 && (config.classes == 0 ? all : config.classes) < 2) {
    return invalid("config.label_smoothing is ", config.smoothing, "; with 1 class it must be 0");
  }
  const auto check_f32 = [](const NamedArray& of, std::vector<int64_t> shape) -> Status {
    if (of.array.type != DType::f32) return invalid(of.name, ".dtype is ", name_of(of.array.type), "; it must be f32");
    return check_shape(of, std::move(shape), "it goes with targets");
  };
  if (Status good = check_f32(losses, targets.array.shape); !good) return good;
  return saved == nullptr ? Status() : check_f32({*saved, "saved"}, with_last(targets.array.shape, 2));
}

// A digest, as numbers that a float holds exactly.
TokenScore settings_of(const CrossEntropy& work) {
  const int64_t whole[] = {work.columns, work.classes, work.ignores ? 1 : 0, work.ignores ? work.ignored : 0};
  const double real[] = {work.smoothing, work.z};
  const uint64_t digest = hash_bytes(real, sizeof real, hash_bytes(whole, sizeof whole));
  const auto part = [digest](int number) { return static_cast<float>(digest >> (16 * number) & 0xffff); };
  return {part(0), part(1), part(2), part(3)};
}

Status Loss::take(const StridedArray& logits, const StridedArray& targets) {
  auto rows = matrix_of(logits, comm, ScratchPiece::input, caller, Packing::rows);
  if (!rows) return rows.status();
  auto classes = dense_of(targets, comm, ScratchPiece::weight, caller);
  if (!classes) return classes.status();
  work.logits = rows->data;
  work.logits_stride = rows->row_stride;
  work.type = rows->type;
  work.targets = static_cast<const int64_t*>(*classes);
  work.tokens = static_cast<uint64_t>(rows->rows);
  work.rank = comm.rank();
  work.ranks = comm.size();
  work.columns = rows->columns;
  work.classes = config.classes == 0 ? rows->columns * comm.size() : config.classes;
  work.ignores = config.ignores;
  work.ignored = config.ignored;
  work.smoothing = config.smoothing;
  work.z = config.z;
  work.settings = settings_of(work);
  return {};
}

Status Loss::gather_scores() {
  const uint64_t bytes = score_bytes(work.tokens), floats = bytes / sizeof(float);
  const auto ranks = static_cast<size_t>(comm.size());
  auto mine = comm.scratch().take(comm, ScratchPiece::output, bytes);
  if (!mine) return mine.status();
  work.scores = static_cast<TokenScore*>(*mine);
  work.gathered = work.scores;
  if (Status scored = run(CrossEntropyPass::scores); !scored || ranks == 1) return scored;
  auto all = comm.scratch().take(comm, ScratchPiece::received, ranks * bytes);
  if (!all) return all.status();
  work.gathered = static_cast<TokenScore*>(*all);
  if (Status begun = collectives.begin(); !begun) return begun;
  if (Status gathered = collectives.submit_gather(*all, *mine, Counts(ranks, floats), DType::f32); !gathered) return gathered;
  return collectives.end();
}

}  // namespace

Status cross_entropy_forward(Comm& comm, const CrossEntropyConfig& config, const StridedArray& logits, const StridedArray& targets,
                             const StridedArray& losses, const StridedArray* saved, void* caller) {
  if (Status usable = comm.context().usable(); !usable) return usable;
  Loss loss{comm, config, caller, TpCollectives(comm, caller, "a cross-entropy")};
  if (Status good = loss.check({logits, "logits"}, {targets, "targets"}, {losses, "losses"}, saved); !good) return good;
  if (Status entered = loss.collectives.enter(); !entered) return entered;
  if (config.checks) {
    if (Status same = loss.collectives.check_replicated(targets, "targets"); !same) return same;
  }
  if (Status taken = loss.take(logits, targets); !taken) return taken;
  if (loss.work.tokens == 0) return {};
  if (Status gathered = loss.gather_scores(); !gathered) return gathered;
  const auto row = [](const StridedArray& array) {  // a matrix of one column, or of what is one token's
    StridedArray out = array;
    if (out.shape.empty()) out.shape = out.strides = {1};
    return out;
  };
  auto to = matrix_out(row(losses), Packing::dense, comm, ScratchPiece::sent);
  if (!to) return to.status();
  loss.work.losses = static_cast<float*>(to->matrix.data);
  std::optional<MatrixOut> sums;
  if (saved != nullptr) {
    auto out = matrix_out(*saved, Packing::dense, comm, ScratchPiece::grad);
    if (!out) return out.status();
    sums = *out;
    loss.work.sums = static_cast<TokenSum*>(sums->matrix.data);
  }
  if (Status finished = loss.run(CrossEntropyPass::losses); !finished) return finished;
  if (Status placed = to->finish(comm, caller); !placed) return placed;
  const Status placed = sums ? sums->finish(comm, caller) : Status();
  return placed.ok() ? loss.collectives.begin() : placed;
}

Status cross_entropy_backward(Comm& comm, const CrossEntropyConfig& config, const StridedArray& logits, const StridedArray& targets,
                              const StridedArray& saved, const StridedArray& grad_losses, const StridedArray& grad_logits, void* caller) {
  if (Status usable = comm.context().usable(); !usable) return usable;
  Loss loss{comm, config, caller, TpCollectives(comm, caller, "the gradient of a cross-entropy")};
  if (Status good = loss.check({logits, "logits"}, {targets, "targets"}, {grad_losses, "grad_losses"}, &saved); !good) return good;
  if (grad_logits.type != logits.type || grad_logits.shape != logits.shape) {
    return invalid("grad_logits has shape ", shape_text(grad_logits.shape), " of ", name_of(grad_logits.type), "; logits has ",
                   shape_text(logits.shape), " of ", name_of(logits.type));
  }
  if (grad_logits.data == logits.data && logits.data != nullptr && grad_logits.strides != logits.strides) {
    return invalid("grad_logits.data and logits.data are the same memory; then their strides must be equal");
  }
  if (Status entered = loss.collectives.enter(); !entered) return entered;
  if (Status taken = loss.take(logits, targets); !taken) return taken;
  auto sums = dense_of(saved, comm, ScratchPiece::received, caller);
  if (!sums) return sums.status();
  auto given = dense_of(grad_losses, comm, ScratchPiece::sent, caller);
  if (!given) return given.status();
  auto to = matrix_out(grad_logits, Packing::rows, comm, ScratchPiece::grad);
  if (!to) return to.status();
  loss.work.sums = static_cast<TokenSum*>(const_cast<void*>(*sums));
  loss.work.grad_losses = static_cast<const float*>(*given);
  loss.work.grad_logits = to->matrix.data;
  loss.work.grad_stride = to->matrix.row_stride;
  if (Status done = loss.run(CrossEntropyPass::gradient); !done) return done;
  const Status placed = to->finish(comm, caller);
  return placed.ok() ? loss.collectives.begin() : placed;
}

}  // namespace megadp
