// SPDX-License-Identifier: Apache-2.0
#include "cuda/lanes.h"

#include <utility>

namespace megadp::cuda {

Lanes::Lanes(std::shared_ptr<Member> whole) : whole_(std::move(whole)), others_(static_cast<size_t>(whole_->size())) {
  const std::vector<int>& members = whole_->communicator()->members();
  const int own = members[static_cast<size_t>(whole_->rank())];
  for (size_t rank = 0; rank < others_.size(); ++rank) {
    if (members[rank] == own) continue;
    others_[rank].to.line = whole_->gpu()->line_of({own, members[rank]});
    others_[rank].from.line = whole_->gpu()->line_of({members[rank], own});
  }
}

Result<Lanes::Lane*> Lanes::lane(const CudaStream& beside, int rank, bool sends) {
  Other& other = others_[static_cast<size_t>(rank)];
  Lane& lane = sends ? other.to : other.from;
  if (lane.member != nullptr) return &lane;
  auto stream = beside.create_another("mdp-message");
  if (!stream) return stream.status();
  if (other.launched == nullptr) other.launched = std::make_shared<Direction::Launched>();
  const Direction direction{sends ? whole_->rank() : rank, sends ? rank : whole_->rank(), other.launched};
  const std::vector<int>& members = whole_->communicator()->members();
  std::vector<int> both{members[static_cast<size_t>(direction.from)], members[static_cast<size_t>(direction.to)]};
  auto communicator = std::make_shared<Communicator>(whole_->gpu(), whole_->watch(), std::move(both), lane.line);
  lane.member = std::make_shared<Member>(std::move(communicator), whole_->watch(), whole_->shared_control(), false, direction);
  lane.stream = *std::move(stream);
  return &lane;
}

Status Lanes::exchange(CudaStream& stream, const Message& send, const Message& recv) {
  struct Half {
    Message message;
    bool sends;
    Lane* lane;
  };
  std::vector<Half> halves;
  for (const bool sends : {true, false}) {
    const Message& message = sends ? send : recv;
    if (message.rank < 0) continue;
    auto found = lane(stream, message.rank, sends);
    if (!found) return found.status();
    halves.push_back({message, sends, *found});
  }
  auto before = stream.record(nullptr);
  if (!before) return before.status();
  for (const Half& half : halves) {
    if (Status ordered = half.lane->stream->wait_for(*before); !ordered) return ordered;
  }
  const auto submit = [](const Half& half) -> Status {
    const Message& m = half.message;
    Member::Submission one{
        {half.sends ? Collective::send : Collective::recv, m.count, m.type, text(half.sends ? " to rank " : " from rank ", m.rank)},
        {},
        nullptr,
        [m, sends = half.sends](Member& member, void* s) { return member.pass(s, m.data, m.count, m.type, sends); }};
    return half.lane->stream->submit([member = half.lane->member, one = std::move(one)](Launcher& on) mutable {
      return member->launch(on, {&one, 1});
    });
  };
  Status done;
  for (size_t i = 0; i < halves.size() && done.ok(); ++i) done = submit(halves[i]);
  for (size_t i = 0; i < halves.size() && done.ok(); ++i) {
    auto end = halves[i].lane->stream->record(nullptr);
    done = end ? stream.wait_for(*end) : end.status();
  }
  if (!done) whole_->gpu()->fail(done);  // one half, or nobody who waits for it, would be worse
  return done;
}

}  // namespace megadp::cuda
