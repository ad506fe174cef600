// SPDX-License-Identifier: Apache-2.0
// Submitting collectives to NCCL, each between two marks on the stream that the watch looks at.
#include "cuda/group.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "backend/agreement.h"

namespace megadp::cuda {
namespace {

void* raw(Stream& stream) {
  return static_cast<CudaStream&>(stream).raw();
}

const std::byte* bytes(const void* data) {
  return static_cast<const std::byte*>(data);
}

std::byte* bytes(void* data) {
  return static_cast<std::byte*>(data);
}

// What must be the same on all ranks; ours or, cut, another rank's: all but the bucket at the end, whose number is each rank's own.
std::string_view compared(std::string_view name) {
  return name.substr(0, name.rfind(", bucket "));
}

std::string by(Op op) {
  return op == Op::sum ? "" : text(" (", name_of(op), ")");
}

std::string from_rank(int root) {
  return text(" from rank ", root);
}

std::string in_window(const WindowCall& call, uint64_t window) {
  return text(call.divisor == 1 ? "" : text(" divided by ", call.divisor), call.kind == Collective::broadcast ? from_rank(call.root) : "",
              " from element ", call.begin, " of window ", window);
}

}  // namespace

CudaWindow::Block::~Block() {
  const Gpu& gpu = *communicator->gpu();
  if (data == nullptr || !gpu.usable_here()) return;
  // Also after an abort: what NCCL does not know any more is freed as plain memory.
  (void)communicator->release(data, registration);
}

CudaGroup::CudaGroup(std::shared_ptr<Communicator> communicator, std::shared_ptr<Watch> watch, std::unique_ptr<Group> control, bool exact)
    : communicator_(std::move(communicator)),
      gpu_(communicator_->gpu()),
      watch_(std::move(watch)),
      control_(std::move(control)),
      exact_(exact) {}

CudaGroup::~CudaGroup() {
  if (!gpu_->usable_here()) return;
  watch_->drop(std::move(communicator_));
}

Result<std::unique_ptr<Group>> CudaGroup::split(const std::vector<int>& members) {
  auto control = control_->split(members);
  if (!control) {
    gpu_->fail(control.status());  // other parts would wait for this one in NCCL
    return control.status();
  }
  auto part = communicator_->split(members);
  if (!part) return part.status();
  if (*part == nullptr) return std::unique_ptr<Group>();
  return std::unique_ptr<Group>(new CudaGroup(*std::move(part), watch_, *std::move(control), exact_));
}

Result<std::unique_ptr<Window>> CudaGroup::allocate_window(size_t bytes) {
  World& world = gpu_->world();
  const Subject on{"allocate_window", windows_ + 1, bytes};
  auto block = std::make_shared<Deferred<CudaWindow::Block>>(std::make_shared<CudaWindow::Block>(), watch_);
  (*block)->communicator = communicator_;
  // All have the memory, and as much of it, before any makes it known to NCCL, where it would wait for the others.
  Status mine = bytes == 0 ? invalid("0 bytes asked for; at least 1 is needed") : communicator_->allocate(bytes, &(*block)->data);
  if (Status all_have = agree(world, members(), on, mine.with_context(on.kind)); !all_have) return all_have;
  mine = communicator_->make_known((*block)->data, bytes, &(*block)->registration).with_context(on.kind);
  if (!mine) gpu_->fail(mine);  // the others wait in NCCL
  if (Status all_know = agree(world, members(), on, mine); !all_know) {
    gpu_->fail(all_know);
    communicator_->abort();  // NCCL may be at work on the memory, which goes now
    return all_know;
  }
  windows_ += 1;
  return std::unique_ptr<Window>(new CudaWindow(std::move(block), bytes, windows_));
}

// Ranks that call different things would hang in NCCL, or overwrite each other's memory. On one host, whoever comes second sees it.
Status CudaGroup::compare_with_others(uint64_t number, const std::string& mine, const Tag& tag) const {
  for (const Entered& other : control_->entered(number)) {
    const std::string_view ours = compared(mine), theirs = compared(other.what);
    const size_t common = std::min(ours.size(), theirs.size());  // an entry is cut
    if (ours.substr(0, common) == theirs.substr(0, common)) continue;
    const int here = gpu_->world().rank();
    const bool first = here < other.member;
    Status different(Code::desync,
                     text("ranks ", std::min(here, other.member), " and ", std::max(here, other.member),
                          " called different operations: ", first ? mine : other.what, " and ", first ? other.what : mine),
                     Blame{.rank = std::max(here, other.member), .bucket = tag.bucket, .operation = number});
    gpu_->fail(different);
    return different;
  }
  return {};
}

Status CudaGroup::put(void* stream, std::span<Submission> all) {
  const auto each = [&]() -> Status {
    for (const Submission& one : all) {
      if (Status done = one.work(stream); !done) {
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

Status CudaGroup::submit(Stream& stream, const Call& call, const Tag& tag, std::shared_ptr<void> keep, Work work) {
  Submission one{call, tag, std::move(keep), std::move(work)};
  // Of nothing: only a failure there was before is told.
  return submit_together(stream, {&one, call.count == 0 ? size_t{0} : 1});
}

Status CudaGroup::submit_together(Stream& stream, std::span<Submission> all) {
  const std::lock_guard lock(submitting_);  // the order of the numbers is the order on the stream
  if (gpu_->failed()) return gpu_->failure();
  if (all.empty()) return {};
  const bool alone = size() == 1;
  for (size_t i = 0; i < all.size(); ++i) {
    Submission& one = all[i];
    const std::string among = all.size() == 1 ? "" : text(", ", i + 1, " of ", all.size(), " at once");
    one.number = submitted_ + 1 + i;
    one.name = describe(one.call.kind, one.call.count, one.call.type, one.call.how + among, one.tag, one.number);
    if (alone) continue;
    control_->enter(one.number, one.name);
    if (Status same = compare_with_others(one.number, one.name, one.tag); !same) return same;
  }
  if (alone) {
    Status done = put(raw(stream), all);
    if (done.ok()) submitted_ += all.size();
    return done;
  }
  CudaStream& ours = static_cast<CudaStream&>(stream);
  auto turn = watch_->turn();
  if (!turn) return turn.status();
  auto begin = ours.mark();
  if (!begin) return begin.status();
  used_.clear();
  for (Submission& one : all) used_.push_back(std::move(one.keep));
  Status done = put(raw(stream), all);
  std::vector<std::shared_ptr<void>> used = std::exchange(used_, {});
  auto end = ours.mark();
  if (done.ok() && !end) done = end.status().with_context(all.front().name);
  if (!done && !(end && gpu_->failed())) {  // a part of it may be on the stream already, but no other rank is needed for that
    watch_->drop(std::make_shared<decltype(used)>(std::move(used)), end ? *end : nullptr);
    return done;
  }
  // Also after a failure: what is on the stream then waits for the other ranks, until the watch has aborted it.
  // They end together: the last holds what all of them use.
  for (Submission& one : all) {
    const bool last = &one == &all.back();
    watch_->add({*begin, *end, communicator_, control_, std::move(one.name), one.tag.bucket, one.number,
                 last ? std::move(used) : std::vector<std::shared_ptr<void>>()});
    submitted_ = one.number;
  }
  return done;
}

// ── in windows ──

Result<CudaGroup::Submission> CudaGroup::prepare(const WindowCall& call) {
  const auto& window = static_cast<const CudaWindow&>(*call.window);
  if ((*window.block())->communicator != communicator_) return invalid(name_of(call.kind), ": the window belongs to another group");
  if (Status checked = check(call); !checked) return checked;
  std::byte* const data = call.window->data() + call.begin * size_of(call.type);
  const size_t piece = call.count / static_cast<size_t>(size());
  std::byte* const mine = data + static_cast<size_t>(rank()) * piece * size_of(call.type);
  const Sum sum{call.type, Op::sum, call.divisor};
  Work work;
  switch (call.kind) {
    case Collective::reduce_scatter:
      work = [=, this](void* stream) { return sum_pieces(stream, data, mine, piece, sum); };
      break;
    case Collective::all_reduce:
      work = [=, this, count = call.count](void* stream) { return sum_all(stream, data, data, count, sum); };
      break;
    case Collective::all_gather:
      work = [=, this](void* stream) { return gather(stream, mine, data, piece, sum.type); };
      break;
    default:  // check() has refused the others
      work = [=, this, count = call.count, root = call.root](void* stream) { return spread(stream, data, count, sum.type, root); };
  }
  return Submission{{call.kind, call.count, call.type, in_window(call, window.number())}, call.tag, window.block(), std::move(work)};
}

Status CudaGroup::together(Stream& stream, std::span<const WindowCall> calls) {
  std::vector<Submission> all;
  bool in_steps = false;  // a sum in the host's order is several launches, of which the later need what the earlier have brought
  for (const WindowCall& call : calls) {
    auto one = prepare(call);
    if (!one) return one.status();
    if (call.count == 0) continue;
    all.push_back(*std::move(one));
    in_steps = in_steps || (is_sum(call.kind) && summed_here({call.type, Op::sum, call.divisor}));
  }
  if (!in_steps) return submit_together(stream, all);
  for (Submission& one : all) {
    Status submitted = submit_together(stream, {&one, 1});
    if (submitted.ok()) continue;
    if (&one != &all.front()) gpu_->fail(submitted);  // the other ranks may have all of them
    return submitted;
  }
  return {};
}

// ── on any memory of the device ──

Status CudaGroup::all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, Tag tag) {
  return submit(stream, {Collective::all_reduce, count, type, by(op)}, tag, nullptr, [&](void* s) {
    return sum_all(s, bytes(from), bytes(to), count, {type, op, 1});
  });
}

Status CudaGroup::reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, Tag tag) {
  return submit(stream, {Collective::reduce_scatter, count_per_rank, type, " per rank" + by(op)}, tag, nullptr, [&](void* s) {
    return sum_pieces(s, bytes(from), bytes(to), count_per_rank, {type, op, 1});
  });
}

Status CudaGroup::all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) {
  return submit(stream, {Collective::all_gather, count_per_rank, type, " per rank"}, tag, nullptr,
                [&](void* s) { return gather(s, bytes(from), bytes(to), count_per_rank, type); });
}

Status CudaGroup::all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) {
  return submit(stream, {Collective::all_to_all, count_per_rank, type, " per rank"}, tag, nullptr,
                [&](void* s) { return exchange(s, bytes(from), bytes(to), count_per_rank, type); });
}

Status CudaGroup::broadcast(Stream& stream, void* data, size_t count, DType type, int root, Tag tag) {
  if (Status checked = check_root(root); !checked) return checked;
  return submit(stream, {Collective::broadcast, count, type, from_rank(root)}, tag, nullptr,
                [&](void* s) { return spread(s, bytes(data), count, type, root); });
}

Status CudaGroup::barrier(Stream& stream, Tag tag) {
  return submit(stream, {Collective::barrier, 1, DType::u8}, tag, nullptr, [&](void* s) -> Status {
    if (size() == 1) return {};
    auto byte = scratch(1);
    return byte.ok() ? native_all_reduce(s, *byte, *byte, 1, {DType::u8, Op::max, 1}) : byte.status();
  });
}

}  // namespace megadp::cuda
