// SPDX-License-Identifier: Apache-2.0
// Checks of one parameter's description.
#include "core/param.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/shape.h"
#include "base/utf8.h"

namespace megadp {
namespace {

constexpr size_t kMaxName = 255, kMaxDims = 16;
constexpr double kMostCost = 1e30;  // sums of so many stay finite

// Where `name` is not UTF-8 any more.
std::optional<size_t> find_damage(const std::string& name) {
  for (std::string_view rest = name; !rest.empty(); rest.remove_prefix(utf8_sequence(rest))) {
    if (utf8_sequence(rest) == 0) return name.size() - rest.size();
  }
  return {};
}

Status check_name(size_t index, const std::string& name) {
  if (name.empty()) return invalid("parameter ", index, " has an empty name; every parameter needs a name of its own");
  if (name.size() > kMaxName) {
    return invalid(param_label(index, name), " has a name of ", name.size(), " bytes; at most ", kMaxName, " are allowed");
  }
  const std::optional<size_t> damage = find_damage(name);
  return damage ? invalid("the name of parameter ", index, " is not valid UTF-8 from byte ", *damage, " on") : Status();
}

template <class Label>
Status check_tie(const Label& label, const ParamSpec& param) {
  if (param.tie.empty()) return {};
  if (param.tie.size() > kMaxName) {
    return invalid(label(), " has a tie of ", param.tie.size(), " bytes; at most ", kMaxName, " are allowed");
  }
  if (const std::optional<size_t> damage = find_damage(param.tie)) {
    return invalid("the tie of ", label(), " is not valid UTF-8 from byte ", *damage, " on");
  }
  return param.frozen ? invalid(label(), " is frozen and has a tie; nothing is to be added up, leave the tie NULL") : Status();
}

// Labels are made where a sentence needs one: there may be hundreds of thousands of parameters.
template <class Label>
Status check_shape(const Label& label, const std::vector<int64_t>& shape, uint64_t* numel) {
  if (shape.size() > kMaxDims) return invalid(label(), " has ", shape.size(), " dimensions; at most ", kMaxDims, " are allowed");
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0) return invalid(label(), " has size ", shape[d], " in dimension ", d, "; sizes must not be negative");
  }
  size_t d = 0;
  if (count_elements(shape, static_cast<uint64_t>(INT64_MAX), numel, &d)) return {};
  return invalid(label(), " has more than 2^63 elements: the product of its sizes overflows at dimension ", d, ", of size ", shape[d]);
}

template <class Label>
Status check_placement(const Label& label, bool needs_placement, const ParamSpec& param) {
  if (param.placement == Placement::unset && needs_placement) {
    return invalid(label(),
                   " has no placement; with tensor or expert parallelism every parameter must say whether it is replicated, "
                   "partial or sharded over the tensor-parallel ranks");
  }
  if (param.placement != Placement::sharded) {
    if (param.shard_dim == 0 && (param.shard_stride == 0 || param.shard_stride == 1)) return {};
    return invalid(label(), " has shard_dim ", param.shard_dim, " and shard_stride ", param.shard_stride,
                   " but is not placed as sharded; leave both 0, or set its placement");
  }
  if (param.shard_dim < 0 || static_cast<size_t>(param.shard_dim) >= param.shape.size()) {
    return invalid(label(), " is sharded on dimension ", param.shard_dim, "; it has ", param.shape.size(), " dimensions, counted from 0");
  }
  if (param.shard_stride < 1) return invalid(label(), " has shard_stride ", param.shard_stride, "; it must be at least 1");
  const int64_t size = param.shape[static_cast<size_t>(param.shard_dim)];
  if (size % param.shard_stride != 0) {
    return invalid(label(), " has shard_stride ", param.shard_stride, ", which must divide its ", size, " elements in dimension ",
                   param.shard_dim);
  }
  return {};
}

}  // namespace

const char* name_of(Placement placement) noexcept {
  constexpr const char* kNames[] = {"unset", "replicated", "sharded", "partial (sum)", "partial (mean)"};
  return kNames[static_cast<size_t>(placement)];
}

const char* name_of(Sharding sharding) noexcept {
  constexpr const char* kNames[] = {"unset", "zero_0", "zero_1", "zero_2", "whole"};
  return kNames[static_cast<size_t>(sharding)];
}

std::string param_label(size_t index, const std::string& name) {
  constexpr size_t kShown = 80;
  const std::string_view front = utf8_prefix(name, kShown);
  std::string shown;
  for (const char c : front) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text("parameter ", index, " '", shown, front.size() < name.size() ? "...'" : "'");
}

Status check_param(size_t index, bool needs_placement, ParamSpec* param) {
  const auto check = [&]() -> Status {
    if (Status bad = check_name(index, param->name); !bad) return bad;
    const auto label = [&] { return param_label(index, param->name); };
    if (!is_trainable(param->dtype)) {
      return invalid(label(), " has element type ", name_of(param->dtype), "; parameters may be f32, bf16 or f16");
    }
    if (Status bad = check_shape(label, param->shape, &param->numel); !bad) return bad;
    if (param->uses_per_step < 1) return invalid(label(), " has uses_per_step ", param->uses_per_step, "; it must be at least 1");
    if (param->group < 0) return invalid(label(), " has param_group ", param->group, "; parameter groups are counted from 0");
    if (!(param->cost >= 0 && param->cost <= kMostCost)) {
      return invalid(label(), " has cost ", param->cost, "; it must be 0 to ", kMostCost);
    }
    if (Status bad = check_tie(label, *param); !bad) return bad;
    return check_placement(label, needs_placement, *param);
  };
  return check().with_blame({.param = static_cast<int64_t>(index)});
}

}  // namespace megadp
