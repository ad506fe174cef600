// SPDX-License-Identifier: Apache-2.0
// Collectives on arrays of the caller.
#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"

using namespace megadp;

namespace {

Result<Op> take_op(mdp_op op, DType type) {
  if (op > MDP_OP_MIN) return invalid("op is ", op, "; it must be MDP_OP_SUM (0), MDP_OP_AVG (1), MDP_OP_MAX (2) or MDP_OP_MIN (3)");
  if (op == MDP_OP_AVG && (type == DType::i64 || type == DType::u8)) {
    return invalid("op is MDP_OP_AVG, but ", name_of(type), " has no fractions; it takes MDP_OP_SUM, MDP_OP_MAX and MDP_OP_MIN");
  }
  return static_cast<Op>(op);
}

struct Pair {
  Tensor from, to;
};

Result<Pair> take_pair(const mdp_tensor* from, const mdp_tensor* to, const Place& place) {
  auto ours_from = take_dense_tensor(from, "from", place);
  if (!ours_from) return ours_from.status();
  auto ours_to = take_dense_tensor(to, "to", place);
  if (!ours_to) return ours_to.status();
  if (ours_from->type != ours_to->type) {
    return invalid("from.dtype is ", name_of(ours_from->type), " and to.dtype is ", name_of(ours_to->type), "; they must be equal");
  }
  return Pair{*std::move(ours_from), *std::move(ours_to)};
}

// `from` must hold `from_pieces` pieces where `to` holds `to_pieces`: 1, or one for each rank.
Status check_counts(const Pair& pair, uint64_t from_pieces, uint64_t to_pieces) {
  const uint64_t from = pair.from.numel, to = pair.to.numel;
  if (from_pieces == to_pieces) {
    return from == to ? Status() : invalid("from has ", from, " elements and to has ", to, "; their counts must be equal");
  }
  // Divided, not multiplied: a product may overflow.
  const bool from_is_large = from_pieces > to_pieces;
  const uint64_t ranks = from_is_large ? from_pieces : to_pieces, large = from_is_large ? from : to, small = from_is_large ? to : from;
  if (large % ranks == 0 && large / ranks == small) return {};
  const char* larger = from_is_large ? "from" : "to";
  return invalid("from has ", from, " elements and to has ", to, "; with ", ranks, " ranks ", larger, " must have ", ranks,
                 " times as many as the other");
}

// Apart, or exactly `in_place` bytes into each other, as MPI_IN_PLACE lays them.
Status check_overlap(const Tensor& inner, const char* inner_name, const Tensor& outer, const char* outer_name, uint64_t in_place) {
  if (inner.numel == 0 || outer.numel == 0) return {};
  const auto inner_at = reinterpret_cast<uintptr_t>(inner.data), outer_at = reinterpret_cast<uintptr_t>(outer.data);
  if (inner_at + inner.bytes() <= outer_at || outer_at + outer.bytes() <= inner_at || inner_at == outer_at + in_place) return {};
  return invalid(inner_name, ".data and ", outer_name, ".data overlap; they must be apart, or ", inner_name, ".data must be ", in_place,
                 " bytes into ", outer_name, ".data (in place)");
}

// Which of a communicator's two ways an operation goes: over its backend, or, for arrays of the host beside a device, over the host's group
// of the same ranks.
struct Way {
  Group& group;
  Stream& stream;
  Place place;  // of its arrays
};

Way way_of(mdp_comm& comm, const mdp_tensor* first, const char* argument) {
  Context& context = *comm.context;
  const Place place = context.backend->place();
  if (context.on_device()) {
    auto given = take(first, argument);  // what is wrong with it is said when it is taken in earnest
    if (given && given->device_type != static_cast<int32_t>(place.type)) {
      return {comm.object->group().control(), comm.object->channel().control(), Place{}};
    }
  }
  return {comm.object->group(), comm.object->channel().stream(), place};
}

// What is the same in all collectives. `submit` checks the operands and puts the operation on the way's stream.
template <class Submit>
mdp_status collective(mdp_comm* comm, const mdp_tensor* first, const char* argument, mdp_stream stream, mdp_request** out,
                      Submit&& submit) {
  return guard([&]() -> Status {
    if (Status status = check_request_out(out); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::usable); !status) return status;
    if (Status status = check_stream(stream, "stream", place_of(*comm)); !status) return status;
    auto request = prepare_request(out, comm->context, comm->object);
    const Way way = way_of(*comm, first, argument);
    if (Status ordered = comm->object->channel().stream().wait_for_caller(stream); !ordered) return ordered;
    if (Status status = submit(way); !status) return status;
    auto pending = comm->object->finish(way.stream, stream, out != nullptr);
    if (!pending) return pending.status();
    return give_request(std::move(request), *std::move(pending), out);
  });
}

}  // namespace

mdp_status mdp_all_reduce(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_op op, mdp_stream stream, mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto pair = take_pair(from, to, way.place);
    if (!pair) return pair.status();
    auto ours = take_op(op, pair->from.type);
    if (!ours) return ours.status();
    if (Status status = check_counts(*pair, 1, 1); !status) return status;
    if (Status status = check_overlap(pair->from, "from", pair->to, "to", 0); !status) return status;
    return way.group.all_reduce(way.stream, pair->from.data, pair->to.data, pair->to.numel, pair->to.type, *ours, Tag{-1, "all-reduce"});
  });
}

mdp_status mdp_reduce_scatter(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_op op, mdp_stream stream,
                              mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto pair = take_pair(from, to, way.place);
    if (!pair) return pair.status();
    auto ours = take_op(op, pair->from.type);
    if (!ours) return ours.status();
    const auto size = static_cast<uint64_t>(way.group.size());
    if (Status status = check_counts(*pair, size, 1); !status) return status;
    const uint64_t own = static_cast<uint64_t>(way.group.rank()) * pair->to.bytes();
    if (Status status = check_overlap(pair->to, "to", pair->from, "from", own); !status) return status;
    return way.group.reduce_scatter(way.stream, pair->from.data, pair->to.data, pair->to.numel, pair->to.type, *ours,
                                    Tag{-1, "reduce-scatter"});
  });
}

mdp_status mdp_all_gather(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_stream stream, mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto pair = take_pair(from, to, way.place);
    if (!pair) return pair.status();
    const auto size = static_cast<uint64_t>(way.group.size());
    if (Status status = check_counts(*pair, 1, size); !status) return status;
    const uint64_t own = static_cast<uint64_t>(way.group.rank()) * pair->from.bytes();
    if (Status status = check_overlap(pair->from, "from", pair->to, "to", own); !status) return status;
    return way.group.all_gather(way.stream, pair->from.data, pair->to.data, pair->from.numel, pair->from.type, Tag{-1, "all-gather"});
  });
}

mdp_status mdp_all_to_all(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_stream stream, mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto pair = take_pair(from, to, way.place);
    if (!pair) return pair.status();
    if (Status status = check_counts(*pair, 1, 1); !status) return status;
    const auto size = static_cast<uint64_t>(way.group.size());
    if (pair->from.numel % size != 0) {
      return invalid("from and to have ", pair->from.numel, " elements, which ", size, " ranks cannot share evenly");
    }
    if (Status status = check_overlap(pair->from, "from", pair->to, "to", 0); !status) return status;
    return way.group.all_to_all(way.stream, pair->from.data, pair->to.data, pair->from.numel / size, pair->from.type,
                                Tag{-1, "all-to-all"});
  });
}

mdp_status mdp_broadcast(mdp_comm* comm, const mdp_tensor* tensor, int32_t root, mdp_stream stream, mdp_request** out) {
  return collective(comm, tensor, "tensor", stream, out, [&](const Way& way) -> Status {
    auto ours = take_dense_tensor(tensor, "tensor", way.place);
    if (!ours) return ours.status();
    if (root < 0 || root >= way.group.size()) return invalid("root is ", root, "; it must be 0 to ", way.group.size() - 1);
    return way.group.broadcast(way.stream, ours->data, ours->numel, ours->type, root, Tag{-1, "broadcast"});
  });
}

mdp_status mdp_barrier(mdp_comm* comm, mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_request_out(out); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::usable); !status) return status;
    auto request = prepare_request(out, comm->context, comm->object);
    auto pending = comm->object->barrier(out != nullptr);
    if (!pending) return pending.status();
    return give_request(std::move(request), *std::move(pending), out);
  });
}
