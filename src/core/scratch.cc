// SPDX-License-Identifier: Apache-2.0
#include "core/scratch.h"

#include <algorithm>
#include <vector>

#include "core/comm.h"

namespace megadp {

Result<void*> Scratch::take(Comm& comm, ScratchPiece piece, size_t bytes) {
  std::shared_ptr<Memory>& held = pieces_[static_cast<size_t>(piece)];
  if (held && held->bytes() >= bytes) return held->data();
  auto larger = comm.context().backend->allocate(std::max<size_t>(bytes, 64));
  if (!larger) return larger.status().with_context("scratch memory for tensor parallelism");
  if (held) comm.channel().retain(held);
  held = *std::move(larger);
  return held->data();
}

Result<const void*> Scratch::ones(Comm& comm, DType type, size_t count) {
  auto memory = take(comm, ScratchPiece::ones, count * size_of(type));
  if (!memory) return memory.status();
  if (ones_type_ != type || ones_ < count) {
    Status written;
    if (type == DType::f32) {
      const std::vector<float> all(count, 1.0F);
      written = comm.context().backend->write(*memory, all.data(), count * sizeof(float));
    } else {
      const std::vector<uint16_t> all(count, 0x3f80);  // 1 as a bf16
      written = comm.context().backend->write(*memory, all.data(), count * sizeof(uint16_t));
    }
    if (!written) return written;
    ones_type_ = type;
    ones_ = count;
  }
  return static_cast<const void*>(*memory);
}

}  // namespace megadp
