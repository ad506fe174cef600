// SPDX-License-Identifier: Apache-2.0
// What the library is told about one parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace megadp {

enum class Placement : uint32_t {
  unset = 0,
  replicated = 1,
  sharded = 2
};  // the values of mdp_placement

struct ParamSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t numel = 0;
  int uses_per_step = 1;
  bool expert = false;
  Placement placement = Placement::unset;
  int shard_dim = 0, shard_stride = 1;
  int group = 0;
  bool frozen = false;
  bool own_bucket = false;
};

}  // namespace megadp
