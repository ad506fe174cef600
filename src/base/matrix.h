// SPDX-License-Identifier: Apache-2.0
// Matrix: a two-dimensional view of an array, by rows or by columns, as matrix products take it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace megadp {

// Element (r, c) is r * row_stride + c * column_stride elements from data. One of the strides is 1, the other at least as long as what it
// steps over: the leading dimension of BLAS.
struct Matrix {
  void* data = nullptr;
  DType type = DType::f32;
  int64_t rows = 0, columns = 0;
  int64_t row_stride = 0, column_stride = 1;

  bool is_row_major() const noexcept { return column_stride == 1; }
  int64_t leading() const noexcept { return is_row_major() ? row_stride : column_stride; }
  bool is_empty() const noexcept { return rows == 0 || columns == 0; }
};

// Rows [row, row + rows) and columns [column, column + columns).
inline Matrix part(const Matrix& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns) noexcept {
  const int64_t offset = row * matrix.row_stride + column * matrix.column_stride;
  void* const data = static_cast<std::byte*>(matrix.data) + offset * static_cast<int64_t>(size_of(matrix.type));
  return {data, matrix.type, rows, columns, matrix.row_stride, matrix.column_stride};
}

constexpr Matrix transposed(const Matrix& matrix) noexcept {
  return {matrix.data, matrix.type, matrix.columns, matrix.rows, matrix.column_stride, matrix.row_stride};
}

// What products take of a device's memory beside their operands: once for each backend on a device that multiplies at all.
constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;

}  // namespace megadp
