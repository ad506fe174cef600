// SPDX-License-Identifier: Apache-2.0
// Comparing and describing collectives.
#include "host/operation.h"

#include <cstring>

#include "base/text.h"

namespace megadp::host {
namespace {

uint32_t bits_of(float x) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

}  // namespace

Operation make_operation(Collective kind, DType type, uint64_t count, const Tag& tag) noexcept {
  Operation operation;
  operation.kind = kind;
  operation.type = type;
  operation.count = count;
  operation.bucket = tag.bucket;
  operation.microbatch = tag.microbatch;
  if (tag.what != nullptr) std::strncpy(operation.what, tag.what, sizeof operation.what - 1);
  return operation;
}

bool same(const Operation& a, const Operation& b) noexcept {
  return a.number == b.number && a.window == b.window && a.begin == b.begin && a.count == b.count && a.kind == b.kind && a.type == b.type &&
         a.op == b.op && a.root == b.root && bits_of(a.divisor) == bits_of(b.divisor) && a.microbatch == b.microbatch &&
         a.pieces == b.pieces && std::strncmp(a.what, b.what, sizeof a.what) == 0;
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
