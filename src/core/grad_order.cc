// SPDX-License-Identifier: Apache-2.0
// The order in which gradients come. Where parameters lie, and when their buckets go, follows from the order in which the plan is told that
// the forward pass uses them. Gradients that come in another order fill buckets late, and those wait for one another. Here that is noticed,
// and the order that was seen is told, so that the same model can be registered anew with it.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/hash.h"
#include "base/log.h"
#include "control/agreement.h"
#include "core/gradients.h"

namespace megadp {

namespace {

// An answer by registration index means the same to all ranks of a stage only if they hold as many parameters, with experts at the same
// places, and dense ones of the same names.
struct Places {
  uint64_t params, experts, digest;
};

Places places_of(const Plan& plan) {
  Places places{.params = plan.params.size(), .experts = 0, .digest = 0};
  std::string classes;
  for (const ParamSpec& param : plan.params) {
    places.experts += param.expert ? 1 : 0;
    classes += param.expert ? std::string("\n") : "\n " + param.name;
  }
  places.digest = hash_bytes(classes);
  return places;
}

Status other_places(const Mismatch& found) {
  Places first{}, other{};
  if (found.first_bytes.size() != sizeof first || found.other_bytes.size() != sizeof other) {
    return internal_error("mdp_buffer_use_order: ranks ", found.first, " and ", found.other, " sent bytes that cannot be read");
  }
  std::memcpy(&first, found.first_bytes.data(), sizeof first);
  std::memcpy(&other, found.other_bytes.data(), sizeof other);
  const auto held = [](const Places& places) { return text(places.params, " parameters, ", places.experts, " of them experts"); };
  return unsupported("mdp_buffer_use_order: rank ", found.first, " holds ", held(first), ", rank ", found.other, " ", held(other),
                     first.params == other.params && first.experts == other.experts ? " at other places, or by other names" : "",
                     "; one order of use can only be told to ranks of a stage that hold as many of each kind at the same places")
      .with_blame({.rank = found.other});
}

}  // namespace

// Of a sync that has just succeeded. The answer is asked for later, when the next step may have begun.
void Gradients::note_order() {
  for (ParamState& state : states_) state.seen_turn = state.turn;
  saw_order_ = true;
  constexpr uint64_t kJudged = 3;  // steps are alike: what only a late one shows is chance
  const Plan& plan = arenas_->plan();
  const bool alone = std::all_of(plan.arenas.begin(), plan.arenas.end(), [](const ArenaPlan& arena) { return arena.group_size == 1; });
  if (order_told_ || stats_.syncs >= kJudged || is_pooled() || plan.config.no_overlap || alone) return;
  const size_t late = late_buckets();
  if (2 * late <= buckets_.size()) return;
  order_told_ = true;
  if (plan.grid.index(kTp | kCp | kDp, arenas_->grid()->rank()) != 0) return;  // one rank of the stage tells it
  log(LogLevel::warning,
      text("gradients do not come in the reverse of the order in which parameters are said to be used: ", late, " of ", buckets_.size(),
           " buckets waited for others until three quarters of all were full, so that little was reduced during "
           "backward. Register parameters in the order of the forward pass, or with the mdp_param.use_order that "
           "mdp_buffer_use_order tells"));
}

// How many buckets could not go before three quarters of all were full: in the best order a quarter, in the worst all. 0 where that says
// nothing: there are too few, or some were never full.
size_t Gradients::late_buckets() const {
  if (buckets_.size() < 3) return 0;
  std::vector<uint64_t> full;
  for (const Bucket& bucket : buckets_) full.push_back(bucket.ready_ns);
  std::sort(full.begin(), full.end());
  if (full.front() == 0) return 0;
  const uint64_t late_ns = full[full.size() * 3 / 4];
  const auto first = std::find_if(buckets_.begin(), buckets_.end(), [late_ns](const Bucket& bucket) { return bucket.ready_ns >= late_ns; });
  return static_cast<size_t>(buckets_.end() - first);  // all that follow wait for it
}

// The reverse of the order in which gradients came. A parameter of which none came (frozen, skipped or missing) stays in backward behind
// the one that it follows by the present order.
std::vector<int32_t> Gradients::seen_order() const {
  const Plan& plan = arenas_->plan();
  std::vector<size_t> backward(plan.params.size());
  std::iota(backward.begin(), backward.end(), size_t{0});
  std::sort(backward.begin(), backward.end(), [&plan](size_t a, size_t b) { return plan.used_before(b, a); });
  std::vector<uint32_t> turn(plan.params.size());
  uint32_t before = 0;
  for (const size_t param : backward) {
    if (states_[param].seen_turn != 0) before = states_[param].seen_turn;
    turn[param] = before;
  }
  std::stable_sort(backward.begin(), backward.end(), [&turn](size_t a, size_t b) { return turn[a] < turn[b]; });
  std::vector<int32_t> order(plan.params.size());
  for (size_t i = 0; i < backward.size(); ++i) order[backward[i]] = static_cast<int32_t>(backward.size() - 1 - i);
  return order;
}

// The lowest rank of each stage says what it saw: ranks may have seen different orders, and must register the same.
Result<std::vector<int32_t>> Gradients::use_order() {
  constexpr const char* kCall = "mdp_buffer_use_order";
  (void)await_sync();  // whose failure is no failure of this: an earlier one may have succeeded, and all ranks know that alike
  const Plan& plan = arenas_->plan();
  std::vector<int32_t> order;
  Status mine;
  {
    const std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    if (saw_order_) {
      order = seen_order();
    } else {
      mine = bad_state(kCall, ": no mdp_grad_sync has succeeded yet; take a step first, which shows in what order gradients come");
    }
  }
  const std::vector<int>& members = arenas_->grid()->world()->group().members();
  std::vector<int> stage = plan.grid.group(kTp | kCp | kDp, arenas_->grid()->rank());
  for (int& rank : stage) rank = members[static_cast<size_t>(rank)];
  std::sort(stage.begin(), stage.end());
  World& world = *arenas_->context().world;
  const Places places = places_of(plan);
  auto same = world.compare(stage, kCall, std::string(reinterpret_cast<const char*>(&places), sizeof places));
  if (!same) return same.status();
  if (*same) mine = other_places(**same);
  if (Status agreed = agree(world, members, {kCall}, mine); !agreed) return agreed;
  auto told = world.broadcast(stage, kCall, std::string(reinterpret_cast<const char*>(order.data()), order.size() * sizeof(int32_t)));
  if (!told) return told.status();
  if (told->size() != order.size() * sizeof(int32_t)) return internal_error(kCall, ": ", told->size(), " bytes came from rank ", stage[0]);
  std::memcpy(order.data(), told->data(), told->size());
  return order;
}

}  // namespace megadp
