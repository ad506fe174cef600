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
Status alone(const Operation& operation, const void* from, void* to, size_t count) {
  if (count == 0) return {};
  if (operation.divisor != 1.0F) return reduce(to, &from, 1, count, operation.type, operation.op, operation.divisor);
  if (to != from) std::memmove(to, from, count * size_of(operation.type));
  return {};
}

Status (*algorithm_of(Collective kind))(const Call&, const SharedMemory&) {
  switch (kind) {
    case Collective::reduce_scatter:
      return &window_reduce_scatter;
    case Collective::all_reduce:
      return &window_all_reduce;
    case Collective::all_gather:
      return &window_all_gather;
    default:  // check() has refused the others
      return &window_broadcast;
  }
}

}  // namespace

Status HostGroup::perform(uint64_t place, const Blame& blame, const Describe& during, const Stop& stop,
                          const std::function<Status()>& body) {
  const std::unique_lock running(running_, std::try_to_lock);
  if (!running.owns_lock()) {
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

const std::vector<std::byte*>& HostGroup::next_staging() {
  return staging_[turn_++ & 1];
}

Status HostGroup::barrier(const Operation& operation, const Stop& stop) {
  if (spans_nodes()) {
    Status compared = compare_with_other_nodes(operation, stop);
    if (!compared.ok()) return compared;
  }
  return sync_ ? sync_->barrier(operation, stop) : Status();
}

Status HostGroup::run(uint64_t place, const Operation& operation, const Algorithm& algorithm, const Stop& stop) {
  const auto body = [&] { return algorithm(Call{*this, operation, stop}); };
  return perform(
      place, {.bucket = operation.bucket, .operation = operation.number}, [&operation] { return describe(operation); }, stop,
      std::ref(body));
}

Status HostGroup::submit(Stream& stream, Operation operation, Algorithm algorithm) {
  auto& ours = static_cast<HostStream&>(stream);
  const std::lock_guard lock(submitting_);  // the order of the numbers is the order in the stream
  operation.number = operations_ + 1;
  const uint64_t place = calls_ + 1;
  const auto now = [&](const Stop& stop) { return run(place, operation, algorithm, stop); };
  if (!ours.do_here(std::ref(now))) {  // what is done here need not be kept
    Status submitted = ours.submit([self = shared_from_this(), place, operation, algorithm = std::move(algorithm)](const Stop& stop) {
      return self->run(place, operation, algorithm, stop);
    });
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
    if (Status submitted = submit_in_window(stream, call); !submitted) return submitted;
  }
  return {};
}

Status HostGroup::submit_in_window(Stream& stream, const WindowOp& call) {
  const auto& window = static_cast<const HostWindow&>(*call.window);
  Operation operation = make_operation(call.kind, call.type, call.count, call.tag);
  operation.window = window.number();
  operation.begin = call.begin;
  operation.divisor = call.divisor;
  operation.root = call.root;
  if (call.counts) {
    constexpr uint64_t elsewhere = 1, any = 2;
    const uint64_t digest = hash_bytes(call.counts->data(), call.counts->size() * sizeof(uint64_t));
    operation.pieces = (digest & ~elsewhere) | any | (call.to != nullptr ? elsewhere : 0);
  }
  auto* const to = static_cast<std::byte*>(call.to);
  return submit(
      stream, operation,
      [parts = window.parts(), algorithm = algorithm_of(call.kind), to, to_f32 = call.to_f32, counts = call.counts](const Call& now) {
        const Call whole{now.group, now.operation, now.stop, to, to_f32, counts.get()};
        if (now.size() > 1) return algorithm(whole, *parts);
        std::byte* const data = parts->own() + now.operation.begin * now.width();
        if (to_f32) return add_up(whole, to, {data}, now.operation.count);
        return alone(now.operation, data, to != nullptr ? to : data, now.operation.count);
      });
}

// ── on any memory ──

Status HostGroup::all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, Tag tag, float divisor) {
  Operation operation = make_operation(Collective::all_reduce, type, count, tag);
  operation.op = op;
  operation.divisor = divisor;
  return submit(stream, operation, [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_all_reduce(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, Tag tag) {
  Operation operation = make_operation(Collective::reduce_scatter, type, count_per_rank, tag);
  operation.op = op;
  return submit(stream, operation, [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_reduce_scatter(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) {
  return submit(stream, make_operation(Collective::all_gather, type, count_per_rank, tag), [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_all_gather(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) {
  return submit(stream, make_operation(Collective::all_to_all, type, count_per_rank, tag), [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_all_to_all(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::broadcast(Stream& stream, void* data, size_t count, DType type, int root, Tag tag) {
  if (Status checked = check_root(root); !checked) return checked;
  Operation operation = make_operation(Collective::broadcast, type, count, tag);
  operation.root = root;
  return submit(stream, operation, [data](const Call& call) {
    if (call.size() == 1) return Status();
    return staged_broadcast(call, static_cast<std::byte*>(data), call.operation.count * call.width(), call.operation.root);
  });
}

Status HostGroup::barrier(Stream& stream, Tag tag) {
  return submit(stream, make_operation(Collective::barrier, DType::u8, 0, tag),
                [](const Call& call) { return call.size() == 1 ? Status() : call.barrier(); });
}

// ── pieces of different sizes ──

Status HostGroup::reduce_scatter_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Op op, Tag tag) {
  if (Status checked = check(counts, Collective::reduce_scatter_v, "counts"); !checked) return checked;
  Operation operation = make_operation(Collective::reduce_scatter_v, type, std::accumulate(counts.begin(), counts.end(), uint64_t{0}), tag);
  operation.op = op;
  return submit(stream, operation, [from, to, counts](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    Status same = compare_counts(call, counts);
    return same.ok() ? staged_reduce_scatter(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), counts) : same;
  });
}

Status HostGroup::all_gather_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Tag tag) {
  if (Status checked = check(counts, Collective::all_gather_v, "counts"); !checked) return checked;
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  return submit(stream, make_operation(Collective::all_gather_v, type, total, tag), [from, to, counts](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    Status same = compare_counts(call, counts);
    return same.ok() ? staged_all_gather(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), counts) : same;
  });
}

Status HostGroup::all_to_all_v(Stream& stream, const void* from, const Counts& from_counts, void* to, const Counts& to_counts, DType type,
                               Tag tag) {
  if (Status checked = check(from_counts, Collective::all_to_all_v, "from_counts"); !checked) return checked;
  if (Status checked = check(to_counts, Collective::all_to_all_v, "to_counts"); !checked) return checked;
  return submit(stream, make_operation(Collective::all_to_all_v, type, 0, tag), [from, from_counts, to, to_counts](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, from_counts[0]);
    return staged_all_to_all(call, static_cast<const std::byte*>(from), from_counts, static_cast<std::byte*>(to), to_counts);
  });
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
