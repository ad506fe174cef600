// SPDX-License-Identifier: Apache-2.0
// Layout: where each parameter lies in an arena, and how the arena is cut into buckets and pieces. Pure arithmetic; units are elements.
//
//   arena    | p_last | gap | p_last-1 | padding || p_last-2 ... |      parameters in the reverse order of the forward pass
//   buckets  |          bucket 0       |         ||   bucket 1   |      sharded: each ends on a multiple of lcm(shards, 128)
//   pieces   |  rank 0  |  rank 1 | ...          ||              |      every bucket is cut into `shards` equal pieces
//
// With whole parameters a bucket is cut between parameters: they lie in the order of their owners, and a piece, which may be empty, goes
// from its owner's first one to the next owner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megadp {

struct LayoutParam {
  uint64_t numel = 0;
  bool own_bucket = false;
  uint32_t owner = 0;  // with LayoutRules::whole: its shard
};

constexpr uint64_t kParamAlignment = 64;  // elements; starts of parameters

struct LayoutRules {
  bool sharded = true;                    // false: no alignment, no padding, own_bucket ignored
  bool high_bandwidth_padding = false;    // bucket ends on a multiple of lcm(shards, 128, 65536)
  bool whole = false;                     // every parameter belongs to one shard
  uint64_t bucket_elements = UINT64_MAX;  // a bucket closes once it is at least this long
  int shards = 1;
};

struct Slot {    // one parameter's place
  size_t param;  // index into the parameters given
  uint64_t begin, end;
  uint32_t bucket;
  uint32_t owner = 0;  // of a layout of whole parameters
};

struct BucketRange {
  uint64_t begin, end;  // with padding
  uint64_t unpadded;    // content end - begin, inner gaps included
  uint32_t first_slot, end_slot;
};

struct Layout {
  std::vector<Slot> slots;  // in placement order: the reverse of what was given; with whole parameters in a bucket by owner first
  std::vector<BucketRange> buckets;
  uint64_t numel = 0;  // end of the last bucket
  int shards = 1;
  bool whole = false;
};

// params: in the order of the forward pass. Requires that the sum of all sizes, with padding, stays below 2^62 (plan.cc checks it).
Layout make_layout(const std::vector<LayoutParam>& params, const LayoutRules& rules);

struct Piece {  // of a bucket; in the arena
  uint64_t begin, end;
  uint64_t count() const { return end - begin; }
};
// What a shard has of a bucket: the pieces of all shards lie one after another and fill it.
Piece piece_of(const Layout& layout, uint32_t bucket, int shard);
uint64_t longest_piece(const Layout& layout, uint32_t bucket);  // of all shards
std::vector<uint64_t> piece_counts(const Layout& layout, uint32_t bucket);
// Of all buckets: what a shard keeps, end to end.
uint64_t shard_elements(const Layout& layout, int shard);

struct OwnedRange {  // a piece of one parameter that one shard owns; never empty
  uint32_t bucket;
  size_t param;
  uint64_t begin, end;   // in the arena
  uint64_t param_begin;  // in the flattened parameter
  uint64_t at;           // in the shard: all of its pieces end to end, bucket after bucket, padding and gaps included
};

// What `shard` owns, in placement order. Of one shard: everything.
std::vector<OwnedRange> owned_ranges(const Layout& layout, int shard);

// Where pieces lie that are copied one behind the other: each as its place in the arena is to kParamAlignment.
class PackedPieces {
 public:
  // Where the piece [begin, end) of the arena goes.
  uint64_t add(uint64_t begin, uint64_t end) {
    const uint64_t at = elements_ + (begin - elements_) % kParamAlignment;
    elements_ = at + (end - begin);
    return at;
  }
  uint64_t elements() const noexcept { return elements_; }

 private:
  uint64_t elements_ = 0;
};

}  // namespace megadp
