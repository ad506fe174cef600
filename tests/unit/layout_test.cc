// SPDX-License-Identifier: Apache-2.0
// Layouts and ownership: by hand, against the oracle, and by what must hold for every layout.
#include <rapidcheck.h>

#include <algorithm>
#include <set>

#include "check.h"
#include "core/layout.h"
#include "layout_oracle.h"

using namespace megadp;
using namespace megadp::test;

namespace {

struct Input {
  std::vector<LayoutParam> params;
  LayoutRules rules;
};

std::ostream& operator<<(std::ostream& out, const Input& in) {
  out << (in.rules.sharded ? "sharded" : "plain") << " shards " << in.rules.shards << " B " << in.rules.bucket_elements
      << (in.rules.high_bandwidth_padding ? " high-bandwidth" : "") << " sizes";
  for (const LayoutParam& param : in.params) out << " " << param.numel << (param.own_bucket ? "!" : "");
  return out;
}

// Sizes around the alignments, where mistakes live, besides any others.
rc::Gen<uint64_t> any_size() {
  return rc::gen::oneOf(rc::gen::inRange<uint64_t>(0, 4), rc::gen::inRange<uint64_t>(1, 700),
                        rc::gen::map(rc::gen::pair(rc::gen::inRange<int64_t>(1, 6), rc::gen::inRange<int64_t>(-1, 2)),
                                     [](const auto& p) { return static_cast<uint64_t>(p.first * 64 + p.second); }));
}

rc::Gen<Input> any_input() {
  const auto param = rc::gen::map(rc::gen::pair(any_size(), rc::gen::inRange(0, 6)), [](const auto& p) {
    return LayoutParam{p.first, p.second == 0};
  });
  const auto threshold = rc::gen::oneOf(rc::gen::just(UINT64_MAX), rc::gen::inRange<uint64_t>(1, 1500),
                                        rc::gen::map(rc::gen::inRange<uint64_t>(1, 20), [](uint64_t n) { return n * 64; }));
  const auto shards = rc::gen::oneOf(rc::gen::inRange(1, 13), rc::gen::element(16, 48, 96, 100));
  const auto rules = rc::gen::map(rc::gen::tuple(rc::gen::inRange(0, 4), rc::gen::inRange(0, 60), threshold, shards), [](const auto& t) {
    LayoutRules out;
    out.sharded = std::get<0>(t) != 0;
    out.high_bandwidth_padding = std::get<1>(t) == 0;  // seldom: its cells are many
    out.bucket_elements = std::get<2>(t);
    out.shards = out.sharded ? std::get<3>(t) : 1;
    if (out.sharded && out.high_bandwidth_padding) out.shards = out.shards % 4 + 1;
    return out;
  });
  return rc::gen::map(rc::gen::pair(rc::gen::container<std::vector<LayoutParam>>(param), rules), [](const auto& p) {
    return Input{p.first, p.second};
  });
}

bool same(const OwnedRange& a, const OwnedRange& b) {
  return a.bucket == b.bucket && a.param == b.param && a.begin == b.begin && a.end == b.end && a.param_begin == b.param_begin &&
         a.at == b.at;
}

void equals_oracle(const Input& in) {
  const Layout layout = make_layout(in.params, in.rules);
  const OracleLayout oracle = oracle_layout(in.params, in.rules);
  RC_ASSERT(layout.numel == oracle.cells.size());
  RC_ASSERT(layout.slots.size() == in.params.size());
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const Slot& slot = layout.slots[i];
    RC_ASSERT(slot.param == static_cast<size_t>(oracle.placed[i]));
    const OracleParam& place = oracle.params[slot.param];
    RC_ASSERT(slot.begin == place.begin);
    RC_ASSERT(slot.end == place.end);
    RC_ASSERT(slot.bucket == place.bucket);
  }
  RC_ASSERT(layout.buckets.size() == oracle.bucket_begin.size());
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const BucketRange& bucket = layout.buckets[b];
    RC_ASSERT(bucket.begin == oracle.bucket_begin[b]);
    RC_ASSERT(bucket.end == oracle.bucket_end[b]);
    RC_ASSERT(bucket.unpadded == oracle.unpadded[b]);
    for (uint32_t s = 0; s < layout.slots.size(); ++s)
      RC_ASSERT((layout.slots[s].bucket == b) == (bucket.first_slot <= s && s < bucket.end_slot));
  }
  const auto expected = oracle_owned(oracle, in.rules.shards);
  for (int shard = 0; shard < in.rules.shards; ++shard) {
    const auto owned = owned_ranges(layout, shard);
    const auto& mine = expected[static_cast<size_t>(shard)];
    RC_ASSERT(owned.size() == mine.size());
    for (size_t i = 0; i < owned.size(); ++i) RC_ASSERT(same(owned[i], mine[i]));
  }
}

// Vector 16, said of the layout alone.
void keeps_its_promises(const Input& in) {
  const Layout layout = make_layout(in.params, in.rules);
  const uint64_t shards = static_cast<uint64_t>(in.rules.shards);
  uint64_t end = 0;
  for (const BucketRange& bucket : layout.buckets) {
    RC_ASSERT(bucket.begin == end);  // buckets tile the arena
    end = bucket.end;
    RC_ASSERT(bucket.unpadded <= bucket.end - bucket.begin);
    RC_ASSERT(bucket.first_slot < bucket.end_slot);
    if (in.rules.sharded) {
      RC_ASSERT(bucket.end % shards == 0U);
      RC_ASSERT(bucket.end % 128 == 0U);
    }
  }
  RC_ASSERT(layout.numel == end);
  for (const Slot& slot : layout.slots)
    if (in.rules.sharded) RC_ASSERT(slot.begin % 64 == 0U);

  std::vector<std::vector<int>> owners(in.params.size());
  for (size_t p = 0; p < in.params.size(); ++p) owners[p].resize(in.params[p].numel);
  for (int shard = 0; shard < in.rules.shards; ++shard) {
    for (const OwnedRange& range : owned_ranges(layout, shard)) {
      RC_ASSERT(range.begin < range.end);
      for (uint64_t i = 0; i < range.end - range.begin; ++i) ++owners[range.param].at(range.param_begin + i);
    }
  }
  for (const auto& counts : owners)
    for (const int count : counts) RC_ASSERT(count == 1);
}

// Of whole parameters: the same ones in each bucket as otherwise, but by owner, who has all of what is its own; pieces fill the buckets,
// and what a shard keeps lies end to end.
void whole_ones_have_one_owner(Input in) {
  in.rules.sharded = true;
  const Layout cut = make_layout(in.params, in.rules);
  in.rules.whole = true;
  for (LayoutParam& param : in.params) param.owner = *rc::gen::inRange<uint32_t>(0, static_cast<uint32_t>(in.rules.shards));
  const Layout layout = make_layout(in.params, in.rules);
  RC_ASSERT(layout.buckets.size() == cut.buckets.size());
  uint64_t end = 0;
  std::vector<uint64_t> kept(static_cast<size_t>(in.rules.shards));
  for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
    const BucketRange& bucket = layout.buckets[b];
    RC_ASSERT(bucket.begin == end);
    end = bucket.end;
    RC_ASSERT(bucket.end % 128 == 0U);
    std::set<size_t> here, there;
    uint32_t owner = 0;
    for (uint32_t s = bucket.first_slot; s < bucket.end_slot; ++s) {
      const Slot& slot = layout.slots[s];
      RC_ASSERT(slot.bucket == b && slot.begin % 64 == 0U && slot.end - slot.begin == in.params[slot.param].numel);
      RC_ASSERT(slot.owner == in.params[slot.param].owner && slot.owner >= owner);
      owner = slot.owner;
      here.insert(slot.param);
    }
    for (uint32_t s = cut.buckets[b].first_slot; s < cut.buckets[b].end_slot; ++s) there.insert(cut.slots[s].param);
    RC_ASSERT(here == there);
    const std::vector<uint64_t> counts = piece_counts(layout, b);
    uint64_t at = bucket.begin, longest = 0;
    for (int shard = 0; shard < in.rules.shards; ++shard) {
      const Piece piece = piece_of(layout, b, shard);
      RC_ASSERT(piece.begin == at && piece.end % 64 == 0U && piece.count() == counts[static_cast<size_t>(shard)]);
      at = piece.end;
      longest = std::max(longest, piece.count());
      kept[static_cast<size_t>(shard)] += piece.count();
    }
    RC_ASSERT(at == bucket.end && longest_piece(layout, b) == longest);
  }
  std::vector<int> owners(in.params.size());
  for (int shard = 0; shard < in.rules.shards; ++shard) {
    RC_ASSERT(shard_elements(layout, shard) == kept[static_cast<size_t>(shard)]);
    uint64_t at = 0;
    for (const OwnedRange& range : owned_ranges(layout, shard)) {
      RC_ASSERT(range.param_begin == 0U && range.end - range.begin == in.params[range.param].numel);
      RC_ASSERT(in.params[range.param].owner == static_cast<uint32_t>(shard) && range.at >= at);
      at = range.at + (range.end - range.begin);
      ++owners[range.param];
    }
    RC_ASSERT(at <= shard_elements(layout, shard));
  }
  for (size_t p = 0; p < owners.size(); ++p) RC_ASSERT(owners[p] == (in.params[p].numel > 0 ? 1 : 0));
}

// Sizes far beyond what any oracle could walk: positions are only checked for order, alignment and completeness.
void holds_for_huge_sizes(const Input& in, uint64_t factor) {
  Input big = in;
  for (LayoutParam& param : big.params) param.numel *= factor;
  const Layout layout = make_layout(big.params, big.rules);
  uint64_t sum = 0, owned_sum = 0, end = 0;
  for (const LayoutParam& param : big.params) sum += param.numel;
  for (const Slot& slot : layout.slots) {
    RC_ASSERT(slot.begin >= end);
    RC_ASSERT(slot.end - slot.begin == big.params[slot.param].numel);
    end = slot.end;
  }
  RC_ASSERT(layout.numel >= end);
  for (int shard = 0; shard < big.rules.shards; ++shard)
    for (const OwnedRange& range : owned_ranges(layout, shard)) owned_sum += range.end - range.begin;
  RC_ASSERT(owned_sum == sum);
}

void by_hand() {
  // Nothing at all, and parameters without elements.
  check_equal(make_layout({}, {}).buckets.size(), 0U, "buckets of no parameters");
  check_equal(make_layout({}, {}).numel, 0U);
  LayoutRules rules;
  rules.shards = 4;
  const Layout nothing = make_layout({{0}, {0}}, rules);
  check_equal(nothing.numel, 0U);
  check_equal(nothing.buckets.size(), 1U);
  check(owned_ranges(nothing, 3).empty(), "somebody owns a part of nothing");

  // A parameter without elements still keeps a bucket open: the one that wants its own does not join it.
  const Layout empty_first = make_layout({{100, true}, {0}}, rules);
  check_equal(empty_first.buckets.size(), 2U);
  check_equal(empty_first.buckets[0].end, 0U);
  check_equal(empty_first.buckets[1].end, 128U);

  // An end that is already aligned is not padded further.
  const Layout exact = make_layout({{512}}, rules);
  check_equal(exact.numel, 512U);
  check_equal(owned_ranges(exact, 2)[0].param_begin, 256U);

  // Equality closes; one element less does not.
  rules.shards = 1;
  rules.bucket_elements = 65;
  check_equal(make_layout({{1}, {1}, {64}}, rules).buckets.size(), 2U, "buckets with 64 + 1 elements at 65");
  rules.bucket_elements = 66;
  check_equal(make_layout({{1}, {1}, {64}}, rules).buckets.size(), 1U, "buckets with 64 + 1 elements at 66");
}

}  // namespace

int main() {
  set_property_runs(3000);
  by_hand();
  check(rc::check("layouts equal the oracle's", [] { equals_oracle(*any_input()); }), "oracle");
  check(rc::check("whole parameters have one owner", [] { whole_ones_have_one_owner(*any_input()); }), "whole");
  check(rc::check("every layout keeps its promises", [] { keeps_its_promises(*any_input()); }), "promises");
  check(rc::check("huge sizes", [] { holds_for_huge_sizes(*any_input(), *rc::gen::inRange<uint64_t>(1, uint64_t{1} << 40)); }), "huge");
  return finish();
}
