// SPDX-License-Identifier: Apache-2.0
// Products of a linear layer beside the collectives of their operands and results, cut into chunks of rows:
//
//   sum      caller    chunk 0 │ chunk 1 │ chunk 2         with a sequence a chunk is a slice of each rank's rows, so that
//            channel           │  sum 0  │  sum 1  │ sum 2      each gets its part of every sum
//
//   gather   channel   chunk 0  │ chunk 1   │              likewise; this rank's own rows are there from the start
//            caller    own rows │ others' 0 │ others' 1
//
// The scratch memory holds one chunk after another, in each the ranks' rows in their order: as much as uncut, and nothing is copied once
// more. Sums over ranks are element by element, so cutting changes them only where NCCL has an order of its own; what a library gives for a
// row may depend on how many rows a product has. Both are the same in every run.
#include <algorithm>

#include "base/shape.h"
#include "core/tp_linear.h"

namespace megadp {
namespace {

Matrix row_range(const Matrix& matrix, int64_t begin, int64_t rows) {
  return part(matrix, begin, rows, 0, matrix.columns);
}

}  // namespace

TpLinear::Chunks TpLinear::chunks(TpMove move, int64_t rows, int64_t features) const {
  if (move == TpMove::none) return Chunks::one(rows);
  const int64_t of_chunk =
      config_.chunk_rows > 0 ? config_.chunk_rows : rows_of_chunk(move, rows, features, config_.type, size(), comm_->context().on_device());
  return {std::min(of_chunk, rows), of_chunk < rows};
}

Result<TpLinear::Gathered> TpLinear::start_gather(const StridedArray& input, ScratchPiece piece, const Chunks& chunks, Call& call) const {
  const int64_t rows = rows_of(input), ranks = size();
  const Matrix shape = dense_matrix(nullptr, config_.type, rows, input.shape.back());
  auto whole = whole_in_scratch(shape, piece);
  if (!whole) return whole.status();
  Result<const void*> from = input.data;
  if (chunks.own_first) {
    from = dense_of(input, *comm_, ScratchPiece::sent, call.caller);
    if (!from) return from.status();
  } else if (!is_dense(input)) {  // in place
    from = row_range(*whole, comm_->rank() * rows, rows).data;
    if (Status packed = call.collectives.copy(dense_array(const_cast<void*>(*from), input.type, input.shape), input); !packed)
      return packed;
  }
  const Matrix own = dense_matrix(const_cast<void*>(*from), config_.type, rows, shape.columns);
  Gathered gathered{*whole, chunks.own_first ? own : Matrix{}, chunks.rows, {}};
  if (Status begun = call.collectives.begin(); !begun) return begun;
  int64_t begin = 0;
  do {  // also what is empty: ranks compare what they came for
    const int64_t count = std::min(chunks.rows, rows - begin);
    const Counts counts(static_cast<size_t>(ranks), static_cast<uint64_t>(count * shape.columns));
    const Matrix to = row_range(*whole, begin * ranks, count * ranks), mine = row_range(own, begin, count);
    const Status submitted = call.collectives.submit_gather(to.data, mine.data, counts, config_.type);
    auto end = submitted ? call.collectives.mark() : Result<std::shared_ptr<Event>>(submitted);
    if (!end) {
      (void)call.collectives.end();  // of the chunks before
      return end.status();
    }
    gathered.ends.push_back(*std::move(end));
    begin += count;
  } while (begin < rows);
  return gathered;
}

Status TpLinear::wait_for(const Gathered& gathered, Call& call) const {
  return call.collectives.wait_for(*gathered.ends.back());
}

// c = a b, of all that is gathered.
Status TpLinear::multiply_gathered(const Matrix& c, const Gathered& gathered, const Matrix& b, Call& call) const {
  const int64_t ranks = size(), rows = gathered.whole.rows / ranks, me = comm_->rank();
  const bool own_first = gathered.own.data != nullptr;
  if (own_first) {
    if (Status done = backend().gemm(row_range(c, me * rows, rows), gathered.own, b, false, call.caller); !done) return done;
  }
  int64_t begin = 0;
  for (const auto& end : gathered.ends) {
    if (Status arrived = call.collectives.wait_for(*end); !arrived) return arrived;
    const int64_t count = std::min(gathered.chunk_rows, rows - begin);
    const Matrix chunk = row_range(gathered.whole, begin * ranks, count * ranks);
    for (int64_t first = 0, next = 0; first < ranks; first = next) {
      next = first + 1;
      if (own_first && first == me) continue;
      // Ranks whose rows follow each other in c too.
      if (count == rows) next = own_first && first < me ? me : ranks;
      const Matrix to = row_range(c, first * rows + begin, (next - first) * count);
      const Matrix from = row_range(chunk, first * count, (next - first) * count);
      if (Status done = backend().gemm(to, from, b, false, call.caller); !done) return done;
    }
    begin += count;
  }
  return {};
}

// The sum of a b over the ranks. Its last part is under way when this returns, and an earlier one may be if it fails.
Status TpLinear::multiply_and_sum(const Sum& sum, const Matrix& a, const Matrix& b, int64_t chunk_rows, Call& call) const {
  const int64_t parts = sum.move == TpMove::sum_sequence ? size() : 1, rows = sum.to.rows;
  int64_t begin = 0;
  do {
    const int64_t count = std::min(chunk_rows, rows - begin);
    const Matrix chunk = row_range(sum.partial, begin * parts, count * parts), to = row_range(sum.to, begin, count);
    const int64_t products = count == rows ? 1 : parts, each = count * parts / products;
    for (int64_t r = 0; r < products; ++r) {
      const Status done = backend().gemm(row_range(chunk, r * each, each), row_range(a, r * rows + begin, each), b, false, call.caller);
      if (!done) return done;
    }
    if (sum.move == TpMove::none) return {};
    if (Status begun = call.collectives.begin(); !begun) return begun;
    const auto elements = static_cast<uint64_t>(count * to.columns);
    const Status submitted = sum.move == TpMove::sum ? call.collectives.submit_all_reduce(to.data, chunk.data, elements, config_.type)
                                                     : call.collectives.submit_reduce_scatter(
                                                           to.data, chunk.data, Counts(static_cast<size_t>(parts), elements), config_.type);
    if (!submitted) return submitted;
    begin += count;
  } while (begin < rows);
  return {};
}

}  // namespace megadp
