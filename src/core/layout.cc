// SPDX-License-Identifier: Apache-2.0
// Layout of parameters in an arena, and the pieces of buckets that each shard owns.
#include "core/layout.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace megadp {
namespace {

constexpr uint64_t kBucketAlignment = 128;          // elements; ends of buckets: 256 bytes of a 16-bit type
constexpr uint64_t kHighBandwidthUnit = 64 * 1024;  // elements; lets a collective move its largest chunks only

// Fills one layout front to back. The open bucket is [begin_, cursor) of the slots from first_slot_ on.
class Builder {
 public:
  Builder(const LayoutRules& rules, size_t params) : rules_(rules) {
    layout_.slots.reserve(params);
    layout_.shards = rules.shards;
    layout_.whole = rules.whole;
    if (!rules.sharded) return;
    end_unit_ = rules.whole ? kBucketAlignment : std::lcm(static_cast<uint64_t>(rules.shards), kBucketAlignment);
    if (rules.high_bandwidth_padding) end_unit_ = std::lcm(end_unit_, kHighBandwidthUnit);
  }

  void place(size_t index, const LayoutParam& param) {
    const bool alone = rules_.sharded && param.own_bucket;
    if (rules_.sharded) cursor_ = round_up(cursor_, kParamAlignment);
    if (alone && open()) close();
    const uint64_t end = cursor_ + param.numel;
    layout_.slots.push_back({index, cursor_, end, static_cast<uint32_t>(layout_.buckets.size()), param.owner});
    cursor_ = end;
    if (alone || end - begin_ >= rules_.bucket_elements) close();
  }

  Layout finish() {
    if (open()) close();
    layout_.numel = begin_;
    return std::move(layout_);
  }

 private:
  // Holds a parameter, if only one without elements.
  bool open() const { return first_slot_ < layout_.slots.size(); }

  void close() {
    if (rules_.whole) sort_by_owner();
    const uint64_t end = round_up(cursor_, end_unit_);
    const uint32_t end_slot = static_cast<uint32_t>(layout_.slots.size());
    layout_.buckets.push_back({begin_, end, cursor_ - begin_, first_slot_, end_slot});
    begin_ = cursor_ = end;
    first_slot_ = end_slot;
  }

  // The open bucket's slots, which get new places.
  void sort_by_owner() {
    const auto first = layout_.slots.begin() + first_slot_;
    std::stable_sort(first, layout_.slots.end(), [](const Slot& a, const Slot& b) { return a.owner < b.owner; });
    cursor_ = begin_;
    for (auto slot = first; slot != layout_.slots.end(); ++slot) {
      const uint64_t begin = round_up(cursor_, kParamAlignment), numel = slot->end - slot->begin;
      slot->begin = begin;
      slot->end = cursor_ = begin + numel;
    }
  }

  const LayoutRules& rules_;
  uint64_t end_unit_ = 1;
  uint64_t begin_ = 0, cursor_ = 0;
  uint32_t first_slot_ = 0;
  Layout layout_;
};

}  // namespace

Layout make_layout(const std::vector<LayoutParam>& params, const LayoutRules& rules) {
  Builder builder(rules, params.size());
  for (size_t i = params.size(); i-- > 0;) builder.place(i, params[i]);
  return builder.finish();
}

Piece piece_of(const Layout& layout, uint32_t bucket, int shard) {
  const BucketRange& range = layout.buckets[bucket];
  if (!layout.whole) {
    const uint64_t piece = (range.end - range.begin) / static_cast<uint64_t>(layout.shards);
    const uint64_t begin = range.begin + piece * static_cast<uint64_t>(shard);
    return {begin, begin + piece};
  }
  const auto last = layout.slots.begin() + range.end_slot;
  // Where the first parameter of this shard or a later one begins; the first piece begins with the bucket, the last ones end with it.
  const auto begin_of = [&](int of) {
    if (of == 0) return range.begin;
    const auto slot = std::partition_point(layout.slots.begin() + range.first_slot, last,
                                           [of](const Slot& s) { return s.owner < static_cast<uint32_t>(of); });
    return slot == last ? range.end : slot->begin;
  };
  return {begin_of(shard), begin_of(shard + 1)};
}

uint64_t longest_piece(const Layout& layout, uint32_t bucket) {
  if (!layout.whole) return piece_of(layout, bucket, 0).count();
  uint64_t longest = 0;
  const BucketRange& range = layout.buckets[bucket];
  for (uint32_t slot = range.first_slot; slot < range.end_slot; ++slot)
    longest = std::max(longest, piece_of(layout, bucket, static_cast<int>(layout.slots[slot].owner)).count());
  return longest;
}

std::vector<uint64_t> piece_counts(const Layout& layout, uint32_t bucket) {
  std::vector<uint64_t> counts;
  for (int shard = 0; shard < layout.shards; ++shard) counts.push_back(piece_of(layout, bucket, shard).count());
  return counts;
}

uint64_t shard_elements(const Layout& layout, int shard) {
  if (!layout.whole) return layout.numel / static_cast<uint64_t>(layout.shards);
  uint64_t elements = 0;
  for (uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) elements += piece_of(layout, bucket, shard).count();
  return elements;
}

std::vector<OwnedRange> owned_ranges(const Layout& layout, int shard) {
  std::vector<OwnedRange> owned;
  owned.reserve(layout.slots.size() / static_cast<size_t>(layout.shards) + layout.buckets.size());
  uint64_t before = 0;  // in the shard
  for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
    const BucketRange& bucket = layout.buckets[b];
    const Piece piece = piece_of(layout, b, shard);
    const auto last = layout.slots.begin() + bucket.end_slot;
    // Slots ascend: skip to the first that reaches into the piece, so that thousands of ranks stay cheap.
    auto slot = std::partition_point(layout.slots.begin() + bucket.first_slot, last, [&](const Slot& s) { return s.end <= piece.begin; });
    for (; slot != last && slot->begin < piece.end; ++slot) {
      const uint64_t from = std::max(slot->begin, piece.begin), to = std::min(slot->end, piece.end);
      if (from < to) owned.push_back({b, slot->param, from, to, from - slot->begin, before + (from - piece.begin)});
    }
    before += piece.count();
  }
  return owned;
}

}  // namespace megadp
