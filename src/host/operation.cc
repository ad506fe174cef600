// SPDX-License-Identifier: Apache-2.0
// Comparing and describing collectives.
#include "host/operation.h"

#include <cstddef>
#include <cstring>

#include "base/hash.h"
#include "base/text.h"

namespace megadp::host {

Operation make_operation(Collective kind, DType type, uint64_t count, const Tag& tag) noexcept {
  Operation operation;
  operation.kind = kind;
  operation.type = type;
  operation.count = count;
  operation.bucket = tag.bucket;
  operation.microbatch = tag.microbatch;
  std::memcpy(operation.what, tag.what, strnlen(tag.what, sizeof operation.what - 1));
  return operation;
}

uint64_t digest_of(const Operation& operation) noexcept {
  constexpr size_t kCompared = offsetof(Operation, bucket);
  static_assert(sizeof(Operation) == kCompared + 8 && offsetof(Operation, pieces) == offsetof(Operation, microbatch) + 4,
                "a gap would hold any bytes");
  return hash_words<kCompared / sizeof(uint64_t)>(&operation);
}

std::string describe(const Operation& operation) {
  const bool per_rank = operation.window == 0 && (operation.kind == Collective::reduce_scatter ||
                                                  operation.kind == Collective::all_gather || operation.kind == Collective::all_to_all);
  if (operation.kind == Collective::send || operation.kind == Collective::recv) {
    const std::string peer = text(operation.kind == Collective::send ? " to rank " : " from rank ", operation.root);
    return describe(operation.kind, operation.count, operation.type, peer, {}, 0);
  }
  std::string how = per_rank ? " per rank" : "";
  if (operation.op != Op::sum) how += text(" (", name_of(operation.op), ")");
  if (operation.divisor != 1.0F) how += text(" divided by ", operation.divisor);
  if (operation.root >= 0) how += text(" from rank ", operation.root);
  if (operation.pieces != 0) how += text(" in pieces of their own (digest ", operation.pieces, ")");
  if (operation.window != 0) how += text(" from element ", operation.begin, " of window ", operation.window);
  return describe(operation.kind, operation.count, operation.type, how, Tag{operation.bucket, operation.what, operation.microbatch},
                  operation.number);
}

Operation make_operation(const Message& message, bool sends) noexcept {
  Operation operation = make_operation(sends ? Collective::send : Collective::recv, message.type, message.count, {});
  operation.root = message.rank;
  return operation;
}

std::string describe(const Message& send, const Message& recv) {
  if (recv.rank < 0) return describe(make_operation(send, true));
  if (send.rank < 0) return describe(make_operation(recv, false));
  return describe(make_operation(send, true)) + " with " + describe(make_operation(recv, false));
}

}  // namespace megadp::host
