// SPDX-License-Identifier: Apache-2.0
// Which positions of a sequence each rank of a context-parallel attention has, and which blocks of it there are to compute. Pure.
//
//   contiguous   rank 0 | rank 1 | ..                     without a mask: all have as much to do
//   zig-zag      0 | 1 | .. | n-1 | n-1 | .. | 1 | 0      causal: a late chunk, which sees many keys, comes with an early one
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace megadp {

enum class ContextForm : uint32_t {  // as mdp_cp_form
  automatic,
  ring,
  all_to_all
};

struct ContextConfig {
  ContextForm form = ContextForm::automatic;
  bool causal = false;
  std::vector<int64_t> bounds;  // of packed sequences; empty: one
};

struct Chunk {  // of the whole sequence
  int64_t begin = 0, length = 0;
};
// In the order in which the rank's part has them; `whole` divides.
std::vector<Chunk> chunks_of(bool causal, int64_t ranks, int64_t rank, int64_t whole);
// How many chunks a rank has.
int64_t chunks_each(bool causal, int64_t ranks);
// Whether the sequence, `name` with length `whole`, can be cut; else a sentence with lengths that can.
Status check_whole(bool causal, int64_t ranks, int64_t whole, const char* name);

// Not automatic. See MDP_CP_AUTO.
ContextForm choose_form(ContextForm asked, int64_t ranks, int64_t heads, int64_t kv_heads);

// What a chunk of queries and one of keys have to do with each other.
enum class Visibility {
  none,  // no query sees a key
  causal,
  all
};
Visibility visibility_of(const ContextConfig& config, const Chunk& q, const Chunk& k);

// Of packed sequences those that have positions in either chunk: where they begin and end in it.
struct ChunkBounds {
  std::vector<int64_t> q, k;
};
ChunkBounds bounds_in(const std::vector<int64_t>& bounds, const Chunk& q, const Chunk& k);

}  // namespace megadp
