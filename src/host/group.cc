// SPDX-License-Identifier: Apache-2.0
// Arguments of collectives are checked here, on the calling thread; the work itself is submitted.
#include "host/group.h"

#include <cstring>
#include <utility>

#include "base/checked.h"
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

// Refuses now what reduce() would refuse on the worker, where it would end the stream.
Status check_reduction(const Operation& operation) {
  const void* const nothing = nullptr;
  Status checked = reduce(nullptr, &nothing, 1, 0, operation.type, operation.op, operation.divisor);
  return checked.ok() ? checked : checked.with_context(describe(operation));
}

}  // namespace

Result<std::unique_ptr<Group>> HostGroup::create(std::shared_ptr<World> world, std::shared_ptr<Transport> transport,
                                                 const std::vector<int>& members) {
  Status checked = check_members(*world, members);
  if (!checked.ok()) return checked;
  Result<std::shared_ptr<Member>> member = Member::create(std::move(world), std::move(transport), members);
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
  Result<std::shared_ptr<Parts>> parts = member_->create_parts({"allocate_window", number, bytes}, true);
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

Status HostGroup::check_root(const char* call, int root) const {
  if (root >= 0 && root < size()) return {};
  return invalid(call, ": root is ", root, "; this group has ranks 0 to ", size() - 1);
}

// ── in windows ──

Status HostGroup::submit_in_window(Stream& stream, Window& window, Operation operation, bool in_pieces, WindowAlgorithm algorithm) {
  const auto& host_window = static_cast<HostWindow&>(window);
  if (host_window.owner() != member_.get()) return invalid(describe(operation), ": the window belongs to another group");
  operation.window = host_window.number();
  const uint64_t elements = window.bytes() / size_of(operation.type);
  uint64_t end = 0;
  if (!checked_add(operation.begin, operation.count, &end) || end > elements) {
    return invalid(describe(operation), ": the range ends beyond the window, which holds ", elements, " elements");
  }
  if (in_pieces && operation.count % static_cast<uint64_t>(size()) != 0) {
    return invalid(describe(operation), ": count is ", operation.count, ", which is not divisible by the ", size(), " ranks of the group");
  }
  return submit(stream, operation, [parts = host_window.parts(), algorithm](const Call& call) {
    if (call.size() > 1) return algorithm(call, *parts);
    std::byte* const data = parts->own() + call.operation.begin * call.width();
    return alone(call.operation, data, data, call.operation.count);
  });
}

Status HostGroup::reduce_scatter(Stream& stream, Window& window, DType type, size_t begin, size_t count, float divisor, Tag tag) {
  Operation operation = make_operation(Kind::reduce_scatter, type, count, tag);
  operation.begin = begin;
  operation.divisor = divisor;
  Status checked = check_reduction(operation);
  if (!checked.ok()) return checked;
  return submit_in_window(stream, window, operation, true, &window_reduce_scatter);
}

Status HostGroup::all_reduce(Stream& stream, Window& window, DType type, size_t begin, size_t count, float divisor, Tag tag) {
  Operation operation = make_operation(Kind::all_reduce, type, count, tag);
  operation.begin = begin;
  operation.divisor = divisor;
  Status checked = check_reduction(operation);
  if (!checked.ok()) return checked;
  return submit_in_window(stream, window, operation, false, &window_all_reduce);
}

Status HostGroup::all_gather(Stream& stream, Window& window, DType type, size_t begin, size_t count, Tag tag) {
  Operation operation = make_operation(Kind::all_gather, type, count, tag);
  operation.begin = begin;
  return submit_in_window(stream, window, operation, true, &window_all_gather);
}

Status HostGroup::broadcast(Stream& stream, Window& window, DType type, size_t begin, size_t count, int root, Tag tag) {
  Status checked = check_root("broadcast", root);
  if (!checked.ok()) return checked;
  Operation operation = make_operation(Kind::broadcast, type, count, tag);
  operation.begin = begin;
  operation.root = root;
  return submit_in_window(stream, window, operation, false, &window_broadcast);
}

// ── on any memory ──

Status HostGroup::all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, Tag tag) {
  Operation operation = make_operation(Kind::all_reduce, type, count, tag);
  operation.op = op;
  return submit(stream, operation, [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_all_reduce(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, Tag tag) {
  Operation operation = make_operation(Kind::reduce_scatter, type, count_per_rank, tag);
  operation.op = op;
  return submit(stream, operation, [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_reduce_scatter(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) {
  return submit(stream, make_operation(Kind::all_gather, type, count_per_rank, tag), [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_all_gather(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) {
  return submit(stream, make_operation(Kind::all_to_all, type, count_per_rank, tag), [from, to](const Call& call) {
    if (call.size() == 1) return alone(call.operation, from, to, call.operation.count);
    return staged_all_to_all(call, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), call.operation.count);
  });
}

Status HostGroup::broadcast(Stream& stream, void* data, size_t count, DType type, int root, Tag tag) {
  Status checked = check_root("broadcast", root);
  if (!checked.ok()) return checked;
  Operation operation = make_operation(Kind::broadcast, type, count, tag);
  operation.root = root;
  return submit(stream, operation, [data](const Call& call) {
    if (call.size() == 1) return Status();
    return staged_broadcast(call, static_cast<std::byte*>(data), call.operation.count);
  });
}

Status HostGroup::barrier(Stream& stream, Tag tag) {
  return submit(stream, make_operation(Kind::barrier, DType::u8, 0, tag),
                [](const Call& call) { return call.size() == 1 ? Status() : call.meet(); });
}

}  // namespace megadp::host
