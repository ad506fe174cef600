// SPDX-License-Identifier: Apache-2.0
// The arrays of a checkpoint: what the ranks hold of parameters and tensors, put together to one list that all of them know.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "files/manifest_json.h"

namespace megadp {

struct CheckpointArrays {
  std::vector<StoredArray> arrays;  // with who stores which ranges
  std::vector<StoredOptimizer> optimizers;
  std::set<std::string> frozen;  // names of parameters of which nothing is held
};

// Waits until the parts hold what the last step and writes gave them. Collective over the world; the same outcome on all ranks.
// Code::invalid if two ranks hold different things of one name.
Result<CheckpointArrays> gather_arrays(const CheckpointConfig& config, const char* call);

// Where an array is on this rank, under one of its names.
struct LocalArray {
  const CheckpointPart* part = nullptr;  // null: a tensor of the caller's
  size_t index = 0;                      // of the parameter in its buffer, or of the tensor
  size_t tp_part = 0;                    // of the array's cut
  std::optional<size_t> state = {};      // which of the bytes that the parameter's owner keeps; none: the parameter itself
};
std::optional<LocalArray> find_local(const CheckpointConfig& config, const std::string& name, const Cut& cut);

}  // namespace megadp
