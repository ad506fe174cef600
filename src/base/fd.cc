// SPDX-License-Identifier: Apache-2.0
#include "base/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/text.h"

namespace megadp {

Fd::Fd(int fd) noexcept : fd_(fd) {
  if (fd < 0 || fd > STDERR_FILENO) return;
  fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Result<Fd> duplicate(const Fd& fd) {
  Fd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!copy.valid()) return system_error(text("duplicating descriptor ", fd.get()), errno);
  return copy;
}

Status check_descriptors(size_t count) {
  std::vector<Fd> tried;
  for (size_t i = 0; i < count; ++i) {
    Fd fd(i == 0 ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : ::fcntl(tried.front().get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    const int error = errno;
    if (!fd.valid() && (error == EMFILE || error == EINVAL)) {
      return {Code::system, text("this process can open ", i, " descriptors more, and ", count, " are needed; ", ::sysconf(_SC_OPEN_MAX),
                                 " are allowed (ulimit -n)")};
    }
    if (!fd.valid()) return system_error("opening /dev/null", error);
    tried.push_back(std::move(fd));
  }
  return {};
}

void occupy_standard_descriptors() noexcept {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd >= 0) ::close(fd);
}

}  // namespace megadp
