// SPDX-License-Identifier: Apache-2.0
// What the library is told about one parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"

namespace megadp {

enum class Placement : uint32_t {
  unset = 0,
  replicated = 1,
  sharded = 2,
  partial_sum = 3,
  partial_mean = 4
};  // the values of mdp_placement
constexpr bool is_partial(Placement placement) noexcept {
  return placement == Placement::partial_sum || placement == Placement::partial_mean;
}

const char* name_of(Placement placement) noexcept;

enum class Sharding : uint32_t {
  unset = 0,
  zero_0 = 1,
  zero_1 = 2,
  zero_2 = 3,
  whole = 4
};  // the values of mdp_sharding
const char* name_of(Sharding sharding) noexcept;

struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t numel = 0;  // follows from the shape; check_param fills it in
  DType dtype = DType::f32;
  int uses_per_step = 1;
  Placement placement = Placement::unset;
  int shard_dim = 0, shard_stride = 1;
  int group = 0;
  int32_t use_order = 0;  // parameters are used in ascending order of this, equal ones as registered
  bool expert = false;
  bool frozen = false;
  bool own_bucket = false;
  std::string tie;                      // empty: none
  Sharding sharding = Sharding::unset;  // then the buffer's
  double cost = 0;                      // of its update, if it has one owner; 0: its elements
};

// How sentences name a parameter: "parameter 3 'w'". Any name will do, even one that check_param would refuse.
std::string param_label(size_t index, const std::string& name);

// Checks one parameter by itself and fills in its numel from the shape. needs_placement: it may not be left unset.
Status check_param(size_t index, bool needs_placement, ParamSpec* param);

}  // namespace megadp
