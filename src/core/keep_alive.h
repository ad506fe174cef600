// SPDX-License-Identifier: Apache-2.0
// KeepAlive: the memory that an object's work on a stream uses. When the object is destroyed the stream takes it over, whether or not there
// is work left: a call that failed half-way may have submitted some. Made with the object, because a destructor must not have to allocate.
// It holds memory only, so that a stream cannot become the last owner of the communicator that owns it.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/group.h"

namespace megadp {

class KeepAlive {
 public:
  Window* keep(std::unique_ptr<Window> window) { return windows_.emplace_back(std::move(window)).get(); }
  Memory* keep(std::unique_ptr<Memory> memory) { return memories_.emplace_back(std::move(memory)).get(); }

 private:
  std::vector<std::unique_ptr<Window>> windows_;
  std::vector<std::unique_ptr<Memory>> memories_;
};

}  // namespace megadp
