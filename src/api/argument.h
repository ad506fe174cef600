// SPDX-License-Identifier: Apache-2.0
// Argument: what a failure calls an argument, or a field of one. No text is built before there is a failure.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

namespace megadp {

// Borrows what it is made of: good as the parameter of a function, not to be kept.
class Argument {
 public:
  Argument(const char* name) noexcept : name_(name) {}
  Argument(const std::string& name) noexcept : name_(name) {}
  Argument(const Argument& of, std::string_view field) noexcept : of_(&of), name_(field) {}

 private:
  friend std::ostream& operator<<(std::ostream& out, const Argument& argument) {
    if (argument.of_ != nullptr) out << *argument.of_;
    return out << argument.name_;
  }

  const Argument* of_ = nullptr;
  std::string_view name_;
};

}  // namespace megadp
