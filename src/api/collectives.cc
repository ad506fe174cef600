// SPDX-License-Identifier: Apache-2.0
// Collectives on arrays of the caller.
#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"
#include "base/checked.h"

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
  DenseArray from, to;
};

Result<Pair> take_pair(const mdp_tensor* from, const mdp_tensor* to, const Place& place) {
  auto ours_from = take_dense(from, "from", place);
  if (!ours_from) return ours_from.status();
  if (to == from) return Pair{*ours_from, *ours_from};
  auto ours_to = take_dense(to, "to", place);
  if (!ours_to) return ours_to.status();
  if (ours_from->type != ours_to->type) {
    return invalid("from.dtype is ", name_of(ours_from->type), " and to.dtype is ", name_of(ours_to->type), "; they must be equal");
  }
  return Pair{*ours_from, *ours_to};
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
Status check_overlap(const DenseArray& inner, const char* inner_name, const DenseArray& outer, const char* outer_name, uint64_t in_place) {
  if (inner.numel == 0 || outer.numel == 0) return {};
  const auto inner_at = reinterpret_cast<uintptr_t>(inner.data), outer_at = reinterpret_cast<uintptr_t>(outer.data);
  if (inner_at + inner.bytes() <= outer_at || outer_at + outer.bytes() <= inner_at || inner_at == outer_at + in_place) return {};
  return invalid(inner_name, ".data and ", outer_name, ".data overlap; they must be apart, or ", inner_name, ".data must be ", in_place,
                 " bytes into ", outer_name, ".data (in place)");
}

Status check_apart(const void* from, uint64_t from_bytes, const void* to, uint64_t to_bytes) {
  const auto from_at = reinterpret_cast<uintptr_t>(from), to_at = reinterpret_cast<uintptr_t>(to);
  if (from_bytes == 0 || to_bytes == 0 || from_at + from_bytes <= to_at || to_at + to_bytes <= from_at) return {};
  return invalid("from.data and to.data overlap; they must be apart");
}

struct List {
  Counts counts;
  uint64_t sum = 0;
  uint64_t before = 0;  // in front of this rank's piece
};

Result<List> take_counts(const uint64_t* counts, const char* argument, const Group& group) {
  if (Status status = check_pointer(counts, argument, alignof(uint64_t)); !status) return status;
  List list;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) list.before = list.sum;
    if (!checked_add(list.sum, counts[rank], &list.sum)) {
      return invalid(argument, "[", rank, "] is ", counts[rank], "; the sum of ", argument, " up to there is beyond 64 bits");
    }
    list.counts.push_back(counts[rank]);
  }
  return list;
}

Status check_sum(const DenseArray& tensor, const char* name, const List& list, const char* argument) {
  if (tensor.numel == list.sum) return {};
  return invalid(name, " has ", tensor.numel, " elements; it must have ", list.sum, ", the sum of ", argument);
}

// The piece of this rank.
Status check_own(const DenseArray& tensor, const char* name, const List& list, const Group& group) {
  const uint64_t count = list.counts[static_cast<size_t>(group.rank())];
  if (tensor.numel == count) return {};
  return invalid(name, " has ", tensor.numel, " elements; it must have ", count, ", which is counts[", group.rank(), "]");
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

Result<Message> take_message(const mdp_tensor* tensor, const char* name, int32_t rank, const char* argument, const Way& way,
                             const char* or_else = "") {
  if (rank < 0 || rank >= way.group.size()) return invalid(argument, " is ", rank, "; it must be 0 to ", way.group.size() - 1, or_else);
  auto ours = take_dense(tensor, name, way.place);
  if (!ours) return ours.status();
  return Message{rank, ours->data, ours->numel, ours->type};
}

Status check_not_self(int32_t rank, const char* call, const Group& group) {
  if (rank != group.rank()) return {};
  return invalid("rank is ", rank, ", which is this rank itself; ", call,
                 " takes another one, and mdp_send_recv with this rank on both sides copies");
}

// What is the same in all collectives. `submit` checks the operands and puts the operation on the way's stream.
template <class Submit>
mdp_status collective(mdp_comm* comm, const mdp_tensor* first, const char* argument, mdp_stream stream, mdp_request** out, Submit&& submit,
                      const char* call = __builtin_FUNCTION()) {
  return guard(
      [&]() -> Status {
        if (Status status = check_request_out(out); !status) return status;
        if (Status status = check_handle(comm, "comm", Need::all_ranks); !status) return status;
        if (Status status = check_stream(stream, "stream", place_of(*comm)); !status) return status;
        auto request = prepare_request(out, comm->context, comm->object);
        const Way way = way_of(*comm, first, argument);
        if (Status ordered = comm->object->channel().stream().wait_for_caller(stream); !ordered) return ordered;
        const CallerWaits here(way.stream, out == nullptr);
        if (Status status = submit(way); !status) return status;
        auto pending = comm->object->finish(way.stream, stream, out != nullptr);
        if (!pending) return pending.status();
        return give_request(std::move(request), *std::move(pending), out);
      },
      call);
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
    auto ours = take_dense(tensor, "tensor", way.place);
    if (!ours) return ours.status();
    if (root < 0 || root >= way.group.size()) return invalid("root is ", root, "; it must be 0 to ", way.group.size() - 1);
    return way.group.broadcast(way.stream, ours->data, ours->numel, ours->type, root, Tag{-1, "broadcast"});
  });
}

mdp_status mdp_barrier(mdp_comm* comm, mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_request_out(out); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::all_ranks); !status) return status;
    auto request = prepare_request(out, comm->context, comm->object);
    auto pending = comm->object->barrier(out != nullptr);
    if (!pending) return pending.status();
    return give_request(std::move(request), *std::move(pending), out);
  });
}

// ── pieces of different sizes ──

mdp_status mdp_reduce_scatter_v(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, const uint64_t* counts, mdp_op op,
                                mdp_stream stream, mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto pair = take_pair(from, to, way.place);
    if (!pair) return pair.status();
    auto ours = take_op(op, pair->from.type);
    if (!ours) return ours.status();
    auto list = take_counts(counts, "counts", way.group);
    if (!list) return list.status();
    if (Status status = check_sum(pair->from, "from", *list, "counts"); !status) return status;
    if (Status status = check_own(pair->to, "to", *list, way.group); !status) return status;
    const uint64_t own = list->before * size_of(pair->to.type);
    if (Status status = check_overlap(pair->to, "to", pair->from, "from", own); !status) return status;
    return way.group.reduce_scatter_v(way.stream, pair->from.data, pair->to.data, list->counts, pair->to.type, *ours,
                                      Tag{-1, "reduce-scatter-v"});
  });
}

mdp_status mdp_all_gather_v(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, const uint64_t* counts, mdp_stream stream,
                            mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto pair = take_pair(from, to, way.place);
    if (!pair) return pair.status();
    auto list = take_counts(counts, "counts", way.group);
    if (!list) return list.status();
    if (Status status = check_own(pair->from, "from", *list, way.group); !status) return status;
    if (Status status = check_sum(pair->to, "to", *list, "counts"); !status) return status;
    const uint64_t own = list->before * size_of(pair->from.type);
    if (Status status = check_overlap(pair->from, "from", pair->to, "to", own); !status) return status;
    return way.group.all_gather_v(way.stream, pair->from.data, pair->to.data, list->counts, pair->from.type, Tag{-1, "all-gather-v"});
  });
}

mdp_status mdp_all_to_all_v(mdp_comm* comm, const mdp_tensor* from, const uint64_t* from_counts, const mdp_tensor* to,
                            const uint64_t* to_counts, mdp_stream stream, mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto pair = take_pair(from, to, way.place);
    if (!pair) return pair.status();
    auto sent = take_counts(from_counts, "from_counts", way.group);
    if (!sent) return sent.status();
    auto expected = take_counts(to_counts, "to_counts", way.group);
    if (!expected) return expected.status();
    if (Status status = check_sum(pair->from, "from", *sent, "from_counts"); !status) return status;
    if (Status status = check_sum(pair->to, "to", *expected, "to_counts"); !status) return status;
    const auto me = static_cast<size_t>(way.group.rank());
    if (sent->counts[me] != expected->counts[me]) {
      return invalid("from_counts[", me, "] is ", sent->counts[me], " and to_counts[", me, "] is ", expected->counts[me],
                     "; what a rank sends to itself it receives");
    }
    if (Status status = check_apart(pair->from.data, pair->from.bytes(), pair->to.data, pair->to.bytes()); !status) return status;
    return way.group.all_to_all_v(way.stream, pair->from.data, sent->counts, pair->to.data, expected->counts, pair->from.type,
                                  Tag{-1, "all-to-all-v"});
  });
}

// ── between two ranks ──

mdp_status mdp_send(mdp_comm* comm, const mdp_tensor* from, int32_t rank, mdp_stream stream, mdp_request** out) {
  return collective(comm, from, "from", stream, out, [&](const Way& way) -> Status {
    auto message = take_message(from, "from", rank, "rank", way);
    if (!message) return message.status();
    if (Status status = check_not_self(rank, "mdp_send", way.group); !status) return status;
    return way.group.send_recv(way.stream, *message, {});
  });
}

mdp_status mdp_recv(mdp_comm* comm, const mdp_tensor* to, int32_t rank, mdp_stream stream, mdp_request** out) {
  return collective(comm, to, "to", stream, out, [&](const Way& way) -> Status {
    auto message = take_message(to, "to", rank, "rank", way);
    if (!message) return message.status();
    if (Status status = check_not_self(rank, "mdp_recv", way.group); !status) return status;
    return way.group.send_recv(way.stream, {}, *message);
  });
}

mdp_status mdp_send_recv(mdp_comm* comm, const mdp_tensor* from, int32_t to_rank, const mdp_tensor* to, int32_t from_rank,
                         mdp_stream stream, mdp_request** out) {
  constexpr const char* kLeftOut = ", or -1 to leave it out";
  const bool sends = to_rank != -1, receives = from_rank != -1;
  return collective(comm, sends ? from : to, sends ? "from" : "to", stream, out, [&](const Way& way) -> Status {
    auto sent = sends ? take_message(from, "from", to_rank, "to_rank", way, kLeftOut) : Result<Message>(Message{});
    if (!sent) return sent.status();
    auto received = receives ? take_message(to, "to", from_rank, "from_rank", way, kLeftOut) : Result<Message>(Message{});
    if (!received) return received.status();
    const int me = way.group.rank();
    if ((to_rank == me) != (from_rank == me)) {
      return invalid("to_rank is ", to_rank, " and from_rank is ", from_rank, ", and this is rank ", me,
                     ": with itself a rank exchanges on both sides or not at all");
    }
    if (to_rank == me && (sent->count != received->count || sent->type != received->type)) {
      return invalid("from has ", sent->count, " ", name_of(sent->type), " and to has ", received->count, " ", name_of(received->type),
                     "; a copy of this rank's own takes equal ones");
    }
    const size_t sent_bytes = sent->count * size_of(sent->type), received_bytes = received->count * size_of(received->type);
    if (Status status = check_apart(sent->data, sent_bytes, received->data, received_bytes); !status) return status;
    return way.group.send_recv(way.stream, *sent, *received);
  });
}
