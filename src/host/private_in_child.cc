// SPDX-License-Identifier: Apache-2.0
#include "host/private_in_child.h"

#include <sys/mman.h>

#include <utility>

namespace megadp::host {

PrivateInChild::PrivateInChild(void* data, size_t bytes, Fd fd)
    : data_(data),
      bytes_(bytes),
      fd_(std::move(fd)),
      in_child_([](void* of) noexcept { static_cast<PrivateInChild*>(of)->make_private(); }, this) {}

// Once: a child of that child has what it has written. Where that is not possible a store ends the child, rather than reach its parent.
void PrivateInChild::make_private() noexcept {
  if (data_ == nullptr) return;
  if (::mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd_.get(), 0) == MAP_FAILED) ::munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace megadp::host
