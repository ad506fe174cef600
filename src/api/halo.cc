// SPDX-License-Identifier: Apache-2.0
// Spatial parallelism: halos, and how convolutions are cut.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"
#include "api/tp_operands.h"
#include "base/shape.h"
#include "core/conv_split.h"
#include "core/halo.h"

using namespace megadp;

namespace {

constexpr int64_t kMostElements = int64_t{1} << 40;  // along one dimension
constexpr int32_t kMostDims = 16;
constexpr uint32_t kMostFields = 1024;

Status take_list(const int64_t* given, int32_t ndim, const char* argument, int64_t least, std::vector<int64_t>* out) {
  if (Status status = check_pointer(given, argument, alignof(int64_t)); !status) return status;
  for (int32_t d = 0; d < ndim; ++d) {
    if (given[d] < least || given[d] > kMostElements) {
      return invalid(argument, "[", d, "] is ", given[d], "; it must be between ", least, " and ", kMostElements);
    }
    out->push_back(given[d]);
  }
  return {};
}

Status take_widths(const int64_t* given, int32_t ndim, const char* argument, std::vector<int64_t>* out) {
  if (given != nullptr) return take_list(given, ndim, argument, 0, out);
  out->assign(static_cast<size_t>(ndim), 0);
  return {};
}

Status take_edges(const mdp_edge* given, int32_t ndim, std::vector<Edge>* out) {
  out->assign(static_cast<size_t>(ndim), Edge::keep);
  if (given == nullptr) return {};
  if (Status status = check_pointer(given, "config.edges", alignof(mdp_edge)); !status) return status;
  for (int32_t d = 0; d < ndim; ++d) {
    if (given[d] > MDP_EDGE_REFLECT) {
      return invalid("config.edges[", d, "] is ", given[d], "; it must be MDP_EDGE_KEEP (0), ZERO (1), PERIODIC (2) or REFLECT (3)");
    }
    (*out)[static_cast<size_t>(d)] = static_cast<Edge>(given[d]);
  }
  return {};
}

// Of each field, one after another. Zeros alone are the same as none.
Status take_staggered(const mdp_halo_config& config, HaloShape* shape) {
  if (config.staggered == nullptr) return {};
  if (Status status = check_pointer(config.staggered, "config.staggered", alignof(int64_t)); !status) return status;
  const auto ndim = static_cast<size_t>(config.ndim);
  for (size_t f = 0; f < shape->fields; ++f) {
    const int64_t* const given = config.staggered + f * ndim;
    for (size_t d = 0; d < ndim; ++d) {
      if (given[d] == 0 || given[d] == 1) continue;
      return invalid("config.staggered[", f * ndim + d, "], dimension ", d, " of field ", f, ", is ", given[d], "; it must be 0 or 1");
    }
    shape->staggered.emplace_back(given, given + ndim);
  }
  const int64_t* const end = config.staggered + shape->fields * ndim;
  if (std::all_of(config.staggered, end, [](int64_t longer) { return longer == 0; })) shape->staggered.clear();
  return {};
}

Status check_grid(const std::vector<int64_t>& grid, int ranks) {
  int64_t product = 1;
  for (const int64_t size : grid) product = product > ranks ? product : product * size;
  if (product == ranks) return {};
  return invalid("config.grid is ", shape_text(grid), ", which is not the grid of ", ranks,
                 " ranks: the product of its sizes must be that");
}

Status take_halo(const mdp_halo_config* given, const Comm& comm, HaloShape* shape, std::vector<int64_t>* part) {
  auto config = take(given, "config");
  if (!config) return config.status();
  auto type = take_dtype(config->dtype == MDP_DTYPE_DEFAULT ? mdp_dtype{MDP_DTYPE_F32} : config->dtype, "config.dtype");
  if (!type) return type.status();
  shape->type = *type;
  if (config->ndim < 1 || config->ndim > kMostDims)
    return invalid("config.ndim is ", config->ndim, "; it must be between 1 and ", kMostDims);
  if (config->fields > kMostFields) return invalid("config.fields is ", config->fields, "; it must be between 0 and ", kMostFields);
  shape->fields = config->fields == 0 ? 1 : config->fields;
  if (Status status = check_flags(config->flags, MDP_HALO_FACES, "config.flags", "MDP_HALO_FACES (1)"); !status) return status;
  shape->faces = (config->flags & MDP_HALO_FACES) != 0;
  constexpr uint64_t most_arrays = 1024;
  if (config->arrays > most_arrays) return invalid("config.arrays is ", config->arrays, "; it must be at most ", most_arrays);
  shape->arrays = config->arrays;
  if (Status status = take_list(config->grid, config->ndim, "config.grid", 1, &shape->grid); !status) return status;
  if (Status status = check_grid(shape->grid, comm.size()); !status) return status;
  if (Status status = take_list(config->shape, config->ndim, "config.shape", 0, part); !status) return status;
  if (Status status = take_widths(config->low, config->ndim, "config.low", &shape->low); !status) return status;
  if (Status status = take_widths(config->high, config->ndim, "config.high", &shape->high); !status) return status;
  if (Status status = take_edges(config->edges, config->ndim, &shape->edges); !status) return status;
  if (Status status = take_staggered(*config, shape); !status) return status;
  std::vector<int64_t> padded = *part;
  for (size_t d = 0; d < padded.size(); ++d) padded[d] += shape->low[d] + shape->high[d] + (shape->staggered.empty() ? 0 : 1);
  return take_shape(padded.data(), config->ndim, "config.shape with its halo").status();
}

Status take_conv(const mdp_conv_config* given, ConvConfig* out) {
  auto config = take(given, "config");
  if (!config) return config.status();
  if (Status status = check_reserved(config->reserved, "config.reserved"); !status) return status;
  constexpr int64_t most = int64_t{1} << 30;
  const auto number = [](int64_t value) { return value == 0 ? 1 : value; };
  *out = {number(config->kernel), number(config->stride), number(config->dilation), config->padding_low, config->padding_high};
  for (const auto& [name, value] : {std::pair{"kernel", config->kernel},
                                    {"stride", config->stride},
                                    {"dilation", config->dilation},
                                    {"padding_low", config->padding_low},
                                    {"padding_high", config->padding_high}}) {
    if (value < 0 || value > most) return invalid("config.", name, " is ", value, "; it must be between 0 and ", most);
  }
  return {};
}

void give_list(const std::vector<int64_t>& from, int64_t* to) {
  if (to != nullptr) std::copy(from.begin(), from.end(), to);
}

}  // namespace

mdp_status mdp_halo_create(mdp_comm* comm, const mdp_halo_config* config, mdp_halo** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::alone_in_context); !status) return status;
    HaloShape shape;
    std::vector<int64_t> part;
    if (Status status = take_halo(config, *comm->object, &shape, &part); !status) return status;
    auto halo = Halo::create(comm->object, std::move(shape), std::move(part));
    if (!halo) return halo.status();
    *out = new mdp_halo(comm->context, *halo);
    return {};
  });
}

mdp_status mdp_halo_start(mdp_halo* halo, const mdp_tensor* fields, size_t count, uint64_t flags, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(halo, "halo", stream); !status) return status;
    if (Status status = check_flags(flags, MDP_HALO_BACKWARD, "flags", "MDP_HALO_BACKWARD (1)"); !status) return status;
    if (count > kMostFields) return invalid("count is ", count, "; it must be at most ", kMostFields);
    size_t stride = 0;
    if (Status status = check_array(fields, count, "fields", kKind<mdp_tensor>, &stride); !status) return status;
    std::vector<StridedArray> arrays;
    for (size_t f = 0; f < count; ++f) {
      const auto* const one = reinterpret_cast<const mdp_tensor*>(reinterpret_cast<const std::byte*>(fields) + f * stride);
      const std::string name = text("fields[", f, "]");
      std::optional<Tensor> array;
      if (Status status = take_array(one, name.c_str(), Access::write, place_of(*halo), &array); !status) return status;
      arrays.push_back(*array);
    }
    return halo->object->start(std::move(arrays), (flags & MDP_HALO_BACKWARD) != 0, stream);
  });
}

mdp_status mdp_halo_finish(mdp_halo* halo, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(halo, "halo", stream); !status) return status;
    return halo->object->finish(stream);
  });
}

mdp_status mdp_halo_array(mdp_halo* halo, uint64_t index, mdp_tensor* out) {
  return guard([&]() -> Status {
    if (Status status = check_handle(halo, "halo", Need::process); !status) return status;
    if (Status status = check_output(out, "out"); !status) return status;
    const std::vector<StridedArray>& arrays = halo->object->arrays();
    if (index >= arrays.size()) return invalid("index is ", index, "; this halo has ", arrays.size(), " arrays of its own (config.arrays)");
    const StridedArray& array = arrays[index];
    give_view(place_of(*halo), {array.data, array.type, &array.shape, array.strides.data()}, out);
    return {};
  });
}

mdp_status mdp_halo_place(const mdp_halo* halo, int64_t* coords, int64_t* begins, int64_t* whole) {
  return guard([&]() -> Status {
    if (Status status = check_handle(halo, "halo", Need::process); !status) return status;
    for (const auto& [list, name] : {std::pair{coords, "coords"}, {begins, "begins"}, {whole, "whole"}}) {
      if (list == nullptr) continue;
      if (Status status = check_pointer(list, name, alignof(int64_t)); !status) return status;
    }
    const std::vector<int64_t> places = halo->object->coords();
    std::vector<int64_t> starts, sizes;
    for (size_t d = 0; d < places.size(); ++d) {
      const HaloCut& cut = halo->object->cuts()[d];
      starts.push_back(cut.begins[static_cast<size_t>(places[d])]);
      sizes.push_back(cut.whole());
    }
    give_list(places, coords);
    give_list(starts, begins);
    give_list(sizes, whole);
    return {};
  });
}

void mdp_halo_destroy(mdp_halo* halo) {
  destroy_handle(halo);
}

mdp_status mdp_conv_split(const mdp_conv_config* config, const int64_t* parts, size_t count, int32_t part, mdp_conv_part* out) {
  return guard([&]() -> Status {
    ConvConfig ours;
    if (Status status = take_conv(config, &ours); !status) return status;
    if (count < 1 || count > size_t{1} << 20) return invalid("count is ", count, "; it must be between 1 and ", size_t{1} << 20);
    std::vector<int64_t> sizes;
    if (Status status = take_list(parts, static_cast<int32_t>(count), "parts", 0, &sizes); !status) return status;
    if (part < 0 || static_cast<size_t>(part) >= count) return invalid("part is ", part, "; it must be between 0 and ", count - 1);
    if (Status status = check_output(out, "out"); !status) return status;
    auto found = split_conv(ours, sizes, static_cast<size_t>(part));
    if (!found) return found.status();
    mdp_conv_part result{};
    result.low = found->low;
    result.high = found->high;
    result.output_begin = found->output_begin;
    result.output_size = found->output_size;
    result.first = found->first;
    result.inside_begin = found->inside_begin;
    result.inside_size = found->inside_size;
    result.whole_output = found->whole_output;
    give(result, out);
    return {};
  });
}
