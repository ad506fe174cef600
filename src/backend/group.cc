// SPDX-License-Identifier: Apache-2.0
#include "backend/group.h"

#include <numeric>

#include "base/checked.h"
#include "base/text.h"

namespace megadp {

const char* name_of(Collective kind) noexcept {
  switch (kind) {
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::barrier:
      return "barrier";
    case Collective::reduce_scatter_v:
      return "reduce_scatter_v";
    case Collective::all_gather_v:
      return "all_gather_v";
    case Collective::all_to_all_v:
      return "all_to_all_v";
    case Collective::send:
      return "send";
    case Collective::recv:
      return "recv";
  }
  return "unknown operation";
}

std::string describe(Collective kind, size_t count, DType type, const std::string& how, const Tag& tag, uint64_t operation) {
  std::string out = name_of(kind);
  if (kind == Collective::all_to_all_v) {  // whose count is each rank's own
    out += text(" of ", name_of(type), how);
  } else if (kind != Collective::barrier) {
    out += text(" of ", count, " ", name_of(type), how);
  }
  std::string about = tag.what;
  const auto add = [&about](const std::string& more) { about += (about.empty() ? "" : ", ") + more; };
  if (tag.microbatch > 0) add(text("microbatch ", tag.microbatch));
  if (operation > 0) add(text("operation ", operation, " of the group"));
  if (tag.bucket >= 0) add(text("bucket ", tag.bucket));
  return about.empty() ? out : out + " (" + about + ")";
}

Status Group::check(const WindowOp& call) const {
  const auto refused = [&call](Code code, const std::string& why) {
    return Status(code, text(describe(call.kind, call.count, call.type, text(" from element ", call.begin), call.tag, 0), ": ", why),
                  Blame{.bucket = call.tag.bucket});
  };
  const bool sums = is_sum(call.kind);
  const bool in_pieces = call.kind == Collective::reduce_scatter || call.kind == Collective::all_gather;
  if (!sums && !in_pieces && call.kind != Collective::broadcast) return refused(Code::internal, "there is none in windows");
  const uint64_t elements = call.window->bytes() / size_of(call.type);
  uint64_t end = 0;
  if (!checked_add(call.begin, call.count, &end) || end > elements) {
    return refused(Code::invalid, text("the range ends beyond the window, which holds ", elements, " elements"));
  }
  if (call.counts != nullptr) {
    const Counts& counts = *call.counts;
    if (!in_pieces || counts.size() != static_cast<size_t>(size()) ||
        std::accumulate(counts.begin(), counts.end(), uint64_t{0}) != call.count) {
      return refused(Code::internal, text("it is given ", counts.size(), " counts, which must be one for each of the ", size(),
                                          " ranks and come to the whole"));
    }
  } else if (in_pieces && call.count % static_cast<uint64_t>(size()) != 0) {
    return refused(Code::invalid, text("count is ", call.count, ", which is not divisible by the ", size(), " ranks of the group"));
  }
  if (call.to != nullptr && call.kind != Collective::reduce_scatter)
    return refused(Code::internal, "only a reduce_scatter has a place of its own");
  if (call.to_f32 && ((call.to == nullptr && call.count > 0) || !is_trainable(call.type))) {
    return refused(Code::internal, "a sum in f32 is one of f32, bf16 or f16, and has a place of its own");
  }
  if (call.squares != nullptr) {
    const bool adds = call.kind == Collective::reduce_scatter && is_trainable(call.type) && adds_squares();
    const uint64_t own = call.counts ? (*call.counts)[static_cast<size_t>(rank())] : call.count / static_cast<uint64_t>(size());
    if (!adds || call.to_f32 || call.squared > own) {
      return refused(Code::internal, text("squares of ", call.squared, " of ", own, " elements are not added up on the way"));
    }
  }
  if (call.updates != nullptr &&
      (call.kind != Collective::all_gather || call.counts != nullptr || call.updates->grads == nullptr || !updates_pieces())) {
    return refused(Code::internal, "its pieces are not updated on the way");
  }
  if (call.divisor != 1 && (!sums || call.type == DType::i64 || call.type == DType::u8)) {
    return refused(Code::unsupported, text("divisor is ", call.divisor, "; it must be 1 for ", sums ? "integers" : "what is no sum"));
  }
  return call.kind == Collective::broadcast ? check_root(call.root) : Status();
}

Status Group::check_root(int root) const {
  if (root >= 0 && root < size()) return {};
  return invalid("broadcast: root is ", root, "; this group has ranks 0 to ", size() - 1);
}

Status Group::check(const Counts& counts, Collective kind, const char* name) const {
  if (counts.size() == static_cast<size_t>(size())) return {};
  return invalid(name_of(kind), ": ", name, " has ", counts.size(), " counts; this group has ", size(), " ranks");
}

Status Group::check(const Message& send, const Message& recv) const {
  for (const Message* half : {&send, &recv}) {
    if (half->rank >= -1 && half->rank < size()) continue;
    return invalid(half == &send ? "send: the rank is " : "recv: the rank is ", half->rank, "; this group has ranks 0 to ", size() - 1);
  }
  if ((send.rank == rank()) != (recv.rank == rank())) {
    return invalid("rank ", rank(), " would send to itself or receive from itself alone; that takes both halves of one send_recv");
  }
  if (send.rank == rank() && (send.count != recv.count || send.type != recv.type)) {
    return invalid("rank ", rank(), " would send itself ", send.count, " ", name_of(send.type), " and receive ", recv.count, " ",
                   name_of(recv.type));
  }
  return {};
}

}  // namespace megadp
