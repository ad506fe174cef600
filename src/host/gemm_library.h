// SPDX-License-Identifier: Apache-2.0
// GemmLibrary: a library of matrix products, oneDNN or a CBLAS, that was found at run time; and which one is taken. First that which the
// environment variable MEGADP_GEMM names: a soname, a path, "onednn" or "openblas". Without it what the process has mapped already,
// then oneDNN 3, oneDNN 2, OpenBLAS. But oneDNN brings OpenMP's runtime along, and a process must not have two: they know nothing of each
// other's threads. Where another one is mapped, as those of a Python wheel are, only OpenBLAS is loaded anew.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/matrix.h"
#include "base/status.h"

namespace megadp::host {

class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;
  virtual const std::string& name() const noexcept = 0;  // with its version
  // c = a b or c += a b, finished on return. As gemm() has checked; besides, nothing is empty and c.is_row_major(). Where both strides are
  // 1, there is one row or one column.
  virtual Status multiply(const Matrix& c, const Matrix& a, const Matrix& b, bool add) = 0;
};

// The leading dimension as libraries look at it. A single row or column is not stepped over, and its own may be shorter.
inline int64_t leading_of(const Matrix& matrix) noexcept {
  return std::max(matrix.leading(), matrix.is_row_major() ? matrix.columns : matrix.rows);
}

struct GemmChoice {
  std::string file;  // a soname or path; empty: among what the program itself exports
  bool must_be_mapped = false;
  bool any_openmp = false;  // the user has named it: he knows which OpenMP's runtime it brings

  bool operator==(const GemmChoice&) const = default;
};

// What to try, in this order. `wanted`: the value of MEGADP_GEMM, or nothing; `mapped`: the files that the process has mapped.
std::vector<GemmChoice> gemm_choices(std::string_view wanted, const std::vector<std::string>& mapped);

// The names of OpenMP's runtimes among files.
std::vector<std::string> openmp_runtimes(const std::vector<std::string>& files);

// threads: as of set_gemm_threads().
Result<std::unique_ptr<GemmLibrary>> open_gemm_library(const GemmChoice& choice, int threads);
// By the environment: the first of all choices that can be opened.
Result<std::unique_ptr<GemmLibrary>> find_gemm_library(int threads);

// gemm() by a library of one's choice; nothing is checked, nothing may be empty.
Status gemm_by(GemmLibrary& library, const Matrix& c, const Matrix& a, const Matrix& b, bool add);

}  // namespace megadp::host
