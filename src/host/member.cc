// SPDX-License-Identifier: Apache-2.0
// This rank's end of a group: how it comes to be, how an operation runs in it, how it ends.
#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "host/collective.h"

namespace megadp::host {

Result<std::shared_ptr<Member>> Member::create(std::shared_ptr<World> world, std::vector<int> members) {
  std::shared_ptr<Member> member(new Member(std::move(world), std::move(members)));
  World& w = *member->world_;
  const std::vector<int>& ranks = member->members_;
  member->rank_ = static_cast<int>(std::find(ranks.begin(), ranks.end(), w.rank()) - ranks.begin());
  if (ranks.size() == 1) return member;

  const Agreement what{"create_group", 0, kControlBytes + 2 * kStagingHalfBytes};
  Result<std::shared_ptr<Parts>> control = Parts::create(w, ranks, member->rank_, what, false);
  if (!control.ok()) return control.status();
  Sync::describe_cpus(**control);
  // The others read what was just written only after all have written it.
  Status agreed = agree(w, ranks, what, {});
  if (!agreed.ok()) return agreed;
  member->control_ = *control;
  member->sync_.emplace(member->world_, ranks, *control);
  for (size_t half = 0; half < 2; ++half) {
    for (int rank = 0; rank < member->size(); ++rank) {
      member->staging_[half].push_back((*control)->of(rank) + kControlBytes + half * kStagingHalfBytes);
    }
  }
  return member;
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
    sync_->leave();  // this rank goes away of its own accord: only the peers that still wait for it need to know
  } else {
    world_->fail(status);
  }
  return status;
}

const std::vector<std::byte*>& Member::next_staging() {
  return staging_[turn_++ & 1];
}

}  // namespace megadp::host
