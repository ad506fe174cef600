// SPDX-License-Identifier: Apache-2.0
#include "core/context_cutting.h"

#include <algorithm>

namespace megadp {
namespace {

// Where a position lies in a chunk, or the end that is nearer.
int64_t within(int64_t position, const Chunk& chunk) {
  return std::clamp(position - chunk.begin, int64_t{0}, chunk.length);
}

}  // namespace

int64_t chunks_each(bool causal, int64_t ranks) {
  return causal && ranks > 1 ? 2 : 1;
}

std::vector<Chunk> chunks_of(bool causal, int64_t ranks, int64_t rank, int64_t whole) {
  const int64_t all = ranks * chunks_each(causal, ranks), length = whole / all;
  std::vector<Chunk> chunks{{rank * length, length}};
  if (all > ranks) chunks.push_back({(all - 1 - rank) * length, length});
  return chunks;
}

Status check_whole(bool causal, int64_t ranks, int64_t whole, const char* name) {
  const int64_t all = ranks * chunks_each(causal, ranks), less = whole / all * all;
  if (whole > 0 && less == whole) return {};
  const std::string would = less > 0 ? text(less, " or ", less + all) : text(all);
  return invalid(name, " is ", whole, ", which ", ranks, " ranks cannot share in ", all, " equal chunks", all > ranks ? ", two each" : "",
                 "; ", would, " would do");
}

ContextForm choose_form(ContextForm asked, int64_t ranks, int64_t heads, int64_t kv_heads) {
  if (asked != ContextForm::automatic) return asked;
  const bool divides = heads % ranks == 0 && kv_heads % ranks == 0;
  return divides && heads + kv_heads < ranks * kv_heads ? ContextForm::all_to_all : ContextForm::ring;
}

Visibility visibility_of(const ContextConfig& config, const Chunk& q, const Chunk& k) {
  if (config.causal && k.begin > q.begin) return Visibility::none;
  const ChunkBounds packed = bounds_in(config.bounds, q, k);
  bool meet = config.bounds.empty();
  for (size_t i = 0; i + 1 < packed.q.size() && !meet; ++i) meet = packed.q[i] < packed.q[i + 1] && packed.k[i] < packed.k[i + 1];
  if (!meet) return Visibility::none;
  return config.causal && k.begin == q.begin ? Visibility::causal : Visibility::all;
}

ChunkBounds bounds_in(const std::vector<int64_t>& bounds, const Chunk& q, const Chunk& k) {
  ChunkBounds in;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t q_end = within(bounds[i + 1], q), k_end = within(bounds[i + 1], k);
    if (q_end == within(bounds[i], q) && k_end == within(bounds[i], k)) continue;
    if (in.q.empty()) in.q = in.k = {0};
    in.q.push_back(q_end);
    in.k.push_back(k_end);
  }
  return in;
}

}  // namespace megadp
