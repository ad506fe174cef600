// SPDX-License-Identifier: Apache-2.0
// Which stores a rank is left with after it has tried both, by what it was told that they take.
#include "host/staging_stores.h"
#include "check.h"

using namespace megadp;
using namespace megadp::host;
using namespace megadp::test;

namespace {

constexpr size_t kBytes = 64 << 10;

struct Costs {
  uint64_t ordinary, past_caches;  // of a turn, in ns
};

// One turn, which takes what `costs` says.
bool turn(StagingStores& stores, Costs costs, Collective kind = Collective::all_reduce, size_t bytes = kBytes) {
  stores.next(kind, bytes);
  stores.spend(stores.past_caches() ? costs.past_caches : costs.ordinary);
  return stores.past_caches();
}

void try_both(StagingStores& stores, Costs costs, Collective kind = Collective::all_reduce, size_t bytes = kBytes) {
  uint32_t past = 0;
  for (uint32_t k = 0; k < 2 * StagingStores::kTries; ++k) past += turn(stores, costs, kind, bytes) ? 1 : 0;
  check_equal(past, StagingStores::kTries, "turns past the caches");
}

void the_faster_is_kept() {
  for (const bool ordinary_is_faster : {true, false}) {
    const Costs costs = ordinary_is_faster ? Costs{10'000, 20'000} : Costs{90'000, 20'000};
    StagingStores stores;
    try_both(stores, costs);
    for (uint32_t k = 2 * StagingStores::kTries; k < StagingStores::kTurns; ++k)
      check_equal(turn(stores, costs), !ordinary_is_faster, "stores after the trial");
  }
}

// One turn that was held up says nothing about the stores.
void a_slow_turn_does_not_count() {
  StagingStores stores;
  for (uint32_t k = 0; k < 2 * StagingStores::kTries; ++k) {
    const bool is_held_up = k % StagingStores::kTries == StagingStores::kTries - 1;
    turn(stores, is_held_up ? Costs{5'000'000, 20'000} : Costs{10'000, 20'000});
  }
  check(!turn(stores, {10'000, 20'000}), "ordinary stores");
}

void they_are_tried_again() {
  StagingStores stores;
  try_both(stores, {10'000, 20'000});
  for (uint32_t k = 2 * StagingStores::kTries; k < StagingStores::kTurns; ++k) check(!turn(stores, {90'000, 20'000}), "ordinary stores");
  try_both(stores, {90'000, 20'000});
  check(turn(stores, {90'000, 20'000}), "past the caches");
}

void kinds_and_sizes_are_apart() {
  StagingStores stores;
  constexpr Costs few{10'000, 20'000}, many{90'000, 20'000};
  try_both(stores, few);
  try_both(stores, many, Collective::all_gather);
  try_both(stores, many, Collective::all_reduce, 8 * kBytes);
  check(!turn(stores, few), "ordinary stores");
  check(turn(stores, many, Collective::all_gather), "past the caches");
  check(turn(stores, many, Collective::all_reduce, 8 * kBytes), "past the caches");
}

void what_is_small_is_not_tried() {
  StagingStores stores;
  for (int k = 0; k < 100; ++k) {
    for (const size_t bytes : {size_t{0}, kThroughCaches})
      check(turn(stores, {10'000, 20'000}, Collective::all_reduce, bytes), "past the caches");
  }
  try_both(stores, {10'000, 20'000});
}

}  // namespace

int main() {
  the_faster_is_kept();
  a_slow_turn_does_not_count();
  they_are_tried_again();
  kinds_and_sizes_are_apart();
  what_is_small_is_not_tried();
  return finish();
}
