// SPDX-License-Identifier: Apache-2.0
#include "cuda/direction.h"

#include "base/text.h"
#include "control/wording.h"

namespace megadp::cuda {
namespace {

// What `member` has said of a number; "" if nothing. `last`: of its collectives.
std::string said_by(const Group& group, int member, uint64_t number, uint64_t* last) {
  for (const Group::Submission& one : group.submissions(number)) {
    if (one.member != member) continue;
    *last = one.last;
    return one.what;
  }
  return {};
}

}  // namespace

std::string Direction::said(size_t count, DType type) {
  return text(count, " ", name_of(type));
}

Status Direction::differ(const Group& group, const std::string& sent, const std::string& expected) const {
  const int sender = group.members()[static_cast<size_t>(from)], receiver = group.members()[static_cast<size_t>(to)];
  return {Code::desync,
          text("ranks ", sender, " and ", receiver, " do not agree on a message: send of ", sent, " to rank ", to, " and recv of ",
               expected, " from rank ", from),
          Blame{.rank = receiver}};
}

// What the other end is busy with, as far as it has said so: nobody is beyond what waits for this rank.
std::string Direction::instead(const Group& group, int peer, uint64_t k) const {
  const bool sends = from == group.rank();
  uint64_t theirs = 0, ours = 0;
  if (!said_by(group, peer, number(group.size(), k), &theirs).empty()) return ", and has come to it, but the data cannot pass";
  const uint64_t next = 1 + (sends ? launched->received : launched->sent).load();
  if (const std::string other = said_by(group, peer, back().number(group.size(), next), &theirs); !other.empty()) {
    return text(", and waits in ", sends ? "send of " : "recv of ", other, sends ? " to rank " : " from rank ", group.rank());
  }
  (void)said_by(group, group.members()[static_cast<size_t>(group.rank())], 0, &ours);
  return theirs > ours ? text(", and waits in operation ", ours + 1, " of the group") : "";
}

Status Direction::timed_out(const Group& group, const World& world, uint64_t k, const std::string& name) const {
  const int peer = group.members()[static_cast<size_t>(from == group.rank() ? to : from)];
  return {Code::timeout, text(name, ": timed out after ", seconds(world.timeout_ns()), ": ", world.describe(peer), instead(group, peer, k)),
          Blame{.rank = peer}};
}

}  // namespace megadp::cuda
