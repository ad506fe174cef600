// SPDX-License-Identifier: Apache-2.0
// Scratch: memory of the backend that the calls on one communicator share, since they come one after another: a few pieces, each as large
// as the largest that was asked for.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "backend/backend.h"

namespace megadp {

class Comm;

// What tensor- and context-parallel calls keep apart.
enum class ScratchPiece : size_t {
  sent,      // what is packed to be sent, and
  received,  // to be unpacked
  input,     // of a layer: gathered over the ranks, or packed; of an attention all that it keeps
  output,    // of a layer, before it is reduced or gathered
  grad,      // the gradient of its output, likewise
  weight,    // packed
  ones
};
constexpr size_t kScratchPieces = 7;

class Scratch {
 public:
  // At least so many bytes, of any content. A smaller piece goes when the work that uses it has passed.
  Result<void*> take(Comm& comm, ScratchPiece piece, size_t bytes);
  static constexpr uint64_t bytes_of(uint64_t asked) { return asked < 64 ? 64 : asked; }
  // `count` ones of that type: f32, bf16 or f64.
  Result<const void*> ones(Comm& comm, DType type, size_t count);

 private:
  std::array<std::shared_ptr<Memory>, kScratchPieces> pieces_;
  DType ones_type_ = DType::f32;
  size_t ones_ = 0;  // how many there are of it
};

}  // namespace megadp
