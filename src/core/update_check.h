// SPDX-License-Identifier: Apache-2.0
// A debug step of the caller's update: behind each piece come copies of its two halves, from before it was updated. A rule that goes
// element by element, which may be cut anywhere, makes of them what it has made of the whole.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/optimizer.h"

namespace megadp {

class UpdateCheck {
 public:
  // What the caller has been given before has been done, also for compare(). names: of what is updated, the master first.
  static Result<std::unique_ptr<UpdateCheck>> begin(Backend& backend, const UpdatePiece& piece, std::vector<std::string> names);
  // The next half; nullptr: there was none left.
  const UpdatePiece* next() noexcept { return handed_out_ < 2 ? &halves_[handed_out_++] : nullptr; }
  // Code::invalid: they differ.
  Status compare() const;

 private:
  UpdateCheck(Backend& backend, const UpdatePiece& piece, std::vector<std::string> names)
      : backend_(backend), piece_(piece), names_(std::move(names)) {}
  UpdatePiece half(uint64_t begin, uint64_t end) const;
  // Of the piece, or of its copy.
  const float* array(size_t number) const;
  float* copy(size_t number) const { return static_cast<float*>(memory_->data()) + number * piece_.count; }

  Backend& backend_;
  const UpdatePiece piece_;
  const std::vector<std::string> names_;
  std::unique_ptr<Memory> memory_;  // what is updated, one array after the other, and the gradient
  UpdatePiece halves_[2];
  size_t handed_out_ = 0;
};

}  // namespace megadp
