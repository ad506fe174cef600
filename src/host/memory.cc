// SPDX-License-Identifier: Apache-2.0
// Pages from the system and back to it.
#include "host/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace megadp::host {

size_t page_bytes() noexcept {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<Mapping> Mapping::create(size_t bytes, int fd, const char* what) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    Status status = system_error(text(what, ": cannot map ", bytes, " bytes"), error);
    return error == ENOMEM ? Status(Code::memory, status.text()) : status;
  }
  // Fewer page faults and fewer translations; never more memory than was asked for, since a large page must fit inside the mapping. Only a
  // wish: where the system does not offer large pages (for shared memory it mostly does not), small ones do.
  madvise(data, bytes, MADV_HUGEPAGE);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  return mapping;
}

Result<size_t> whole_pages(size_t bytes, const char* what) {
  const size_t page = page_bytes();
  if (bytes > static_cast<size_t>(PTRDIFF_MAX) - page)
    return Status(Code::memory, text(what, ": ", bytes, " bytes are more than any memory"));
  return (bytes + page - 1) / page * page;
}

Result<std::unique_ptr<Memory>> HostMemory::create(size_t bytes) {
  Result<size_t> whole = whole_pages(bytes, "allocate");
  if (!whole.ok()) return whole.status();
  Mapping mapping;
  if (*whole > 0) {
    Result<Mapping> mapped = Mapping::create(*whole, -1, "allocate");
    if (!mapped.ok()) return mapped.status();
    mapping = std::move(*mapped);
  }
  return std::unique_ptr<Memory>(new HostMemory(std::move(mapping), bytes));
}

}  // namespace megadp::host
