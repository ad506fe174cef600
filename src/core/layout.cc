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
    if (!rules.sharded) return;
    end_unit_ = std::lcm(static_cast<uint64_t>(rules.shards), kBucketAlignment);
    if (rules.high_bandwidth_padding) end_unit_ = std::lcm(end_unit_, kHighBandwidthUnit);
  }

  void place(size_t index, const LayoutParam& param) {
    const bool alone = rules_.sharded && param.own_bucket;
    if (rules_.sharded) cursor_ = round_up(cursor_, kParamAlignment);
    if (alone && open()) close();
    const uint64_t end = cursor_ + param.numel;
    layout_.slots.push_back({index, cursor_, end, static_cast<uint32_t>(layout_.buckets.size())});
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
    const uint64_t end = round_up(cursor_, end_unit_);
    const uint32_t end_slot = static_cast<uint32_t>(layout_.slots.size());
    layout_.buckets.push_back({begin_, end, cursor_ - begin_, first_slot_, end_slot});
    begin_ = cursor_ = end;
    first_slot_ = end_slot;
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

std::vector<OwnedRange> owned_ranges(const Layout& layout, int shards, int shard) {
  std::vector<OwnedRange> owned;
  owned.reserve(layout.slots.size() / static_cast<size_t>(shards) + layout.buckets.size());
  for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
    const BucketRange& bucket = layout.buckets[b];
    const uint64_t piece = (bucket.end - bucket.begin) / static_cast<uint64_t>(shards);
    const uint64_t begin = bucket.begin + piece * static_cast<uint64_t>(shard), end = begin + piece;
    const auto last = layout.slots.begin() + bucket.end_slot;
    // Slots ascend: skip to the first that reaches into the piece, so that thousands of ranks stay cheap.
    auto slot = std::partition_point(layout.slots.begin() + bucket.first_slot, last, [&](const Slot& s) { return s.end <= begin; });
    for (; slot != last && slot->begin < end; ++slot) {
      const uint64_t from = std::max(slot->begin, begin), to = std::min(slot->end, end);
      // Pieces of all earlier buckets come first: together bucket.begin / shards elements.
      const uint64_t at = bucket.begin / static_cast<uint64_t>(shards) + (from - begin);
      if (from < to) owned.push_back({b, slot->param, from, to, from - slot->begin, at});
    }
  }
  return owned;
}

}  // namespace megadp
