// SPDX-License-Identifier: Apache-2.0
#include "core/tp_collectives.h"

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "base/shape.h"
#include "control/agreement.h"

namespace megadp {
namespace {

// Elements of a part: all that lies in one index of the dimension, times so many.
Counts counts_of(const StridedArray& whole, const DimCut& cut) {
  const uint64_t all = cut.whole();
  const uint64_t in_one = all == 0 ? 0 : elements_of(whole.shape) / all;
  Counts counts = cut.parts;
  for (uint64_t& count : counts) count *= in_one;
  return counts;
}

// Parts lie one after another in the array's own memory.
bool is_in_pieces(const StridedArray& array, const DimCut& cut) {
  const auto outer = array.shape.begin() + static_cast<std::ptrdiff_t>(cut.dim);
  return is_dense(array) && std::all_of(array.shape.begin(), outer, [](int64_t size) { return size == 1; });
}

bool all_equal(const Counts& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

}  // namespace

uint64_t DimCut::whole() const {
  return std::accumulate(parts.begin(), parts.end(), uint64_t{0});
}

uint64_t DimCut::before(size_t rank) const {
  return std::accumulate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(rank), uint64_t{0});
}

bool DimCut::is_even() const {
  return all_equal(parts);
}

StridedArray slice_of(const StridedArray& array, size_t dim, uint64_t begin, uint64_t count) {
  StridedArray slice = array;
  const int64_t offset = static_cast<int64_t>(begin) * array.strides[dim] * static_cast<int64_t>(size_of(array.type));
  if (slice.data != nullptr) slice.data = static_cast<std::byte*>(array.data) + offset;
  slice.shape[dim] = static_cast<int64_t>(count);
  return slice;
}

StridedArray part_of(const StridedArray& array, const DimCut& cut, size_t rank) {
  return slice_of(array, cut.dim, cut.before(rank), cut.parts[rank]);
}

StridedArray dense_array(void* data, DType type, const std::vector<int64_t>& shape) {
  return {data, type, shape, dense_strides(shape)};
}

bool is_dense(const StridedArray& array) {
  const std::vector<int64_t> dense = dense_strides(array.shape);
  if (elements_of(array.shape) == 0) return true;
  for (size_t d = 0; d < dense.size(); ++d) {
    if (array.shape[d] != 1 && array.strides[d] != dense[d]) return false;
  }
  return true;
}

Status TpCollectives::enter() {
  if (!comm_.context().on_device()) return {};
  auto before = stream().record();
  if (!before) return before.status();
  return stream().make_caller_wait(caller_, **before);
}

Result<std::byte*> TpCollectives::take(ScratchPiece piece, const StridedArray& for_array) {
  auto memory = comm_.scratch().take(comm_, piece, elements_of(for_array.shape) * size_of(for_array.type));
  if (!memory) return memory.status();
  return static_cast<std::byte*>(*memory);
}

Status TpCollectives::submit_all_reduce(void* to, const void* from, uint64_t count, DType type) {
  return comm_.group().all_reduce(stream(), from, to, count, type, Op::sum, tag_);
}

Status TpCollectives::submit_gather(void* to, const void* from, const Counts& counts, DType type) {
  if (all_equal(counts)) return comm_.group().all_gather(stream(), from, to, counts.front(), type, tag_);
  return comm_.group().all_gather_v(stream(), from, to, counts, type, tag_);
}

Status TpCollectives::submit_reduce_scatter(void* to, const void* from, const Counts& counts, DType type) {
  if (all_equal(counts)) return comm_.group().reduce_scatter(stream(), from, to, counts.front(), type, Op::sum, tag_);
  return comm_.group().reduce_scatter_v(stream(), from, to, counts, type, Op::sum, tag_);
}

Status TpCollectives::end() {
  auto finished = comm_.finish(stream(), caller_, false);
  return finished ? Status() : finished.status();
}

Status TpCollectives::all_reduce(const StridedArray& to, const StridedArray& from) {
  if (size() == 1) return copy(to, from);
  const bool direct_from = is_dense(from), direct_to = is_dense(to);
  StridedArray summed = to;
  if (!direct_to) {
    auto memory = take(ScratchPiece::sent, to);
    if (!memory) return memory.status();
    summed = dense_array(*memory, to.type, to.shape);
  }
  if (!direct_from) {
    if (Status packed = copy(summed, from); !packed) return packed;
  }
  const CallerWaits here(stream(), true);
  if (Status begun = begin(); !begun) return begun;
  const void* const added = direct_from ? from.data : summed.data;
  if (Status submitted = submit_all_reduce(summed.data, added, elements_of(to.shape), to.type); !submitted) return submitted;
  if (Status ended = end(); !ended || direct_to) return ended;
  return copy(to, summed);
}

Status TpCollectives::gather(const StridedArray& to, const StridedArray& from, const DimCut& cut) {
  if (size() == 1) return copy(to, from);
  const Counts counts = counts_of(to, cut);
  const bool direct = is_in_pieces(to, cut);
  std::byte* pieces = static_cast<std::byte*>(to.data);
  if (!direct) {
    auto memory = take(ScratchPiece::received, to);
    if (!memory) return memory.status();
    pieces = *memory;
  }
  std::vector<StridedArray> parts;  // of the pieces
  for (size_t r = 0, at = 0; r < size(); at += counts[r++] * size_of(to.type)) {
    parts.push_back(dense_array(pieces + at, to.type, part_of(to, cut, r).shape));
  }
  const void* own = from.data;
  if (!is_dense(from)) {
    if (Status packed = copy(parts[rank()], from); !packed) return packed;
    own = parts[rank()].data;
  }
  const CallerWaits here(stream(), true);
  if (Status begun = begin(); !begun) return begun;
  if (Status submitted = submit_gather(pieces, own, counts, to.type); !submitted) return submitted;
  if (Status ended = end(); !ended || direct) return ended;
  for (size_t r = 0; r < size(); ++r) {
    if (Status unpacked = copy(part_of(to, cut, r), parts[r]); !unpacked) return unpacked;
  }
  return {};
}

Status TpCollectives::reduce_scatter(const StridedArray& to, const StridedArray& from, const DimCut& cut) {
  if (size() == 1) return copy(to, from);
  const Counts counts = counts_of(from, cut);
  const bool direct_to = is_dense(to), direct = direct_to && is_in_pieces(from, cut);
  std::byte* pieces = static_cast<std::byte*>(from.data);
  if (!direct) {
    auto memory = take(ScratchPiece::sent, from);
    if (!memory) return memory.status();
    pieces = *memory;
    for (size_t r = 0, at = 0; r < size(); at += counts[r++] * size_of(from.type)) {
      const StridedArray part = part_of(from, cut, r);
      if (Status packed = copy(dense_array(pieces + at, from.type, part.shape), part); !packed) return packed;
    }
  }
  const uint64_t own_at = std::accumulate(counts.begin(), counts.begin() + comm_.rank(), uint64_t{0}) * size_of(from.type);
  void* const own = direct_to ? to.data : pieces + own_at;  // in place
  const CallerWaits here(stream(), true);
  if (Status begun = begin(); !begun) return begun;
  if (Status submitted = submit_reduce_scatter(own, pieces, counts, from.type); !submitted) return submitted;
  if (Status ended = end(); !ended || direct) return ended;
  return direct_to ? Status() : copy(to, dense_array(own, to.type, to.shape));
}

// Rank s gets what is in rank r's part along from_cut and in its own along to_cut.
Status TpCollectives::exchange(const StridedArray& to, const DimCut& to_cut, const StridedArray& from, const DimCut& from_cut) {
  if (size() == 1) return copy(to, from);
  auto sent = take(ScratchPiece::sent, from);
  if (!sent) return sent.status();
  auto received = take(ScratchPiece::received, to);
  if (!received) return received.status();
  const size_t width = size_of(from.type);
  Counts from_counts, to_counts;
  size_t at = 0;
  for (size_t r = 0; r < size(); ++r) {
    const StridedArray part = part_of(from, to_cut, r);
    if (Status packed = copy(dense_array(*sent + at, from.type, part.shape), part); !packed) return packed;
    from_counts.push_back(elements_of(part.shape));
    to_counts.push_back(elements_of(part_of(to, from_cut, r).shape));
    at += from_counts.back() * width;
  }
  const CallerWaits here(stream(), true);
  if (Status begun = begin(); !begun) return begun;
  Group& group = comm_.group();
  const Status submitted = from_cut.is_even() && to_cut.is_even()
                               ? group.all_to_all(stream(), *sent, *received, from_counts.front(), from.type, tag_)
                               : group.all_to_all_v(stream(), *sent, from_counts, *received, to_counts, from.type, tag_);
  if (!submitted) return submitted;
  if (Status ended = end(); !ended) return ended;
  at = 0;
  for (size_t r = 0; r < size(); at += to_counts[r++] * width) {
    const StridedArray part = part_of(to, from_cut, r);
    if (Status unpacked = copy(part, dense_array(*received + at, to.type, part.shape)); !unpacked) return unpacked;
  }
  return {};
}

Status TpCollectives::check_replicated(const StridedArray& array, const char* argument) {
  if (size() == 1) return {};
  const size_t bytes = elements_of(array.shape) * size_of(array.type);
  std::vector<std::byte> dense(bytes);
  const Status copied = copy(dense_array(dense.data(), array.type, array.shape), array);
  const uint64_t mine = copied.ok() ? hash_bytes(dense.data(), bytes) : 0;
  auto all = exchange_as<uint64_t>(*comm_.context().world, comm_.group().members(), "a check of what is replicated", mine);
  if (!copied) return copied;
  if (!all) return all.status();
  const auto other = std::find_if(all->begin(), all->end(), [&](uint64_t digest) { return digest != all->front(); });
  if (other == all->end()) return {};
  const std::vector<int>& members = comm_.group().members();
  const int differs = members[static_cast<size_t>(other - all->begin())];
  return Status(Code::invalid,
                text(argument, " is not the same on ranks ", members.front(), " and ", differs,
                     ", but is said to be replicated; what is partial must be summed first (mdp_tp_region_fwd with MDP_TP_REDUCE), or be "
                     "said to be MDP_TP_GRAD_PARTIAL"),
                Blame{.rank = differs});
}

}  // namespace megadp
