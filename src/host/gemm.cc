// SPDX-License-Identifier: Apache-2.0
#include "host/gemm.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "host/gemm_library.h"

namespace megadp::host {
namespace {

std::atomic<int> wanted_threads = 0;

// Never unloaded: threads of the library may be at work when the process ends.
Result<GemmLibrary*> library() {
  static std::mutex mutex;
  static const Result<std::unique_ptr<GemmLibrary>>* found = nullptr;
  std::lock_guard lock(mutex);
  if (found == nullptr) found = new Result(find_gemm_library(wanted_threads.load()));
  if (!found->ok()) return found->status();
  return (*found)->get();
}

Status check_matrix(const char* name, const Matrix& matrix) {
  if (matrix.rows < 0 || matrix.columns < 0) return invalid("gemm: ", name, " is ", matrix.rows, " x ", matrix.columns);
  if (matrix.is_empty()) return {};
  const bool by_rows = matrix.column_stride == 1 && matrix.row_stride >= matrix.columns;
  const bool by_columns = matrix.row_stride == 1 && matrix.column_stride >= matrix.rows;
  if (!by_rows && !by_columns) {
    return invalid("gemm: ", name, " is ", matrix.rows, " x ", matrix.columns, " with the strides ", matrix.row_stride, " and ",
                   matrix.column_stride, "; one must be 1, the other at least as long as what it steps over");
  }
  if (matrix.data == nullptr) return invalid("gemm: ", name, " is NULL");
  return {};
}

Status check(const Matrix& c, const Matrix& a, const Matrix& b) {
  const bool known =
      (a.type == DType::f32 && c.type == DType::f32) || (a.type == DType::bf16 && (c.type == DType::bf16 || c.type == DType::f32));
  if (!known || a.type != b.type) {
    return invalid("gemm: a is ", name_of(a.type), ", b ", name_of(b.type), " and c ", name_of(c.type),
                   "; all must be f32, or a and b bf16 and c bf16 or f32");
  }
  if (a.columns != b.rows || c.rows != a.rows || c.columns != b.columns) {
    return invalid("gemm: c is ", c.rows, " x ", c.columns, ", a ", a.rows, " x ", a.columns, " and b ", b.rows, " x ", b.columns,
                   ", which do not fit");
  }
  for (const auto& [name, matrix] : {std::pair{"c", &c}, {"a", &a}, {"b", &b}}) {
    if (Status good = check_matrix(name, *matrix); !good.ok()) return good;
  }
  return {};
}

void zero(const Matrix& c) {
  const bool by_rows = c.is_row_major();
  const int64_t lines = by_rows ? c.rows : c.columns, length = by_rows ? c.columns : c.rows;
  for (int64_t i = 0; i < lines; i++) {
    void* const line = static_cast<std::byte*>(c.data) + i * c.leading() * static_cast<int64_t>(size_of(c.type));
    std::memset(line, 0, static_cast<size_t>(length) * size_of(c.type));
  }
}

}  // namespace

void set_gemm_threads(int threads) {
  wanted_threads = threads;
}

Status gemm_by(GemmLibrary& library, const Matrix& c, const Matrix& a, const Matrix& b, bool add) {
  if (!c.is_row_major()) return library.multiply(transposed(c), transposed(b), transposed(a), add);
  return library.multiply(c, a, b, add);
}

Status gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add) {
  try {
    if (Status good = check(c, a, b); !good.ok()) return good;
    if (c.is_empty()) return {};
    if (a.columns == 0) {
      if (!add) zero(c);
      return {};
    }
    auto with = library();
    if (!with.ok()) return with.status();
    return gemm_by(**with, c, a, b, add);
  } catch (const std::bad_alloc&) {
    return {Code::memory, "gemm: there is no memory left"};
  }
}

Result<std::string> gemm_library() {
  auto with = library();
  if (!with.ok()) return with.status();
  return (*with)->name();
}

}  // namespace megadp::host
