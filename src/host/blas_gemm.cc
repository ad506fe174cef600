// SPDX-License-Identifier: Apache-2.0
#include "host/blas_gemm.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/symbol.h"
#include "host/gemm_blocks.h"
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

class Blas final : public GemmLibrary {
 public:
  Blas(const Functions& functions, std::string name, const BlasBlocks& blocks)
      : functions_(functions), name_(std::move(name)), blocks_(blocks) {}

  const std::string& name() const noexcept override { return name_; }

  Status multiply(const Matrix& c, const Matrix& a, const Matrix& b, bool add) override {
    // A leading dimension that no int holds is met by copying, too.
    const auto fits = [this](const Matrix& matrix) { return matrix.type == DType::f32 && leading_of(matrix) <= blocks_.call; };
    if (fits(a) && fits(b) && fits(c)) return in_calls(c, a, b, add);
    return multiply_in_blocks(c, a, b, add, std::min(blocks_.copied, blocks_.call), fits(c), &scratch_,
                              [this](const Matrix& to, const Matrix& left, const Matrix& right, bool added) {
                                call(to, left, right, added);
                                return Status();
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

  // All f32, and sizes that an int holds.
  void call(const Matrix& c, const Matrix& a, const Matrix& b, bool add) const {
    const auto order = [](const Matrix& matrix) { return matrix.is_row_major() ? kNotTransposed : kTransposed; };
    const auto leading = [](const Matrix& matrix) { return static_cast<int>(leading_of(matrix)); };
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
