// SPDX-License-Identifier: Apache-2.0
// Mapping: an owned range of pages. HostMemory: private zeroed memory of the host backend, one mapping each, so that what a rank asks for
// can be counted from outside and goes back to the system at once.
//
// Where a mapping lies matters: a step walks through five arrays or more side by side, and some processors (AMD's, since Zen) tell lines of
// their first cache apart by a hash of the address bits 12 to 27. Arrays whose distance is a multiple of 2^28 bytes then evict each other,
// at a sixth of the speed; so do, for part of their way, arrays whose distance has the wrong lower bits. So every large mapping begins at a
// multiple of 2 MiB and has a colour, address / 2 MiB modulo 128, that no other large mapping of this process has, as long as there are no
// more than 128 of them. A colour follows from the address alone, so no address space has to be held for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"

namespace megadp::host {

size_t page_bytes() noexcept;

constexpr size_t kColourBytes = size_t{2} << 20;  // as large pages are: a large mapping has them from its first byte on
constexpr size_t kColours = 128;
constexpr size_t kLargeMapping = kColourBytes;  // from this size on a mapping has a colour
constexpr size_t colour_of(uintptr_t address) noexcept {
  return address / kColourBytes % kColours;
}

class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // `bytes` is a multiple of the page size, not 0. fd: a memfd of at least that size, mapped shared; -1: private zeroed memory.
  // The sentence of a failure starts with `what`.
  static Result<Mapping> create(size_t bytes, int fd, const char* what);

  // Takes every page from the system now, zeroed. Otherwise too little memory would show as a fault at some later store, and what was
  // promised to one could be promised to another.
  Status touch(const char* what);

  std::byte* data() const noexcept { return data_; }
  size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool coloured_ = false;
};

// A number of bytes rounded up to whole pages; Code::memory when that is more than any memory.
Result<size_t> whole_pages(size_t bytes, const char* what);

class HostMemory final : public Memory {
 public:
  static Result<std::unique_ptr<Memory>> create(size_t bytes);
  void* data() noexcept override { return mapping_.data(); }  // NULL when bytes() is 0
  size_t bytes() const noexcept override { return bytes_; }

 private:
  HostMemory(Mapping mapping, size_t bytes) noexcept : mapping_(std::move(mapping)), bytes_(bytes) {}

  Mapping mapping_;
  size_t bytes_;
};

// Some bytes that are not worth pages of their own.
class HeapMemory final : public Memory {
 public:
  explicit HeapMemory(size_t bytes) : data_((bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t)), bytes_(bytes) {}
  void* data() noexcept override { return data_.data(); }
  size_t bytes() const noexcept override { return bytes_; }

 private:
  std::vector<std::max_align_t> data_;
  const size_t bytes_;
};

}  // namespace megadp::host
