// SPDX-License-Identifier: Apache-2.0
// What a group over several nodes does besides: comparing operations, and moving halves of staging memory.
#include <algorithm>

#include "host/group.h"

namespace megadp::host {

Status HostGroup::different(int rank, const Operation& operation, int other_rank, const Operation& other) const {
  const int member = members_[static_cast<size_t>(rank)], other_member = members_[static_cast<size_t>(other_rank)];
  return {Code::desync,
          text("ranks ", member, " and ", other_member, " called different operations: ", describe(operation), " and ", describe(other)),
          Blame{.rank = other_member}};
}

// Before the first data of an operation crosses: sizes that differ would be cut or lost. The ranks of this node meet first, so that one
// that does not come is named by those beside it, and not taken for the rank of another node that waits for it as well.
Status HostGroup::compare_with_other_nodes(const Operation& operation, const Stop& stop) {
  if (operation.number == compared_) return {};
  if (sync_) {
    Status met = sync_->barrier(operation, stop);
    if (!met.ok()) return met;
  }
  theirs_.resize(remote_.size());
  for (size_t i = 0; i < remote_.size(); ++i) {
    const int member = members_[static_cast<size_t>(remote_[i])];
    Status posted = transport_->send(member, &operation, sizeof operation);
    if (posted.ok()) posted = transport_->receive(member, &theirs_[i], sizeof theirs_[i]);
    if (!posted.ok()) return posted;
  }
  Status waited = transport_->wait(stop, [&] { return describe(operation); });
  if (!waited.ok()) return waited;
  compared_ = operation.number;
  for (size_t i = 0; i < remote_.size(); ++i) {
    if (same(operation, theirs_[i])) continue;
    // All ranks of this node came for the same: the first of them stands for them all, so that every rank names the same two.
    const auto here = static_cast<int>(std::find(members_.begin(), members_.end(), local_[0]) - members_.begin());
    return remote_[i] < here ? different(remote_[i], theirs_[i], here, operation) : different(here, operation, remote_[i], theirs_[i]);
  }
  return {};
}

int HostGroup::source_of_broadcast(int root) const noexcept {
  const bool here = std::find(remote_.begin(), remote_.end(), root) == remote_.end();
  return here ? root : firsts_[static_cast<size_t>(world_->node(world_->rank()))];
}

std::vector<int> HostGroup::carriers_from(int root) const {
  std::vector<int> carriers{root};
  const auto nodes = firsts_.size(), node_of_root = static_cast<size_t>(world_->node(members_[static_cast<size_t>(root)]));
  for (size_t step = 1; step < nodes; ++step) {
    const int first = firsts_[(node_of_root + step) % nodes];
    if (first >= 0) carriers.push_back(first);
  }
  return carriers;
}

// The root's half goes once to each other node, into the half of the first rank there, which its neighbours see.
Status HostGroup::post_from_root(int root, const std::vector<std::byte*>& staging, size_t bytes) {
  std::byte* const own = staging[static_cast<size_t>(rank_)];
  if (rank_ != root) {
    const bool for_me = bytes > 0 && source_of_broadcast(root) == rank_;
    return for_me ? post(static_cast<size_t>(root), own, 0, own, bytes) : Status();
  }
  Status posted;
  for (size_t node = 0; node < firsts_.size() && posted.ok() && bytes > 0; ++node) {
    if (firsts_[node] < 0 || node == static_cast<size_t>(world_->node(world_->rank()))) continue;
    posted = post(static_cast<size_t>(firsts_[node]), own, bytes, own, 0);
  }
  return posted;
}

// Where data goes one way, an empty message comes back: so a sender waits in each turn for its receiver to have come to that turn, which
// would otherwise have to keep what is sent ahead of it.
Status HostGroup::post(size_t rank, const std::byte* out, size_t out_bytes, std::byte* in, size_t in_bytes) {
  if (out_bytes == 0 && in_bytes == 0) return {};
  Status posted = transport_->send(members_[rank], out, out_bytes);
  return posted.ok() ? transport_->receive(members_[rank], in, in_bytes) : posted;
}

Status HostGroup::post_parts(const std::vector<std::byte*>& staging, const PartOf& out, const PartOf& in) {
  for (const int other : remote_) {
    const auto rank = static_cast<size_t>(other);
    const Part sent = out(rank), received = in(rank);
    Status posted =
        post(rank, staging[static_cast<size_t>(rank_)] + sent.offset, sent.bytes, staging[rank] + received.offset, received.bytes);
    if (!posted.ok()) return posted;
  }
  return {};
}

Status HostGroup::end_exchange(const Operation& operation, const Stop& stop) {
  Status status = transport_->wait(stop, [&] { return describe(operation); });
  return status.ok() && sync_ ? sync_->barrier(operation, stop) : status;
}

}  // namespace megadp::host
