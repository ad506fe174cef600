// SPDX-License-Identifier: Apache-2.0
#include "host/gemm.h"

namespace megadp::host {

Status gemm(const Matrix& /*c*/, const Matrix& /*a*/, const Matrix& /*b*/, bool /*add*/) {
  return gemm_library().status();
}

Result<std::string> gemm_library() {
  return unsupported("matrix products are not there yet");
}

}  // namespace megadp::host
