// SPDX-License-Identifier: Apache-2.0
// Collectives on any memory of this rank, cut into turns through the group's staging memory (see host/collective.h).
//
// Results may overlap the input in the ways backend/group.h allows: a turn writes results only after its inputs were copied, and only to
// places that hold inputs of this turn or of earlier ones.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/checked.h"
#include "host/collective.h"
#include "host/kernels.h"
#include "host/turns.h"

namespace megadp::host {
namespace {

// Inside a node, from here on and with more than two ranks, they share out the sums of a turn, at the price of a second barrier.
constexpr size_t kSharedSumBytes = 32 << 10;
// Between nodes, from here on, a sum crosses the network in two steps, in pieces, and not every rank's array to every other rank.
constexpr size_t kSentWholeBytes = 4 << 10;

// An array of one piece for each rank, one after another.
class Pieces {
 public:
  Pieces(size_t size, uint64_t each) : size_(size), each_(each) {}
  // `counts` outlives it.
  explicit Pieces(const Counts& counts) : size_(counts.size()), counts_(&counts), begins_(counts.size() + 1) {
    std::partial_sum(counts.begin(), counts.end(), begins_.begin() + 1);
  }
  size_t size() const noexcept { return size_; }
  uint64_t count(size_t rank) const noexcept { return counts_ == nullptr ? each_ : (*counts_)[rank]; }
  uint64_t begin(size_t rank) const noexcept { return counts_ == nullptr ? each_ * rank : begins_[rank]; }
  uint64_t total() const noexcept { return begin(size_); }
  uint64_t most() const noexcept { return counts_ == nullptr ? each_ : *std::max_element(counts_->begin(), counts_->end()); }

 private:
  size_t size_;
  uint64_t each_ = 0;               // if all are of one size
  const Counts* counts_ = nullptr;  // otherwise
  std::vector<uint64_t> begins_;    // likewise
};

Pieces even(const Call& call, uint64_t count) {
  return {static_cast<size_t>(call.size()), count};
}

// own: where this rank reads its own elements, in its own array: a copy of them in its half, if there is one, may be in no cache.
std::vector<const void*>& sources(const Call& call, const std::vector<std::byte*>& staging, size_t offset_bytes, const std::byte* own) {
  std::vector<const void*>& from = call.group.pointers();
  from.clear();
  for (const std::byte* half : staging) from.push_back(half + offset_bytes);
  from[static_cast<size_t>(call.rank())] = own;
  return from;
}

// A slice of every piece goes to the rank that the piece is for; `in` says where this rank's own lies in the half of each rank, and how
// long it is. What it has for itself `take` takes from its own array.
template <class In, class Take>
Status scatter_in_turns(const Call& call, const Slices& slices, const std::byte* from, const Pieces& pieces, const In& in,
                        const Take& take) {
  const auto out = [&](size_t rank, uint64_t turn) {
    return Part{slices.place(pieces.begin(rank), rank), slices.of(pieces.count(rank), turn).count() * slices.width()};
  };
  const auto put = [&](std::byte* half, uint64_t turn) {
    for (size_t rank = 0; rank < pieces.size(); ++rank) {
      if (rank == static_cast<size_t>(call.rank())) continue;
      const Part part = out(rank, turn);
      const uint64_t begin = pieces.begin(rank) + slices.of(pieces.count(rank), turn).begin;
      fill(call, half + part.offset, from + begin * slices.width(), part.bytes);
    }
  };
  const auto post = [&](const std::vector<std::byte*>& staging, uint64_t turn) {
    return call.group.post_parts(
        staging, [&](size_t rank) { return out(rank, turn); }, [&](size_t rank) { return in(rank, turn); });
  };
  return in_turns(call, slices, put, post, take);
}

// Every rank gets every array, which is one step: for what is small, and for what all ranks of one node read in place.
Status all_reduce_whole(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const Operation& op = call.operation;
  const Slices slices(call.width(), count, 1);
  const auto bytes_of = [&](uint64_t turn) { return slices.of(count, turn).count() * call.width(); };
  const auto put = [&](std::byte* half, uint64_t turn) {
    fill(call, half, from + slices.of(count, turn).begin * call.width(), bytes_of(turn));
  };
  const auto post = [&](const std::vector<std::byte*>& staging, uint64_t turn) {
    const auto whole = [&](size_t) { return Part{0, bytes_of(turn)}; };
    return call.group.post_parts(staging, whole, whole);
  };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const Slices::Range range = slices.of(count, turn);
    const size_t n = range.count();
    if (n == 0) return {};
    const size_t at = range.begin * call.width();
    return reduce(to + at, sources(call, staging, 0, from + at).data(), call.size(), n, op.type, op.op, op.divisor, call.executor());
  };
  return in_turns(call, slices, put, post, take);
}

// Inside a node: in each turn every rank adds up its part, and hands it to the others.
Status all_reduce_in_parts(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const Operation& op = call.operation;
  const auto me = static_cast<size_t>(call.rank()), size = static_cast<size_t>(call.size());
  const Slices slices(call.width(), count, 1);
  // In bytes, of a half; and where the turn begins in the array.
  const auto part = [&](size_t rank, uint64_t turn) {
    const uint64_t n = slices.of(count, turn).count(), step = round_up(quotient_up(n, size), kPartElements);
    const uint64_t begin = std::min(n, step * rank);
    return Part{begin * call.width(), (std::min(n, begin + step) - begin) * call.width()};
  };
  const auto place = [&](uint64_t turn) { return slices.of(count, turn).begin * call.width(); };
  const auto put = [&](std::byte* half, uint64_t turn) {
    for (size_t rank = 0; rank < size; ++rank) {
      const auto [offset, bytes] = part(rank, turn);
      if (rank != me) fill(call, half + offset, from + place(turn) + offset, bytes);
    }
  };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const auto [own, own_bytes] = part(me, turn);
    std::byte* const sum = to + place(turn) + own;
    if (own_bytes > 0) {
      const std::vector<const void*>& parts = sources(call, staging, own, from + place(turn) + own);
      Status added = reduce(sum, parts.data(), call.size(), own_bytes / call.width(), op.type, op.op, op.divisor, call.executor());
      if (!added.ok()) return added;
      fill(call, staging[me] + own, sum, own_bytes);
    }
    if (Status met = call.barrier(); !met) return met;
    for (size_t rank = 0; rank < size; ++rank) {
      const auto [offset, bytes] = part(rank, turn);
      if (rank != me) copy_bytes(to + place(turn) + offset, staging[rank] + offset, bytes, call.executor(), count * call.width());
    }
    return {};
  };
  return in_turns(
      call, slices, put, [](const std::vector<std::byte*>&, uint64_t) { return Status(); }, take);
}

// before(r): elements in front of this rank's piece at rank r; `most` of them has any rank.
template <class Before>
Status exchange_pieces(const Call& call, const std::byte* from, const Pieces& out, std::byte* to, const Pieces& expected,
                       const Before& before, uint64_t most, size_t width) {
  const Slices slices(width, most, out.size());
  const auto me = static_cast<size_t>(call.rank());
  const auto in = [&](size_t rank, uint64_t turn) {
    return Part{slices.place(before(rank), me), slices.of(expected.count(rank), turn).count() * width};
  };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    for (size_t rank = 0; rank < staging.size(); ++rank) {
      const Part part = in(rank, turn);
      const uint64_t begin = slices.of(expected.count(rank), turn).begin;
      const std::byte* const come = rank == me ? from + (out.begin(me) + begin) * width : staging[rank] + part.offset;
      copy_bytes(to + (expected.begin(rank) + begin) * width, come, part.bytes, call.executor(), expected.total() * width);
    }
    return {};
  };
  return scatter_in_turns(call, slices, from, out, in, take);
}

Status reduce_scatter(const Call& call, const std::byte* from, std::byte* to, const Pieces& pieces) {
  const auto me = static_cast<size_t>(call.rank());
  const Slices slices(call.width(), pieces.total(), pieces.size());
  const size_t place = slices.place(pieces.begin(me), me);  // the same in every half
  const auto in = [&](size_t, uint64_t turn) { return Part{place, slices.of(pieces.count(me), turn).count() * call.width()}; };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const Slices::Range range = slices.of(pieces.count(me), turn);
    if (range.count() == 0) return {};
    const std::byte* const own = from + (pieces.begin(me) + range.begin) * call.width();
    return add_up(call, to + range.begin * call.sum_width(), sources(call, staging, place, own), range.count());
  };
  return scatter_in_turns(call, slices, from, pieces, in, take);
}

Status all_gather(const Call& call, const std::byte* from, std::byte* to, const Pieces& pieces) {
  const size_t width = call.width();
  const Slices slices(width, pieces.most(), 1);
  const auto me = static_cast<size_t>(call.rank());
  const auto part = [&](size_t rank, uint64_t turn) { return Part{0, slices.of(pieces.count(rank), turn).count() * width}; };
  const auto put = [&](std::byte* half, uint64_t turn) {
    fill(call, half, from + slices.of(pieces.count(me), turn).begin * width, part(me, turn).bytes);
  };
  const auto post = [&](const std::vector<std::byte*>& staging, uint64_t turn) {
    return call.group.post_parts(
        staging, [&](size_t) { return part(me, turn); }, [&](size_t rank) { return part(rank, turn); });
  };
  // The own slice first: with pieces of one size `to` may be where `from` is, and then what comes from rank 0 overwrites it.
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const auto copy_from = [&](size_t rank, const std::byte* come) {
      const uint64_t begin = pieces.begin(rank) + slices.of(pieces.count(rank), turn).begin;
      copy_bytes(to + begin * width, come, part(rank, turn).bytes, call.executor(), pieces.total() * width);
    };
    copy_from(me, from + slices.of(pieces.count(me), turn).begin * width);
    for (size_t rank = 0; rank < staging.size(); ++rank) {
      if (rank != me) copy_from(rank, staging[rank]);
    }
    return {};
  };
  return in_turns(call, slices, put, post, take);
}

// `sender` sends `sent` elements to `receiver`, which expects another number; ranks of the group.
Status counts_differ(const Call& call, size_t sender, uint64_t sent, size_t receiver, uint64_t expected) {
  const std::vector<int>& members = call.group.members();
  return {Code::desync,
          text("rank ", members[sender], " sends ", sent, " elements to rank ", members[receiver], " (from_counts[", receiver,
               "]), which expects ", expected, " (to_counts[", sender, "])"),
          Blame{.rank = members[receiver]}};
}

}  // namespace

// The sums are those of reduce_scatter, whose order is the same. What the ranks cannot share out evenly, fewer elements than ranks, goes
// the short way.
Status staged_all_reduce(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const size_t bytes = count * call.width();
  if (!call.group.spans_nodes()) {
    return call.size() > 2 && bytes >= kSharedSumBytes ? all_reduce_in_parts(call, from, to, count)
                                                       : all_reduce_whole(call, from, to, count);
  }
  if (bytes <= kSentWholeBytes) return all_reduce_whole(call, from, to, count);
  const auto size = static_cast<size_t>(call.size());
  const size_t piece = count / size, even = piece * size * call.width();
  std::byte* const mine = to + piece * static_cast<size_t>(call.rank()) * call.width();
  Status status = piece == 0 ? Status() : staged_reduce_scatter(call, from, mine, piece);
  if (status.ok() && piece > 0) status = staged_all_gather(call, mine, to, piece);
  if (!status.ok() || count % size == 0) return status;
  return all_reduce_whole(call, from + even, to + even, count % size);
}

Status staged_reduce_scatter(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  if (call.group.ranks_of_node() != 0 && can_add_by_node(call)) return reduce_scatter_by_node(call, from, to, count);
  return reduce_scatter(call, from, to, even(call, count));
}

Status staged_reduce_scatter(const Call& call, const std::byte* from, std::byte* to, const Counts& counts) {
  return reduce_scatter(call, from, to, Pieces(counts));
}

Status staged_all_gather(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  if (call.group.ranks_of_node() != 0) return all_gather_by_node(call, from, to, count);
  return all_gather(call, from, to, even(call, count));
}

Status staged_all_gather(const Call& call, const std::byte* from, std::byte* to, const Counts& counts) {
  return all_gather(call, from, to, Pieces(counts));
}

Status staged_all_to_all(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const Pieces pieces = even(call, count);
  const uint64_t before = pieces.begin(static_cast<size_t>(call.rank()));
  return exchange_pieces(
      call, from, pieces, to, pieces, [before](size_t) { return before; }, pieces.total(), call.width());
}

// First every two ranks tell each other what they mean to send and expect.
Status staged_all_to_all(const Call& call, const std::byte* from, const Counts& from_counts, std::byte* to, const Counts& to_counts) {
  struct Said {
    uint64_t sends, expects, before, total;
  };
  const size_t size = from_counts.size();
  const auto me = static_cast<size_t>(call.rank());
  const Pieces out(from_counts), expected(to_counts), once = even(call, 1);
  std::vector<Said> mine, theirs(size);
  for (size_t rank = 0; rank < size; ++rank) mine.push_back({from_counts[rank], to_counts[rank], out.begin(rank), out.total()});
  Status told = exchange_pieces(
      call, reinterpret_cast<const std::byte*>(mine.data()), once, reinterpret_cast<std::byte*>(theirs.data()), once,
      [me](size_t) { return me; }, size, sizeof(Said));
  if (!told.ok()) return told;
  uint64_t most = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    const Said& other = theirs[rank];
    if (other.sends != to_counts[rank]) return counts_differ(call, rank, other.sends, me, to_counts[rank]);
    if (other.expects != from_counts[rank]) return counts_differ(call, me, from_counts[rank], rank, other.expects);
    most = std::max(most, other.total);
  }
  return exchange_pieces(
      call, from, out, to, expected, [&](size_t rank) { return theirs[rank].before; }, most, call.width());
}

// Everyone compares with rank 0.
Status compare_counts(const Call& call, const Counts& counts) {
  Counts first = counts;
  Status told = staged_broadcast(call, reinterpret_cast<std::byte*>(first.data()), first.size() * sizeof first[0], 0);
  if (!told.ok()) return told;
  const auto differ = std::mismatch(first.begin(), first.end(), counts.begin());
  if (differ.first == first.end()) return {};
  const std::vector<int>& members = call.group.members();
  const int rank = members[static_cast<size_t>(call.rank())];
  return {Code::desync,
          text("ranks ", members[0], " and ", rank, " gave different counts: counts[", differ.first - first.begin(), "] is ", *differ.first,
               " and ", *differ.second, "; the list is the same on all ranks"),
          Blame{.rank = rank}};
}

// Once to each other node, into the half of the rank there that its neighbours read.
Status staged_broadcast(const Call& call, std::byte* data, size_t bytes, int root) {
  const auto source = static_cast<size_t>(call.group.source_of_broadcast(root));
  const bool is_root = call.rank() == root;
  const Slices slices(1, bytes, 1);
  if (call.group.nodes() > 2 && slices.turns() > call.group.nodes()) return broadcast_along_nodes(call, data, bytes, root);
  const auto put = [&](std::byte* half, uint64_t turn) {
    const Slices::Range range = slices.of(bytes, turn);
    if (is_root) fill(call, half, data + range.begin, range.count());
  };
  const auto post = [&](const std::vector<std::byte*>& staging, uint64_t turn) {
    return call.group.post_from_root(root, staging, slices.of(bytes, turn).count());
  };
  const auto take = [&](const std::vector<std::byte*>& staging, uint64_t turn) -> Status {
    const Slices::Range range = slices.of(bytes, turn);
    if (!is_root) copy_bytes(data + range.begin, staging[source], range.count(), call.executor());
    return {};
  };
  return in_turns(call, slices, put, post, take);
}

}  // namespace megadp::host
