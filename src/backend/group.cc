// SPDX-License-Identifier: Apache-2.0
#include "backend/group.h"

#include "base/checked.h"

namespace megadp {

const char* name_of(Collective what) noexcept {
  switch (what) {
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
  }
  return "unknown operation";
}

Status Group::check(const WindowCall& call) const {
  const char* const name = name_of(call.what);
  const uint64_t elements = call.window->bytes() / size_of(call.type);
  uint64_t end = 0;
  if (!checked_add(call.begin, call.count, &end) || end > elements) {
    return invalid(name, ": the range ends beyond the window, which holds ", elements, " elements");
  }
  const bool in_pieces = call.what == Collective::reduce_scatter || call.what == Collective::all_gather;
  if (in_pieces && call.count % static_cast<uint64_t>(size()) != 0) {
    return invalid(name, ": count is ", call.count, ", which is not divisible by the ", size(), " ranks of the group");
  }
  if (call.divisor != 1 && (call.type == DType::i64 || call.type == DType::u8)) {
    return unsupported(name, ": divisor is ", call.divisor, "; it must be 1 for integers");
  }
  return call.what == Collective::broadcast ? check_root(call.root) : Status();
}

Status Group::check_root(int root) const {
  if (root >= 0 && root < size()) return {};
  return invalid("broadcast: root is ", root, "; this group has ranks 0 to ", size() - 1);
}

}  // namespace megadp
