// SPDX-License-Identifier: Apache-2.0
// Arrays of any strides as matrices: all dimensions but the last, the features, are rows. What cannot be seen so where it lies is packed
// into scratch memory, and an output is copied out of it at the end.
#pragma once

#include <optional>

#include "base/matrix.h"
#include "core/comm.h"

namespace megadp {

// Where it lies, if its rows are equally far apart and one of the strides is 1.
std::optional<Matrix> fold(const StridedArray& array);
int64_t rows_of(const StridedArray& array);
// Of a dense one.
Matrix dense_matrix(void* data, DType type, int64_t rows, int64_t columns);

// How a matrix lies in memory.
enum class Packing {
  any,   // by rows or by columns
  rows,  // the elements of a row are neighbours
  dense  // and rows follow each other without gaps, so that it can go through a collective
};

// An input; `packing` is any or rows.
Result<Matrix> matrix_of(const StridedArray& array, Comm& comm, ScratchPiece piece, void* caller, Packing packing = Packing::any);
// An input whose elements lie one after another, in the order of its indices.
Result<const void*> dense_of(const StridedArray& array, Comm& comm, ScratchPiece piece, void* caller);

// An output: `matrix` is what is computed; finish() brings it to its place, or adds it to what is there.
struct MatrixOut {
  Matrix matrix;
  StridedArray to;
  bool packed = false;
  Status finish(Comm& comm, void* caller, bool add = false) const;
};
Result<MatrixOut> matrix_out(const StridedArray& to, Packing packing, Comm& comm, ScratchPiece piece);

}  // namespace megadp
