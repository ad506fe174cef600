// SPDX-License-Identifier: Apache-2.0
// When a collective may be put on the device: see cuda/launch_order.h. The watch knows of it already, and ends every wait here by failing
// the tree: when a rank is lost or has left, when NCCL fails, at the timeout, which names who has not come.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cuda/member.h"

namespace megadp::cuda {
namespace {

constexpr uint64_t kHasPlace = 1, kHasNone = 2, kReady = 1;

bool on_one_node(const World& world, const std::vector<int>& members) {
  return std::all_of(members.begin(), members.end(), [&](int member) { return world.node(member) == world.node(world.rank()); });
}

}  // namespace

// With the first collective, of which all ranks know then which channel it is in: one rank without a place is enough, since the others
// would wait for it in theirs.
Status Member::share_places(Launcher& on, uint64_t number) {
  const bool has_place = on.has_place();
  if (!on_one_node(gpu_->world(), control_->members())) {
    if (!has_place) {
      log(LogLevel::warning,
          text("CUDA device ", gpu_->index(), " may not hold the collectives of all communicators at once, and ranks of ",
               "several hosts cannot agree on their order: use fewer communicators at a time, fewer CTAs for NCCL ",
               "(NCCL_MAX_CTAS), or call the collectives of all communicators in the same order on all ranks"));
    }
    places_ = Places::own;
    return {};
  }
  control_->say(Group::Word::sharing, number, has_place ? kHasPlace : kHasNone);
  const uint64_t most = control_->hear(Group::Word::sharing, number, [this] { return gpu_->failed(); });
  if (most == 0) return gpu_->failure();
  places_ = most == kHasPlace ? Places::own : Places::shared;
  return {};
}

Status Member::take_turn(Launcher& on, uint64_t number, const std::shared_ptr<CudaEvent>& end, std::optional<LaunchOrder::InLine>* line) {
  if (places_ == Places::unknown) {
    if (Status shared = share_places(on, number); !shared) return shared;
  }
  if (places_ == Places::own) return {};
  const auto give_up = [this] { return gpu_->failed(); };
  if (Status passed = on.wait_for_others(); !passed) return passed;
  control_->say(Group::Word::ready, number, kReady);
  if (control_->hear(Group::Word::ready, number, give_up) == 0) return gpu_->failure();
  line->emplace(gpu_->order());
  control_->say(Group::Word::stamp, number, (*line)->stamp());
  const uint64_t largest = control_->hear(Group::Word::stamp, number, give_up);
  if (largest == 0 || !(*line)->wait_for_turn(largest, give_up)) return gpu_->failure();
  const auto before = (*line)->follow(end);
  if (before == nullptr) return {};
  return gpu_->check(gpu_->plugin().stream_wait(gpu_->device(), on.stream(), before->raw()), "ordering a collective after another");
}

}  // namespace megadp::cuda
