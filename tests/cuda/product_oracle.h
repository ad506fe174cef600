// SPDX-License-Identifier: Apache-2.0
// What a matrix product has to be: in f64, and as far from it as sums of f32 may be in any order. No further, so not by TF32 or by partial
// sums in bf16; but a bf16 product that is added to an array may be rounded before. And the products to be tried: all types and layouts,
// with gaps, and without elements.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/math.h"
#include "base/matrix.h"
#include "base/text.h"

namespace megadp::test {

// A matrix that lies by rows or by columns, with a gap behind each of them.
struct LaidMatrix {
  DType type;
  int64_t rows, columns;
  bool by_rows;
  int64_t gap;

  int64_t leading() const { return (by_rows ? columns : rows) + gap; }
  size_t elements() const { return static_cast<size_t>((by_rows ? rows : columns) * leading()); }
  size_t place(int64_t row, int64_t column) const {
    return static_cast<size_t>(by_rows ? row * leading() + column : column * leading() + row);
  }
  Matrix view(void* data) const { return {data, type, rows, columns, by_rows ? leading() : 1, by_rows ? 1 : leading()}; }
};

enum class Rounded {
  once,
  before_it_is_added
};

inline double element(const Matrix& from, int64_t row, int64_t column) {
  const int64_t at = row * from.row_stride + column * from.column_stride;
  return from.type == DType::f32 ? static_cast<const float*>(from.data)[at] : to_f32(static_cast<const Bf16*>(from.data)[at]);
}

// A sentence, or nothing. `before` and `seen`: the memory of c before the product and after it.
inline std::string wrong_in_product(const LaidMatrix& c, std::vector<std::byte>& seen, std::vector<std::byte> before, const Matrix& a,
                                    const Matrix& b, bool add, Rounded rounded) {
  const Matrix is = c.view(seen.data()), was = c.view(before.data());
  for (int64_t row = 0; row < c.rows; row++) {
    for (int64_t column = 0; column < c.columns; column++) {
      const double first = add ? element(was, row, column) : 0;
      double sum = first, magnitudes = std::abs(sum);
      for (int64_t k = 0; k < a.columns; k++) {
        const double term = element(a, row, k) * element(b, k, column);
        sum += term;
        magnitudes += std::abs(term);
      }
      double rounding = c.type == DType::bf16 ? std::ldexp(std::abs(sum), -8) : 0;
      if (c.type == DType::bf16 && add && rounded == Rounded::before_it_is_added) {
        rounding += std::ldexp(std::abs(sum - first), -8) * (1 + std::ldexp(1, -8));
      }
      const double may_be_off = rounding + 1e-37 + std::ldexp(static_cast<double>(a.columns + 2) * magnitudes, -24);
      const double found = element(is, row, column);
      if (!(std::abs(found - sum) <= may_be_off)) return text("element ", row, ",", column, " is ", found, ", not ", sum);
      const size_t width = size_of(c.type), at = c.place(row, column) * width;
      std::memcpy(before.data() + at, seen.data() + at, width);
    }
  }
  return seen == before ? "" : "something was written between the rows or columns";
}

struct ProductCase {
  LaidMatrix c, a, b;
  bool add;
  std::string name() const {
    const auto matrix = [](const LaidMatrix& m) {
      return text(m.rows, " x ", m.columns, " ", name_of(m.type), " by ", m.by_rows ? "rows" : "columns", " + ", m.gap);
    };
    return text(matrix(c), add ? " += " : " = ", matrix(a), " times ", matrix(b));
  }
};

inline std::vector<ProductCase> product_cases() {
  constexpr int64_t kSizes[][3] = {{1, 1, 1},    {3, 5, 7},      {64, 64, 64}, {17, 33, 129}, {200, 1, 70},
                                   {1, 200, 70}, {96, 128, 100}, {5, 6, 0},    {0, 4, 3},     {4, 0, 3}};
  constexpr DType kTypes[][2] = {{DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}};
  std::vector<ProductCase> all;
  for (const auto& [m, n, k] : kSizes) {
    for (const auto& [to, from] : kTypes) {
      for (int which = 0; which < 16; which++) {
        const int64_t gap = static_cast<int64_t>(all.size()) % 3;  // a gap of its own for each
        all.push_back({{to, m, n, (which & 1) != 0, 4 * gap},
                       {from, m, k, (which & 2) != 0, gap},
                       {from, k, n, (which & 4) != 0, 3 * gap},
                       (which & 8) != 0});
      }
    }
  }
  return all;
}

}  // namespace megadp::test
