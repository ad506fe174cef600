// SPDX-License-Identifier: Apache-2.0
// What `megadp plan` prints for a person: long lists are cut, and what is not shown is not computed.
#include "plan_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace megadp::tool {
namespace {

constexpr size_t kShownPieces = 8, kShownParams = 12;
constexpr int kShownRanks = 16;

// "4 3 2", cut short; `word` answers what stands at a place.
template <class Word>
std::string shortened(size_t count, size_t shown, const Word& word) {
  std::string out;
  for (size_t i = 0; i < std::min(count, shown); ++i) out += (i == 0 ? "" : " ") + word(i);
  return count <= shown ? out : fmt::format("{} and {} more", out, count - shown);
}

void print_arena(const ArenaPlan& arena) {
  const Layout& layout = arena.layout;
  fmt::print("\n{} parameters, {} gradients: {} elements with padding\n", name_of(arena.param_type), name_of(arena.grad_type),
             layout.numel);
  fmt::print("  {:>6} {:>16} {:>16} {:>16}   {}\n", "bucket", "begin", "end", "unpadded", "parameters");
  for (size_t i = 0; i < layout.buckets.size(); ++i) {
    const BucketRange& bucket = layout.buckets[i];
    const auto param = [&](size_t k) { return std::to_string(layout.slots[bucket.first_slot + k].param); };
    fmt::print("  {:>6} {:>16} {:>16} {:>16}   {}\n", i, bucket.begin, bucket.end, bucket.unpadded,
               shortened(bucket.end_slot - bucket.first_slot, kShownParams, param));
  }
  fmt::print("  {:>6}   {}\n", "rank", arena.instances > 1 ? "of each instance owns parameter[from:to]" : "owns parameter[from:to]");
  for (int shard = 0; shard < std::min(arena.shards, kShownRanks); ++shard) {
    const std::vector<OwnedRange> owned = owned_ranges(layout, shard);
    const auto piece = [&](size_t k) {
      return fmt::format("{}[{}:{}]", owned[k].param, owned[k].param_begin, owned[k].param_begin + (owned[k].end - owned[k].begin));
    };
    fmt::print("  {:>6}   {}\n", arena.shards == 1 ? "each" : std::to_string(shard),
               owned.empty() ? "nothing" : shortened(owned.size(), kShownPieces, piece));
  }
  if (arena.shards > kShownRanks) fmt::print("  {:>6}   {} more ranks\n", "...", arena.shards - kShownRanks);
}

void print_row(const std::string& who, const MemoryPlan& bytes, uint64_t elements) {
  const uint64_t kept = bytes.param + bytes.grad + bytes.grad_shard + bytes.master + bytes.state;
  fmt::print("  {:>9} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14.3f}\n", who, bytes.param, bytes.grad, bytes.grad_shard,
             bytes.master, bytes.state, bytes.scratch, kept + bytes.scratch,
             elements == 0 ? 0.0 : static_cast<double>(kept) / static_cast<double>(elements));
}

// One row if all ranks need the same; what is whole makes them differ.
void print_bytes(const Plan& plan, int ranks, uint64_t elements) {
  const MemoryPlan bytes = plan.memory(0);
  fmt::print("\nBytes of each rank, before rounding each allocation up to a page; the last column leaves out scratch\n");
  fmt::print("  {:>9} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14}\n", "rank", "param", "grad", "grad_shard", "master", "state",
             "scratch", "total", "per parameter");
  const bool alike = std::none_of(plan.arenas.begin(), plan.arenas.end(), [](const ArenaPlan& arena) { return arena.is_whole(); });
  if (alike || ranks == 1) {
    print_row(ranks == 1 ? "0" : fmt::format("0-{}", ranks - 1), bytes, elements);
  } else {
    const std::vector<int> replicas = plan.grid.group(kDp, 0);
    for (int i = 0; i < std::min(ranks, kShownRanks); ++i)
      print_row(std::to_string(i), plan.memory(replicas[static_cast<size_t>(i)]), elements);
    if (ranks > kShownRanks) fmt::print("  {:>9} {} more ranks\n", "...", ranks - kShownRanks);
  }
  if (bytes.spill > 0) fmt::print("Besides, where gradients come before their turn: at most {} bytes\n", bytes.spill);
  if (bytes.feedback > 0) fmt::print("Besides, what rounding for the wire loses: {} bytes\n", bytes.feedback);
  if (plan.optimizer.average) fmt::print("Besides, the average, and what a swap with it keeps aside: {} bytes\n", bytes.average);
  if (bytes.communicators > 0) fmt::print("On a device, besides, an estimate: {} bytes for its communicators\n", bytes.communicators);
}

}  // namespace

void print_plan(const Plan& plan) {
  uint64_t elements = 0;
  for (const ParamSpec& param : plan.params) elements += param.numel;
  const auto plural = [](size_t n) { return n == 1 ? "" : "s"; };
  constexpr const char* kSharded[] = {"", "nothing sharded", "optimizer sharded", "optimizer and gradients sharded",
                                      "whole parameters owned"};
  const int ranks = plan.grid.size(kDp);
  const std::string cut = plan.instances() > 1 ? fmt::format(" in {} instances", plan.instances()) : "";
  fmt::print("{} parameter{} of {} elements over {} data-parallel rank{}{}, {}: {} bucket{}, {} elements of padding\n", plan.params.size(),
             plural(plan.params.size()), elements, ranks, plural(static_cast<size_t>(ranks)), cut,
             kSharded[static_cast<size_t>(plan.config.sharding)], plan.launch_order.size(), plural(plan.launch_order.size()),
             plan.padding_elements());
  for (const ArenaPlan& arena : plan.arenas) print_arena(arena);
  print_bytes(plan, ranks, elements);
}

}  // namespace megadp::tool
