// SPDX-License-Identifier: Apache-2.0
// Making memory that all ranks of a host see, in steps after each of which all ranks know whether all succeeded.
#include "host/parts.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace megadp::host {
namespace {

// Takes every page from the system, zeroed. Otherwise too little memory would show as a fault at some later store.
Status touch_pages(const Mapping& mapping, const char* what) {
  if (madvise(mapping.data(), mapping.bytes(), MADV_POPULATE_WRITE) == 0) return {};
  const int error = errno;
  if (error == EINVAL) {  // an older kernel: one store per page does the same
    for (size_t at = 0; at < mapping.bytes(); at += page_bytes()) *reinterpret_cast<volatile char*>(mapping.data() + at) = 0;
    return {};
  }
  return {Code::memory, text(what, ": cannot take ", mapping.bytes(), " bytes of shared memory from the system: ", std::strerror(error))};
}

Result<Mapping> create_own(size_t bytes, const char* what, bool touch, Fd* out_fd) {
  Fd fd(memfd_create("megadp", MFD_CLOEXEC));
  if (!fd.valid()) return system_error(text(what, ": memfd_create"), errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return system_error(text(what, ": cannot make a memfd of ", bytes, " bytes"), errno);
  Result<Mapping> mapping = Mapping::create(bytes, fd.get(), what);
  if (!mapping.ok()) return mapping.status();
  if (touch) {
    Status touched = touch_pages(*mapping, what);
    if (!touched.ok()) return touched;
  }
  *out_fd = std::move(fd);
  return mapping;
}

// A rank that is alone needs no memory that others can map.
Result<Mapping> create_part(size_t bytes, bool alone, const char* what, bool touch, Fd* out_fd) {
  Result<size_t> whole = whole_pages(bytes, what);
  if (!whole.ok()) return whole.status();
  if (*whole == 0) return invalid(what, ": 0 bytes asked for; at least 1 is needed");
  return alone ? Mapping::create(*whole, -1, what) : create_own(*whole, what, touch, out_fd);
}

}  // namespace

Result<std::shared_ptr<Parts>> Parts::create(World& world, const std::vector<int>& members, int rank, const Subject& what, bool touch) {
  std::shared_ptr<Parts> parts(new Parts);
  parts->rank_ = rank;
  parts->bytes_ = what.bytes;
  parts->parts_.resize(members.size());

  Fd fd;
  Result<Mapping> made = create_part(what.bytes, members.size() == 1, what.kind, touch, &fd);
  if (members.size() > 1) {
    Status agreed = agree(world, members, what, made.status());
    if (!agreed.ok()) return agreed;
  }
  if (!made.ok()) return made.status();
  const size_t whole = made->bytes();
  parts->parts_[static_cast<size_t>(rank)] = std::move(*made);
  if (members.size() == 1) return parts;

  Result<std::vector<Fd>> fds = world.share(members, what.kind, fd);
  // A failure of this rank alone is for the others to know too; one that all know ends the world, or is agreed on once more.
  Status mapped = fds.ok() ? Status() : fds.status().with_context(what.kind);
  for (size_t i = 0; i < members.size() && mapped.ok(); ++i) {
    if (i == static_cast<size_t>(rank)) continue;
    Result<Mapping> mapping = Mapping::create(whole, (*fds)[i].get(), what.kind);
    if (mapping.ok()) {
      parts->parts_[i] = std::move(*mapping);
    } else {
      mapped = mapping.status();
    }
  }
  Status agreed = agree(world, members, what, mapped);
  if (!agreed.ok()) return agreed;
  return parts;
}

}  // namespace megadp::host
