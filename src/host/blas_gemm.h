// SPDX-License-Identifier: Apache-2.0
// Matrix products by a CBLAS whose integers are of 32 bits: OpenBLAS, MKL and others.
#pragma once

#include <limits>
#include <memory>
#include <string>

#include "host/gemm_library.h"

namespace megadp::host {

// How much of a product is done at a time.
struct BlasBlocks {
  int64_t call = std::numeric_limits<int>::max();  // the most rows or columns, and the largest leading dimension, of one call
  int64_t copied = 1024;                           // rows and columns of a block that is copied to f32
};

// handle: of dlopen(); closed by the caller if this fails. threads: how many to work with, 0: as many as the library is set to. `blocks` is
// for tests.
Result<std::unique_ptr<GemmLibrary>> open_blas(void* handle, const std::string& file, int threads, const BlasBlocks& blocks = {});

}  // namespace megadp::host
