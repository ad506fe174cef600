// SPDX-License-Identifier: Apache-2.0
// Matrix products of the stand-in: plain loops in f32, on the stand-in's stream like its other kernels.
#include <cstdio>
#include <vector>

#include "base/math.h"
#include "standin.h"

namespace megadp {

namespace cuda {

struct Gemm {
  Device* device;
};

}  // namespace cuda

namespace standin {

using namespace cuda;

namespace {

float element(const Matrix& from, int64_t row, int64_t column) {
  const int64_t at = row * from.row_stride + column * from.column_stride;
  return from.type == DType::f32 ? static_cast<const float*>(from.data)[at] : to_f32(static_cast<const Bf16*>(from.data)[at]);
}

// Row after row, in f32.
std::vector<float> values_of(const Matrix& from) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(from.rows * from.columns));
  for (int64_t row = 0; row < from.rows; ++row) {
    for (int64_t column = 0; column < from.columns; ++column) values.push_back(element(from, row, column));
  }
  return values;
}

// Of memory that no other thread knows: TSan need not see each of its products, of which the tests have billions.
__attribute__((no_sanitize("thread"))) float dot(float sum, const float* a, const float* b, int64_t n) {
  for (int64_t k = 0; k < n; ++k) sum += a[k] * b[k];
  return sum;
}

void multiply(const Matrix& c, const Matrix& a, const Matrix& b, bool add) {
  const std::vector<float> rows = values_of(a);
  const std::vector<float> columns = values_of(transposed(b));
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t column = 0; column < c.columns; ++column) {
      const float sum =
          dot(add ? element(c, row, column) : 0, rows.data() + row * a.columns, columns.data() + column * a.columns, a.columns);
      const int64_t at = row * c.row_stride + column * c.column_stride;
      if (c.type == DType::f32) {
        static_cast<float*>(c.data)[at] = sum;
      } else {
        from_f32(static_cast<Bf16*>(c.data) + at, sum);
      }
    }
  }
}

bool reaches_into_device_memory(const Matrix& matrix) {
  if (matrix.is_empty()) return true;
  const auto* const first = static_cast<const std::byte*>(matrix.data);
  const int64_t last = (matrix.rows - 1) * matrix.row_stride + (matrix.columns - 1) * matrix.column_stride;
  return is_device_memory(first) && is_device_memory(first + static_cast<size_t>(last) * size_of(matrix.type));
}

bool fits(const Matrix& c, const Matrix& a, const Matrix& b) {
  const bool known =
      (a.type == DType::f32 && c.type == DType::f32) || (a.type == DType::bf16 && (c.type == DType::f32 || c.type == a.type));
  return known && a.type == b.type && a.rows == c.rows && b.columns == c.columns && a.columns == b.rows;
}

int32_t gemm_open(Device* device, const char*, Gemm** out, char* why, size_t size) {
  if (no_gemm_library()) {
    std::snprintf(why, size, "the stand-in has no cuBLASLt");
    return kUnsupported;
  }
  *out = new Gemm{device};
  return 0;
}

int32_t gemm(Gemm* gemm, void* stream, const Matrix* c, const Matrix* a, const Matrix* b, bool add) {
  if (!fits(*c, *a, *b)) return kBadArgument;
  for (const Matrix* const one : {c, a, b}) {
    if (!reaches_into_device_memory(*one)) return kBadMemory;
  }
  queue_of(gemm->device, stream)->submit([c = *c, a = *a, b = *b, add] { multiply(c, a, b, add); });
  return 0;
}

}  // namespace

std::atomic<bool>& no_gemm_library() {
  static std::atomic<bool> value{false};
  return value;
}

void put_gemm(PluginTable* table) {
  table->gemm_open = &gemm_open;
  table->gemm_close = [](Gemm* gemm) { delete gemm; };
  table->gemm_version = [](const Gemm*) { return 130102; };
  table->gemm = &gemm;
}

}  // namespace standin
}  // namespace megadp
