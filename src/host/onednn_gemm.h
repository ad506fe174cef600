// SPDX-License-Identifier: Apache-2.0
// Matrix products by oneDNN.
#pragma once

#include <memory>
#include <string>

#include "host/gemm_library.h"

namespace megadp::host {

// handle: of dlopen(); closed by the caller if this fails. threads: how many to work with, 0: as many as the library is set to.
Result<std::unique_ptr<GemmLibrary>> open_onednn(void* handle, const std::string& file, int threads);

}  // namespace megadp::host
