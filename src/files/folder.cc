// SPDX-License-Identifier: Apache-2.0
#include "files/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

namespace megadp {
namespace {

constexpr mode_t kFolderMode = 0777, kFileMode = 0666;  // less what the process's umask says
constexpr size_t kMostAtOnce = size_t{1} << 30;         // of one system call

template <class Call>
auto again_if_interrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// To write beyond it would end the process by SIGXFSZ, whose disposition is the host program's.
uint64_t longest_file() noexcept {
  rlimit files{};
  return ::getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY ? files.rlim_cur : UINT64_MAX;
}

}  // namespace

Status File::write(const void* data, size_t bytes, uint64_t at) {
  const auto* from = static_cast<const char*>(data);
  if (const uint64_t longest = longest_file(); at > longest || bytes > longest - at) {
    return system_error(text("writing ", path_, " beyond byte ", longest, ", this process's limit (RLIMIT_FSIZE; ulimit -f unlimited)"),
                        EFBIG);
  }
  while (bytes > 0) {
    const size_t count = std::min(bytes, kMostAtOnce);
    const ssize_t written = again_if_interrupted([&] { return ::pwrite(fd_.get(), from, count, static_cast<off_t>(at)); });
    if (written < 0) return system_error(text("writing ", path_), errno);
    if (written == 0) return Status(Code::system, text("writing ", path_, ": nothing more is taken after byte ", at));
    from += written;
    at += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
  return {};
}

Status File::read(void* data, size_t bytes, uint64_t at) const {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const size_t count = std::min(bytes, kMostAtOnce);
    const ssize_t got = again_if_interrupted([&] { return ::pread(fd_.get(), to, count, static_cast<off_t>(at)); });
    if (got < 0) return system_error(text("reading ", path_), errno);
    if (got == 0) return Status(Code::corrupt, text(path_, " ends at byte ", at, ", and ", bytes, " more are needed"));
    to += got;
    at += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

Result<uint64_t> File::bytes() const {
  struct stat about;
  if (::fstat(fd_.get(), &about) != 0) return system_error(text("looking at ", path_), errno);
  return static_cast<uint64_t>(about.st_size);
}

void File::start_writeback(uint64_t begin, uint64_t end) noexcept {
  (void)::sync_file_range(fd_.get(), static_cast<off_t>(begin), static_cast<off_t>(end - begin), SYNC_FILE_RANGE_WRITE);
}

Status File::sync() {
  if (again_if_interrupted([&] { return ::fsync(fd_.get()); }) == 0) return {};
  return system_error(text("writing ", path_, " to its device"), errno);
}

Result<Folder> Folder::open_at(int in, const std::string& name, std::string path, Links links) {
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (links == Links::refused ? O_NOFOLLOW : 0);
  Fd fd(again_if_interrupted([&] { return ::openat(in, name.c_str(), flags); }));
  if (!fd.valid()) return system_error(text("opening the folder ", path), errno);
  return Folder(std::move(fd), std::move(path));
}

Result<Folder> Folder::open(const std::string& path) {
  return open_at(AT_FDCWD, path, path, Links::followed);
}

Result<Folder> Folder::make(const std::string& path) {
  Status refused;  // the first, of a folder above
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), kFolderMode) == 0) {
      const size_t slash = part.rfind('/');
      auto above = open(slash == std::string::npos ? "." : slash == 0 ? "/" : part.substr(0, slash));
      if (!above) return above.status();
      if (Status synced = above->sync(); !synced) return synced;
    } else if (errno != EEXIST) {
      const int error = errno;
      Status here = system_error(text("making the folder ", part), error);
      if (end == std::string::npos) return error == ENOENT && !refused.ok() ? refused : here;
      if (refused.ok()) refused = std::move(here);
    }
    if (end == std::string::npos) return open(path);
  }
}

Result<Folder> Folder::open_folder(const std::string& name, Links links) const {
  return open_at(fd_.get(), name, path_of(name), links);
}

Result<std::optional<Folder>> Folder::make_folder(const std::string& name) const {
  std::string path = path_of(name);  // before: without memory there is no folder that nobody knows of
  if (::mkdirat(fd_.get(), name.c_str(), kFolderMode) != 0) return system_error(text("making the folder ", path), errno);
  auto opened = open_at(fd_.get(), name, std::move(path), Links::refused);
  if (!opened && !has(name)) return std::optional<Folder>();
  if (!opened) return opened.status();
  return std::optional<Folder>(*std::move(opened));
}

Result<File> Folder::create_file(const std::string& name) const {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Fd fd(again_if_interrupted([&] { return ::openat(fd_.get(), name.c_str(), kFlags, kFileMode); }));
  if (!fd.valid()) return system_error(text("making ", path_of(name)), errno);
  return File(std::move(fd), path_of(name));
}

Result<File> Folder::open_file(const std::string& name) const {
  // Without waiting: what is no ordinary file, such as a pipe, may keep an open back for ever.
  Fd fd(again_if_interrupted([&] { return ::openat(fd_.get(), name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  struct stat about;
  if (!fd.valid() || ::fstat(fd.get(), &about) != 0) return system_error(text("opening ", path_of(name)), errno);
  if (!S_ISREG(about.st_mode)) return Status(Code::corrupt, text(path_of(name), " is not an ordinary file"));
  return File(std::move(fd), path_of(name));
}

bool Folder::has(const std::string& name) const noexcept {
  const Entry found = entry(name);
  return found == Entry::folder || found == Entry::other;
}

Folder::Entry Folder::entry(const std::string& name) const noexcept {
  struct stat about;
  if (::fstatat(fd_.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? Entry::none : Entry::unknown;
  if (::fstatat(fd_.get(), name.c_str(), &about, 0) != 0) return Entry::unknown;  // a link that leads nowhere
  return S_ISDIR(about.st_mode) ? Entry::folder : Entry::other;
}

Result<std::vector<std::string>> Folder::list() const {
  // A descriptor of its own: its position is where the list is read.
  Fd fd(again_if_interrupted([&] { return ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  const auto failed = [this] { return system_error(text("listing ", path_), errno); };
  if (!fd.valid()) return failed();
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(fd.get()), &::closedir);
  if (!entries) return failed();
  (void)fd.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return failed();
  return names;
}

Status Folder::sync() const {
  if (again_if_interrupted([&] { return ::fsync(fd_.get()); }) == 0) return {};
  if (errno == EINVAL) return {};  // a file system that has nothing to write for a folder
  return system_error(text("writing the folder ", path_, " to its device"), errno);
}

Result<bool> Folder::rename_new(const std::string& from, const std::string& to) const {
  if (::renameat2(fd_.get(), from.c_str(), fd_.get(), to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) {  // the flag is not known; a plain one replaces no folder that has anything in it, but a file
    if (has(to)) return false;
    if (::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) == 0) return true;
  }
  if (errno == EEXIST || errno == ENOTEMPTY) return false;
  return system_error(text("renaming ", path_of(from), " to ", to), errno);
}

Status Folder::remove(const std::string& name) const {
  if (::unlinkat(fd_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return system_error(text("removing ", path_of(name)), errno);
}

Status Folder::remove_folder(const std::string& name) const {
  if (::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) == 0) return {};  // empty; to list it takes memory
  if (errno == ENOTDIR) return remove(name);
  auto folder = open_folder(name, Links::refused);
  if (!folder) return folder.status();
  auto names = folder->list();
  if (!names) return names.status();
  for (const std::string& each : *names) {
    if (Status removed = folder->remove(each); !removed) return removed;
  }
  if (::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  return system_error(text("removing the folder ", path_of(name)), errno);
}

Folder::Lock Folder::lock() const noexcept {
  if (again_if_interrupted([&] { return ::flock(fd_.get(), LOCK_EX | LOCK_NB); }) == 0) return Lock::mine;
  return errno == EWOULDBLOCK ? Lock::of_another : Lock::unknown;
}

bool Folder::is_named(const Folder& in, const std::string& name) const noexcept {
  struct stat mine, named;
  return ::fstat(fd_.get(), &mine) == 0 && ::fstatat(in.fd_.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

std::string relative_to(const std::string& path) {
  if (!path.empty() && path.front() == '/') return "";
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  return text("; the path is relative, here to ", error ? "a folder that is gone" : here);
}

}  // namespace megadp
