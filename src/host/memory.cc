// SPDX-License-Identifier: Apache-2.0
// Pages from the system and back to it.
#include "host/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace megadp::host {
namespace {

// How many large mappings of this process have each colour.
std::atomic<uint32_t> coloured[kColours];

// One that as few as possible have. Two threads that look at the same time do not get the same.
size_t take_colour() noexcept {
  for (uint32_t allowed = 0;; ++allowed) {
    for (size_t colour = 0; colour < kColours; ++colour) {
      uint32_t users = allowed;
      if (coloured[colour].compare_exchange_strong(users, allowed + 1, std::memory_order_relaxed)) return colour;
    }
  }
}

void give_colour(size_t colour) noexcept {
  coloured[colour].fetch_sub(1, std::memory_order_relaxed);
}

// Maps at an address of the colour: inside a range of address space that holds one for certain, the rest of which is given back. MAP_FAILED
// where so much address space is not to be had.
void* map_coloured(size_t colour, size_t bytes, int flags, int fd) noexcept {
  constexpr size_t period = kColours * kColourBytes;
  if (bytes > SIZE_MAX - period) return MAP_FAILED;
  void* const reserved = mmap(nullptr, bytes + period, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t at = begin + (colour * kColourBytes - begin) % period;
  void* const data = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    munmap(reserved, bytes + period);
    return MAP_FAILED;
  }
  if (at > begin) munmap(reserved, at - begin);
  munmap(reinterpret_cast<void*>(at + bytes), begin + period - at);
  return data;
}

// A large mapping is coloured unless there is too little address space, or an error of its own, which the plain call then meets again.
void* map(size_t bytes, int flags, int fd, bool* has_colour) noexcept {
  *has_colour = bytes >= kLargeMapping;
  if (*has_colour) {
    const size_t colour = take_colour();
    void* const data = map_coloured(colour, bytes, flags, fd);
    if (data != MAP_FAILED) return data;
    give_colour(colour);
    *has_colour = false;
  }
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
}

// The limits of this process that too little address space may come from, as the end of a sentence.
std::string address_space_limits() {
  constexpr struct {
    decltype(RLIMIT_AS) number;
    const char *name, *option;
  } limits[] = {{RLIMIT_AS, "RLIMIT_AS", "-v"}, {RLIMIT_DATA, "RLIMIT_DATA", "-d"}};
  std::string out;
  for (const auto& limit : limits) {
    rlimit value{};
    if (getrlimit(limit.number, &value) != 0 || value.rlim_cur == RLIM_INFINITY) continue;
    out += text("; this process may have ", value.rlim_cur, " bytes of memory (", limit.name, "; ulimit ", limit.option, " raises it)");
  }
  return out;
}

}  // namespace

size_t page_bytes() noexcept {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(coloured_, other.coloured_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ == nullptr) return;
  munmap(data_, bytes_);
  if (coloured_) give_colour(colour_of(reinterpret_cast<uintptr_t>(data_)));
}

Result<Mapping> Mapping::create(size_t bytes, int fd, const char* what) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  bool has_colour = false;
  void* const data = map(bytes, flags, fd, &has_colour);
  if (data == MAP_FAILED) {
    const int error = errno;
    Status status = system_error(text(what, ": cannot map ", bytes, " bytes"), error);
    return error == ENOMEM ? Status(Code::memory, status.text() + address_space_limits()) : status;
  }
  // Fewer page faults and fewer translations; never more memory than was asked for, since a large page must fit inside the mapping. Only a
  // wish: where the system does not offer large pages (for shared memory it mostly does not), small ones do.
  madvise(data, bytes, MADV_HUGEPAGE);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  mapping.coloured_ = has_colour;
  return mapping;
}

Status Mapping::touch(const char* what) {
  if (madvise(data_, bytes_, MADV_POPULATE_WRITE) == 0) return {};
  const int error = errno;
  if (error == EINVAL) {  // an older kernel: one store per page does the same
    for (size_t at = 0; at < bytes_; at += page_bytes()) *reinterpret_cast<volatile char*>(data_ + at) = 0;
    return {};
  }
  return {Code::memory, text(what, ": cannot take ", bytes_, " bytes of memory from the system: ", std::strerror(error))};
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
    if (*whole >= kLargeMapping) {  // so that what is left afterwards does not count it
      if (Status touched = mapping.touch("allocate"); !touched) return touched;
    }
  }
  return std::unique_ptr<Memory>(new HostMemory(std::move(mapping), bytes));
}

}  // namespace megadp::host
