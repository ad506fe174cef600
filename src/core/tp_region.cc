// SPDX-License-Identifier: Apache-2.0
#include "core/tp_region.h"

#include "base/shape.h"

namespace megadp {
namespace {

// The cut of a dimension: the list that was given, or equal parts of `whole`, or as many as `part` on each rank.
Result<DimCut> take_cut(const Comm& comm, size_t dim, const char* dim_name, Counts parts, const char* parts_name, const NamedArray& whole,
                        const NamedArray& part) {
  const auto ranks = static_cast<uint64_t>(comm.size());
  if (dim >= whole.array.shape.size()) {
    return invalid("config.", dim_name, " is ", dim, "; ", whole.name, " has dimensions 0 to ",
                   static_cast<int64_t>(whole.array.shape.size()) - 1);
  }
  const auto length = static_cast<uint64_t>(whole.array.shape[dim]);
  if (parts.empty()) {
    if (length % ranks != 0) {
      return invalid("dimension ", dim, " of ", whole.name, " is ", length, ", which ", ranks, " ranks cannot share evenly; give config.",
                     parts_name, ", or a size such as ", (length / ranks + 1) * ranks);
    }
    parts.assign(ranks, length / ranks);
  }
  DimCut cut{dim, std::move(parts)};
  if (cut.whole() != length) {
    return invalid("the sum of config.", parts_name, " is ", cut.whole(), "; dimension ", dim, " of ", whole.name, " is ", length);
  }
  const uint64_t own = cut.parts[static_cast<size_t>(comm.rank())];
  if (static_cast<uint64_t>(part.array.shape[dim]) == own) return cut;
  return invalid("dimension ", dim, " of ", part.name, " is ", part.array.shape[dim], "; this rank's part of ", length, " is ", own);
}

Status check_rest(const NamedArray& input, const NamedArray& output, bool skip, size_t dim, size_t to_dim) {
  for (size_t d = 0; d < input.array.shape.size(); ++d) {
    if (skip && (d == dim || d == to_dim)) continue;
    if (input.array.shape[d] == output.array.shape[d]) continue;
    return invalid(input.name, " has shape ", shape_text(input.array.shape), " and ", output.name, " ", shape_text(output.array.shape),
                   "; dimension ", d, " must be the same");
  }
  return {};
}

struct Cuts {
  DimCut dim, to_dim;
};

Result<Cuts> take_cuts(const Comm& comm, const RegionConfig& config, const NamedArray& input, const NamedArray& output) {
  if (input.array.shape.size() != output.array.shape.size()) {
    return invalid(input.name, " has ", input.array.shape.size(), " dimensions and ", output.name, " ", output.array.shape.size(),
                   "; they must have as many");
  }
  const bool is_cut = config.region != Region::copy && config.region != Region::reduce;
  const bool exchanges = config.region == Region::exchange;
  const size_t to_dim = exchanges ? config.to_dim : config.dim;
  if (exchanges && to_dim == config.dim) return invalid("config.to_dim is ", to_dim, ", and so is config.dim; they must differ");
  if (Status same = check_rest(input, output, is_cut, config.dim, to_dim); !same) return same;
  Cuts cuts;
  if (!is_cut) return cuts;
  const bool input_is_whole = config.region == Region::scatter || config.region == Region::reduce_scatter;
  auto cut = take_cut(comm, config.dim, "dim", config.parts, "parts", input_is_whole ? input : output, input_is_whole ? output : input);
  if (!cut) return cut.status();
  cuts.dim = *std::move(cut);
  if (!exchanges) return cuts;
  auto to = take_cut(comm, to_dim, "to_dim", config.to_parts, "to_parts", input, output);
  if (!to) return to.status();
  cuts.to_dim = *std::move(to);
  return cuts;
}

Status forward(TpCollectives& collectives, size_t rank, const RegionConfig& config, const Cuts& cuts, const StridedArray& from,
               const StridedArray& to) {
  switch (config.region) {
    case Region::copy:
      return collectives.copy(to, from);
    case Region::reduce:
      return collectives.all_reduce(to, from);
    case Region::scatter:
      return collectives.copy(to, part_of(from, cuts.dim, rank));
    case Region::gather:
      return collectives.gather(to, from, cuts.dim);
    case Region::reduce_scatter:
      return collectives.reduce_scatter(to, from, cuts.dim);
    case Region::exchange:
      return collectives.exchange(to, cuts.to_dim, from, cuts.dim);
  }
  return internal_error("no such region");
}

Status backward(TpCollectives& collectives, size_t rank, const RegionConfig& config, const Cuts& cuts, const StridedArray& from,
                const StridedArray& to) {
  switch (config.region) {
    case Region::copy:
    case Region::reduce:
      return config.grad_is_partial ? collectives.all_reduce(to, from) : collectives.copy(to, from);
    case Region::scatter:
    case Region::reduce_scatter:
      return collectives.gather(to, from, cuts.dim);
    case Region::gather:
      return config.grad_is_partial ? collectives.reduce_scatter(to, from, cuts.dim) : collectives.copy(to, part_of(from, cuts.dim, rank));
    case Region::exchange:
      return collectives.exchange(to, cuts.dim, from, cuts.to_dim);
  }
  return internal_error("no such region");
}

}  // namespace

Status run_region(Comm& comm, RegionConfig config, Direction direction, const StridedArray& from, const StridedArray& to, void* caller) {
  if (Status usable = comm.context().usable(); !usable) return usable;
  if (from.type != to.type)
    return invalid("from.dtype is ", name_of(from.type), " and to.dtype is ", name_of(to.type), "; they must be equal");
  const bool ahead = direction == Direction::forward;
  const NamedArray given{from, "from"}, made{to, "to"};
  auto cuts = take_cuts(comm, config, ahead ? given : made, ahead ? made : given);
  if (!cuts) return cuts.status();
  const bool in_place = config.region == Region::copy || config.region == Region::reduce;
  if (from.data == to.data && from.data != nullptr && !(in_place && from.strides == to.strides)) {
    return invalid("from.data and to.data are the same memory; only COPY and REDUCE work in place, with equal strides");
  }
  TpCollectives collectives(comm, caller, ahead ? "a tensor-parallel region, forward" : "a tensor-parallel region, backward");
  if (Status entered = collectives.enter(); !entered) return entered;
  const bool replicated = ahead ? takes_replicated(config.region) : gives_replicated(config.region) && !config.grad_is_partial;
  if (config.checks && replicated) {
    if (Status same = collectives.check_replicated(from, "from"); !same) return same;
  }
  const auto rank = static_cast<size_t>(comm.rank());
  const Status done = ahead ? forward(collectives, rank, config, *cuts, from, to) : backward(collectives, rank, config, *cuts, from, to);
  return done.ok() ? collectives.begin() : done;
}

}  // namespace megadp
