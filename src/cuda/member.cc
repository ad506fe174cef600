// SPDX-License-Identifier: Apache-2.0
// Launching collectives of NCCL, each between two marks on the stream that the watch looks at.
#include "cuda/member.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace megadp::cuda {
namespace {

// What must be the same on all ranks; ours or, cut, another rank's: all but the bucket at the end, whose number is each rank's own.
std::string_view compared(std::string_view name) {
  return name.substr(0, name.rfind(", bucket "));
}

// Whatever happens: the watch waits for it.
class Ending {
 public:
  Ending(Launcher& on, CudaEvent& end) noexcept : on_(on), end_(end) {}
  ~Ending() {
    if (!recorded_) (void)end_.record(on_.stream());
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  Status record() {
    recorded_ = true;
    return end_.record(on_.stream());
  }

 private:
  Launcher& on_;
  CudaEvent& end_;
  bool recorded_ = false;
};

}  // namespace

Member::Member(std::shared_ptr<Communicator> communicator, std::shared_ptr<Watch> watch, std::shared_ptr<Group> control, bool exact)
    : communicator_(std::move(communicator)),
      gpu_(communicator_->gpu()),
      watch_(std::move(watch)),
      control_(std::move(control)),
      exact_(exact) {}

Member::~Member() {
  if (!gpu_->usable_here()) return;
  watch_->drop(std::move(communicator_));
}

// Ranks that call different things would hang in NCCL, or overwrite each other's memory. On one node, whoever comes second sees it.
Status Member::compare_with_others(uint64_t number, const std::string& mine, const Tag& tag) const {
  for (const Group::Submission& other : control_->submissions(number)) {
    const std::string_view ours = compared(mine), theirs = compared(other.what);
    const size_t common = std::min(ours.size(), theirs.size());  // an entry is cut
    if (ours.substr(0, common) == theirs.substr(0, common)) continue;
    const int here = gpu_->world().rank();
    const bool first = here < other.member;
    return {Code::desync,
            text("ranks ", std::min(here, other.member), " and ", std::max(here, other.member),
                 " called different operations: ", first ? mine : other.what, " and ", first ? other.what : mine),
            Blame{.rank = std::max(here, other.member), .bucket = tag.bucket, .operation = number}};
  }
  return {};
}

// What NCCL makes when it is first needed.
Status Member::set_up(std::span<Submission> all) {
  const Submission& first = all.front();
  Status done = communicator_->open(first.name, Blame{.bucket = first.tag.bucket, .operation = first.number});
  for (size_t i = 0; i < all.size() && done.ok(); ++i) {
    if (all[i].set_up) done = all[i].set_up();
  }
  return done;
}

Status Member::put(void* stream, std::span<Submission> all) {
  const auto each = [&]() -> Status {
    for (const Submission& one : all) {
      if (Status done = one.work(*this, stream); !done) {
        return done.with_context(one.name).with_blame(Blame{.bucket = one.tag.bucket, .operation = one.number});
      }
    }
    return {};
  };
  if (all.size() == 1 || size() == 1) return each();
  const Submission& first = all.front();
  return communicator_->together(text(all.size(), " collectives at once, the first of them ", first.name),
                                 Blame{.bucket = first.tag.bucket, .operation = first.number}, each);
}

Status Member::launch(Launcher& on, std::span<Submission> all) {
  const std::lock_guard lock(launching_);  // the order of the numbers is the order on the stream
  if (gpu_->failed()) return gpu_->failure();
  const bool alone = size() == 1;
  for (size_t i = 0; i < all.size(); ++i) {
    Submission& one = all[i];
    const std::string among = all.size() == 1 ? "" : text(", ", i + 1, " of ", all.size(), " at once");
    one.number = launched_ + 1 + i;
    one.name = describe(one.call.kind, one.call.count, one.call.type, one.call.how + among, one.tag, one.number);
    if (alone) continue;
    control_->log_submission(one.number, one.name);
    if (Status same = compare_with_others(one.number, one.name, one.tag); !same) return same;
  }
  launched_ += all.size();
  used_ = std::make_shared<Used>();
  if (alone) return put(on.stream(), all);
  auto turn = watch_->turn();
  if (!turn) return turn.status();
  auto begin = on.mark();
  if (!begin) return begin.status();
  auto end = on.event();
  if (!end) return end.status();
  Ending ending(on, **end);
  for (const Submission& one : all) {
    used_->push_back(one.keep);
    // Before it is launched: a rank that has left or does not come may keep it from being.
    watch_->add({*begin, *end, communicator_, control_, one.name, one.tag.bucket, one.number, used_});
  }
  std::optional<LaunchOrder::InLine> line;
  Status done = set_up(all);
  if (done.ok()) done = take_turn(on, all.front().number, *end, &line);
  if (done.ok()) done = put(on.stream(), all);
  if (!done) gpu_->fail(done);  // before the end, which may seem to be reached then
  Status ended = ending.record();
  if (places_ == Places::own) on.comes_after((*end)->raw_event());  // it is in no order that a later one could rely on
  return done.ok() ? ended.with_context(all.front().name) : done;
}

}  // namespace megadp::cuda
