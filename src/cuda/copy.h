// SPDX-License-Identifier: Apache-2.0
// Copies of arrays between any two places: device memory, pinned and ordinary memory of the host.
#pragma once

#include "backend/backend.h"
#include "cuda/gpu.h"
#include "cuda/staging.h"

namespace megadp::cuda {

struct Places {
  const std::shared_ptr<Gpu>& gpu;
  Backend& host;
  Staging& staging;
};

// to = from, or to += from. Ordered on `stream`, the caller's; where one side is ordinary host memory, it is done on return; nothing of
// this waits for more of the device than that stream.
Status copy_arrays(const Places& on, const StridedArray& to, const StridedArray& from, bool add, void* stream);

}  // namespace megadp::cuda
