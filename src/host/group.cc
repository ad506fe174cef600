// SPDX-License-Identifier: Apache-2.0
// Arguments of collectives are checked here, on the calling thread; the work itself is submitted, and runs within perform().
#include "host/group.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "host/collective.h"
#include "host/kernels.h"

namespace megadp::host {
namespace {

// A group of one has nobody to wait for: what is left of a collective is the division, and the copy from one place to the other.
Status alone(const Call& call) {
  const Arguments& asked = call.arguments;
  const Operation& op = call.operation;
  const size_t count = asked.counts != nullptr ? asked.counts->front() : op.count;
  if (count == 0) return {};
  const void* const from = asked.window != nullptr ? asked.window->own() + op.begin * call.width() : asked.from;
  void* const to = asked.to != nullptr ? asked.to : const_cast<void*>(from);
  if (asked.to_f32) return sum_in_f32(static_cast<float*>(to), &from, 1, count, op.type, op.divisor);
  if (op.divisor != 1.0F) return reduce(to, &from, 1, count, op.type, op.op, op.divisor);
  if (to != from) std::memmove(to, from, count * call.width());
  return {};
}

Status in_windows(const Call& call) {
  const SharedMemory& window = *call.arguments.window;
  switch (call.operation.kind) {
    case Collective::reduce_scatter:
      return window_reduce_scatter(call, window);
    case Collective::all_reduce:
      return window_all_reduce(call, window);
    case Collective::all_gather:
      return call.arguments.updates ? update_and_gather(call, window) : window_all_gather(call, window);
    default:  // check() has refused the others
      return window_broadcast(call, window);
  }
}

Status on_memory(const Call& call) {
  const auto& [operation, from, to, to_f32, squares, squared, updates, grads, window, counts, counts_in] = call.arguments;
  switch (operation.kind) {
    case Collective::reduce_scatter:
      return staged_reduce_scatter(call, from, to, operation.count);
    case Collective::all_reduce:
      return staged_all_reduce(call, from, to, operation.count);
    case Collective::all_gather:
      return staged_all_gather(call, from, to, operation.count);
    case Collective::broadcast:
      return staged_broadcast(call, to, operation.count * call.width(), operation.root);
    case Collective::all_to_all:
      return staged_all_to_all(call, from, to, operation.count);
    case Collective::all_to_all_v:
      return staged_all_to_all(call, from, *counts, to, *counts_in);
    case Collective::reduce_scatter_v:
    case Collective::all_gather_v:
      if (Status same = compare_counts(call, *counts); !same) return same;
      return operation.kind == Collective::all_gather_v ? staged_all_gather(call, from, to, *counts)
                                                        : staged_reduce_scatter(call, from, to, *counts);
    case Collective::barrier:
      return call.barrier();
    case Collective::send:
    case Collective::recv:
      break;
  }
  return internal_error(describe(operation), " is no collective");
}

uint64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

// While it lives, no other call of the group runs.
struct Running {
  explicit Running(std::atomic<bool>& flag) noexcept : running(flag), is_first(!flag.exchange(true, std::memory_order_acquire)) {}
  ~Running() {
    if (is_first) running.store(false, std::memory_order_release);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  std::atomic<bool>& running;
  const bool is_first;
};

}  // namespace

Status HostGroup::perform(uint64_t place, const Blame& blame, const Describe& during, const Stop& stop,
                          const std::function<Status()>& body) {
  const Running running(running_);
  if (!running.is_first) {
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

const std::vector<std::byte*>& HostGroup::next_staging(size_t bytes) {
  if (bytes <= kSlotBytes && !spans_nodes()) return slots_[sync_->next_slots()];
  return staging_[turn_++ & 1];
}

Status HostGroup::barrier(const Operation& operation, const Stop& stop) {
  if (spans_nodes()) {
    Status compared = compare_with_other_nodes(operation, stop);
    if (!compared.ok()) return compared;
  }
  return sync_ ? sync_->barrier(operation, stop) : Status();
}

Status HostGroup::run(uint64_t place, const Arguments& arguments, const Stop& stop) {
  const Operation& operation = arguments.operation;
  const auto body = [&] {
    const Call call{*this, arguments, operation, stop};
    if (size() == 1) return alone(call);
    return arguments.window != nullptr ? in_windows(call) : on_memory(call);
  };
  return perform(
      place, {.bucket = operation.bucket, .operation = operation.number}, [&operation] { return describe(operation); }, stop,
      std::ref(body));
}

Status HostGroup::submit(Stream& stream, Arguments&& arguments) {
  auto& ours = static_cast<HostStream&>(stream);
  const std::lock_guard lock(submitting_);  // the order of the numbers is the order in the stream
  arguments.operation.number = operations_ + 1;
  const uint64_t place = calls_ + 1;
  const auto now = [&](const Stop& stop) { return run(place, arguments, stop); };
  if (!ours.do_here(std::ref(now))) {  // what is done here need not be kept
    Status submitted = ours.submit(
        [self = shared_from_this(), place, kept = std::move(arguments)](const Stop& stop) { return self->run(place, kept, stop); });
    if (!submitted.ok()) return submitted;
  }
  operations_ += 1;
  calls_ += 1;
  return {};
}

// ── in windows ──

Status HostGroup::together(Stream& stream, std::span<const WindowOp> calls) {
  for (const WindowOp& call : calls) {
    if (static_cast<const HostWindow*>(call.window)->owner() != this) {
      return invalid(name_of(call.kind), ": the window belongs to another group");
    }
    if (Status checked = check(call); !checked) return checked;
  }
  for (const WindowOp& call : calls) {
    const auto& window = static_cast<const HostWindow&>(*call.window);
    Arguments asked(call.kind, call.type, call.count, call.tag, nullptr, call.to);
    asked.operation.window = window.number();
    asked.operation.begin = call.begin;
    asked.operation.divisor = call.divisor;
    asked.operation.root = call.root;
    if (call.counts) {
      constexpr uint64_t elsewhere = 1, any = 2;
      const uint64_t digest = hash_bytes(call.counts->data(), call.counts->size() * sizeof(uint64_t));
      asked.operation.pieces = (digest & ~elsewhere) | any | (call.to != nullptr ? elsewhere : 0);
    }
    asked.to_f32 = call.to_f32;
    asked.squares = call.squares;
    asked.squared = call.squared;
    asked.updates = call.updates;
    if (call.updates) asked.grads = static_cast<const HostWindow&>(*call.updates->grads).parts();
    asked.window = window.parts();
    asked.counts = call.counts;
    if (Status submitted = submit(stream, std::move(asked)); !submitted) return submitted;
  }
  return {};
}

// ── on any memory ──

Status HostGroup::all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, const Tag& tag, float divisor) {
  Arguments asked(Collective::all_reduce, type, count, tag, from, to);
  asked.operation.op = op;
  asked.operation.divisor = divisor;
  return submit(stream, std::move(asked));
}

Status HostGroup::reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, const Tag& tag) {
  Arguments asked(Collective::reduce_scatter, type, count_per_rank, tag, from, to);
  asked.operation.op = op;
  return submit(stream, std::move(asked));
}

Status HostGroup::all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) {
  return submit(stream, Arguments(Collective::all_gather, type, count_per_rank, tag, from, to));
}

Status HostGroup::all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) {
  return submit(stream, Arguments(Collective::all_to_all, type, count_per_rank, tag, from, to));
}

Status HostGroup::broadcast(Stream& stream, void* data, size_t count, DType type, int root, const Tag& tag) {
  if (Status checked = check_root(root); !checked) return checked;
  Arguments asked(Collective::broadcast, type, count, tag, data, data);
  asked.operation.root = root;
  return submit(stream, std::move(asked));
}

Status HostGroup::barrier(Stream& stream, const Tag& tag) {
  return submit(stream, Arguments(Collective::barrier, DType::u8, 0, tag));
}

// ── pieces of different sizes ──

Status HostGroup::reduce_scatter_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Op op, const Tag& tag) {
  if (Status checked = check(counts, Collective::reduce_scatter_v, "counts"); !checked) return checked;
  Arguments asked(Collective::reduce_scatter_v, type, sum_of(counts), tag, from, to);
  asked.operation.op = op;
  asked.counts = std::make_shared<const Counts>(counts);
  return submit(stream, std::move(asked));
}

Status HostGroup::all_gather_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, const Tag& tag) {
  if (Status checked = check(counts, Collective::all_gather_v, "counts"); !checked) return checked;
  Arguments asked(Collective::all_gather_v, type, sum_of(counts), tag, from, to);
  asked.counts = std::make_shared<const Counts>(counts);
  return submit(stream, std::move(asked));
}

Status HostGroup::all_to_all_v(Stream& stream, const void* from, const Counts& from_counts, void* to, const Counts& to_counts, DType type,
                               const Tag& tag) {
  if (Status checked = check(from_counts, Collective::all_to_all_v, "from_counts"); !checked) return checked;
  if (Status checked = check(to_counts, Collective::all_to_all_v, "to_counts"); !checked) return checked;
  Arguments asked(Collective::all_to_all_v, type, 0, tag, from, to);
  asked.counts = std::make_shared<const Counts>(from_counts);
  asked.counts_in = std::make_shared<const Counts>(to_counts);
  return submit(stream, std::move(asked));
}

// ── between two ranks ──

Status HostGroup::send_recv(Stream& stream, const Message& send, const Message& recv) {
  if (Status checked = check(send, recv); !checked) return checked;
  if (send.rank < 0 && recv.rank < 0) return stream.failure();
  const std::lock_guard lock(submitting_);
  Status submitted = static_cast<HostStream&>(stream).submit([self = shared_from_this(), place = calls_ + 1, send, recv](const Stop& stop) {
    return self->perform(
        place, {}, [&] { return describe(send, recv); }, stop,
        [&]() -> Status {
          if (send.rank != self->rank()) return self->exchange(send, recv, stop);
          if (send.count > 0) std::memmove(recv.data, send.data, send.count * size_of(send.type));
          return {};
        });
  });
  if (submitted.ok()) calls_ += 1;
  return submitted;
}

}  // namespace megadp::host
