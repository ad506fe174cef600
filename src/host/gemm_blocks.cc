// SPDX-License-Identifier: Apache-2.0
#include "host/gemm_blocks.h"

#include <algorithm>

#include "backend/backend.h"
#include "host/kernels.h"

namespace megadp::host {
namespace {

// An f32 matrix of the same shape in `memory`, in the order in which `like` lies: so copies run along both.
Matrix dense(float* memory, const Matrix& like) {
  const bool by_rows = like.is_row_major();
  return {memory, DType::f32, like.rows, like.columns, by_rows ? like.columns : 1, by_rows ? 1 : like.rows};
}

Status copy(const Matrix& to, const Matrix& from, bool add) {
  const auto array = [](const Matrix& matrix) {
    return StridedArray{matrix.data, matrix.type, {matrix.rows, matrix.columns}, {matrix.row_stride, matrix.column_stride}};
  };
  return copy_strided(array(to), array(from), add);
}

// One block of c, with the rows of a and the columns of b that belong to it.
Status multiply_block(const Matrix& c, const Matrix& a, const Matrix& b, bool add, int64_t edge, bool in_place, ScratchPool* pool,
                      const ProductOfBlock& product) {
  edge = std::min(edge, a.columns);
  const int64_t a_elements = c.rows * edge, b_elements = edge * c.columns, c_elements = in_place ? 0 : c.rows * c.columns;
  auto scratch = pool->take(static_cast<size_t>(a_elements + b_elements + c_elements) * sizeof(float));
  if (!scratch.ok()) return scratch.status();
  auto* const memory = static_cast<float*>(scratch->data());
  const Matrix sum = in_place ? c : dense(memory + a_elements + b_elements, c);
  Status done = for_blocks(a.columns, edge, [&](int64_t inner, int64_t inners) {
    const Matrix from_a = part(a, 0, a.rows, inner, inners), from_b = part(b, inner, inners, 0, b.columns);
    const Matrix to_a = dense(memory, from_a), to_b = dense(memory + a_elements, from_b);
    if (Status copied = copy(to_a, from_a, false); !copied.ok()) return copied;
    if (Status copied = copy(to_b, from_b, false); !copied.ok()) return copied;
    return product(sum, to_a, to_b, inner > 0 || (add && in_place));
  });
  if (!done.ok() || in_place) return done;
  return copy(c, sum, add);  // rounds once
}

}  // namespace

Status multiply_in_blocks(const Matrix& c, const Matrix& a, const Matrix& b, bool add, int64_t edge, bool in_place, ScratchPool* pool,
                          const ProductOfBlock& product) {
  return for_blocks(c.columns, edge, [&](int64_t column, int64_t columns) {
    return for_blocks(c.rows, edge, [&](int64_t row, int64_t rows) {
      return multiply_block(part(c, row, rows, column, columns), part(a, row, rows, 0, a.columns), part(b, 0, b.rows, column, columns), add,
                            edge, in_place, pool, product);
    });
  });
}

}  // namespace megadp::host
