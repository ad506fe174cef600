// SPDX-License-Identifier: Apache-2.0
// HostWindow: a group's handle on memory that all its ranks see. Submitted collectives keep the memory alive, not the handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "backend/group.h"
#include "host/shared_memory.h"

namespace megadp::host {

class HostWindow final : public Window {
 public:
  // owner: tells windows of different groups apart; number: within the group, from 1.
  HostWindow(std::shared_ptr<const SharedMemory> parts, const void* owner, uint64_t number) noexcept
      : parts_(std::move(parts)), owner_(owner), number_(number) {}

  std::byte* data() noexcept override { return parts_->own(); }
  size_t bytes() const noexcept override { return parts_->bytes(); }

  const std::shared_ptr<const SharedMemory>& parts() const noexcept { return parts_; }
  const void* owner() const noexcept { return owner_; }
  uint64_t number() const noexcept { return number_; }

 private:
  const std::shared_ptr<const SharedMemory> parts_;
  const void* const owner_;
  const uint64_t number_;
};

}  // namespace megadp::host
