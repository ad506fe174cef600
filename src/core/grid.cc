// SPDX-License-Identifier: Apache-2.0
// The process grid: checks of a configuration, and the groups of ranks along any axes.
#include "core/grid.h"

#include <array>
#include <string_view>

namespace megadp {
namespace {

struct AxisName {
  const char* word;
  Axes bit;
};
constexpr std::array<AxisName, 5> kAxisNames = {{{"tp", kTp}, {"cp", kCp}, {"ep", kEp}, {"dp", kDp}, {"pp", kPp}}};

const char* word_of(Axes bit) {
  for (const AxisName& axis : kAxisNames)
    if (axis.bit == bit) return axis.word;
  return "?";
}

// For error sentences: a caller's string of any length.
std::string quoted(std::string_view given) {
  constexpr size_t kShown = 64;
  return given.size() <= kShown ? text("'", given, "'") : text("'", given.substr(0, kShown), "...'");
}

Result<std::vector<Axes>> parse_order(const std::string& order) {
  std::vector<Axes> axes;
  const std::string_view all = order;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find('-', begin), all.size());
    const std::string_view word = all.substr(begin, end - begin);
    Axes bit = 0;
    for (const AxisName& axis : kAxisNames)
      if (word == axis.word) bit = axis.bit;
    if (bit == 0) {
      return invalid("order is ", quoted(order), "; its word ", quoted(word),
                     " is not an axis: the words are tp, cp, ep, dp and pp with '-' between, as in 'tp-cp-ep-dp-pp'");
    }
    for (const Axes seen : axes)
      if (seen == bit) return invalid("order is ", quoted(order), "; it names ", word, " twice: each axis may come once");
    axes.push_back(bit);
    begin = end + 1;
  }
  return axes;
}

Status check_sizes(const GridConfig& config, int world) {
  if (world < 1 || world > kMaxWorld) return invalid("the world has ", world, " ranks; it must have 1 to ", kMaxWorld);
  const std::pair<const char*, int> sizes[] = {{"tp", config.tp},
                                               {"cp", config.cp},
                                               {"ep", config.ep},
                                               {"pp", config.pp},
                                               {"expert_tp", config.expert_tp},
                                               {"instances", config.instances}};
  for (const auto& [name, size] : sizes)
    if (size < 1) return invalid(name, " is ", size, "; it must be at least 1");
  return {};
}

// How many ranks are left for dp, or 0: the sizes do not divide the world.
int left_for_dp(int world, int a, int b, int c) {
  int64_t left = world;
  for (const int size : {a, b, c}) {
    if (left % size != 0) return 0;
    left /= size;
  }
  return static_cast<int>(left);
}

// Sizes of the axes of both grids. dp: what is left of the world.
struct Sizes {
  int dense_dp, expert_dp;
};

Result<Sizes> divide_world(const GridConfig& config, int world) {
  Sizes sizes{left_for_dp(world, config.tp, config.cp, config.pp), left_for_dp(world, config.expert_tp, config.ep, config.pp)};
  if (sizes.dense_dp == 0) {
    return invalid("a world of ", world, " ranks cannot be divided by tp ", config.tp, " x cp ", config.cp, " x pp ", config.pp,
                   "; the product of these sizes must divide ", world);
  }
  if (sizes.expert_dp == 0) {
    return invalid("a world of ", world, " ranks cannot be divided by expert_tp ", config.expert_tp, " x ep ", config.ep, " x pp ",
                   config.pp, "; the product of these sizes must divide ", world);
  }
  const int64_t dense_group = static_cast<int64_t>(sizes.dense_dp) * config.cp;
  if (dense_group % config.instances != 0) {
    return invalid("instances is ", config.instances, "; it must divide the ", dense_group, " ranks of dp ", sizes.dense_dp, " x cp ",
                   config.cp);
  }
  if (sizes.expert_dp % config.instances != 0) {
    return invalid("instances is ", config.instances, "; it must divide the ", sizes.expert_dp, " data-parallel ranks of the expert grid");
  }
  return sizes;
}

}  // namespace

Result<Grid> Grid::create(const GridConfig& given, int world) {
  Grid grid;
  grid.config_ = given;
  if (given.expert_tp == 0) grid.config_.expert_tp = given.tp;
  grid.world_ = world;
  const GridConfig& config = grid.config_;
  if (Status bad = check_sizes(config, world); !bad) return bad;
  const Result<Sizes> sizes = divide_world(config, world);
  if (!sizes) return sizes.status();
  Result<std::vector<Axes>> order = parse_order(config.order);
  if (!order) return order.status();

  // Axes that the order leaves out have size 1, so where they stand makes no difference.
  Status bad;
  const auto place = [&](const char* which, std::array<std::pair<Axes, int>, 4> axes, std::vector<Axis>* out) {
    int stride = 1;
    for (const Axes bit : *order)
      for (auto& [axis, size] : axes)
        if (axis == bit) {
          out->push_back({bit, size, stride});
          stride *= size;
          size = 0;
        }
    for (const auto& [axis, size] : axes) {
      if (size > 1 && bad.ok()) {
        bad = invalid("order is ", quoted(config.order), "; it leaves out ", word_of(axis), ", which is ", size, " on the ", which,
                      " grid: every axis larger than 1 must be in it, as in 'tp-cp-ep-dp-pp'");
      }
      if (size == 1) out->push_back({axis, 1, world});
    }
  };
  place("dense", {{{kTp, config.tp}, {kCp, config.cp}, {kDp, sizes->dense_dp}, {kPp, config.pp}}}, &grid.dense_);
  place("expert", {{{kTp, config.expert_tp}, {kEp, config.ep}, {kDp, sizes->expert_dp}, {kPp, config.pp}}}, &grid.expert_);
  if (!bad) return bad;
  if (Status differ = grid.check_pipelines(order->back() == kPp); !differ) return differ;
  return grid;
}

// A pipeline stage is a stage for dense and expert parameters alike.
Status Grid::check_pipelines(bool pp_is_last) const {
  if (config_.pp == 1 || pp_is_last) return {};
  const int dense_dp = size(kDp), expert_dp = size(kDp | kExpertGrid);
  if (dense_dp != expert_dp) {
    return invalid("order is ", quoted(config_.order), " with pp ", config_.pp, ", and dp is ", dense_dp, " on the dense and ", expert_dp,
                   " on the expert grid: put pp last, or make both the same");
  }
  if (group(kPp, 0) != group(kPp | kExpertGrid, 0)) {
    return invalid("order is ", quoted(config_.order), " with pp ", config_.pp,
                   ", which makes the pipelines of the dense and the expert grid differ: put pp last");
  }
  return {};
}

int Grid::size(Axes axes) const {
  int product = 1;
  for (const Axis& axis : axes_of(axes))
    if ((axes & axis.bit) != 0) product *= axis.size;
  return product;
}

int Grid::index(Axes axes, int rank) const {
  int index = 0, stride = 1;
  for (const Axis& axis : axes_of(axes)) {
    if ((axes & axis.bit) == 0) continue;
    index += rank / axis.stride % axis.size * stride;
    stride *= axis.size;
  }
  return index;
}

// base plus every combination of indices along the selected axes, the leftmost axis fastest.
std::vector<int> Grid::span(const std::vector<Axis>& grid, Axes selected, int base) {
  std::vector<int> ranks = {base};
  for (const Axis& axis : grid) {
    if ((selected & axis.bit) == 0) continue;
    const size_t before = ranks.size();
    for (int at = 1; at < axis.size; ++at)
      for (size_t i = 0; i < before; ++i) ranks.push_back(ranks[i] + at * axis.stride);
  }
  return ranks;
}

std::vector<int> Grid::group(Axes axes, int rank) const {
  int base = rank;
  for (const Axis& axis : axes_of(axes))
    if ((axes & axis.bit) != 0) base -= rank / axis.stride % axis.size * axis.stride;
  return span(axes_of(axes), axes, base);
}

std::vector<std::vector<int>> Grid::groups(Axes axes) const {
  std::vector<std::vector<int>> all;
  for (const int base : span(axes_of(axes), ~axes, 0)) all.push_back(span(axes_of(axes), axes, base));
  return all;
}

std::vector<int> Grid::instance_of(const std::vector<int>& group, int index, int instances) {
  const auto size = static_cast<ptrdiff_t>(group.size()) / instances;
  const auto begin = group.begin() + index / size * size;
  return {begin, begin + size};
}

std::vector<int> Grid::across_instances(const std::vector<int>& group, int index, int instances) {
  const size_t size = group.size() / static_cast<size_t>(instances);
  std::vector<int> members;
  for (size_t at = static_cast<size_t>(index) % size; at < group.size(); at += size) members.push_back(group[at]);
  return members;
}

Status Grid::check_axes(Axes axes) const {
  constexpr Axes kAll = kTp | kCp | kEp | kDp | kPp;
  if ((axes & ~(kAll | kExpertGrid)) != 0) {
    return invalid("axes is ", axes, ", with the unknown bits ", axes & ~(kAll | kExpertGrid),
                   "; use MDP_AXIS_TP, CP, EP, DP, PP and EXPERT_GRID");
  }
  if ((axes & kAll) == 0) return invalid("axes is ", axes, ", which names no axis; combine at least one of MDP_AXIS_TP, CP, EP, DP, PP");
  if ((axes & kExpertGrid) == 0 && (axes & kEp) != 0) {
    return invalid("axes is ", axes, ", which asks for ep on the dense grid; ep exists with MDP_AXIS_EXPERT_GRID only");
  }
  if ((axes & kExpertGrid) != 0 && (axes & kCp) != 0) {
    return invalid("axes is ", axes, ", which asks for cp on the expert grid; cp exists without MDP_AXIS_EXPERT_GRID only");
  }
  return {};
}

}  // namespace megadp
