// SPDX-License-Identifier: Apache-2.0
// This rank's end of a group: how it comes to be, how an operation runs in it, how it ends.
#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "host/collective.h"

namespace megadp::host {

Member::Member(std::shared_ptr<World> world, std::shared_ptr<Network> network, std::vector<int> members)
    : world_(std::move(world)), network_(std::move(network)), members_(std::move(members)) {
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
}

Result<std::shared_ptr<Member>> Member::create(std::shared_ptr<World> world, std::shared_ptr<Network> network, std::vector<int> members) {
  std::shared_ptr<Member> member(new Member(std::move(world), std::move(network), std::move(members)));
  if (member->size() == 1) return member;
  if (member->spans_nodes() && member->network_ == nullptr) return internal_error("a group over several nodes was given no network");
  Status ready = member->set_up();
  if (!ready.ok()) return ready;
  return member;
}

Status Member::set_up() {
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
    auto transport = network_->connect(members_);
    if (!transport.ok()) return transport.status();
    transport_ = *std::move(transport);
  }
  if (control_ != nullptr) sync_.emplace(world_, local_, control_);
  return {};
}

Result<std::shared_ptr<SharedMemory>> Member::create_shared_memory(const Subject& what, bool touch) {
  Result<std::shared_ptr<SharedMemory>> parts = SharedMemory::create(*world_, local_, local_rank_, what, touch);
  if (!spans_nodes()) return parts;
  Status agreed = agree(*world_, members_, what, parts.status());
  if (!agreed.ok()) return agreed;
  return parts;
}

Status Member::different(int rank, const Operation& operation, int other_rank, const Operation& other) const {
  const int member = members_[static_cast<size_t>(rank)], other_member = members_[static_cast<size_t>(other_rank)];
  return {Code::desync,
          text("ranks ", member, " and ", other_member, " called different operations: ", describe(operation), " and ", describe(other)),
          Blame{.rank = other_member}};
}

// Before the first data of an operation crosses: sizes that differ would be cut or lost. The ranks of this node meet first, so that one
// that does not come is named by those beside it, and not taken for the rank of another node that waits for it as well.
Status Member::compare_with_other_nodes(const Operation& operation, const Stop& stop) {
  if (operation.number == compared_) return {};
  if (sync_) {
    Status met = sync_->barrier(operation, stop);
    if (!met.ok()) return met;
  }
  std::vector<Operation> theirs(remote_.size());
  for (size_t i = 0; i < remote_.size(); ++i) {
    const int member = members_[static_cast<size_t>(remote_[i])];
    Status posted = transport_->send(member, &operation, sizeof operation);
    if (posted.ok()) posted = transport_->receive(member, &theirs[i], sizeof theirs[i]);
    if (!posted.ok()) return posted;
  }
  Status waited = transport_->wait(stop, [&] { return describe(operation); });
  if (!waited.ok()) return waited;
  compared_ = operation.number;
  for (size_t i = 0; i < remote_.size(); ++i) {
    if (same(operation, theirs[i])) continue;
    // All ranks of this node came for the same: the first of them stands for them all, so that every rank names the same two.
    const auto here = static_cast<int>(std::find(members_.begin(), members_.end(), local_[0]) - members_.begin());
    return remote_[i] < here ? different(remote_[i], theirs[i], here, operation) : different(here, operation, remote_[i], theirs[i]);
  }
  return {};
}

Status Member::barrier(const Operation& operation, const Stop& stop) {
  if (spans_nodes()) {
    Status compared = compare_with_other_nodes(operation, stop);
    if (!compared.ok()) return compared;
  }
  return sync_ ? sync_->barrier(operation, stop) : Status();
}

int Member::source_of_broadcast(int root) const noexcept {
  const bool here = std::find(remote_.begin(), remote_.end(), root) == remote_.end();
  return here ? root : firsts_[static_cast<size_t>(world_->node(world_->rank()))];
}

// The root's half goes once to each other node, into the half of the first rank there, which its neighbours see.
Status Member::post_from_root(int root, const std::vector<std::byte*>& staging, size_t bytes) {
  std::byte* const own = staging[static_cast<size_t>(rank_)];
  if (rank_ != root) {
    const bool for_me = bytes > 0 && source_of_broadcast(root) == rank_;
    return for_me ? transport_->receive(members_[static_cast<size_t>(root)], own, bytes) : Status();
  }
  Status posted;
  for (size_t node = 0; node < firsts_.size() && posted.ok() && bytes > 0; ++node) {
    if (firsts_[node] < 0 || node == static_cast<size_t>(world_->node(world_->rank()))) continue;
    posted = transport_->send(members_[static_cast<size_t>(firsts_[node])], own, bytes);
  }
  return posted;
}

Status Member::post_parts(const std::vector<std::byte*>& staging, const PartOf& out, const PartOf& in) {
  for (const int other : remote_) {
    const auto rank = static_cast<size_t>(other);
    const Part sent = out(rank), received = in(rank);
    Status posted;
    if (sent.bytes > 0) posted = transport_->send(members_[rank], staging[static_cast<size_t>(rank_)] + sent.offset, sent.bytes);
    if (posted.ok() && received.bytes > 0) posted = transport_->receive(members_[rank], staging[rank] + received.offset, received.bytes);
    if (!posted.ok()) return posted;
  }
  return {};
}

Status Member::exchange_and_barrier(const Operation& operation, const Stop& stop, const std::function<Status()>& post) {
  Status status = compare_with_other_nodes(operation, stop);
  if (status.ok()) status = post();
  if (status.ok()) status = transport_->wait(stop, [&] { return describe(operation); });
  if (!status.ok()) return status;
  return sync_ ? sync_->barrier(operation, stop) : Status();
}

Member::~Member() {
  if (sync_ && !world_->in_forked_child()) sync_->leave();
}

Status Member::perform(uint64_t place, const Blame& blame, const Describe& during, const Stop& stop, const std::function<Status()>& body) {
  const std::unique_lock running(running_, std::try_to_lock);
  if (!running.owns_lock()) {
    return bad_state(during(), ": another operation of this group is running on another stream; a group's operations need one order");
  }
  if (!broken_.ok()) return broken_;
  if (place != last_place_ + 1) {
    broken_ = bad_state(during(), ": this rank's call ", last_place_ + 1,
                        " on this group did not run before it, because its stream failed or is another one");
    if (size() > 1) world_->fail(broken_);
    return broken_;
  }
  last_place_ = place;
  Status status = size() > 1 && world_->failed() ? world_->failure() : body();
  if (sync_) sync_->end();
  if (status.ok()) return status;
  // Whoever failed, the sentence says during what, and the blame where.
  if (status.text().find(during()) == std::string::npos) status = status.with_context(during());
  status = status.with_blame(blame);
  if (size() == 1) return status;
  broken_ = status;
  if (status.code() == Code::aborted && stop.requested()) {
    if (sync_) sync_->leave();  // this rank goes away of its own accord: only the peers that still wait for it need to know
  } else {
    world_->fail(status);
  }
  return status;
}

const std::vector<std::byte*>& Member::next_staging() {
  return staging_[turn_++ & 1];
}

}  // namespace megadp::host
