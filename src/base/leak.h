// SPDX-License-Identifier: Apache-2.0
// leak: a reference that is never given up. It takes no memory, so that it works where there is none, and in a child of fork(), in which
// an allocator that was not made ready for that may wait for ever.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace megadp {

template <class T>
void leak(std::shared_ptr<T> object) noexcept {
  alignas(std::shared_ptr<T>) std::byte room[sizeof(std::shared_ptr<T>)];
  new (room) std::shared_ptr<T>(std::move(object));
}

}  // namespace megadp
