// SPDX-License-Identifier: Apache-2.0
// Plans and groups of ranks as one line of JSON, for programs and for the eye.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/grid.h"
#include "core/plan.h"

namespace megadp {

// {"dp":4,"arenas":[{"param_dtype":"bf16","grad_dtype":"f32","numel":1920,
//   "params":[{"index":2,"begin":0,"end":300,"bucket":0},…],                              in placement order
//   "buckets":[{"begin":0,"end":1920,"unpadded":1832}],
//   "owned":[[{"param":2,"begin":0,"end":300,"param_begin":0},…],…]}],                    one list a shard
//  "bytes":[{"param":…,"grad":…,"grad_shard":…,"spill":…,"feedback":…,"master":…,"state":…,"scratch":…},…]}  one a rank of dp x cp
// begin and end count elements in the arena. An arena of experts has "expert":true besides. Where nothing is sharded, "owned" is a single
// list that holds for every rank.
std::string plan_json(const Plan& plan);

// The same in pieces, as they come: the whole text may be larger than memory.
using TextSink = std::function<void(std::string_view piece)>;
void write_plan_json(const Plan& plan, const TextSink& write);

// [[0,2,4],[1,3,5]]: all groups that the axes span. The axes must have been checked by Grid::check_axes.
std::string grid_groups_json(const Grid& grid, Axes axes);

}  // namespace megadp
