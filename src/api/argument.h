// SPDX-License-Identifier: Apache-2.0
// Argument: what a failure calls an argument, a field of one, or an element. No text is built before there is a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

namespace megadp {

// Borrows what it is made of, which must be there as long as it is.
class Argument {
 public:
  Argument(const char* name) noexcept : name_(name) {}
  Argument(const std::string& name) noexcept : name_(name) {}
  Argument(const Argument& of, const char* field) noexcept : name_(field), of_(&of) {}
  Argument(const Argument& of, size_t index) noexcept : of_(&of), index_(index) {}

 private:
  friend std::ostream& operator<<(std::ostream& out, const Argument& argument) {
    if (argument.of_ != nullptr) out << *argument.of_;
    if (argument.index_ != kNoIndex) return out << '[' << argument.index_ << ']';
    return out << argument.name_;
  }

  static constexpr size_t kNoIndex = SIZE_MAX;
  std::string_view name_;
  const Argument* of_ = nullptr;
  size_t index_ = kNoIndex;
};

}  // namespace megadp
