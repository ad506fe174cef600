// SPDX-License-Identifier: Apache-2.0
// This rank's end of a group: how it comes to be, how an operation runs in it, how it ends.
#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "host/collective.h"

namespace megadp::host {

Member::Member(std::shared_ptr<World> world, std::shared_ptr<Transport> transport, std::vector<int> members)
    : world_(std::move(world)), transport_(std::move(transport)), members_(std::move(members)) {
  for (int rank = 0; rank < size(); ++rank) {
    const int member = members_[static_cast<size_t>(rank)];
    if (member == world_->rank()) {
      rank_ = rank;
      local_rank_ = static_cast<int>(local_.size());
    }
    if (world_->host(member) == world_->host(world_->rank())) {
      local_.push_back(member);
    } else {
      remote_.push_back(rank);
    }
  }
}

Result<std::shared_ptr<Member>> Member::create(std::shared_ptr<World> world, std::shared_ptr<Transport> transport,
                                               std::vector<int> members) {
  std::shared_ptr<Member> member(new Member(std::move(world), std::move(transport), std::move(members)));
  if (member->size() == 1) return member;
  if (member->spans_hosts() && member->transport_ == nullptr) return internal_error("a group over several hosts was given no transport");
  Status ready = member->set_up();
  if (!ready.ok()) return ready;
  return member;
}

Status Member::set_up() {
  const Agreement what{"create_group", 0, kControlBytes + 2 * kStagingHalfBytes};
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
    Result<std::shared_ptr<Parts>> control = Parts::create(*world_, local_, local_rank_, what, false);
    if (control.ok()) {
      control_ = *control;
      Sync::prepare(*control_);
      int part = 0;
      for (int rank = 0; rank < size(); ++rank) {
        if (std::find(remote_.begin(), remote_.end(), rank) == remote_.end()) set_staging(rank, control_->of(part++) + kControlBytes);
      }
    }
    // The ranks of this host know already; those of other hosts have to be told.
    if (!control.ok() && !spans_hosts()) return control.status();
    mine = control.status();
  } else {
    mine = set_private_staging(rank_);
  }
  for (const int rank : remote_) {
    if (mine.ok()) mine = set_private_staging(rank);
  }
  // The others read what was just written only after all have written it.
  Status agreed = agree(*world_, members_, what, mine);
  if (agreed.ok() && control_ != nullptr) sync_.emplace(world_, local_, control_);
  return agreed;
}

Result<std::shared_ptr<Parts>> Member::create_parts(const Agreement& what, bool touch) {
  Result<std::shared_ptr<Parts>> parts = Parts::create(*world_, local_, local_rank_, what, touch);
  if (!spans_hosts()) return parts;
  Status agreed = agree(*world_, members_, what, parts.status());
  if (!agreed.ok()) return agreed;
  return parts;
}

// Before the first data of an operation crosses: sizes that differ would be cut or lost.
Status Member::compare_with_other_hosts(const Operation& operation, const Stop& stop) {
  if (operation.number == compared_) return {};
  std::vector<Operation> theirs(remote_.size());
  for (size_t i = 0; i < remote_.size(); ++i) {
    const int member = members_[static_cast<size_t>(remote_[i])];
    Status posted = transport_->send(member, &operation, sizeof operation);
    if (posted.ok()) posted = transport_->receive(member, &theirs[i], sizeof theirs[i]);
    if (!posted.ok()) return posted;
  }
  Status waited = transport_->wait(stop, describe(operation));
  if (!waited.ok()) return waited;
  compared_ = operation.number;
  for (size_t i = 0; i < remote_.size(); ++i) {
    if (same(operation, theirs[i])) continue;
    const int member = members_[static_cast<size_t>(remote_[i])];
    return {Code::desync,
            text("ranks ", world_->rank(), " and ", member, " called different operations: ", describe(operation), " and ",
                 describe(theirs[i])),
            Blame{.rank = member, .bucket = operation.bucket, .operation = operation.number}};
  }
  return {};
}

Status Member::meet(const Operation& operation, const Stop& stop) {
  if (spans_hosts()) {
    Status compared = compare_with_other_hosts(operation, stop);
    if (!compared.ok()) return compared;
  }
  return sync_ ? sync_->meet(operation, stop) : Status();
}

Status Member::meet_showing(const Operation& operation, const Stop& stop, const std::vector<std::byte*>& staging, Show show, size_t bytes) {
  if (spans_hosts()) {
    Status compared = compare_with_other_hosts(operation, stop);
    if (!compared.ok()) return compared;
    for (const int rank : remote_) {
      const int member = members_[static_cast<size_t>(rank)];
      const size_t sent_at = show == Show::piece ? static_cast<size_t>(rank) * bytes : 0;
      const size_t received_at = show == Show::piece ? static_cast<size_t>(rank_) * bytes : 0;
      Status posted;
      if (show != Show::from_root || operation.root == rank_) {
        posted = transport_->send(member, staging[static_cast<size_t>(rank_)] + sent_at, bytes);
      }
      if (posted.ok() && (show != Show::from_root || operation.root == rank)) {
        posted = transport_->receive(member, staging[static_cast<size_t>(rank)] + received_at, bytes);
      }
      if (!posted.ok()) return posted;
    }
    Status waited = transport_->wait(stop, describe(operation));
    if (!waited.ok()) return waited.with_blame({.bucket = operation.bucket, .operation = operation.number});
  }
  return sync_ ? sync_->meet(operation, stop) : Status();
}

Member::~Member() {
  if (sync_ && !world_->in_forked_child()) sync_->leave();
}

Status Member::perform(const Operation& operation, const Stop& stop, const std::function<Status()>& body) {
  const std::unique_lock running(running_, std::try_to_lock);
  if (!running.owns_lock()) {
    return bad_state(describe(operation),
                     ": another operation of this group is running on another stream; a group's operations need one order");
  }
  if (!broken_.ok()) return broken_;
  if (operation.number != last_number_ + 1) {
    broken_ = bad_state(describe(operation), ": operation ", last_number_ + 1,
                        " of this group did not run before it, because its stream failed or is another one");
    if (size() > 1) world_->fail(broken_);
    return broken_;
  }
  last_number_ = operation.number;
  Status status;
  if (size() > 1 && world_->failed()) {
    status = world_->failure().with_context(describe(operation));
    status = status.with_blame({.bucket = operation.bucket, .operation = operation.number});
  } else {
    status = body();
  }
  if (status.ok() || size() == 1) return status;
  broken_ = status;
  if (status.code() == Code::aborted && stop.passed()) {
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
