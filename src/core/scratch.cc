// SPDX-License-Identifier: Apache-2.0
#include "core/scratch.h"

#include <vector>

#include "core/comm.h"

namespace megadp {
namespace {

template <class T>
Status write_all(Backend& backend, Memory& to, T value) {
  const std::vector<T> all(to.bytes() / sizeof value, value);
  return backend.write(to.data(), all.data(), all.size() * sizeof value);
}

}  // namespace

// What is new is filled before it is anybody's.
template <class Fill>
Result<void*> Scratch::take(Comm& comm, ScratchPiece piece, size_t bytes, const Fill& fill) {
  std::shared_ptr<Memory>& held = pieces_[static_cast<size_t>(piece)];
  if (held && held->bytes() >= bytes) return held->data();
  auto larger = comm.context().backend->allocate(bytes_of(bytes));
  if (!larger) return larger.status().with_context("scratch memory of a communicator");
  if (Status filled = fill(**larger); !filled) return filled;
  if (held) comm.channel().retain(held);
  held = *std::move(larger);
  return held->data();
}

Result<void*> Scratch::take(Comm& comm, ScratchPiece piece, size_t bytes) {
  return take(comm, piece, bytes, [](Memory&) { return Status(); });
}

Result<const void*> Scratch::ones(Comm& comm, DType type, size_t count) {
  auto memory = take(comm, ones_of(type), count * size_of(type), [&](Memory& to) {
    Backend& backend = *comm.context().backend;
    return type == DType::f32   ? write_all(backend, to, 1.0F)
           : type == DType::f64 ? write_all(backend, to, 1.0)
                                : write_all(backend, to, uint16_t{0x3f80});  // 1 as a bf16
  });
  if (!memory) return memory.status();
  return static_cast<const void*>(*memory);
}

}  // namespace megadp
