// SPDX-License-Identifier: Apache-2.0
// Collectives between nodes of several ranks each, which first do inside a node what can be done there. Rank j of each node deals with the
// j-th ranks of the others, so that all ranks of a node use its link, and nothing crosses it twice.
//
// A sum: the ranks of a node are a subtree of the order of base/sum_order.h. For each other node, rank j adds up what its node has for that
// one's rank j, without rounding, and sends it; what it receives are such partial sums for its own piece. The tree over the nodes is that
// of the ranks above the subtrees, so the bits are those of one rank that reads all arrays.
#include <algorithm>
#include <cstring>
#include <vector>

#include "host/collective.h"
#include "host/copy_past.h"
#include "host/kernels.h"
#include "host/turns.h"

namespace megadp::host {
namespace {

// Which ranks of a group are where.
struct Nodes {
  explicit Nodes(const HostGroup& group)
      : each(group.ranks_of_node()),
        count(static_cast<size_t>(group.size()) / each),
        own(static_cast<size_t>(group.rank()) / each),
        local(static_cast<size_t>(group.rank()) % each) {}
  size_t peer(size_t node) const noexcept { return node * each + local; }    // which this rank deals with there
  size_t beside(size_t other) const noexcept { return own * each + other; }  // rank number `other` of this node
  // fn(node) for each other one, beginning with the next, so that not all send to one at a time.
  template <class Fn>
  Status for_others(const Fn& fn) const {
    for (size_t step = 1; step < count; ++step) {
      if (Status done = fn((own + step) % count); !done) return done;
    }
    return {};
  }

  const size_t each, count, own, local;
};

DType type_of_sums(const Operation& op) {
  return op.type == DType::f64 ? DType::f64 : DType::f32;
}

// What the ranks of a node make of n elements: a sum that is neither divided nor rounded.
Status add_up_partly(const Call& call, std::byte* to, const std::vector<const void*>& from, size_t n) {
  const DType type = call.operation.type;
  const auto ways = static_cast<int>(from.size());
  if (type == DType::f64) return reduce(to, from.data(), ways, n, type, Op::sum, 1, call.executor());
  return sum_in_f32(reinterpret_cast<float*>(to), from.data(), ways, n, type, 1, call.executor());
}

// What becomes of the nodes' sums; the own one may be overwritten.
Status finish_sums(const Call& call, std::byte* to, const std::vector<const void*>& of_nodes, std::byte* own, size_t n) {
  const Operation& op = call.operation;
  const double divisor =
      op.op == Op::avg ? static_cast<double>(call.size()) * static_cast<double>(op.divisor) : static_cast<double>(op.divisor);
  const bool is_rounded = op.type != type_of_sums(op) && !call.arguments.to_f32;
  std::byte* const sum = is_rounded ? own : to;
  Status added = reduce(sum, of_nodes.data(), static_cast<int>(of_nodes.size()), n, type_of_sums(op), Op::sum, divisor, call.executor());
  return added.ok() && is_rounded ? cast(to, op.type, sum, DType::f32, n, call.executor()) : added;
}

}  // namespace

bool can_add_by_node(const Call& call) noexcept {
  const Operation& op = call.operation;
  return (op.op == Op::sum || op.op == Op::avg) && op.type != DType::i64 && op.type != DType::u8;
}

// In the private memory that stands for a peer's half lie, at the place of its piece, the sum for it, and at the place of this rank's piece
// the one that comes from it. This node's own sum lies there too, with the first peer, at a place that these two leave alone.
Status reduce_scatter_by_node(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const Operation& op = call.operation;
  const Nodes nodes(call.group);
  const auto me = static_cast<size_t>(call.rank()), size = static_cast<size_t>(call.size());
  const size_t sum_width = size_of(type_of_sums(op));
  const Slices slices(sum_width, count * size, size);
  const auto place = [&](size_t rank) { return slices.place(count * rank, rank); };
  const auto own_array = [&](size_t rank, uint64_t turn) { return from + (count * rank + slices.of(count, turn).begin) * call.width(); };
  const size_t first_peer = nodes.peer(nodes.own == 0 ? 1 : 0), unused = place(nodes.beside((nodes.local + 1) % nodes.each));

  const auto put = [&](std::byte* half, uint64_t turn) {
    const size_t bytes = slices.of(count, turn).count() * call.width();
    for (size_t rank = 0; rank < size; ++rank) {
      if (rank % nodes.each != nodes.local) copy_past_caches(half + place(rank), own_array(rank, turn), bytes, call.executor());
    }
  };
  // Of this node's arrays, for one rank.
  const auto add_here = [&](const std::vector<std::byte*>& staging, std::byte* sum, size_t rank, uint64_t turn) {
    std::vector<const void*>& arrays = call.group.pointers();
    arrays.clear();
    for (size_t other = 0; other < nodes.each; ++other) {
      arrays.push_back(other == nodes.local ? own_array(rank, turn) : staging[nodes.beside(other)] + place(rank));
    }
    return add_up_partly(call, sum, arrays, slices.of(count, turn).count());
  };
  const auto post = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const size_t bytes = slices.of(count, turn).count() * sum_width;
    if (Status met = call.barrier(); !met || bytes == 0) return met;
    Status posted = nodes.for_others([&](size_t node) {
      const size_t peer = nodes.peer(node);
      Status added = add_here(staging, staging[peer] + place(peer), peer, turn);
      return added.ok() ? call.group.post(peer, staging[peer] + place(peer), bytes, staging[peer] + place(me), bytes) : added;
    });
    return posted.ok() ? add_here(staging, staging[first_peer] + unused, me, turn) : posted;
  };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const Slices::Range range = slices.of(count, turn);
    if (range.count() == 0) return {};
    std::byte* const own_sum = staging[first_peer] + unused;
    std::vector<const void*>& sums = call.group.pointers();
    sums.clear();
    for (size_t node = 0; node < nodes.count; ++node) {
      sums.push_back(node == nodes.own ? own_sum : staging[nodes.peer(node)] + place(me));
    }
    return finish_sums(call, to + range.begin * call.sum_width(), sums, own_sum, range.count());
  };
  return in_turns(call, slices, put, post, take);
}

// A rank's half has a place for each node: for its own piece, and for those of its peers, which its neighbours read there.
Status all_gather_by_node(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const Nodes nodes(call.group);
  const auto me = static_cast<size_t>(call.rank());
  const Slices slices(call.width(), count * nodes.count, nodes.count);
  const auto place = [&](size_t node) { return slices.place(count * node, node); };
  const auto bytes_of = [&](uint64_t turn) { return slices.of(count, turn).count() * call.width(); };
  const auto put = [&](std::byte* half, uint64_t turn) {
    copy_past_caches(half + place(nodes.own), from + slices.of(count, turn).begin * call.width(), bytes_of(turn), call.executor());
  };
  const auto post = [&](const std::vector<std::byte*>& staging, uint64_t turn) {
    std::byte* const half = staging[me];
    return nodes.for_others([&](size_t node) {
      return call.group.post(nodes.peer(node), half + place(nodes.own), bytes_of(turn), half + place(node), bytes_of(turn));
    });
  };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    if (bytes_of(turn) == 0) return {};
    for (size_t rank = 0; rank < static_cast<size_t>(call.size()); ++rank) {
      const uint64_t begin = slices.of(count, turn).begin;
      std::byte* const out = to + (count * rank + begin) * call.width();
      if (rank == me && out == from + begin * call.width()) continue;
      std::memcpy(out, staging[nodes.beside(rank % nodes.each)] + place(rank / nodes.each), bytes_of(turn));
    }
    return {};
  };
  return in_turns(call, slices, put, post, take);
}

// A chain, so that the root's link carries the data once however many nodes there are. A node has a slice a turn after the one before it.
Status broadcast_along_nodes(const Call& call, std::byte* data, size_t bytes, int root) {
  const auto me = static_cast<size_t>(call.rank());
  const bool is_root = call.rank() == root;
  const std::vector<int> carriers = call.group.carriers_from(root);
  const auto source = static_cast<size_t>(call.group.source_of_broadcast(root));
  const auto place = static_cast<size_t>(std::find(carriers.begin(), carriers.end(), static_cast<int>(source)) - carriers.begin());
  const Slices slices(1, bytes, 1);
  const uint64_t behind = place > 0 ? place - 1 : 0;
  // Which slice this node gets in a turn; an empty one, if none.
  const auto slice = [&](uint64_t turn) {
    return turn >= behind && turn - behind < slices.turns() ? slices.of(bytes, turn - behind) : Slices::Range{bytes, bytes};
  };
  const auto put = [&](std::byte* half, uint64_t turn) {
    if (is_root) copy_past_caches(half, data + slice(turn).begin, slice(turn).count(), call.executor());
  };
  const std::byte* before = nullptr;  // this rank's half of the last turn
  const auto post = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    std::byte* const half = staging[me];
    Status posted;
    if (me == source && !is_root) posted = call.group.post(static_cast<size_t>(carriers[place - 1]), nullptr, 0, half, slice(turn).count());
    if (posted.ok() && me == source && place + 1 < carriers.size()) {
      const std::byte* const out = is_root ? half : before;
      const uint64_t sent = is_root ? slice(turn).count() : turn > 0 ? slice(turn - 1).count() : 0;
      posted = call.group.post(static_cast<size_t>(carriers[place + 1]), out, sent, nullptr, 0);
    }
    before = half;
    return posted;
  };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const Slices::Range range = slice(turn);
    if (!is_root && range.count() > 0) std::memcpy(data + range.begin, staging[source], range.count());
    return {};
  };
  return in_turns(call, slices, put, post, take, carriers.size() - 2);
}

}  // namespace megadp::host
