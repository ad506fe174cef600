// SPDX-License-Identifier: Apache-2.0
// Products of bf16 are done in blocks that are widened to f32: scratch memory stays bounded, and every element of c is summed in f32 over
// the whole inner dimension before it is rounded.
#include "host/blas_library.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "backend/backend.h"
#include "base/symbol.h"
#include "host/kernels.h"
#include "host/scratch.h"

namespace megadp::host {
namespace {

// CBLAS's names for orders and transpositions.
constexpr int kRowMajor = 101, kNotTransposed = 111, kTransposed = 112;

struct Functions {
  using Sgemm = void(int order, int transpose_a, int transpose_b, int rows, int columns, int inner, float alpha, const float* a, int lda,
                     const float* b, int ldb, float beta, float* c, int ldc);
  using SetThreads = void(int);
  using GetConfig = char*();
  using GetVersion = void(char*, int);

  Symbols find;
  Sgemm* sgemm = find("cblas_sgemm");
  Symbols may_have;
  SetThreads* openblas_set_threads = may_have("openblas_set_num_threads");
  GetConfig* openblas_config = may_have("openblas_get_config");
  SetThreads* mkl_set_threads = may_have("MKL_Set_Num_Threads");
  GetVersion* mkl_version = may_have("mkl_get_version_string");
};

// Rows [row, row + rows) and columns [column, column + columns).
Matrix part(const Matrix& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const int64_t offset = row * matrix.row_stride + column * matrix.column_stride;
  void* const data = static_cast<std::byte*>(matrix.data) + offset * static_cast<int64_t>(size_of(matrix.type));
  return {data, matrix.type, rows, columns, matrix.row_stride, matrix.column_stride};
}

StridedArray array(const Matrix& matrix) {
  return {matrix.data, matrix.type, {matrix.rows, matrix.columns}, {matrix.row_stride, matrix.column_stride}};
}

// An f32 matrix of the same shape in `memory`, in the order in which `like` lies.
Matrix dense(float* memory, const Matrix& like) {
  const bool by_rows = like.is_row_major();
  return {memory, DType::f32, like.rows, like.columns, by_rows ? like.columns : 1, by_rows ? 1 : like.rows};
}

template <class Work>
Status for_blocks(int64_t count, int64_t block, const Work& work) {
  for (int64_t begin = 0; begin < count; begin += block) {
    if (Status done = work(begin, std::min(block, count - begin)); !done.ok()) return done;
  }
  return {};
}

class Blas final : public GemmLibrary {
 public:
  Blas(const Functions& functions, std::string name, const BlasBlocks& blocks)
      : functions_(functions), name_(std::move(name)), blocks_(blocks) {}

  const std::string& name() const noexcept override { return name_; }

  Status multiply(const Matrix& c, const Matrix& a, const Matrix& b, bool add) override {
    // A leading dimension that no int holds is met by copying, too.
    const auto fits = [this](const Matrix& matrix) { return matrix.type == DType::f32 && matrix.leading() <= blocks_.call; };
    if (fits(a) && fits(b) && fits(c)) return in_calls(c, a, b, add);
    const int64_t edge = std::min(blocks_.widened, blocks_.call);
    return for_blocks(c.columns, edge, [&](int64_t column, int64_t columns) {
      return for_blocks(c.rows, edge, [&](int64_t row, int64_t rows) {
        return widened(part(c, row, rows, column, columns), part(a, row, rows, 0, a.columns), part(b, 0, b.rows, column, columns), add,
                       !fits(c));
      });
    });
  }

 private:
  Status in_calls(const Matrix& c, const Matrix& a, const Matrix& b, bool add) const {
    return for_blocks(c.rows, blocks_.call, [&](int64_t row, int64_t rows) {
      return for_blocks(c.columns, blocks_.call, [&](int64_t column, int64_t columns) {
        return for_blocks(a.columns, blocks_.call, [&](int64_t inner, int64_t inners) {
          call(part(c, row, rows, column, columns), part(a, row, rows, inner, inners), part(b, inner, inners, column, columns),
               add || inner > 0);
          return Status();
        });
      });
    });
  }

  // One block of c, with the rows of a and the columns of b that belong to it.
  Status widened(const Matrix& c, const Matrix& a, const Matrix& b, bool add, bool sum_apart) {
    const int64_t edge = std::min({blocks_.widened, blocks_.call, a.columns});
    auto scratch = scratch_.take(static_cast<size_t>(c.rows * edge + edge * c.columns + c.rows * c.columns) * sizeof(float));
    if (!scratch.ok()) return scratch.status();
    auto* const memory = static_cast<float*>(scratch->data());
    float *const wide_a = memory, *const wide_b = wide_a + c.rows * edge, *const wide_c = wide_b + edge * c.columns;
    const Matrix sum = sum_apart ? dense(wide_c, c) : c;
    Status done = for_blocks(a.columns, edge, [&](int64_t inner, int64_t inners) {
      const Matrix from_a = part(a, 0, a.rows, inner, inners), from_b = part(b, inner, inners, 0, b.columns);
      const Matrix to_a = dense(wide_a, from_a), to_b = dense(wide_b, from_b);
      if (Status copied = copy_strided(array(to_a), array(from_a), false); !copied.ok()) return copied;
      if (Status copied = copy_strided(array(to_b), array(from_b), false); !copied.ok()) return copied;
      call(sum, to_a, to_b, inner > 0 || (add && !sum_apart));
      return Status();
    });
    if (!done.ok() || !sum_apart) return done;
    return copy_strided(array(c), array(sum), add);  // rounds once
  }

  // All f32, and sizes that an int holds.
  void call(const Matrix& c, const Matrix& a, const Matrix& b, bool add) const {
    const auto order = [](const Matrix& matrix) { return matrix.is_row_major() ? kNotTransposed : kTransposed; };
    // Of a single row or column the leading dimension is never stepped, and may be shorter than a CBLAS lets pass.
    const auto leading = [](const Matrix& matrix) {
      return static_cast<int>(std::max(matrix.leading(), matrix.is_row_major() ? matrix.columns : matrix.rows));
    };
    functions_.sgemm(kRowMajor, order(a), order(b), static_cast<int>(c.rows), static_cast<int>(c.columns), static_cast<int>(a.columns), 1,
                     static_cast<const float*>(a.data), leading(a), static_cast<const float*>(b.data), leading(b), add ? 1 : 0,
                     static_cast<float*>(c.data), leading(c));
  }

  const Functions functions_;
  const std::string name_;
  const BlasBlocks blocks_;
  ScratchPool scratch_;
};

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

std::string version_name(const Functions& functions, const std::string& file) {
  if (functions.openblas_config != nullptr) {  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
    const std::string config = functions.openblas_config();
    return config.substr(0, config.find(' ', config.find(' ') + 1));
  }
  if (functions.mkl_version != nullptr) {
    std::array<char, 200> version{};
    functions.mkl_version(version.data(), static_cast<int>(version.size()) - 1);
    return version.data();
  }
  return text("CBLAS of ", file.empty() ? "the program" : file);
}

}  // namespace

Result<std::unique_ptr<GemmLibrary>> open_blas(void* handle, const std::string& file, int threads, const BlasBlocks& blocks) {
  const Functions functions{.find = Symbols(handle), .may_have = Symbols(handle)};
  if (const char* const missing = functions.find.missing(); missing != nullptr) {
    return unsupported(file, " is neither oneDNN nor a CBLAS: it lacks ", missing);
  }
  const char* const layer = std::getenv("MKL_INTERFACE_LAYER");
  const bool wide_mkl =
      functions.mkl_version != nullptr && layer != nullptr && std::string_view(layer).find("ILP64") != std::string_view::npos;
  if (wide_mkl || (functions.openblas_config != nullptr &&
                   std::string_view(functions.openblas_config()).find("USE64BITINT") != std::string_view::npos)) {
    return unsupported(file, " has integers of 64 bits (ILP64); a CBLAS with 32 bits (LP64) is needed");
  }
  // The count is one for the whole process.
  if (threads > 0 && !is_set("OMP_NUM_THREADS")) {
    if (functions.openblas_set_threads != nullptr && !is_set("OPENBLAS_NUM_THREADS")) functions.openblas_set_threads(threads);
    if (functions.mkl_set_threads != nullptr && !is_set("MKL_NUM_THREADS")) functions.mkl_set_threads(threads);
  }
  return std::unique_ptr<GemmLibrary>(new Blas(functions, version_name(functions, file), blocks));
}

}  // namespace megadp::host
