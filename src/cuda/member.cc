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

Member::Member(std::shared_ptr<Communicator> communicator, std::shared_ptr<Watch> watch, std::shared_ptr<Group> control, bool exact,
               std::optional<Direction> lane)
    : communicator_(std::move(communicator)),
      gpu_(communicator_->gpu()),
      watch_(std::move(watch)),
      control_(std::move(control)),
      exact_(exact),
      lane_(std::move(lane)) {}

Member::~Member() {
  if (!gpu_->usable_here()) return;
  watch_->drop(std::move(communicator_));
}

// What it is called, and telling the others of it; `number` among those of this member.
Status Member::say(Submission* one, uint64_t number, const std::string& among) {
  const Call& call = one->call;
  if (lane_) {
    one->number = lane_->number(control_->size(), number);
    (call.kind == Collective::send ? lane_->launched->sent : lane_->launched->received) = number;
  } else {
    one->number = one->operation = number;
  }
  one->name = describe(call.kind, call.count, call.type, call.how + among, one->tag, one->operation);
  if (size() == 1) return {};
  one->said = lane_ ? Direction::said(call.count, call.type) : one->name;
  control_->log_submission(one->number, one->said);
  return compare_with_others(*one);
}

// Ranks that call different things would hang in NCCL, or overwrite each other's memory. On one node, whoever comes second sees it.
Status Member::compare_with_others(const Submission& mine) const {
  for (const Group::Submission& other : control_->submissions(mine.number)) {
    const std::string_view ours = compared(mine.said), theirs = compared(other.what);
    const size_t common = std::min(ours.size(), theirs.size());  // an entry is cut
    if (ours.substr(0, common) == theirs.substr(0, common)) continue;
    if (lane_) return lane_->differ(*control_, rank() == 0 ? mine.said : other.what, rank() == 0 ? other.what : mine.said);
    const int here = gpu_->world().rank();
    const bool first = here < other.member;
    return {Code::desync,
            text("ranks ", std::min(here, other.member), " and ", std::max(here, other.member),
                 " called different operations: ", first ? mine.said : other.what, " and ", first ? other.what : mine.said),
            Blame{.rank = std::max(here, other.member), .bucket = mine.tag.bucket, .operation = mine.operation}};
  }
  return {};
}

// What NCCL makes when it is first needed.
Status Member::set_up(std::span<Submission> all) {
  const Submission& first = all.front();
  Status done = communicator_->open(first.name, Blame{.bucket = first.tag.bucket, .operation = first.operation});
  for (size_t i = 0; i < all.size() && done.ok(); ++i) {
    if (all[i].set_up) done = all[i].set_up();
  }
  return done;
}

Status Member::put(void* stream, std::span<Submission> all) {
  const auto each = [&]() -> Status {
    for (const Submission& one : all) {
      now_ = &one;
      if (Status done = one.work(*this, stream); !done) {
        return done.with_context(one.name).with_blame(Blame{.bucket = one.tag.bucket, .operation = one.operation});
      }
    }
    return {};
  };
  if (all.size() == 1 || size() == 1) return each();
  const Submission& first = all.front();
  return communicator_->together(text(all.size(), " collectives at once, the first of them ", first.name),
                                 Blame{.bucket = first.tag.bucket, .operation = first.operation}, each);
}

Status Member::launch(Launcher& on, std::span<Submission> all) {
  const std::lock_guard lock(launching_);  // the order of the numbers is the order on the stream
  if (gpu_->failed()) return gpu_->failure();
  const bool alone = size() == 1;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string among = all.size() == 1 ? "" : text(", ", i + 1, " of ", all.size(), " at once");
    if (Status same = say(&all[i], launched_ + 1 + i, among); !same) return same;
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
    std::function<Status()> timed_out;
    if (lane_) {
      timed_out = [gpu = gpu_, in = control_, lane = *lane_, k = launched_, name = one.name] {
        return lane.timed_out(*in, gpu->world(), k, name);
      };
    }
    watch_->add({*begin, *end, communicator_, control_, one.name, one.tag.bucket, one.operation, used_, std::move(timed_out)});
  }
  std::optional<LaunchOrder::InLine> line;
  Status done = set_up(all);
  if (done.ok()) done = take_turn(on, all.front().number, *end, &line).with_context(all.front().name);
  if (done.ok()) done = put(on.stream(), all);
  if (!done) gpu_->fail(done);  // before the end, which may seem to be reached then
  Status ended = ending.record();
  if (places_ == Places::own) on.comes_after((*end)->raw_event());  // it is in no order that a later one could rely on
  return done.ok() ? ended.with_context(all.front().name) : done;
}

}  // namespace megadp::cuda
