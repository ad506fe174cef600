// SPDX-License-Identifier: Apache-2.0
#include "backend/group.h"

namespace megadp {

Status Group::together(Stream& stream, std::span<const WindowCall> calls) {
  const auto submit = [&](const WindowCall& call) {
    switch (call.what) {
      case WindowCall::What::reduce_scatter:
        return reduce_scatter(stream, *call.window, call.type, call.begin, call.count, call.divisor, call.tag);
      case WindowCall::What::all_reduce:
        return all_reduce(stream, *call.window, call.type, call.begin, call.count, call.divisor, call.tag);
      case WindowCall::What::all_gather:
        break;
    }
    return all_gather(stream, *call.window, call.type, call.begin, call.count, call.tag);
  };
  for (const WindowCall& call : calls) {
    if (Status submitted = submit(call); !submitted) return submitted;
  }
  return {};
}

}  // namespace megadp
