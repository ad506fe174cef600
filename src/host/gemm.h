// SPDX-License-Identifier: Apache-2.0
// Matrix products on the host, by a library that is found at run time and never linked.
#pragma once

#include <string>

#include "base/matrix.h"
#include "base/status.h"

namespace megadp::host {

// As Backend's of the same names, finished on return.
Status gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add);
Result<std::string> gemm_library();

}  // namespace megadp::host
