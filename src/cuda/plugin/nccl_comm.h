// SPDX-License-Identifier: Apache-2.0
// NcclComm: one communicator of NCCL. It shares nothing with any other: those that share their resources, as parts of one that was split
// may, must not run side by side, and would end together. So it is freed by ncclCommAbort, which waits for nobody.
#pragma once

#include <vector>

#include "cuda/plugin/device.h"
#include "cuda/plugin/nccl_library.h"

namespace megadp::cuda {

// A pre-multiplied sum that has been made. A few are kept, since buckets are divided alike; a divisor by tokens is another in each step.
constexpr size_t kKeptSums = 4;
struct ScaledSum {
  DType type;
  double factor;
  ncclRedOp_t op;
};

// What is left to do once NCCL has put a collective into its stream: the part of a division that could not be done before the sum.
struct Division {
  void* stream;
  void* data;
  size_t count;
  DType type;
  double divisor;
};

struct NcclComm {
  Nccl* nccl = nullptr;
  Device* device = nullptr;
  ncclComm_t handle = nullptr;
  int size = 0;
  bool aborted = false;
  std::vector<ScaledSum> sums;      // the last used is the last
  std::vector<Division> divisions;  // of collectives that are not in their stream yet
  bool grouped = false;             // between comm_group_begin() and comm_group_end()
};

// 0 if the communicator may be used now, otherwise what a call is to return.
int32_t usable(const NcclComm* comm);
// Once what they divide is in its stream.
int32_t start_divisions(NcclComm* comm);

}  // namespace megadp::cuda
