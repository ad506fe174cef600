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
  ones_f32,
  ones_bf16,
  ones_f64
};
constexpr size_t kScratchPieces = 9;

constexpr ScratchPiece ones_of(DType type) {
  return type == DType::f32 ? ScratchPiece::ones_f32 : type == DType::f64 ? ScratchPiece::ones_f64 : ScratchPiece::ones_bf16;
}

class Scratch {
 public:
  // At least so many bytes, of any content. A smaller piece goes when the work that uses it has passed.
  Result<void*> take(Comm& comm, ScratchPiece piece, size_t bytes);
  static constexpr uint64_t bytes_of(uint64_t asked) { return asked < 64 ? 64 : asked; }
  // `count` ones of that type: f32, bf16 or f64. Written before anybody uses them, and never again: on a device products that read them may
  // still be queued on any of the caller's streams.
  Result<const void*> ones(Comm& comm, DType type, size_t count);

 private:
  template <class Fill>
  Result<void*> take(Comm& comm, ScratchPiece piece, size_t bytes, const Fill& fill);
  std::array<std::shared_ptr<Memory>, kScratchPieces> pieces_;
};

}  // namespace megadp
