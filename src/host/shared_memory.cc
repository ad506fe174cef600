// SPDX-License-Identifier: Apache-2.0
// Making memory that all ranks of a node see, in steps after each of which all ranks know whether all succeeded.
#include "host/shared_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace megadp::host {
namespace {

// To make shared memory longer than files may be would end the process by SIGXFSZ, whose disposition is the host program's.
Status check_file_size(size_t bytes, const char* what) {
  rlimit files{};
  if (getrlimit(RLIMIT_FSIZE, &files) != 0 || files.rlim_cur == RLIM_INFINITY || bytes <= files.rlim_cur) return {};
  return {Code::memory,
          text(what, ": ", bytes, " bytes of shared memory are wanted, which count as a file, and this process may make files of ",
               files.rlim_cur, " bytes (RLIMIT_FSIZE); raise that limit: ulimit -f unlimited")};
}

Result<Mapping> create_own(size_t bytes, const char* what, Fd* out_fd) {
  if (Status allowed = check_file_size(bytes, what); !allowed) return allowed;
  Fd fd(memfd_create("megadp", MFD_CLOEXEC));
  if (!fd.valid()) return system_error(text(what, ": memfd_create"), errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return system_error(text(what, ": cannot make a memfd of ", bytes, " bytes"), errno);
  Result<Mapping> mapping = Mapping::create(bytes, fd.get(), what);
  *out_fd = std::move(fd);
  return mapping;
}

// A rank that is alone needs no memory that others can map.
Result<Mapping> create_part(size_t bytes, bool alone, const char* what, bool touch, Fd* out_fd) {
  Result<size_t> whole = whole_pages(bytes, what);
  if (!whole.ok()) return whole.status();
  if (*whole == 0) return invalid(what, ": 0 bytes asked for; at least 1 is needed");
  Result<Mapping> mapping = alone ? Mapping::create(*whole, -1, what) : create_own(*whole, what, out_fd);
  if (!mapping.ok() || !touch) return mapping;
  Status touched = mapping->touch(what);
  return touched.ok() ? std::move(mapping) : touched;
}

}  // namespace

Result<std::shared_ptr<SharedMemory>> SharedMemory::create(World& world, const std::vector<int>& members, int rank, const Subject& what,
                                                           bool touch) {
  std::shared_ptr<SharedMemory> parts(new SharedMemory);
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
  if (mapped.ok()) {
    mapped = attempt([&] {
      parts->own_in_child_.emplace(parts->own(), whole, std::move(fd));
      return Status();
    });
  }
  Status agreed = agree(world, members, what, mapped);
  if (!agreed.ok()) return agreed;
  return parts;
}

}  // namespace megadp::host
