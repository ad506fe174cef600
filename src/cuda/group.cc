// SPDX-License-Identifier: Apache-2.0
#include "cuda/group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "control/agreement.h"
#include "cuda/exchange.h"

namespace megadp::cuda {
namespace {

const std::byte* bytes(const void* data) {
  return static_cast<const std::byte*>(data);
}

std::byte* bytes(void* data) {
  return static_cast<std::byte*>(data);
}

std::string by(Op op) {
  return op == Op::sum ? "" : text(" (", name_of(op), ")");
}

std::string from_rank(int root) {
  return text(" from rank ", root);
}

std::string divided_by(float divisor) {
  return divisor == 1 ? "" : text(" divided by ", divisor);
}

constexpr size_t kMostText = 48;  // of a list: what ranks compare is cut

// Which are the same on all ranks.
std::string in_pieces(const Counts& counts) {
  std::string list = " in pieces of ";
  for (size_t r = 0; r < counts.size() && list.size() <= kMostText; ++r) list += text(r == 0 ? "" : ", ", counts[r]);
  if (list.size() <= kMostText) return list;
  return text(" in ", counts.size(), " pieces (digest ", hash_bytes(counts.data(), counts.size() * sizeof counts[0]), ")");
}

std::string in_window(const WindowOp& call, uint64_t window) {
  return text(divided_by(call.divisor), call.kind == Collective::broadcast ? from_rank(call.root) : "",
              call.counts ? in_pieces(*call.counts) : "", " from element ", call.begin, " of window ", window);
}

uint64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

std::shared_ptr<Member> make_member(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, std::shared_ptr<Group> control, bool exact) {
  const std::vector<int>& members = control->members();
  auto communicator = std::make_shared<Communicator>(gpu, watch, members, gpu->line_of(members));
  return std::make_shared<Member>(std::move(communicator), std::move(watch), std::move(control), exact);
}

}  // namespace

// On the launcher's thread.
Status CudaWindow::Block::make_known() {
  return registration == nullptr ? communicator->make_known(data, bytes, &registration) : Status();
}

CudaWindow::Block::~Block() {
  const Gpu& gpu = *communicator->gpu();
  if (data == nullptr || !gpu.usable_here()) return;
  // Also after an abort: what NCCL does not know any more is freed as plain memory.
  if (registration != nullptr) (void)communicator->forget(registration);
  (void)gpu.plugin().nccl_release(gpu.nccl(), gpu.device(), data);
}

CudaGroup::CudaGroup(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, std::shared_ptr<Group> control, bool exact)
    : member_(make_member(std::move(gpu), std::move(watch), std::move(control), exact)), lanes_(member_) {}

Result<std::shared_ptr<Group>> CudaGroup::split(const std::vector<int>& members) {
  auto control = member_->control().split(members);
  if (!control) return control.status();
  if (*control == nullptr) return std::shared_ptr<Group>();
  return std::shared_ptr<Group>(new CudaGroup(member_->gpu(), member_->watch(), *std::move(control), member_->exact()));
}

Result<std::unique_ptr<Window>> CudaGroup::allocate_window(size_t bytes) {
  const Gpu& gpu = *member_->gpu();
  const Subject on{"allocate_window", windows_ + 1, bytes};
  auto block = std::make_shared<Deferred<CudaWindow::Block>>(std::make_shared<CudaWindow::Block>(), member_->watch());
  (*block)->communicator = member_->communicator();
  (*block)->bytes = bytes;
  Status mine = bytes == 0 ? invalid("0 bytes asked for; at least 1 is needed") : gpu.failed() ? gpu.failure() : Status();
  if (mine.ok()) {
    mine = member_->watch()->allocate([&] {
      return gpu.check(gpu.plugin().nccl_allocate(gpu.nccl(), gpu.device(), bytes, &(*block)->data), text("allocating ", bytes, " bytes"));
    });
  }
  if (Status all_have = agree(member_->gpu()->world(), members(), on, mine.with_context(on.kind)); !all_have) return all_have;
  windows_ += 1;
  return std::unique_ptr<Window>(new CudaWindow(std::move(block), windows_));
}

Status CudaGroup::submit(Stream& stream, std::vector<Member::Submission> all, bool at_once) {
  if (all.empty()) return stream.failure();
  return static_cast<CudaStream&>(stream).submit([member = member_, all = std::move(all), at_once](Launcher& on) mutable {
    if (at_once) return member->launch(on, all);
    Status launched;
    for (size_t i = 0; i < all.size() && launched.ok(); ++i) launched = member->launch(on, {&all[i], 1});
    return launched;
  });
}

Status CudaGroup::submit(Stream& stream, const Member::Call& call, const Tag& tag, Member::Work work) {
  std::vector<Member::Submission> all;  // of nothing: only a failure there was before is told
  if (call.count > 0) all.push_back({call, tag, nullptr, std::move(work)});
  return submit(stream, std::move(all), true);
}

// ── in windows ──

Result<Member::Submission> CudaGroup::prepare(const WindowOp& call) {
  const auto& window = static_cast<const CudaWindow&>(*call.window);
  if ((*window.block())->communicator != member_->communicator())
    return invalid(name_of(call.kind), ": the window belongs to another group");
  if (Status checked = check(call); !checked) return checked;
  std::byte* const data = call.window->data() + call.begin * size_of(call.type);
  const size_t piece = call.count / static_cast<size_t>(size());
  const auto own = static_cast<size_t>(rank());
  const std::shared_ptr<const Counts> counts = call.counts;
  const uint64_t before = counts ? std::accumulate(counts->begin(), counts->begin() + rank(), uint64_t{0}) : own * piece;
  std::byte* const mine = data + before * size_of(call.type);
  const Member::Sum sum{call.type, Op::sum, call.divisor, call.exact};
  Member::Work work;
  switch (call.kind) {
    case Collective::reduce_scatter:
      work = [=, to = call.to != nullptr ? static_cast<std::byte*>(call.to) : mine, to_f32 = call.to_f32](Member& m, void* s) {
        if (!counts && !to_f32) return m.sum_pieces(s, data, to, piece, sum);
        const Counts all = counts ? *counts : Counts(static_cast<size_t>(m.size()), piece);
        return to_f32 ? m.sum_pieces_in_f32(s, data, to, all, sum) : m.sum_pieces(s, data, to, all, sum);
      };
      break;
    case Collective::all_reduce:
      work = [=, count = call.count](Member& m, void* s) { return m.sum_all(s, data, data, count, sum); };
      break;
    case Collective::all_gather:
      work = [=](Member& m, void* s) {
        return counts ? m.gather_in_place(s, data, *counts, sum.type) : m.gather(s, mine, data, piece, sum.type);
      };
      break;
    default:  // check() has refused the others
      work = [=, count = call.count, root = call.root](Member& m, void* s) { return m.spread(s, data, count, sum.type, root); };
  }
  return Member::Submission{{call.kind, call.count, call.type, in_window(call, window.number())},
                            call.tag,
                            window.block(),
                            std::move(work),
                            [block = window.block()] { return (*block)->make_known(); }};
}

Status CudaGroup::together(Stream& stream, std::span<const WindowOp> calls) {
  std::vector<Member::Submission> all;
  bool in_steps = false;  // some are several launches, of which the later need what the earlier have brought
  for (const WindowOp& call : calls) {
    auto one = prepare(call);
    if (!one) return one.status();
    if (call.count == 0) continue;
    all.push_back(*std::move(one));
    in_steps = in_steps || call.to_f32 || (is_sum(call.kind) && member_->summed_here({call.type, Op::sum, call.divisor, call.exact}));
  }
  return submit(stream, std::move(all), !in_steps);
}

// ── on any memory of the device ──

Status CudaGroup::all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, const Tag& tag, float divisor) {
  return submit(stream, {Collective::all_reduce, count, type, by(op) + divided_by(divisor)}, tag, [=](Member& m, void* s) {
    return m.sum_all(s, bytes(from), bytes(to), count, {type, op, divisor});
  });
}

Status CudaGroup::reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, const Tag& tag) {
  return submit(stream, {Collective::reduce_scatter, count_per_rank, type, " per rank" + by(op)}, tag, [=](Member& m, void* s) {
    return m.sum_pieces(s, bytes(from), bytes(to), count_per_rank, {type, op, 1});
  });
}

Status CudaGroup::all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) {
  return submit(stream, {Collective::all_gather, count_per_rank, type, " per rank"}, tag,
                [=](Member& m, void* s) { return m.gather(s, bytes(from), bytes(to), count_per_rank, type); });
}

Status CudaGroup::all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) {
  return submit(stream, {Collective::all_to_all, count_per_rank, type, " per rank"}, tag,
                [=](Member& m, void* s) { return m.exchange(s, bytes(from), bytes(to), count_per_rank, type); });
}

Status CudaGroup::broadcast(Stream& stream, void* data, size_t count, DType type, int root, const Tag& tag) {
  if (Status checked = check_root(root); !checked) return checked;
  return submit(stream, {Collective::broadcast, count, type, from_rank(root)}, tag,
                [=](Member& m, void* s) { return m.spread(s, bytes(data), count, type, root); });
}

Status CudaGroup::barrier(Stream& stream, const Tag& tag) {
  return submit(stream, {Collective::barrier, 1, DType::u8}, tag, [](Member& m, void* s) { return m.barrier(s); });
}

// ── pieces of different sizes ──

Status CudaGroup::reduce_scatter_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Op op, const Tag& tag) {
  if (Status checked = check(counts, Collective::reduce_scatter_v, "counts"); !checked) return checked;
  return submit(stream, {Collective::reduce_scatter_v, sum_of(counts), type, in_pieces(counts) + by(op)}, tag, [=](Member& m, void* s) {
    return m.sum_here(s, bytes(from), bytes(to), counts, {type, op, 1});
  });
}

Status CudaGroup::all_gather_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, const Tag& tag) {
  if (Status checked = check(counts, Collective::all_gather_v, "counts"); !checked) return checked;
  return submit(stream, {Collective::all_gather_v, sum_of(counts), type, in_pieces(counts)}, tag,
                [=](Member& m, void* s) { return m.gather(s, bytes(from), bytes(to), counts, type); });
}

// Whose counts are each rank's own: nobody compares them, and a rank that has none takes part as well.
Status CudaGroup::all_to_all_v(Stream& stream, const void* from, const Counts& from_counts, void* to, const Counts& to_counts, DType type,
                               const Tag& tag) {
  if (Status checked = check(from_counts, Collective::all_to_all_v, "from_counts"); !checked) return checked;
  if (Status checked = check(to_counts, Collective::all_to_all_v, "to_counts"); !checked) return checked;
  constexpr size_t kNotNothing = 1;
  return submit(stream, {Collective::all_to_all_v, kNotNothing, type}, tag,
                [=](Member& m, void* s) { return m.exchange(s, bytes(from), from_counts, bytes(to), to_counts, type); });
}

// ── between two ranks ──

Status CudaGroup::send_recv(Stream& stream, const Message& send, const Message& recv) {
  if (Status checked = check(send, recv); !checked) return checked;
  if (send.rank < 0 && recv.rank < 0) return stream.failure();
  auto& ours = static_cast<CudaStream&>(stream);
  if (send.rank != rank()) return lanes_.exchange(ours, send, recv);
  if (send.count == 0) return stream.failure();
  return ours.submit([from = send.data, to = recv.data, size = send.count * size_of(send.type)](Launcher& on) {
    const Gpu& gpu = on.gpu();
    return gpu.check(gpu.plugin().copy(gpu.device(), on.stream(), to, from, size), "a copy");
  });
}

Result<std::unique_ptr<Exchange>> CudaGroup::create_exchange(const Counts& out, const Counts& in, uint64_t lent) {
  if (Status checked = check(out, Collective::all_to_all_v, "out"); !checked) return checked;
  if (Status checked = check(in, Collective::all_to_all_v, "in"); !checked) return checked;
  const uint64_t most = std::max(sum_of(out), sum_of(in));
  const auto allocate = [&](uint64_t bytes) {
    return CudaMemory::allocate(member_->gpu(), member_->watch(), CudaMemory::Kind::device, bytes);
  };
  auto sent = allocate(most), received = allocate(most), own = allocate(lent);
  const Status mine = !sent ? sent.status() : received ? own.status() : received.status();
  const Subject on{"create_exchange", 0, 0};
  const Status agreed = agree(member_->gpu()->world(), members(), on, mine.with_context(on.kind));
  if (!agreed) return agreed;
  return std::unique_ptr<Exchange>(
      new CudaExchange(*this, member_->watch(), {*std::move(sent), *std::move(received), *std::move(own)}, out, in));
}

}  // namespace megadp::cuda
