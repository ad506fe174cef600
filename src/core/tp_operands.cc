// SPDX-License-Identifier: Apache-2.0
#include "core/tp_operands.h"

#include <algorithm>

#include "base/shape.h"
#include "core/tp_collectives.h"

namespace megadp {
namespace {

// The stride of the rows, if all are equally far apart.
std::optional<int64_t> row_stride(const StridedArray& array) {
  std::optional<int64_t> stride;  // of the innermost dimension of rows that is stepped along
  int64_t next = 0;
  for (size_t d = array.shape.size() - 1; d-- > 0;) {
    if (array.shape[d] == 1) continue;
    if (!stride) {
      stride = array.strides[d];
    } else if (array.strides[d] != next) {
      return std::nullopt;
    }
    next = array.strides[d] * array.shape[d];
  }
  return stride ? *stride : std::max<int64_t>(array.shape.back(), 1);
}

StridedArray in_scratch(void* memory, const StridedArray& like) {
  return dense_array(memory, like.type, like.shape);
}

Matrix matrix_in_scratch(const StridedArray& array) {
  return dense_matrix(array.data, array.type, rows_of(array), array.shape.back());
}

}  // namespace

int64_t rows_of(const StridedArray& array) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < array.shape.size(); ++d) rows *= array.shape[d];
  return rows;
}

Matrix dense_matrix(void* data, DType type, int64_t rows, int64_t columns) {
  return {data, type, rows, columns, std::max<int64_t>(columns, 1), 1};
}

std::optional<Matrix> fold(const StridedArray& array) {
  const auto stride = row_stride(array);
  if (!stride) return std::nullopt;
  Matrix matrix{array.data, array.type, rows_of(array), array.shape.back(), *stride, array.strides.back()};
  if (matrix.columns == 1 && matrix.rows != 1) matrix.column_stride = 1;  // never stepped along
  if (matrix.column_stride == 1 && matrix.row_stride >= std::max<int64_t>(matrix.columns, 1)) return matrix;
  if (matrix.rows == 1) matrix.row_stride = 1;
  if (matrix.row_stride == 1 && matrix.column_stride >= std::max<int64_t>(matrix.rows, 1)) return matrix;
  return std::nullopt;
}

Result<const void*> dense_of(const StridedArray& array, Comm& comm, ScratchPiece piece, void* caller) {
  if (is_dense(array)) return static_cast<const void*>(array.data);
  auto memory = comm.scratch().take(comm, piece, elements_of(array.shape) * size_of(array.type));
  if (!memory) return memory.status();
  if (Status copied = comm.context().backend->copy(in_scratch(*memory, array), array, false, caller); !copied) return copied;
  return static_cast<const void*>(*memory);
}

Result<Matrix> matrix_of(const StridedArray& array, Comm& comm, ScratchPiece piece, void* caller, Packing packing) {
  if (const auto matrix = fold(array); matrix && (packing == Packing::any || matrix->is_row_major())) return *matrix;
  auto packed = dense_of(array, comm, piece, caller);
  if (!packed) return packed.status();
  return dense_matrix(const_cast<void*>(*packed), array.type, rows_of(array), array.shape.back());
}

Status MatrixOut::finish(Comm& comm, void* caller, bool add) const {
  if (!packed) return {};
  return comm.context().backend->copy(to, in_scratch(matrix.data, to), add, caller);
}

Result<MatrixOut> matrix_out(const StridedArray& to, Packing packing, Comm& comm, ScratchPiece piece) {
  if (packing != Packing::dense || is_dense(to)) {
    const auto matrix = fold(to);
    if (matrix && (packing == Packing::any || matrix->is_row_major())) return MatrixOut{*matrix, to, false};
  }
  auto memory = comm.scratch().take(comm, piece, elements_of(to.shape) * size_of(to.type));
  if (!memory) return memory.status();
  return MatrixOut{matrix_in_scratch(in_scratch(*memory, to)), to, true};
}

}  // namespace megadp
