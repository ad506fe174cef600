// SPDX-License-Identifier: Apache-2.0
// How a group comes to be, and its windows: memory that all ranks have, or none; and how it goes.
#include <algorithm>
#include <bit>
#include <utility>

#include "control/agreement.h"
#include "host/collective.h"

namespace megadp::host {
namespace {

// See HostGroup::ranks_of_node().
size_t find_ranks_of_node(const World& world, const std::vector<int>& members) {
  const auto node = [&](size_t rank) { return world.node(members[rank]); };
  size_t each = 1;
  while (each < members.size() && node(each) == node(0)) ++each;
  if (each == 1 || each == members.size() || members.size() % each != 0 || !std::has_single_bit(each)) return 0;
  for (size_t rank = each; rank < members.size(); ++rank) {
    const size_t first = rank - rank % each;
    if (node(rank) != node(first)) return 0;
    for (size_t before = 0; before < first; before += each) {
      if (node(before) == node(first)) return 0;
    }
  }
  return each;
}

}  // namespace

HostGroup::HostGroup(std::shared_ptr<World> world, std::shared_ptr<Network> network, std::vector<int> members,
                     std::shared_ptr<ThreadPool> pool)
    : world_(std::move(world)), network_(std::move(network)), members_(std::move(members)), pool_(std::move(pool)) {
  for (int rank = 0; rank < size(); ++rank) {
    const int member = members_[static_cast<size_t>(rank)];
    const auto node = static_cast<size_t>(world_->node(member));
    firsts_.resize(std::max(firsts_.size(), node + 1), -1);
    if (firsts_[node] < 0) firsts_[node] = rank;
    if (member == world_->rank()) {
      rank_ = rank;
      local_rank_ = static_cast<int>(local_.size());
    }
    if (world_->node(member) == world_->node(world_->rank())) {
      local_.push_back(member);
    } else {
      remote_.push_back(rank);
    }
  }
  if (spans_nodes()) ranks_of_node_ = find_ranks_of_node(*world_, members_);
}

Result<std::shared_ptr<HostGroup>> HostGroup::create(std::shared_ptr<World> world, std::shared_ptr<Network> network,
                                                     const std::vector<int>& members, std::shared_ptr<ThreadPool> pool) {
  Status checked = check_members(*world, members);
  if (!checked.ok()) return checked;
  std::shared_ptr<HostGroup> group(new HostGroup(std::move(world), std::move(network), members, std::move(pool)));
  if (group->size() == 1) return group;
  if (group->spans_nodes() && group->network_ == nullptr) return internal_error("a group over several nodes was given no network");
  Status ready = group->set_up();
  if (!ready.ok()) return ready;
  return group;
}

Status HostGroup::set_up() {
  const Subject what{"create_group", 0, kControlBytes + 2 * kStagingHalfBytes};
  staging_[0].resize(members_.size());
  staging_[1].resize(members_.size());
  const auto set_staging = [&](int rank, std::byte* halves) {
    staging_[0][static_cast<size_t>(rank)] = halves;
    staging_[1][static_cast<size_t>(rank)] = halves + kStagingHalfBytes;
  };
  const auto set_private_staging = [&](int rank) -> Status {
    Result<std::unique_ptr<Memory>> memory = HostMemory::create(2 * kStagingHalfBytes);
    if (!memory.ok()) return memory.status();
    set_staging(rank, static_cast<std::byte*>((*memory)->data()));
    private_staging_.push_back(std::move(*memory));
    return {};
  };

  Status mine;
  if (local_.size() > 1) {
    Result<std::shared_ptr<SharedMemory>> control = SharedMemory::create(*world_, local_, local_rank_, what, false);
    if (control.ok()) {
      control_ = *control;
      Sync::prepare(*control_);
      int part = 0;
      for (int rank = 0; rank < size(); ++rank) {
        if (std::find(remote_.begin(), remote_.end(), rank) == remote_.end()) set_staging(rank, control_->of(part++) + kControlBytes);
      }
    }
    // The ranks of this node know already; those of other nodes have to be told.
    if (!control.ok() && !spans_nodes()) return control.status();
    mine = control.status();
  } else {
    mine = set_private_staging(rank_);
  }
  for (const int rank : remote_) {
    if (mine.ok()) mine = set_private_staging(rank);
  }
  // The others read what was just written only after all have written it.
  if (Status agreed = agree(*world_, members_, what, mine); !agreed.ok()) return agreed;
  if (spans_nodes()) {
    auto transport = network_->connect(members_, pool_);
    if (!transport.ok()) return transport.status();
    transport_ = *std::move(transport);
  }
  if (control_ == nullptr) return {};
  sync_.emplace(world_, local_, control_);
  for (const size_t parity : {0, 1}) {
    for (int rank = 0; rank < control_->size(); ++rank) slots_[parity].push_back(sync_->data_of(rank, parity));
  }
  return {};
}

HostGroup::~HostGroup() {
  if (sync_ && !world_->in_forked_child()) sync_->leave();
}

Result<std::shared_ptr<Group>> HostGroup::split(const std::vector<int>& members) {
  if (members.empty()) return std::shared_ptr<Group>();
  auto group = create(world_, network_, members, pool_);
  if (!group.ok()) return group.status();
  return std::shared_ptr<Group>(*std::move(group));
}

Result<std::unique_ptr<Window>> HostGroup::allocate_window(size_t bytes) {
  const Subject what{"allocate_window", windows_ + 1, bytes};
  Result<std::shared_ptr<SharedMemory>> parts = SharedMemory::create(*world_, local_, local_rank_, what, true);
  Status all_have = spans_nodes() ? agree(*world_, members_, what, parts.status()) : parts.status();
  if (!all_have.ok()) return all_have;
  windows_ = what.number;
  return std::unique_ptr<Window>(new HostWindow(*std::move(parts), this, what.number));
}

}  // namespace megadp::host
