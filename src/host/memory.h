// SPDX-License-Identifier: Apache-2.0
// Mapping: an owned range of pages. HostMemory: private zeroed memory of the host backend, one mapping each, so that what a rank asks for
// can be counted from outside and goes back to the system at once.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"

namespace megadp::host {

size_t page_bytes() noexcept;

class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // `bytes` is a multiple of the page size, not 0. fd: a memfd of at least that size, mapped shared; -1: private zeroed memory.
  // The sentence of a failure starts with `what`.
  static Result<Mapping> create(size_t bytes, int fd, const char* what);

  std::byte* data() const noexcept { return data_; }
  size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
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
