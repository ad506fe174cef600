// SPDX-License-Identifier: Apache-2.0
// Arguments of collectives are checked here, on the calling thread; the work itself is submitted.
#include "host/group.h"

#include <cstring>
#include <utility>

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

Result<std::unique_ptr<Group>> HostGroup::create(std::shared_ptr<World> world, std::shared_ptr<Network> network,
                                                 const std::vector<int>& members) {
  Status checked = check_members(*world, members);
  if (!checked.ok()) return checked;
  Result<std::shared_ptr<Member>> member = Member::create(std::move(world), std::move(network), members);
  if (!member.ok()) return member.status();
  return std::unique_ptr<Group>(new HostGroup(std::move(*member)));
}

Result<std::unique_ptr<Group>> HostGroup::split(const std::vector<int>& members) {
  if (members.empty()) return std::unique_ptr<Group>();
  auto member = member_->split(members);
  if (!member.ok()) return member.status();
  return std::unique_ptr<Group>(new HostGroup(*std::move(member)));
}

Result<std::unique_ptr<Window>> HostGroup::allocate_window(size_t bytes) {
  const uint64_t number = windows_ + 1;
  Result<std::shared_ptr<SharedMemory>> parts = member_->create_shared_memory({"allocate_window", number, bytes}, true);
  if (!parts.ok()) return parts.status();
  windows_ = number;
  return std::unique_ptr<Window>(new HostWindow(std::move(*parts), member_.get(), number));
}

Status HostGroup::submit(Stream& stream, Operation operation, Algorithm algorithm) {
  const std::lock_guard lock(submitting_);  // the order of the numbers is the order in the stream
  operation.number = submitted_ + 1;
  Status submitted =
      static_cast<HostStream&>(stream).submit([member = member_, operation, algorithm = std::move(algorithm)](const Stop& stop) {
        return member->perform(operation, stop, [&] { return algorithm(Call{*member, operation, stop}); });
      });
  if (submitted.ok()) submitted_ += 1;
  return submitted;
}

// ── in windows ──

Status HostGroup::together(Stream& stream, std::span<const WindowOp> calls) {
  for (const WindowOp& call : calls) {
    if (static_cast<const HostWindow*>(call.window)->owner() != member_.get()) {
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
  return submit(stream, operation, [parts = window.parts(), algorithm = algorithm_of(call.kind)](const Call& now) {
    if (now.size() > 1) return algorithm(now, *parts);
    std::byte* const data = parts->own() + now.operation.begin * now.width();
    return alone(now.operation, data, data, now.operation.count);
  });
}

// ── on any memory ──

Status HostGroup::all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, Tag tag) {
  Operation operation = make_operation(Collective::all_reduce, type, count, tag);
  operation.op = op;
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
    return staged_broadcast(call, static_cast<std::byte*>(data), call.operation.count);
  });
}

Status HostGroup::barrier(Stream& stream, Tag tag) {
  return submit(stream, make_operation(Collective::barrier, DType::u8, 0, tag),
                [](const Call& call) { return call.size() == 1 ? Status() : call.barrier(); });
}

}  // namespace megadp::host
