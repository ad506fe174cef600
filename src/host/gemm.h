// SPDX-License-Identifier: Apache-2.0
// Matrix products on the host, by a library that is found at run time and never linked (host/gemm_library.h says which).
#pragma once

#include <string>

#include "base/matrix.h"
#include "base/status.h"

namespace megadp::host {

// As Backend's of the same names, finished on return. Any threads at once. The library is loaded with the first call of either, and kept
// for the life of the process; so is the failure to find one.
Status gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add);
Result<std::string> gemm_library();

// With how many threads a library works that this process had not loaded before; 0 (the default): one for each processor that the calling
// thread may run on. To be set before the library is loaded. A library of the program's own, or one whose threads the environment says
// (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS), keeps what it has.
void set_gemm_threads(int threads);

}  // namespace megadp::host
