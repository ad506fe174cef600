// SPDX-License-Identifier: Apache-2.0
#include "core/scratch.h"

#include <vector>

#include "core/comm.h"

namespace megadp {
namespace {

template <class T>
Status write_all(Backend& backend, void* to, size_t count, T value) {
  const std::vector<T> all(count, value);
  return backend.write(to, all.data(), count * sizeof(T));
}

}  // namespace

Result<void*> Scratch::take(Comm& comm, ScratchPiece piece, size_t bytes) {
  std::shared_ptr<Memory>& held = pieces_[static_cast<size_t>(piece)];
  if (held && held->bytes() >= bytes) return held->data();
  auto larger = comm.context().backend->allocate(bytes_of(bytes));
  if (!larger) return larger.status().with_context("scratch memory of a communicator");
  if (held) comm.channel().retain(held);
  held = *std::move(larger);
  return held->data();
}

Result<const void*> Scratch::ones(Comm& comm, DType type, size_t count) {
  auto memory = take(comm, ScratchPiece::ones, count * size_of(type));
  if (!memory) return memory.status();
  if (ones_type_ != type || ones_ < count) {
    Backend& backend = *comm.context().backend;
    const Status written = type == DType::f32   ? write_all(backend, *memory, count, 1.0F)
                           : type == DType::f64 ? write_all(backend, *memory, count, 1.0)
                                                : write_all(backend, *memory, count, uint16_t{0x3f80});  // 1 as a bf16
    if (!written) return written;
    ones_type_ = type;
    ones_ = count;
  }
  return static_cast<const void*>(*memory);
}

}  // namespace megadp
