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
  uint64_t most = 0;
  if (Status told = tell(Group::Word::sharing, number, on.has_place() ? kHasPlace : kHasNone, &most); !told) return told;
  places_ = most == kHasPlace ? Places::own : Places::shared;
  if (places_ == Places::own || on_one_node(gpu_->world(), communicator_->members())) return {};
  log(LogLevel::warning, text("CUDA device ", gpu_->index(), " may not hold the collectives of all communicators at once, and ", size(),
                              " ranks of several nodes now agree on their order over the network each time, which is slow: use fewer ",
                              "communicators at a time, or let the device hold more (CUDA_DEVICE_MAX_CONNECTIONS, NCCL_MAX_CTAS)"));
  return {};
}

// By memory that the ranks of a node share, otherwise, and for a lane, as it has none of its own, by the control plane. `largest` is that
// of all ranks' words.
Status Member::tell(Group::Word which, uint64_t number, uint64_t mine, uint64_t* largest) {
  if (lane_ || !on_one_node(gpu_->world(), communicator_->members())) {
    auto most = communicator_->largest(mine);
    if (most) *largest = *most;
    return most.status();
  }
  control_->say(which, number, mine);
  *largest = control_->hear(which, number, [this] { return gpu_->failed(); });
  return *largest == 0 ? gpu_->failure() : Status();
}

Status Member::take_turn(Launcher& on, uint64_t number, const std::shared_ptr<CudaEvent>& end, std::optional<LaunchOrder::InLine>* line) {
  if (places_ == Places::unknown) {
    if (Status shared = share_places(on, number); !shared) return shared;
  }
  if (places_ == Places::own) return {};
  if (Status passed = on.wait_for_others(); !passed) return passed;
  uint64_t largest = 0;
  if (Status all_ready = tell(Group::Word::ready, number, kReady, &largest); !all_ready) return all_ready;
  line->emplace(gpu_->order());
  if (Status stamped = tell(Group::Word::stamp, number, (*line)->stamp(), &largest); !stamped) return stamped;
  if (!(*line)->wait_for_turn(largest, [this] { return gpu_->failed(); })) return gpu_->failure();
  const auto before = (*line)->follow(end);
  if (before == nullptr) return {};
  return gpu_->check(gpu_->plugin().stream_wait(gpu_->device(), on.stream(), before->raw()), "ordering a collective after another");
}

}  // namespace megadp::cuda
